"""``logs``, ``events`` and ``wait``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli import options, output, session

if TYPE_CHECKING:
    from trainmaster.wire.jobs import EventView

_PANEL = "Jobs"
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")]


def register(root: typer.Typer) -> None:
    root.command("logs", rich_help_panel=_PANEL)(show_logs)
    root.command("events", rich_help_panel=_PANEL)(show_events)
    root.command("wait", rich_help_panel=_PANEL)(wait)


def show_logs(
    job: options.Job,
    follow: Follow = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only this rank.")] = None,
    role: Annotated[str | None, typer.Option("--role", "-r", help="Only this role.")] = None,
    index: Annotated[int | None, typer.Option("--index", "-i", min=0, help="Only this replica of each role.")] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="That launch; else the newest.")] = None,
    search: Annotated[
        str | None, typer.Option("--search", "-s", help="Only lines with this regular expression.")
    ] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", "-t", min=0, help="Only the last lines of each replica.")
    ] = None,
    timestamps: Annotated[bool, typer.Option("--timestamps", "-T", help="Say when each line was written.")] = False,
    json: options.Json = False,
) -> None:
    """A job's output, all replicas together. With --json: one object per line."""
    from trainmaster.cli.lines import LinePrinter

    printer = LinePrinter(with_times=timestamps)
    with session.client() as client:
        lines = client.stream_logs(
            job,
            follow=follow,
            rank=rank,
            role=role,
            index=index,
            attempt=attempt,
            search=search,
            tail_lines=tail,
        )
        for line in lines:
            if json:
                output.print_json_line(line)
            else:
                printer.print(line)


def show_events(job: options.Job, follow: Follow = False, json: options.Json = False) -> None:
    """What happened to a job, when, and who did it. With --json: one object per line."""
    with session.client() as client:
        events = client.follow_events(job) if follow else client.list_job_events(job)
        for event in events:
            if json:
                output.print_json_line(event)
            else:
                _print_event(event)


def _print_event(event: EventView) -> None:
    from rich.text import Text

    line = Text.assemble(
        (output.local_time(event.at) or "", "dim"),
        "  ",
        (event.kind.ljust(22), "bold"),
        "  ",
        event.actor,
        f"  {event.reason}" if event.reason else "",
    )
    output.answers().print(line, soft_wrap=True)


def wait(
    job: options.Job,
    timeout: Annotated[str | None, typer.Option("--timeout", help="Give up after, such as 90s or 2h.")] = None,
    json: options.Json = False,
) -> None:
    """Wait until a job has ended. Exits 0 if it succeeded, with its exit code or 1 if not, 130 if it was cancelled."""
    from trainmaster.cli.follow import exit_code_of_job, tell_end
    from trainmaster.spec.quantity import parse_duration_s

    try:
        timeout_s = None if timeout is None else parse_duration_s(timeout)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--timeout") from error
    with session.client() as client, output.busy(f"Waiting for {job} to end"):
        detail = client.wait_for_job(job, timeout_s=timeout_s)
    if json:
        output.print_json(detail)
    else:
        tell_end(detail)
    raise typer.Exit(exit_code_of_job(detail))
