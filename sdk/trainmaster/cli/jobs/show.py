"""``show``: all of one job."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from trainmaster.cli.jobs.listing import progress_text, roles_text, runtime_of, waiting_text
from trainmaster.cli.jobs.spec_files import spec_yaml
from trainmaster.cli.planner.whatif import options_text, outlook_of, sentences, starts_text
from trainmaster.cli.terminal import options, output, session

if TYPE_CHECKING:
    from trainmaster.wire.jobs import AttemptView, ExitView, JobDetail, ReplicaView

# Whoever restarts a hundred times wants to see the last ones.
_ATTEMPTS_SHOWN: Final = 10


def register(root: typer.Typer) -> None:
    root.command("show", rich_help_panel="Jobs")(show)


def show(
    job: options.Job,
    spec: Annotated[bool, typer.Option("--spec", help="Only the spec, as YAML to submit again.")] = False,
    json: options.Json = False,
) -> None:
    """One job: its state, why it waits, its attempts, replicas, checkpoints and end."""
    from trainmaster.spec.priorities import priority_words

    with session.client() as client:
        detail = client.get_job(job)
        if json:
            output.print_json(detail.spec if spec else detail)
            return
        if spec:
            output.say(spec_yaml(detail.spec).rstrip())
            return
        outlook = outlook_of(client, detail)
        checkpoints = list(client.list_checkpoints(detail.id))
        newest_number = detail.attempt_count
        earlier = (
            list(client.list_attempts(detail.id, after=max(0, newest_number - 1 - _ATTEMPTS_SHOWN)))
            if newest_number > 1
            else []
        )
    now = output.now()
    console = output.answers()
    waits = detail.wait_reason
    is_impossible = waits is not None and waits.is_impossible
    position = "" if is_impossible else _position(detail)
    newest = max(checkpoints, key=lambda checkpoint: checkpoint.created_at, default=None)
    output.print_pairs(
        [
            ("Job", f"{detail.name} ({detail.id})"),
            ("State", output.state_text(detail.state, console, wanted=detail.wanted)),
            ("Waits", f"{waiting_text(waits)}{position}" if waits else position.strip(" ()")),
            ("Starts", starts_text(outlook) if outlook else None),
            ("Fits now", options_text(outlook) if outlook else None),
            ("Sooner", sentences(outlook.later) if outlook else None),
            ("Numbers", _numbers(waits.numbers) if waits else None),
            ("Exit", exit_text(detail.exit)),
            ("Project", f"{detail.project}, by {detail.user}, priority {priority_words(detail.priority)}"),
            (
                "Roles",
                roles_text(detail) + (f", {output.count(detail.gpu_count, 'GPU')}" if detail.gpu_count else ""),
            ),
            ("Labels", "  ".join(f"{key}={value}" for key, value in sorted(detail.labels.items()))),
            ("Submitted", f"{output.local_time(detail.created_at)} ({output.ago(detail.created_at, now)})"),
            ("Started", output.local_time(detail.started_at)),
            ("Ended", output.local_time(detail.finished_at)),
            ("Ran", runtime_of(detail, now)),
            ("Progress", progress_text(detail.progress)),
            ("Attempts", _attempts(detail)),
            ("World", _world(detail)),
            ("Output", detail.output),
            ("Checkpoint", f"{newest.path} (of {len(checkpoints)})" if newest else _begins_anew(detail)),
            ("Cloned from", detail.cloned_from),
        ]
    )
    if earlier:
        output.say()
        _print_earlier([attempt for attempt in earlier if attempt.number < newest_number])
    if detail.attempt is not None and detail.attempt.replicas:
        output.say()
        _print_replicas(detail.attempt, now)


def _begins_anew(detail: JobDetail) -> str | None:
    """Of a job that waits after it ran, and has nothing to go on from."""
    attempt = detail.attempt
    if detail.state not in ("queued", "paused") or attempt is None or attempt.resume_from:
        return None
    return "none that is complete; it begins anew (`trainmaster checkpoints` shows more)"


def _position(detail: JobDetail) -> str:
    return f" (position {detail.queue_position} in the queue)" if detail.queue_position else ""


def _numbers(numbers: dict[str, Any]) -> str:
    # What made it wait again is a whole sentence, and told with the reason.
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
    # Within an attempt a lone replica, or the next world's processes, may start again, from what is newest then.
    is_partly = attempt.world > 1 or any(replica.generation > 1 for replica in attempt.replicas)
    who = "what started last in the newest one" if is_partly else "the newest"
    return f"{detail.attempt_count}{restarts}; {who} resumed from {attempt.resume_from}"


def _world(detail: JobDetail) -> str | None:
    """Of an elastic job: with how many workers it trains, of how many, and why as many."""
    role = detail.spec.elastic_role
    attempt = detail.attempt
    if role is None or attempt is None:
        return None
    spec = detail.spec.roles[role]
    present = sum(r.role == role and r.state in ("starting", "running", "succeeded") for r in attempt.replicas)
    now = f"{present} of {spec.min_replicas} to {spec.replicas} {role}s"
    reason = attempt.world_reason.removesuffix(f"{now} go on.").rstrip()
    return f"{attempt.world}: {now}. {reason}" if reason else f"{attempt.world}: {now}"


def _print_earlier(attempts: list[AttemptView]) -> None:
    """Attempts before the newest one, oldest first: how long each ran, and why it ended."""
    output.print_table(
        ("ATTEMPT", "STARTED", "RAN", "ENDED BECAUSE"),
        [
            (str(attempt.number), output.local_time(_started(attempt)), _ran(attempt), exit_text(attempt.end))
            for attempt in attempts
        ],
        empty="",
    )
    left_out = min((attempt.number for attempt in attempts), default=1) - 1
    if left_out:
        output.note(f"Attempts 1 to {left_out} are left out; `trainmaster events` tells of them.", "dim")


def _started(attempt: AttemptView) -> datetime | None:
    """A gang that is over before anybody saw all of it run has no start of its own."""
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
