"""``list`` and ``show``."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from trainmaster.cli import options, output, session

if TYPE_CHECKING:
    from trainmaster.client import Client
    from trainmaster.wire.jobs import AttemptView, ExitView, JobDetail, JobView, ReplicaView

_PANEL = "Jobs"
_REFRESH_S: Final = 2.0
_STATES: Final = (
    "queued",
    "starting",
    "running",
    "paused",
    "cancelling",
    "succeeded",
    "failed",
    "cancelled",
    "expired",
)
_ACTIVE: Final = ("queued", "starting", "running", "paused", "cancelling")
_COLUMNS: Final = ("id", "name", "project", "user", "state", "roles", "gpus", "priority", "age", "runtime", "detail")
_DEFAULT_COLUMNS: Final = "id,name,state,roles,gpus,age,runtime,detail"


def register(app: typer.Typer) -> None:
    app.command("list", rich_help_panel=_PANEL)(list_jobs)
    app.command("show", rich_help_panel=_PANEL)(show)


def list_jobs(
    states: Annotated[list[str] | None, typer.Option("--state", "-s", help="Only these; repeat it.")] = None,
    active: Annotated[bool, typer.Option("--active", "-a", help="Only jobs that have not ended.")] = False,
    labels: Annotated[
        list[str] | None, typer.Option("--label", "-l", metavar="KEY=VALUE", help="All must hold.")
    ] = None,
    role: Annotated[str | None, typer.Option("--role", help="Only jobs with this role.")] = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="Only jobs of this name.")] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only this user's jobs.")] = None,
    since: Annotated[str | None, typer.Option("--since", help="Submitted since: 2h, 3d, or 2026-11-21T07:00.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="Submitted until.")] = None,
    search: Annotated[
        str | None, typer.Option("--search", help="A text in the name or a label's value, or an id.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most so many.")] = 50,
    columns: Annotated[str, typer.Option("--columns", help=f"Of {','.join(_COLUMNS)}.")] = _DEFAULT_COLUMNS,
    project: options.Project = None,
    all_projects: Annotated[bool, typer.Option("--all-projects", "-A")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again every 2 s until Ctrl-C.")] = False,
    json: options.Json = False,
) -> None:
    """Jobs, newest first."""
    chosen = _chosen_columns(columns)
    unknown = sorted({*(states or [])} - {*_STATES})
    if unknown:
        raise typer.BadParameter(f"{unknown[0]!r} is none of {', '.join(_STATES)}", param_hint="--state")
    now = output.now()
    filters: dict[str, Any] = {
        "project": None if all_projects else session.project_or_default(project),
        "state": states or (_ACTIVE if active else ()),
        "label": labels or (),
        "role": role,
        "name": name,
        "user": user,
        "since": _moment(since, now, "--since"),
        "until": _moment(until, now, "--until"),
        "search": search,
        "limit": limit,
    }
    with session.client() as client:
        if watch and not json:
            _watch(client, filters, chosen)
            return
        found = list(client.list_jobs(**filters))
    if json:
        output.print_json(found)
        return
    output.print_table(
        [column.upper() for column in chosen],
        _rows(found, chosen),
        empty="No jobs. Start one with `trainmaster run -- python train.py`.",
    )
    if len(found) == limit:
        output.note(f"The newest {limit}; --limit shows more.", "dim")


def _chosen_columns(columns: str) -> list[str]:
    chosen = [column.strip().lower() for column in columns.split(",") if column.strip()]
    unknown = [column for column in chosen if column not in _COLUMNS]
    if unknown or not chosen:
        raise typer.BadParameter(f"{''.join(unknown[:1])!r} is none of {', '.join(_COLUMNS)}", param_hint="--columns")
    return chosen


def _moment(text: str | None, now: datetime, option: str) -> datetime | None:
    """A point in time from an ISO date (local without a zone) or a span before now."""
    if text is None:
        return None
    from datetime import timedelta

    from trainmaster.spec.quantity import parse_duration_s

    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        pass
    try:
        return now - timedelta(seconds=parse_duration_s(text))
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is neither a date nor a span like 2h or 3d", param_hint=option) from error


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
    if job.started_at is None:
        return None
    return output.duration((job.finished_at or now) - job.started_at)


def _detail_of(job: JobView) -> str | None:
    """The one thing worth knowing: why it waits, how it ended, how far it is."""
    if job.wait_reason is not None and job.state in ("queued", "paused", "starting"):
        return job.wait_reason.sentence
    if job.exit is not None and job.state != "succeeded":
        return job.exit.sentence
    return progress_text(job.progress) or None


def progress_text(progress: dict[str, Any]) -> str:
    """``step 30/100  loss=0.1``; the newest report may be nested under a replica's name."""
    from trainmaster.cli.files import metrics_text

    parts = []
    if progress.get("epoch") is not None:
        parts.append(f"epoch {progress['epoch']}")
    if progress.get("step") is not None:
        steps = progress.get("steps")
        parts.append(f"step {progress['step']}" + (f"/{steps}" if steps else ""))
    metrics = progress.get("metrics")
    if isinstance(metrics, dict) and metrics:
        parts.append(metrics_text(metrics))
    return "  ".join(parts)


def roles_text(roles: dict[str, int]) -> str:
    return " ".join(f"{role}×{count}" for role, count in roles.items())


_CELLS: Final[dict[str, Any]] = {
    "id": lambda job, _now, _console: job.id,
    "name": lambda job, _now, _console: job.name,
    "project": lambda job, _now, _console: job.project,
    "user": lambda job, _now, _console: job.user,
    "state": lambda job, _now, console: output.state_text(job.state, console, wanted=job.wanted),
    "roles": lambda job, _now, _console: roles_text(job.roles),
    "gpus": lambda job, _now, _console: str(job.gpu_count) if job.gpu_count else None,
    "priority": lambda job, _now, _console: str(job.priority),
    "age": lambda job, now, _console: output.duration(now - job.created_at),
    "runtime": lambda job, now, _console: runtime_of(job, now),
    "detail": lambda job, _now, _console: _detail_of(job),
}


# --- show -----------------------------------------------------------------------------------------------------------


def show(
    job: options.Job,
    spec: Annotated[bool, typer.Option("--spec", help="Only the spec, as YAML to submit again.")] = False,
    json: options.Json = False,
) -> None:
    """One job: its state, why it waits, its replicas, checkpoints and end."""
    with session.client() as client:
        detail = client.get_job(job)
        if json:
            output.print_json(detail.spec if spec else detail)
            return
        if spec:
            output.say(spec_yaml(detail.spec).rstrip())
            return
        checkpoints = client.list_checkpoints(detail.id)
    now = output.now()
    console = output.answers()
    waits = detail.wait_reason
    position = f" (position {detail.queue_position} in the queue)" if detail.queue_position else ""
    newest = max(checkpoints, key=lambda checkpoint: checkpoint.created_at, default=None)
    output.print_pairs(
        [
            ("Job", f"{detail.name} ({detail.id})"),
            ("State", output.state_text(detail.state, console, wanted=detail.wanted)),
            ("Waits", f"{waits.sentence}{position}" if waits else position.strip(" ()")),
            ("Numbers", _numbers(waits.numbers) if waits else None),
            ("Exit", exit_text(detail.exit)),
            ("Project", f"{detail.project}, by {detail.user}, priority {detail.priority}"),
            ("Roles", roles_text(detail.roles) + (f", {detail.gpu_count} GPUs" if detail.gpu_count else "")),
            ("Labels", "  ".join(f"{key}={value}" for key, value in sorted(detail.labels.items()))),
            ("Submitted", f"{output.local_time(detail.created_at)} ({output.ago(detail.created_at, now)})"),
            ("Started", output.local_time(detail.started_at)),
            ("Ended", output.local_time(detail.finished_at)),
            ("Ran", runtime_of(detail, now)),
            ("Progress", progress_text(detail.progress)),
            ("Attempts", _attempts(detail)),
            ("Output", detail.output),
            ("Checkpoint", f"{newest.path} (of {len(checkpoints)})" if newest else None),
            ("Cloned from", detail.cloned_from),
        ]
    )
    if detail.attempt is not None and detail.attempt.replicas:
        output.say()
        _print_replicas(detail.attempt, now)


def spec_yaml(spec: Any) -> str:
    """A spec as YAML without what was left unsaid."""
    import yaml

    plain = spec.model_dump(mode="json", exclude_defaults=True)
    return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True))


def _numbers(numbers: dict[str, Any]) -> str:
    shown = {name: ",".join(map(str, value)) if isinstance(value, list) else value for name, value in numbers.items()}
    return "  ".join(f"{name}={value}" for name, value in shown.items() if value not in ("", None))


def exit_text(end: ExitView | None) -> str | None:
    if end is None:
        return None
    if end.kind == "success":
        return end.sentence
    where = f" in {end.role}-{end.index}" if end.role is not None else ""
    code = f", exit code {end.exit_code}" if end.exit_code is not None else ""
    return f"{end.sentence} [{end.kind}{where}{code}]"


def _attempts(detail: JobDetail) -> str | None:
    if not detail.attempt_count:
        return None
    restarts = f", {detail.restart_count} restarts counted" if detail.restart_count else ""
    resumed = detail.attempt.resume_from if detail.attempt else None
    return f"{detail.attempt_count}{restarts}" + (f"; the newest resumed from {resumed}" if resumed else "")


def _print_replicas(attempt: AttemptView, now: datetime) -> None:
    console = output.answers()
    output.print_table(
        ("REPLICA", "STATE", "NODE", "ADDRESS", "GPUS", "HEARTBEAT", "DETAIL"),
        [
            (
                f"{replica.role}-{replica.index}",
                output.state_text(replica.state, console),
                replica.node,
                replica.address,
                ",".join(replica.gpus),
                output.ago(replica.heartbeat_at, now),
                _replica_detail(replica),
            )
            for replica in attempt.replicas
        ],
        empty="",
    )


def _replica_detail(replica: ReplicaView) -> str | None:
    return exit_text(replica.exit) or replica.detail or progress_text(replica.progress) or None
