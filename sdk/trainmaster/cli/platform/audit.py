"""``audit``: the log of who did what, its export, and its verification."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from trainmaster.audit import verify_entries
from trainmaster.cli.terminal import options, output, session
from trainmaster.errors import LocalFileProblem

audit_app = typer.Typer(help="The log of who did what, for admins.", no_args_is_help=True)

Token = Annotated[str | None, typer.Option("--token", help="Only with this token (its ID).")]
Action = Annotated[str | None, typer.Option("--action", help="Only this operation, such as cancel_job.")]
Object = Annotated[str | None, typer.Option("--object", help="Only about this object (its ID or name).")]
Outcome = Annotated[str | None, typer.Option("--outcome", help="allowed or refused.")]
Since = Annotated[str | None, typer.Option("--since", help="2026-11-01, or 7d for a week ago.")]
Until = Annotated[str | None, typer.Option("--until", help="The same.")]
ProjectFilter = Annotated[
    str | None, typer.Option("--project", "-p", help="Only of this project.", autocompletion=options.complete_project)
]


def register(root: typer.Typer) -> None:
    root.add_typer(audit_app, name="audit", rich_help_panel="Platform")


@audit_app.command("list")
def list_entries(
    user: options.User = None,
    token: Token = None,
    action: Action = None,
    about: Object = None,
    project: ProjectFilter = None,
    outcome: Outcome = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="So many at most.")] = 50,
    json: options.Json = False,
) -> None:
    """List the newest entries: `trainmaster audit list --user ann --outcome refused --since 7d`."""
    with session.client() as client:
        wanted = _filters(user, token, action, about, project, outcome, since, until)
        entries = list(client.list_audit_entries(**wanted, limit=limit))
    if json or session.current().as_json:
        output.print_json(entries)
        return
    output.print_table(
        ("TIME", "USER", "ADDRESS", "ACTION", "OBJECT", "PROJECT", "OUTCOME"),
        [
            (
                output.local_time(entry.at),
                entry.user or None,
                entry.address,
                entry.action if entry.repeats == 1 else f"{entry.action} ({entry.repeats} times)",
                f"{entry.object_kind} {entry.object_id}",
                entry.project,
                entry.outcome if entry.code is None else f"{entry.outcome}: {entry.code}",
            )
            for entry in entries
        ],
        empty="No entries.",
    )


@audit_app.command("export")
def export(
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Default: stdout.")] = None,
    user: options.User = None,
    token: Token = None,
    action: Action = None,
    about: Object = None,
    project: ProjectFilter = None,
    outcome: Outcome = None,
    since: Since = None,
    until: Until = None,
) -> None:
    """Write all entries as JSON lines, in the order of the hash chain."""
    wanted = _filters(user, token, action, about, project, outcome, since, until)
    count = 0
    with session.client() as client:
        lines = (jsonlib.dumps(entry, ensure_ascii=False) for entry in client.export_audit_log(**wanted))
        if file is None:
            for line in lines:
                output.say(line)
            return
        try:
            with file.open("w", encoding="utf-8") as opened:
                for line in lines:
                    opened.write(f"{line}\n")
                    count += 1
        except OSError as error:
            raise LocalFileProblem(f"{file} cannot be written: {error.strerror}; name another file.") from error
    output.note(f"Wrote {output.count(count, 'entry') if count == 1 else f'{count} entries'} to {file}.")


@audit_app.command("verify")
def verify(
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="An export without filters; default: the platform's log.")
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(metavar="POSITION:HASH", help="As an earlier verification printed it: is it still there?"),
    ] = None,
    json: options.Json = False,
) -> None:
    """Say which entry was changed or removed; exit status 1 if there is one."""
    known = None if head is None else _head(head)
    if file is not None:
        found = verify_entries(_entries_in(file), known)
    else:
        with session.client() as client:
            found = verify_entries(client.export_audit_log(), known)
    if json or session.current().as_json:
        output.print_json({name: getattr(found, name) for name in found.__slots__})
    else:
        for mistake in found.mistakes:
            output.say(f"Not intact: {mistake}.")
        if not found.mistakes:
            output.say(f"Intact: {found.entries} entries, of which {found.unchained} are not chained yet.")
        output.say(f"Newest entry, for --head: {found.position}:{found.hash}")
    if found.mistakes:
        raise typer.Exit(1)


def _filters(
    user: str | None,
    token: str | None,
    action: str | None,
    about: str | None,
    project: str | None,
    outcome: str | None,
    since: str | None,
    until: str | None,
) -> dict[str, Any]:
    if outcome not in (None, "allowed", "refused"):
        raise typer.BadParameter(f"{outcome!r} is neither allowed nor refused", param_hint="--outcome")
    now = output.now()
    return {
        "user": user,
        "token": token,
        "action": action,
        "object": about,
        "project": project,
        "outcome": outcome,
        "since": options.moment(since, now, "--since"),
        "until": options.moment(until, now, "--until"),
    }


def _head(text: str) -> tuple[int, str]:
    position, _, value = text.partition(":")
    if not position.isdigit() or len(value) != 64:
        raise typer.BadParameter(f"{text!r} is not POSITION:HASH, as `audit verify` prints it", param_hint="--head")
    return int(position), value


def _entries_in(file: Path) -> Iterator[dict[str, Any]]:
    try:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    entry = jsonlib.loads(line)
                except ValueError:
                    entry = None
                if not isinstance(entry, dict):
                    raise LocalFileProblem(f"{file}, line {number}: not an entry; export the log again.")
                yield entry
    except (OSError, UnicodeDecodeError) as error:
        raise LocalFileProblem(f"{file} cannot be read: {error}; name an export of the audit log.") from error
