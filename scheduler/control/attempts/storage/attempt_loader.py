"""Loading the rows of attempts into values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from threading import Lock
from typing import Any, Final, cast

from sqlalchemy import Table, bindparam, exists, or_, select
from sqlalchemy.orm import Session
from trainmaster.spec import JobSpec

from core.db.engine import UntypedRow, UntypedSelect
from core.db.repositories.nodes import is_live
from core.db.tables import Attempt, Checkpoint, Event, Job, Node, Project, Replica
from core.domain.ids import AttemptId, JobId
from core.domain.jobs.exits import ExitCause, ExitFacts
from core.domain.jobs.layout import Layout
from core.domain.jobs.lifecycle import AttemptEvent, advance
from core.domain.jobs.states import AttemptState, DesiredState, JobState, ReplicaState
from scheduler.control.attempts.attempt_snapshot import AttemptFacts, GangMember, JobFacts, PreviousEnd, Stop

_SPEC_CACHE_SIZE: Final = 4096

# Built once, and of plain columns: each pass reads all of this, and building statements and ORM objects took longer
# than the database itself.
_attempts, _jobs, _replicas, _nodes = (cast("Table", table.__table__) for table in (Attempt, Job, Replica, Node))
_projects, _checkpoints = cast("Table", Project.__table__), cast("Table", Checkpoint.__table__)
_ATTEMPT: Final[UntypedSelect] = (
    select(
        _attempts.c.id, _attempts.c.number, _attempts.c.state, _attempts.c.generation, _attempts.c.layout,
        _attempts.c.resume_from, _attempts.c.stop, _attempts.c.created_at, _attempts.c.started_at,
        _attempts.c.decided_at, _attempts.c.world,
        _jobs.c.id.label("job_id"), _jobs.c.name, _jobs.c.project_id, _jobs.c.state.label("job_state"),
        _jobs.c.desired_state,
        _jobs.c.generation.label("job_generation"), _jobs.c.restart_count, _jobs.c.attempt_count,
        _jobs.c.resume_from.label("job_resume_from"), _jobs.c.output_volume, _jobs.c.output_path, _jobs.c.trial,
        _jobs.c.created_at.label("job_created_at"),
        _projects.c.name.label("project"),
        # Filtered by the job as well: its column has an index.
        exists()
        .where(_checkpoints.c.job_id == _attempts.c.job_id, _checkpoints.c.attempt_id == _attempts.c.id)
        .label("has_checkpoint"),
    )
    .join(_jobs, _jobs.c.id == _attempts.c.job_id)
    .join(_projects, _projects.c.id == _jobs.c.project_id)
    .where(_attempts.c.id.in_(bindparam("attempts", expanding=True)), is_live())
)  # fmt: skip
_REPLICAS: Final[UntypedSelect] = (
    select(
        _replicas.c.attempt_id, _replicas.c.id, _replicas.c.role, _replicas.c.replica_index, _replicas.c.generation,
        _replicas.c.state,
        _replicas.c.node, _replicas.c.gpus, _replicas.c.exit, _replicas.c.detail, _replicas.c.facts,
        _replicas.c.started_at, _replicas.c.ended_at, _replicas.c.progress, _replicas.c.memory_bytes,
        _replicas.c.removal,
        _nodes.c.is_ready, _nodes.c.seen_at, or_(_nodes.c.is_draining, _nodes.c.is_draining_in_engine).label("drains"),
    )
    .outerjoin(_nodes, _nodes.c.name == _replicas.c.node)
    .where(_replicas.c.attempt_id.in_(bindparam("attempts", expanding=True)))
    .order_by(_replicas.c.attempt_id, _replicas.c.rank)
)  # fmt: skip
_SPECS: Final = select(_jobs.c.id, _jobs.c.spec).where(_jobs.c.id.in_(bindparam("jobs", expanding=True)))


@dataclass(frozen=True, slots=True)
class AttemptRows:
    """Everything in the database that a decision about one attempt depends on."""

    job: JobFacts
    attempt: AttemptFacts
    members: tuple[GangMember, ...]
    lost_nodes: Mapping[str, datetime]
    draining_nodes: frozenset[str]
    previous: PreviousEnd | None
    has_checkpoint: bool
    user_request: str

    def started(self, layout: Layout, resume_from: str | None) -> AttemptRows:
        """The rows after :meth:`scheduler.control.attempts.storage.attempt_writer.AttemptWriter.start`."""
        state = advance(self.attempt.state, AttemptEvent.START).state
        attempt = replace(
            self.attempt, state=state, layout=layout, resume_from=resume_from, generation=self.attempt.generation + 1
        )
        return replace(self, attempt=attempt)


class SpecCache:
    """Parsed specs by job. A spec never changes, and parsing costs more than all reads of a pass together."""

    def __init__(self) -> None:
        self._specs: OrderedDict[str, JobSpec] = OrderedDict()
        self._lock = Lock()

    def read(self, session: Session, job_ids: Sequence[str]) -> dict[str, JobSpec]:
        """Their specs; only unknown ones are read from the database."""
        found: dict[str, JobSpec] = {}
        with self._lock:
            for job_id in job_ids:
                known = self._specs.get(job_id)
                if known is not None:
                    self._specs.move_to_end(job_id)
                    found[job_id] = known
        missing = [job_id for job_id in job_ids if job_id not in found]
        if missing:
            rows = session.connection().execute(_SPECS, {"jobs": missing})
            fresh = {row.id: JobSpec.model_validate(row.spec) for row in rows}
            found |= fresh
            with self._lock:
                self._specs.update(fresh)
                while len(self._specs) > _SPEC_CACHE_SIZE:
                    self._specs.popitem(last=False)
        return found


def load_attempts(
    session: Session, attempt_ids: Sequence[AttemptId], specs: SpecCache, *, now: datetime, node_grace: timedelta
) -> dict[AttemptId, AttemptRows]:
    """The rows of the live ones among these attempts."""
    connection = session.connection()
    found = connection.execute(_ATTEMPT, {"attempts": list(attempt_ids)}).all()
    if not found:
        return {}
    replicas: dict[str, list[UntypedRow]] = {row.id: [] for row in found}
    for replica in connection.execute(_REPLICAS, {"attempts": list(replicas)}):
        replicas[replica.attempt_id].append(replica)
    known = specs.read(session, [row.job_id for row in found])
    return {
        AttemptId(row.id): AttemptRows(
            job=_job(row, known[row.job_id]),
            attempt=_attempt(row),
            members=tuple(map(_member, replicas[row.id])),
            lost_nodes=_lost_nodes(replicas[row.id], now=now, grace=node_grace),
            draining_nodes=frozenset(replica.node for replica in replicas[row.id] if replica.drains),
            previous=_previous(session, row),
            has_checkpoint=row.has_checkpoint,
            user_request=_user_request(session, row),
        )
        for row in found
    }


def exit_to_json(facts: ExitFacts, verdict_kind: str, sentence: str) -> dict[str, Any]:
    """As stored in ``replicas.exit``; the wire's ``ExitView`` is a part of it."""
    return {
        "kind": verdict_kind,
        "sentence": sentence,
        "exit_code": facts.exit_code,
        "role": facts.role,
        "index": int(facts.replica.rpartition("-")[2]),
        "cause": facts.cause.value,
        "at": facts.at.isoformat(),
        "told": facts.sentence,
        "log_tail": facts.log_tail,
    }


def _exit(data: Mapping[str, Any] | None) -> ExitFacts | None:
    if data is None:
        return None
    return ExitFacts(
        f"{data['role']}-{data['index']}",
        data["role"],
        ExitCause(data["cause"]),
        data["exit_code"],
        datetime.fromisoformat(data["at"]),
        data.get("told", ""),
        data.get("log_tail", ""),
    )


def _job(row: UntypedRow, spec: JobSpec) -> JobFacts:
    return JobFacts(
        id=JobId(row.job_id),
        name=row.name,
        project_id=row.project_id,
        project=row.project,
        state=JobState(row.job_state),
        wanted=DesiredState(row.desired_state),
        generation=row.job_generation,
        restart_count=row.restart_count,
        attempt_count=row.attempt_count,
        resume_from=row.job_resume_from,
        output_volume=row.output_volume,
        output_path=row.output_path,
        created_at=row.job_created_at,
        spec=spec,
        trial=row.trial,
    )


def _attempt(row: UntypedRow) -> AttemptFacts:
    return AttemptFacts(
        id=AttemptId(row.id),
        number=row.number,
        state=AttemptState(row.state),
        generation=row.generation,
        layout=Layout.from_json(row.layout) if row.layout is not None else None,
        resume_from=row.resume_from,
        stop=Stop.from_json(row.stop) if row.stop is not None else None,
        created_at=row.created_at,
        started_at=row.started_at,
        decided_at=row.decided_at,
        world=row.world,
    )


def _member(row: UntypedRow) -> GangMember:
    return GangMember(
        id=row.id,
        role=row.role,
        index=row.replica_index,
        generation=row.generation,
        state=ReplicaState(row.state),
        node=row.node,
        gpus=tuple(row.gpus),
        exit=_exit(row.exit),
        detail=row.detail,
        has_facts=bool(row.facts),
        started_at=row.started_at,
        ended_at=row.ended_at,
        step=row.progress.get("step") or 0,
        holds_resources=row.memory_bytes > 0,
        leave_reason="" if row.removal is None else str(row.removal["sentence"]),
    )


def _lost_nodes(replicas: Sequence[UntypedRow], *, now: datetime, grace: timedelta) -> dict[str, datetime]:
    """Their nodes that are not ready and were last seen ready longer ago than ``grace``; unknown nodes are not lost."""
    return {row.node: row.seen_at for row in replicas if row.is_ready is False and now - row.seen_at > grace}


def _user_request(session: Session, row: UntypedRow) -> str:
    """Which user asked to cancel or pause, and why; empty without such a request."""
    if row.desired_state == DesiredState.RUN:
        return ""
    request = session.execute(
        select(Event.actor, Event.reason)
        .where(Event.job_id == row.job_id, Event.kind == f"job.{row.desired_state}_requested")
        .order_by(Event.id.desc())
        .limit(1)
    ).first()
    if request is None:
        return ""
    done = "Cancelled" if row.desired_state == DesiredState.CANCEL else "Paused"
    sentence = f"{done} by {request.actor.removeprefix('user:')}"
    return f"{sentence}: {request.reason}" if request.reason else f"{sentence}."


def _previous(session: Session, row: UntypedRow) -> PreviousEnd | None:
    if row.number == 1:
        return None
    end = session.execute(
        select(Attempt.end).where(Attempt.job_id == row.job_id, Attempt.number == row.number - 1)
    ).scalar_one_or_none()
    if end is None:
        return None
    return PreviousEnd(
        end.get("signature", ""),
        bool(end.get("has_progressed")),
        int(end.get("streak", 1)),
        int(end.get("last_step", 0)),
    )
