"""The plan log: what the planner saw and planned, tick by tick, so that it can be replayed: ``explain JOB --at TIME``.

A record holds the difference to the record before, part by part (nodes, waiting jobs, running jobs), and every so often
the whole. The ticking process remembers what it wrote last; another process, or the same after a failure, begins with a
whole record. A chain of records is read back to its whole record, and is deleted as one.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import accumulate
from operator import attrgetter, sub
from typing import Any, Final

from sqlalchemy import delete, func, insert, select
from sqlalchemy.orm import Session

from core.db.tables import PlanRecord
from core.domain.sharing.policy import Policy
from scheduler.planning.json_codec import from_json, plan_from_json, plan_to_json, to_json
from scheduler.planning.model import (
    Account,
    Booking,
    GrowingGang,
    NodeSnapshot,
    Plan,
    QueuedGang,
    RunningGang,
    Snapshot,
)

_FORMAT: Final = 1
# Reading one record means reading its chain.
LONGEST_CHAIN: Final = 50
# zlib level 1: three times as fast as the default 6, for a tenth more bytes.
_LEVEL: Final = 1
# The keyed parts of a snapshot: the field, the type of its values, and the name of their key.
_PARTS: Final[Mapping[str, tuple[type[Any], str]]] = {
    "nodes": (NodeSnapshot, "id"),
    "queued": (QueuedGang, "job_id"),
    "running": (RunningGang, "job_id"),
    "growing": (GrowingGang, "job_id"),
    "accounts": (Account, "project"),
    "bookings": (Booking, "id"),
}


@dataclass(frozen=True, slots=True)
class PlanLogEntry:
    """The tick at ``at``: the planner's input and its plan."""

    at: datetime
    snapshot: Snapshot
    plan: Plan


@dataclass(slots=True)
class _Chain:
    """What has been written since the last whole record, and the numbers of the jobs in it."""

    base_id: str
    last_id: str
    length: int
    parts: dict[str, dict[str, Any]]
    policy: Policy
    numbers: dict[str, int]
    plan: Plan


@dataclass(slots=True)
class PlanLogWriter:
    """Writes records; for the ticking process. ``chain``: ``None`` where the next record has to be a whole one."""

    make_id: Callable[[str], str]
    chain: _Chain | None = field(default=None)

    def record(self, session: Session, snapshot: Snapshot, new_plan: Plan) -> bool:
        """Write this tick's input and plan, unless nothing but the time has changed; whether it was written.

        The caller calls :meth:`forget` if the transaction fails.
        """
        chain = self.chain
        parts = {name: _named(getattr(snapshot, name), key) for name, (_, key) in _PARTS.items()}
        if chain and _says_the_same(chain.plan, new_plan) and not _has_changed(chain, parts, snapshot.policy):
            return False
        if chain is not None and chain.length >= LONGEST_CHAIN:
            chain = None  # this record is a whole one
        before: Mapping[str, Mapping[str, Any]] = {} if chain is None else chain.parts
        numbers = {} if chain is None else chain.numbers
        put, removed = _difference(before, parts)
        for job_id in put.get("queued", ()):
            numbers.setdefault(job_id, len(numbers))
        data = {
            "format": _FORMAT,
            "now": snapshot.now.isoformat(),
            "policy": to_json(snapshot.policy),
            "put": put,
            "gone": removed,
            "plan": _compact(plan_to_json(new_plan), numbers),
        }
        packed = zlib.compress(json.dumps(data, separators=(",", ":"), allow_nan=False).encode(), _LEVEL)
        record_id = self.make_id("pln")
        base_id = record_id if chain is None else chain.base_id
        session.execute(
            insert(PlanRecord).values(
                id=record_id,
                at=snapshot.now,
                base_id=base_id,
                previous_id=None if chain is None else chain.last_id,
                size_bytes=len(packed),
                data=packed,
            )
        )
        length = 1 if chain is None else chain.length + 1
        self.chain = _Chain(base_id, record_id, length, parts, snapshot.policy, numbers, new_plan)
        return True

    def forget(self) -> None:
        """The next record is a whole one: whether the last one was written is unknown."""
        self.chain = None


def entry_at(session: Session, at: datetime) -> PlanLogEntry | None:
    """The last record at ``at`` or before; ``None``: there is none so old."""
    newest = session.execute(
        select(PlanRecord.id, PlanRecord.base_id)
        .where(PlanRecord.at <= at)
        .order_by(PlanRecord.at.desc(), PlanRecord.id.desc())
        .limit(1)
    ).one_or_none()
    if newest is None:
        return None
    rows = session.execute(
        select(PlanRecord.id, PlanRecord.previous_id, PlanRecord.data).where(PlanRecord.base_id == newest.base_id)
    ).all()
    by_id = {row.id: row for row in rows}
    chain: list[bytes] = []
    record_id: str | None = newest.id
    while record_id is not None:
        if record_id not in by_id:
            return None  # it was being deleted at this moment
        chain.append(by_id[record_id].data)
        record_id = by_id[record_id].previous_id
    return _read(reversed(chain))


def first_entry_at(session: Session) -> datetime | None:
    """The time of the oldest record."""
    return session.execute(select(func.min(PlanRecord.at))).scalar_one()


def prune(session: Session, *, now: datetime, keep: timedelta, max_bytes: int) -> int:
    """Drop chains that ended longer than ``keep`` ago, and the oldest ones while all take more than ``max_bytes``.

    The newest chain stays, as it is being written. Returns the number of dropped records.
    """
    chains = session.execute(
        select(PlanRecord.base_id, func.max(PlanRecord.at), func.sum(PlanRecord.size_bytes), func.count())
        .group_by(PlanRecord.base_id)
        .order_by(func.max(PlanRecord.at).desc())
    ).all()
    total, dropped = 0, 0
    for number, (base_id, ended_at, size, count) in enumerate(chains):
        total += int(size)
        if number and (ended_at < now - keep or total > max_bytes):
            session.execute(delete(PlanRecord).where(PlanRecord.base_id == base_id))
            dropped += count
    return dropped


def _named(values: Sequence[Any], key: str) -> dict[str, Any]:
    return dict(zip(map(attrgetter(key), values), values, strict=True))


def _says_the_same(before: Plan, new_plan: Plan) -> bool:
    """Whether both plans do the same and give the same jobs the same kinds of reasons: numbers in sentences age."""
    waits = before.waits
    return (
        _done_by(before) == _done_by(new_plan)
        and waits.keys() == new_plan.waits.keys()
        and all(reason.code is waits[job_id].code for job_id, reason in new_plan.waits.items())
    )


def _done_by(new_plan: Plan) -> tuple[object, ...]:
    return new_plan.starts, new_plan.grows, new_plan.preempts, new_plan.shrinks, new_plan.moves, new_plan.order


def _has_changed(chain: _Chain, parts: Mapping[str, Mapping[str, Any]], policy: Policy) -> bool:
    if chain.policy != policy:
        return True
    for name, now in parts.items():
        before = chain.parts[name]
        if before.keys() != now.keys():
            return True
        if any(before[key] is not value and _timeless(before[key]) != _timeless(value) for key, value in now.items()):
            return True
    return False


def _timeless(value: Any) -> Any:
    """``value`` without what changes by time alone."""
    if isinstance(value, RunningGang):
        return replace(value, attained_gpu_s=0.0, lost_gpu_s=0.0, estimate=None, expected_end=None)
    if isinstance(value, QueuedGang):
        return replace(value, estimate=None)
    if isinstance(value, Account):
        return replace(value, usage=0.0, user_usage={})
    return value


def _difference(
    before: Mapping[str, Mapping[str, Any]], parts: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, dict[str, Any]], dict[str, list[str]]]:
    put: dict[str, dict[str, Any]] = {}
    removed: dict[str, list[str]] = {}
    for name, now in parts.items():
        old = before.get(name, {})
        fresh = {
            key: to_json(value) for key, value in now.items() if old.get(key) is not value and old.get(key) != value
        }
        if fresh:
            put[name] = fresh
        left = [key for key in old if key not in now]
        if left:
            removed[name] = left
    return put, removed


def _compact(plan: dict[str, Any], numbers: Mapping[str, int]) -> dict[str, Any]:
    """Waiting jobs by number, each as the difference to the one before: a long queue is mostly in order.

    ``aside``: jobs with a reason that were not planned and so have no number.
    """
    by_reason: dict[int, list[int]] = {}
    aside: dict[str, int] = {}
    for job_id, reason in plan["waits"].items():
        number = numbers.get(job_id)
        if number is None:
            aside[job_id] = reason
        elif reason in by_reason:
            by_reason[reason].append(number)
        else:
            by_reason[reason] = [number]
    packed_waits = {reason: _steps(jobs) for reason, jobs in by_reason.items()}
    packed = {**plan, "waits": [[reason, steps] for reason, steps in packed_waits.items()]}
    if aside:
        packed["aside"] = aside
    if "order" in plan:
        packed["order"] = _steps([numbers[job_id] for job_id in plan["order"]])
    return packed


def _expanded(plan: Mapping[str, Any], jobs: Sequence[str]) -> dict[str, Any]:
    waits = {jobs[number]: reason for reason, steps in plan["waits"] for number in accumulate(steps)}
    expanded = {**plan, "waits": {**waits, **plan.get("aside", {})}}
    expanded.pop("aside", None)
    if "order" in plan:
        expanded["order"] = [jobs[number] for number in accumulate(plan["order"])]
    return expanded


def _steps(numbers: Sequence[int]) -> list[int]:
    return [*numbers[:1], *map(sub, numbers[1:], numbers)]


def _read(chain: Iterable[bytes]) -> PlanLogEntry:
    """Read a whole record and the differences that follow it."""
    parts: dict[str, dict[str, Any]] = {name: {} for name in _PARTS}
    jobs: list[str] = []
    known: set[str] = set()
    data: dict[str, Any] = {}
    for packed in chain:
        data = json.loads(zlib.decompress(packed))
        for name, keys in data["gone"].items():
            for key in keys:
                parts[name].pop(key, None)
        for name, fresh in data["put"].items():
            parts[name].update(fresh)
        for job_id in data["put"].get("queued", ()):
            if job_id not in known:
                known.add(job_id)
                jobs.append(job_id)
    values: dict[str, Any] = {
        name: tuple(from_json(kind, parts[name][key]) for key in parts[name]) for name, (kind, _) in _PARTS.items()
    }
    now = datetime.fromisoformat(data["now"])
    snapshot = Snapshot(now=now, policy=from_json(Policy, data["policy"]), **values)
    return PlanLogEntry(now, snapshot, plan_from_json(_expanded(data["plan"], jobs)))
