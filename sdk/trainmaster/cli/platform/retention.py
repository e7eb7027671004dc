"""``retention``: for how long projects keep data of ended jobs; ``pin`` and ``unpin`` exempt jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.terminal import options, output, session
from trainmaster.sizes import format_size

if TYPE_CHECKING:
    from trainmaster.wire.jobs import JobDetail
    from trainmaster.wire.retention import RetentionPolicyView

app = typer.Typer(help="For how long a project keeps data of ended jobs; by default for ever.", no_args_is_help=True)
Assignments = Annotated[
    list[str] | None,
    typer.Argument(metavar="KIND=AGE…", help="Such as outputs=30d; `never` keeps them.", show_default=False),
]


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="retention", rich_help_panel="Platform")
    for command in (pin, unpin):
        root.command(rich_help_panel="Jobs")(command)


@app.command()
def show(project: options.ProjectName, json: options.Json = False) -> None:
    """Show a project's policy."""
    with session.client() as client:
        _print(client.get_retention_policy(project), as_json=json)


@app.command("set")
def set_retention_policy(project: options.ProjectName, ages: Assignments = None, json: options.Json = False) -> None:
    """Change a project's policy, such as `retention set vision outputs=30d metrics=90d jobs=365d`.

    Kinds: outputs, logs, metrics, events, code, and jobs (everything). `retention preview` shows what would go.
    """
    with session.client() as client:
        _print(client.set_retention_policy(project, _parsed(ages)), as_json=json)


@app.command()
def preview(project: options.ProjectName, ages: Assignments = None, json: options.Json = False) -> None:
    """What the policy, with the given changes, would delete now, and what that frees."""
    with session.client() as client:
        found = client.preview_retention_policy(project, _parsed(ages))
    if json:
        output.print_json(found)
        return
    rows = [
        (
            line.kind,
            output.duration(line.keep_s),
            f"{line.jobs:,}",
            "" if line.bytes is None else ("at least " if line.is_partial else "") + format_size(line.bytes),
            None if line.oldest is None else f"{line.oldest:%Y-%m-%d}",
        )
        for line in found.lines
    ]
    output.print_table(["Kind", "Kept for", "Jobs", "Frees", "Oldest"], rows, empty="Nothing expires.")


def pin(jobs: options.Jobs, json: options.Json = False) -> None:
    """Exempt jobs from retention: their data are kept."""
    with session.client() as client:
        _print_jobs([client.pin_job(job) for job in jobs], as_json=json)


def unpin(jobs: options.Jobs, json: options.Json = False) -> None:
    """Let retention delete the jobs' data again."""
    with session.client() as client:
        _print_jobs([client.unpin_job(job) for job in jobs], as_json=json)


def _parsed(ages: list[str] | None) -> dict[str, str | float | None]:
    found: dict[str, str | float | None] = {}
    for text in ages or ():
        kind, sign, age = text.partition("=")
        if not sign or not age:
            raise typer.BadParameter(f"{text!r}: write KIND=AGE, such as outputs=30d or outputs=never")
        found[kind] = None if age == "never" else age
    return found


def _print(view: RetentionPolicyView, *, as_json: bool) -> None:
    if as_json or session.current().as_json:
        output.print_json(view)
        return
    pairs: list[tuple[str, Any]] = [
        (kind, "for ever" if age_s is None else output.duration(age_s)) for kind, age_s in view.keep.items()
    ]
    output.print_pairs([("Project", view.project), *pairs])


def _print_jobs(jobs: list[JobDetail], *, as_json: bool) -> None:
    if as_json:
        output.print_json(jobs if len(jobs) > 1 else jobs[0])
        return
    for job in jobs:
        output.say(f"{job.name}: pinned by {job.pinned_by}" if job.pinned_by else f"{job.name}: not pinned")
