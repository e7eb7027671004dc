"""``logs``, ``events`` and ``wait``."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.terminal import options, output, session
from trainmaster.cli.terminal.output import without_escapes

if TYPE_CHECKING:
    from trainmaster.wire.jobs import EventView, JobDetail

_PANEL = "Jobs"


def register(root: typer.Typer) -> None:
    root.command("logs", rich_help_panel=_PANEL)(show_logs)
    root.command("events", rich_help_panel=_PANEL)(show_events)
    root.command("wait", rich_help_panel=_PANEL)(wait)


def show_logs(
    job: options.Job,
    follow: options.Follow = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only this rank.")] = None,
    role: options.Role = None,
    index: options.Index = None,
    attempt: options.NewestAttempt = None,
    search: Annotated[
        str | None, typer.Option("--search", "-s", help="Only lines that match this regular expression.")
    ] = None,
    level: Annotated[
        str | None,
        typer.Option("--level", "-l", help="Only lines of at least this level: debug, info, warning, error, critical."),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Only lines since: 10m, 2h, or 2026-11-21T07:00.")
    ] = None,
    until: Annotated[str | None, typer.Option("--until", help="Only lines until this time.")] = None,
    tail: Annotated[
        int | None,
        typer.Option("--tail", "-t", min=0, help="Only the last N lines of each replica; 0 with -f: only new lines."),
    ] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", "-T", help="Show the time of each line.")] = False,
    json: options.Json = False,
) -> None:
    """Show a job's log lines, all replicas together. With --json: one object per line."""
    from trainmaster.cli.jobs.follow import LinePrinter, wait_reasons, why_ended

    is_filtered = any(chosen is not None for chosen in (search, level, since, until))
    with session.client() as client:
        if any(chosen is not None for chosen in (role, index, attempt)):
            _check_filters(client.get_job(job), role=role, index=index, attempt=attempt, follow=follow)
        printer = LinePrinter(with_times=timestamps, why_ended=lambda number: why_ended(client, job, number))
        is_silent = True
        lines = client.stream_logs(
            job,
            follow=follow,
            rank=rank,
            role=role,
            index=index,
            attempt=attempt,
            search=search,
            level=level,
            since=options.moment(since, output.now(), "--since"),
            until=options.moment(until, output.now(), "--until"),
            tail_lines=tail,
        )
        tells_reasons = follow and not json
        with wait_reasons(client, job, output.note) if tells_reasons else nullcontext():
            for line in lines:
                if is_silent and attempt is None and line.attempt > 1 and not json:
                    _tell_earlier(job, line.attempt)
                is_silent = False
                if json:
                    output.print_json_line(line)
                else:
                    printer.print(line)
        if tail == 0 and is_silent and not follow and not json:
            output.note("--tail 0 shows no lines; with -f it shows only new ones.", "dim")
        elif is_silent and not json:
            output.note(_why_silent(client.get_job(job), is_filtered=is_filtered), "dim")


def _tell_earlier(job: str, number: int) -> None:
    earlier = "An earlier attempt is" if number == 2 else f"{number - 1} earlier attempts are"
    output.note(
        f"Attempt {number}. {earlier} not shown here; `trainmaster logs {job} --attempt 1` shows the first.", "dim"
    )


def _check_filters(job: JobDetail, *, role: str | None, index: int | None, attempt: int | None, follow: bool) -> None:
    """Raises ``BadParameter``, which names the existing values. The server checks ranks."""
    from trainmaster.wire.jobs import TERMINAL_STATES

    waits = follow and job.state not in TERMINAL_STATES
    if attempt is not None and attempt > job.attempt_count and not waits:
        has = "no attempt yet" if not job.attempt_count else f"only {output.count(job.attempt_count, 'attempt')}"
        raise typer.BadParameter(f"{job.name} has had {has}", param_hint="--attempt")
    if role is not None and role not in job.roles:
        raise typer.BadParameter(f"{job.name} has no role {role}; it has {', '.join(job.roles)}", param_hint="--role")
    largest = max(job.roles[role] if role is not None else count for count in job.roles.values())
    if index is not None and index >= largest:
        of = role or "its largest role"
        raise typer.BadParameter(
            f"{of} of {job.name} has {output.count(largest, 'replica')}, from 0", param_hint="--index"
        )


def _why_silent(job: JobDetail, *, is_filtered: bool) -> str:
    from trainmaster.wire.jobs import TERMINAL_STATES

    if is_filtered:
        return "No matching lines."
    if job.wait_reason is not None and not job.attempt_count:
        return f"No lines yet; {job.name} is {job.state}: {job.wait_reason.sentence.rstrip('.')}."
    return f"No lines{'' if job.state in TERMINAL_STATES else ' yet'}; the state of {job.name} is {job.state}."


def show_events(job: options.Job, follow: options.Follow = False, json: options.Json = False) -> None:
    """Show a job's events. With --json: one object per line."""
    with session.client() as client:
        events = client.follow_events(job) if follow else client.list_job_events(job)
        last_reason = ""
        for event in events:
            if json:
                output.print_json_line(event)
            else:
                _print_event(event, is_repeated=bool(event.reason) and event.reason == last_reason)
            last_reason = event.reason or last_reason


def _print_event(event: EventView, *, is_repeated: bool) -> None:
    """Print one line. A terminal shows a reason once if a replica, its attempt and its job ended for the same one."""
    from rich.text import Text

    console = output.answers()
    reason = "the same" if is_repeated and console.is_terminal else without_escapes(event.reason)
    line = Text.assemble(
        (output.local_time(event.at) or "", "dim"),
        "  ",
        (event.kind.ljust(22), "bold"),
        "  ",
        event.actor,
        f"  {reason}" if reason else "",
    )
    console.print(line, soft_wrap=True)


def wait(
    job: options.Job,
    timeout: Annotated[str | None, typer.Option("--timeout", help="Maximum time to wait, such as 90s or 2h.")] = None,
    json: options.Json = False,
) -> None:
    """Wait for a job's end. Exits with 0 if it succeeded, its exit code or 1 if it failed, 130 if it was cancelled.

    Says on stderr why the job waits, and goes on waiting even if it can never start on the present nodes; --timeout
    (exit code 124) limits that.
    """
    from trainmaster.cli.jobs.follow import exit_code_of_job, tell_end, wait_reasons

    timeout_s = None if timeout is None else options.seconds_of(timeout, "--timeout")
    with (
        session.client() as client,
        output.busy(f"Waiting for {job} to end") as tell_stage,
        nullcontext() if json else wait_reasons(client, job, tell_stage),
    ):
        detail = client.wait_for_job(job, timeout_s=timeout_s)
    if json:
        output.print_json(detail)
    else:
        tell_end(detail)
    raise typer.Exit(exit_code_of_job(detail))
