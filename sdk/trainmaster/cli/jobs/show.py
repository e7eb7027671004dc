"""``show``: one job in full."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from trainmaster.cli.jobs.listing import progress_text, roles_text, runtime_of, waiting_text
from trainmaster.cli.jobs.spec_files import spec_yaml
from trainmaster.cli.planner.whatif import forecast_text, options_text, sentences, starts_text
from trainmaster.cli.terminal import options, output, session

if TYPE_CHECKING:
    from trainmaster.client import Client
    from trainmaster.spec import JobSpec
    from trainmaster.wire.jobs import AttemptView, ExitView, JobDetail, ReplicaView

# Of a job with many restarts, only the last attempts are shown.
_ATTEMPTS_SHOWN: Final = 10
_NOTICES: Final = frozenset({"train.launcher", "train.not_connected"})


def register(root: typer.Typer) -> None:
    root.command("show", rich_help_panel="Jobs")(show)


def show(
    job: options.Job,
    spec: Annotated[bool, typer.Option("--spec", help="Only the spec, as YAML to submit again.")] = False,
    json: options.Json = False,
) -> None:
    """Show one job: its state, why it waits, its attempts, replicas, checkpoints and end."""
    from trainmaster.spec.priorities import priority_words

    with session.client() as client:
        detail = client.get_job(job)
        if json:
            output.print_json(detail.spec if spec else detail)
            return
        if spec:
            output.say(spec_yaml(detail.spec).rstrip())
            return
        forecast = forecast_text(client, detail)
        checkpoints = list(client.list_checkpoints(detail.id))
        notices = _launcher_notices(client, detail)
        newest_number = detail.attempt_count
        earlier = (
            list(client.list_attempts(detail.id, after=max(0, newest_number - 1 - _ATTEMPTS_SHOWN)))
            if newest_number > 1
            else []
        )
    now = output.now()
    console = output.answers()
    waits = detail.wait_reason
    is_infeasible = waits is not None and waits.is_infeasible
    position = "" if is_infeasible else _position(detail)
    newest = max(checkpoints, key=lambda checkpoint: checkpoint.created_at, default=None)
    output.print_pairs(
        [
            ("Job", f"{detail.name} ({detail.id})"),
            ("State", output.state_text(detail.state, console, desired=detail.wanted)),
            ("Waits", f"{waiting_text(waits)}{position}" if waits else position.strip(" ()")),
            ("Expected start", starts_text(forecast) if forecast else None),
            ("Would start now", options_text(forecast) if forecast else None),
            ("Would start sooner", sentences(forecast.later) if forecast else None),
            ("Numbers", _numbers(waits.numbers) if waits else None),
            ("Exit", exit_text(detail.exit)),
            ("Project", f"{detail.project}, by {detail.user}, priority {priority_words(detail.priority)}"),
            (
                "Roles",
                roles_text(detail) + (f", {output.count(detail.gpu_count, 'GPU')}" if detail.gpu_count else ""),
            ),
            ("Launcher", _launcher(detail.spec, notices.get("train.launcher"))),
            ("Warning", " ".join(filter(None, (notices.get("train.not_connected"), *detail.warnings))) or None),
            ("Environment", _environment(detail.spec)),
            ("Labels", "  ".join(f"{key}={value}" for key, value in sorted(detail.labels.items()))),
            ("Submitted", f"{output.local_time(detail.created_at)} ({output.ago(detail.created_at, now)})"),
            ("Started", output.local_time(detail.started_at)),
            ("Ended", output.local_time(detail.finished_at)),
            ("Ran", runtime_of(detail, now)),
            ("Progress", progress_text(detail.progress)),
            ("Attempts", _attempts(detail)),
            ("World", _world(detail)),
            ("Speed", _speed(detail)),
            ("Output", detail.output),
            ("Checkpoint", f"{newest.path} (of {len(checkpoints)})" if newest else _missing_checkpoint(detail)),
            ("Cloned from", detail.cloned_from),
        ]
    )
    if earlier:
        output.say()
        _print_earlier([attempt for attempt in earlier if attempt.number < newest_number])
    if detail.attempt is not None and detail.attempt.replicas:
        output.say()
        _print_replicas(detail.attempt, now)


def _missing_checkpoint(detail: JobDetail) -> str | None:
    """A warning for a waiting job that ran before but has no checkpoint to resume from."""
    attempt = detail.attempt
    if detail.state not in ("queued", "paused") or attempt is None or attempt.resume_from:
        return None
    return (
        "no complete checkpoint; it will restart from the beginning "
        f"(`trainmaster checkpoints {detail.id} --incomplete` shows the others)"
    )


def _launcher_notices(client: Client, detail: JobDetail) -> dict[str, str]:
    """The newest reasons of events, by kind: what was added to a launcher's command line; replicas that train alone."""
    if detail.attempt is None or len(detail.attempt.replicas) < 2:
        return {}
    # The runtime reports them soon after the attempt's start, so the first page has them.
    events = client.list_job_events_page(detail.id, limit=200).items
    return {event.kind: event.reason for event in events if event.kind in _NOTICES and event.reason}


def _launcher(spec: JobSpec, added: str | None) -> str | None:
    """The launcher that the spec chooses, and what was added to its command line or to the one in the command."""
    chosen = None if spec.launcher.value == "auto" else f"`launcher: {spec.launcher.value}`"
    return "; ".join(filter(None, (chosen, added))) or None


def _environment(spec: JobSpec) -> str | None:
    """``venv /opt/venv, 3 requirements: einops, numpy>=2, …``."""
    if spec.environment is None:
        return None
    named = spec.environment.model_dump(exclude_none=True, exclude={"requirements"})
    requirements = spec.environment.requirements
    parts = [f"{name} {value}" for name, value in named.items()]
    if requirements:
        shown = ", ".join(requirements[:3]) + (", …" if len(requirements) > 3 else "")
        parts.append(f"{output.count(len(requirements), 'requirement')}: {shown}")
    return ", ".join(parts)


def _position(detail: JobDetail) -> str:
    return f" (position {detail.queue_position} in the queue)" if detail.queue_position else ""


def _numbers(numbers: dict[str, Any]) -> str:
    # "preempted" is a sentence, which the reason already contains.
    shown = {name: _number(value) for name, value in numbers.items() if name != "preempted"}
    return "  ".join(f"{name}={value}" for name, value in shown.items() if value not in ("", None))


def _number(value: Any) -> Any:
    if isinstance(value, list):
        return ",".join(map(str, value))
    if isinstance(value, str) and "T" in value:
        try:
            return output.local_time(datetime.fromisoformat(value))
        except ValueError:
            pass
    return value


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
    restarts = f", {output.count(detail.restart_count, 'restart')} counted" if detail.restart_count else ""
    attempt = detail.attempt
    if attempt is None or not attempt.resume_from:
        return f"{detail.attempt_count}{restarts}"
    # Within an attempt a single replica, or the processes of a new world, may restart from a newer checkpoint.
    is_partial = attempt.world > 1 or any(replica.generation > 1 for replica in attempt.replicas)
    resumed = "the processes started last" if is_partial else "the newest"
    return f"{detail.attempt_count}{restarts}; {resumed} resumed from {attempt.resume_from}"


def _world(detail: JobDetail) -> str | None:
    """Of an elastic job: its present number of workers, the allowed range, and the reason."""
    role = detail.spec.elastic_role
    attempt = detail.attempt
    if role is None or attempt is None:
        return None
    spec = detail.spec.roles[role]
    present = sum(r.role == role and r.state in ("starting", "running", "succeeded") for r in attempt.replicas)
    now = f"{present} of {spec.min_replicas} to {spec.replicas} {role}s"
    reason = attempt.world_reason.removesuffix(f"{now} go on.").rstrip()
    return f"{attempt.world}: {now}. {reason}" if reason else f"{attempt.world}: {now}"


def _speed(detail: JobDetail) -> str | None:
    """Of an elastic job: steps per second by its number of workers, and whether that keeps it from growing."""
    role = detail.spec.elastic_role or "worker"
    speeds = [f"{output.count(speed.replicas, role)}: {speed.steps_per_s:.3g} steps/s" for speed in detail.speeds]
    return ". ".join(filter(None, (", ".join(speeds), detail.growth_note))) or None


def _print_earlier(attempts: list[AttemptView]) -> None:
    """Print the attempts before the newest, oldest first, with their duration and end."""
    output.print_table(
        ("ATTEMPT", "STARTED", "RAN", "END"),
        [
            (str(attempt.number), output.local_time(_started(attempt)), _ran(attempt), exit_text(attempt.end))
            for attempt in attempts
        ],
        empty="",
    )
    left_out = min((attempt.number for attempt in attempts), default=1) - 1
    if left_out:
        output.note(f"Attempts 1 to {left_out} are not shown; see `trainmaster events`.", "dim")


def _started(attempt: AttemptView) -> datetime | None:
    """Start of the attempt; of its first replica if the gang ended before all its replicas ran."""
    return attempt.started_at or min((r.started_at for r in attempt.replicas if r.started_at), default=None)


def _ran(attempt: AttemptView) -> str | None:
    started = _started(attempt)
    return None if started is None or attempt.ended_at is None else output.duration(attempt.ended_at - started)


def gpus_text(gpus: list[str], part: float | None) -> str:
    """``0,1``, or ``0.5 of 3``."""
    return f"{part:g} of {','.join(gpus)}" if part else ",".join(gpus)


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
                gpus_text(replica.gpus, replica.gpu_part),
                output.ago(replica.heartbeat_at, now),
                _replica_detail(replica),
            )
            for replica in attempt.replicas
        ],
        empty="",
    )


def _replica_detail(replica: ReplicaView) -> str | None:
    return exit_text(replica.exit) or replica.detail or progress_text(replica.progress) or None
