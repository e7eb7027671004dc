"""``list``: the jobs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from trainmaster.cli.terminal import options, output, session

if TYPE_CHECKING:
    from trainmaster.client import Client
    from trainmaster.wire.jobs import JobView, WaitReasonView

_PANEL = "Jobs"
_REFRESH_S: Final = 2.0
_ACTIVE: Final = ("queued", "starting", "running", "paused", "cancelling")
_COLUMNS: Final = ("id", "name", "project", "user", "state", "roles", "gpus", "priority", "age", "runtime", "detail")
_DEFAULT_COLUMNS: Final = "id,name,state,roles,gpus,age,runtime,detail"


def register(app: typer.Typer) -> None:
    app.command("list", rich_help_panel=_PANEL)(list_jobs)


def list_jobs(
    states: Annotated[
        list[str] | None,
        typer.Option(
            "--state", "-s", help="Only jobs in this state. Repeatable.", autocompletion=options.complete_state
        ),
    ] = None,
    active: Annotated[bool, typer.Option("--active", "-a", help="Only jobs that have not ended.")] = False,
    labels: Annotated[
        list[str] | None,
        typer.Option(
            "--label", "-l", metavar="KEY=VALUE", help="Only jobs with this label; all must match. Repeatable."
        ),
    ] = None,
    role: Annotated[str | None, typer.Option("--role", help="Only jobs with this role.")] = None,
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="Only jobs of this name (for the number of jobs: --limit).")
    ] = None,
    user: options.User = None,
    study: Annotated[str | None, typer.Option("--study", help="Only jobs of this study's trials (ID or name).")] = None,
    since: Annotated[str | None, typer.Option("--since", help="Submitted since: 2h, 3d, or 2026-11-21T07:00.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="Submitted until.")] = None,
    search: Annotated[
        str | None, typer.Option("--search", help="Text in the name or in a label's value, or an ID.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Maximum number of jobs.")] = 50,
    columns: Annotated[
        str, typer.Option("--columns", help=f"Columns, out of {','.join(_COLUMNS)}.")
    ] = _DEFAULT_COLUMNS,
    project: options.Project = None,
    all_projects: Annotated[bool, typer.Option("--all-projects", "-A", help="Jobs of all projects.")] = False,
    watch: options.Refresh = False,
    json: options.Json = False,
) -> None:
    """List jobs, newest first."""
    chosen = _chosen_columns(columns)
    unknown = sorted({*(states or [])} - {*options.STATES})
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(options.STATES)}", param_hint="--state")
    now = output.now()
    filters: dict[str, Any] = {
        # A study is in one project, which may not be the default one.
        "project": None if all_projects or (study and not project) else session.project_or_default(project),
        "state": states or (_ACTIVE if active else ()),
        "label": labels or (),
        "role": role,
        "name": name,
        "user": user,
        "study": study,
        "since": options.moment(since, now, "--since"),
        "until": options.moment(until, now, "--until"),
        "search": search,
        "limit": limit,
    }
    with session.client() as client:
        if watch and not json:
            _watch(client, filters, chosen)
            return
        jobs = list(client.list_jobs(**filters))
    if json:
        output.print_json(jobs)
        return
    output.print_table(
        [column.upper() for column in chosen],
        _rows(jobs, chosen),
        empty=_none_found(filters),
    )
    if name is not None and name.isdigit():  # a habit from `tail -n` or `queue -n`
        output.note(
            f"-n is --name: only jobs named {name} are listed; `--limit {name}` shows the newest {name}.", "yellow"
        )
    if len(jobs) == limit:
        output.note(f"The newest {limit} jobs; --limit shows more.", "dim")


def _none_found(filters: dict[str, Any]) -> str:
    """The message for an empty list, with the active filters."""
    criteria = {
        "in state": " or ".join(filters["state"] if filters["state"] != _ACTIVE else ()),
        "labelled": " and ".join(filters["label"]),
        "with role": filters["role"],
        "named": filters["name"],
        "of user": filters["user"],
        "of study": filters["study"],
        "submitted since": output.local_time(filters["since"]),
        "submitted until": output.local_time(filters["until"]),
        "found by": repr(filters["search"]) if filters["search"] else None,
    }
    described = ", ".join(f"{words} {value}" for words, value in criteria.items() if value)
    where = f" in project {filters['project']}" if filters["project"] else ""
    jobs = "active jobs (all have ended)" if filters["state"] == _ACTIVE else "jobs"
    if described:
        return f"No {jobs} {described}{where}."
    if filters["state"]:
        return f"No {jobs}{where}."
    more = "; --all-projects lists all projects" if where else ""
    return f"No jobs{where}. Start one with `trainmaster run -- python train.py`{more}."


def _chosen_columns(columns: str) -> list[str]:
    chosen = [column.strip().lower() for column in columns.split(",") if column.strip()]
    unknown = [column for column in chosen if column not in _COLUMNS]
    if unknown or not chosen:
        raise typer.BadParameter(f"{''.join(unknown[:1])!r} is none of {', '.join(_COLUMNS)}", param_hint="--columns")
    return chosen


def _watch(client: Client, filters: dict[str, Any], chosen: list[str]) -> None:
    import threading

    from rich.live import Live
    from rich.table import Table

    def picture() -> Any:
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
        for column in chosen:
            table.add_column(column.upper(), no_wrap=True, overflow="ellipsis")
        for row in _rows(client.list_jobs(**filters), chosen):
            table.add_row(*["–" if cell in (None, "") else cell for cell in row])
        return table

    console = output.answers()
    pause = threading.Event()
    with Live(picture(), console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while not pause.wait(_REFRESH_S):
            live.update(picture(), refresh=True)


def _rows(jobs: Any, chosen: list[str]) -> Iterator[list[Any]]:
    now = output.now()
    console = output.answers()
    for job in jobs:
        yield [_CELLS[column](job, now, console) for column in chosen]


def runtime_of(job: JobView, now: datetime) -> str | None:
    """Total running time of the attempts, without waits and pauses."""
    if job.running_since is None and not job.ran_s:
        return None
    running_s = (now - job.running_since).total_seconds() if job.running_since else 0.0
    return output.duration(job.ran_s + max(0.0, running_s))


def _detail_of(job: JobView) -> str | None:
    """Why the job waits, how it ended, or its progress."""
    if job.wait_reason is not None and job.state in ("queued", "paused", "starting"):
        return waiting_text(job.wait_reason)
    if job.exit is not None and job.state != "succeeded":
        return job.exit.sentence
    return progress_text(job.progress) or None


def waiting_text(reason: WaitReasonView) -> str:
    """Why the job waits, marked if it can never start."""
    if not reason.is_infeasible:
        return reason.sentence
    return f"cannot run on the present nodes: {reason.sentence[:1].lower()}{reason.sentence[1:]}"


def progress_text(progress: dict[str, Any]) -> str:
    """``step 30/100  loss=0.1``."""
    parts = []
    if progress.get("epoch") is not None:
        parts.append(f"epoch {progress['epoch']}")
    if progress.get("step") is not None:
        steps = progress.get("steps")
        parts.append(f"step {progress['step']}" + (f"/{steps}" if steps else ""))
    metrics = progress.get("metrics")
    if isinstance(metrics, dict) and metrics:
        parts.append(output.values_text(metrics))
    return "  ".join(parts)


def roles_text(job: JobView) -> str:
    """``chief×1 worker×2–3``: for an elastic role, minimum and maximum."""
    most = job.most_replicas
    return " ".join(
        f"{role}×{count}–{most[role]}" if most.get(role, count) > count else f"{role}×{count}"
        for role, count in job.roles.items()
    )


_CELLS: Final[dict[str, Any]] = {
    "id": lambda job, _now, _console: job.id,
    "name": lambda job, _now, _console: job.name,
    "project": lambda job, _now, _console: job.project,
    "user": lambda job, _now, _console: job.user,
    "state": lambda job, _now, console: output.state_text(job.state, console, desired=job.wanted),
    "roles": lambda job, _now, _console: roles_text(job),
    "gpus": lambda job, _now, _console: f"{job.gpu_count:g}" if job.gpu_count else None,
    "priority": lambda job, _now, _console: str(job.priority),
    "age": lambda job, now, _console: output.duration(now - job.created_at),
    "runtime": lambda job, now, _console: runtime_of(job, now),
    "detail": lambda job, _now, _console: _detail_of(job),
}
