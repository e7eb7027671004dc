"""Reading one attempt's rows into values."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from threading import Lock
from typing import Any, Final

from sqlalchemy import exists, select
from sqlalchemy.orm import Session
from trainmaster.spec import JobSpec

from core.db.repositories.nodes import is_live
from core.db.tables import Attempt, Checkpoint, Event, Job, Node, Project, Replica
from core.domain.exits import ExitCause, ExitFacts
from core.domain.ids import AttemptId, JobId
from core.domain.layout import Layout
from core.domain.states import AttemptState, JobState, ReplicaState, Wanted
from scheduler.control.facts import AttemptFacts, JobFacts, Member, PastEnd, Stop

_SPEC_CACHE_SIZE: Final = 1024


@dataclass(frozen=True, slots=True)
class AttemptRows:
    """Everything of the database that a decision about one attempt depends on."""

    job: JobFacts
    attempt: AttemptFacts
    members: tuple[Member, ...]
    lost_nodes: Mapping[str, datetime]
    previous: PastEnd | None
    has_checkpoint: bool
    wish: str


class SpecCache:
    """Parsed specs by job. A spec never changes, and parsing costs more than all the reads of a look together."""

    def __init__(self) -> None:
        self._specs: OrderedDict[str, JobSpec] = OrderedDict()
        self._lock = Lock()

    def parse(self, job_id: str, spec: dict[str, Any]) -> JobSpec:
        with self._lock:
            known = self._specs.get(job_id)
            if known is None:
                known = self._specs[job_id] = JobSpec.model_validate(spec)
            self._specs.move_to_end(job_id)
            if len(self._specs) > _SPEC_CACHE_SIZE:
                self._specs.popitem(last=False)
            return known


def load_attempt(
    session: Session, attempt_id: AttemptId, specs: SpecCache, *, now: datetime, node_grace: timedelta
) -> AttemptRows | None:
    """The rows of a live attempt, or ``None`` when there is none of this id, or it has ended."""
    found = session.execute(
        select(Attempt, Job, Project.name, exists().where(Checkpoint.attempt_id == Attempt.id))
        .join(Job, Job.id == Attempt.job_id)
        .join(Project, Project.id == Job.project_id)
        .where(Attempt.id == attempt_id, is_live())
    ).one_or_none()
    if found is None:
        return None
    attempt, job, project, has_checkpoint = found
    replicas = session.scalars(select(Replica).where(Replica.attempt_id == attempt_id).order_by(Replica.rank)).all()
    used = {replica.node for replica in replicas}
    return AttemptRows(
        job=_job(job, project, specs),
        attempt=_attempt(attempt),
        members=tuple(_member(replica) for replica in replicas),
        lost_nodes=_lost_nodes(session, used, now=now, grace=node_grace),
        previous=_previous(session, attempt),
        has_checkpoint=bool(has_checkpoint),
        wish=_wish(session, job),
    )


def exit_to_json(facts: ExitFacts, verdict_kind: str, sentence: str) -> dict[str, Any]:
    """As ``replicas.exit`` keeps it; the wire's ``ExitView`` is a part of it."""
    return {
        "kind": verdict_kind,
        "sentence": sentence,
        "exit_code": facts.exit_code,
        "role": facts.role,
        "index": int(facts.who.rpartition("-")[2]),
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


def _job(job: Job, project: str, specs: SpecCache) -> JobFacts:
    return JobFacts(
        id=JobId(job.id),
        name=job.name,
        project_id=job.project_id,
        project=project,
        state=JobState(job.state),
        wanted=Wanted(job.wanted),
        generation=job.generation,
        restart_count=job.restart_count,
        attempt_count=job.attempt_count,
        resume_from=job.resume_from,
        output_volume=job.output_volume,
        output_path=job.output_path,
        created_at=job.created_at,
        spec=specs.parse(job.id, job.spec),
    )


def _attempt(attempt: Attempt) -> AttemptFacts:
    return AttemptFacts(
        id=AttemptId(attempt.id),
        number=attempt.number,
        state=AttemptState(attempt.state),
        generation=attempt.generation,
        layout=Layout.from_json(attempt.layout) if attempt.layout is not None else None,
        resume_from=attempt.resume_from,
        stop=Stop.from_json(attempt.stop) if attempt.stop is not None else None,
        created_at=attempt.created_at,
        started_at=attempt.started_at,
        decided_at=attempt.decided_at,
    )


def _member(replica: Replica) -> Member:
    return Member(
        id=replica.id,
        role=replica.role,
        index=replica.index,
        generation=replica.generation,
        state=ReplicaState(replica.state),
        node=replica.node,
        gpus=tuple(replica.gpus),
        exit=_exit(replica.exit),
        detail=replica.detail,
        has_facts=bool(replica.facts),
        started_at=replica.started_at,
        ended_at=replica.ended_at,
        has_step=bool(replica.progress.get("step")),
    )


def _lost_nodes(session: Session, names: set[str], *, now: datetime, grace: timedelta) -> dict[str, datetime]:
    """Nodes of ``names`` that are not ready and were last seen ready longer ago than ``grace``; or not known at all."""
    rows = session.execute(select(Node.name, Node.is_ready, Node.seen_at).where(Node.name.in_(names))).all()
    return {name: seen_at for name, is_ready, seen_at in rows if not is_ready and now - seen_at > grace}


def _wish(session: Session, job: Job) -> str:
    """Who asked to cancel or pause, and why; empty when nobody did."""
    if job.wanted == Wanted.RUN:
        return ""
    asked = session.execute(
        select(Event.actor, Event.reason)
        .where(Event.job_id == job.id, Event.kind == f"job.{job.wanted}_requested")
        .order_by(Event.id.desc())
        .limit(1)
    ).first()
    if asked is None:
        return ""
    done = "Cancelled" if job.wanted == Wanted.CANCEL else "Paused"
    sentence = f"{done} by {asked.actor.removeprefix('user:')}"
    return f"{sentence}: {asked.reason}" if asked.reason else f"{sentence}."


def _previous(session: Session, attempt: Attempt) -> PastEnd | None:
    if attempt.number == 1:
        return None
    end = session.execute(
        select(Attempt.end).where(Attempt.job_id == attempt.job_id, Attempt.number == attempt.number - 1)
    ).scalar_one_or_none()
    if end is None:
        return None
    return PastEnd(end.get("signature", ""), bool(end.get("has_progressed")), int(end.get("streak", 1)))
