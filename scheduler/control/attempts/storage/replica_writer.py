"""Writing the replicas of one attempt: moves, notes, ranks, and the blame for failures of machines."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any, Final, cast

from sqlalchemy import Integer, Table, bindparam, case, func, insert, select, update

from core.db.tables import Attempt, NodeFailure, ReleasedAllocation, Replica
from core.domain.jobs.exits import classify
from core.domain.jobs.lifecycle import Effect, ReplicaEvent, advance
from core.domain.jobs.machine_faults import MachineFault
from core.domain.jobs.states import ReplicaState
from core.domain.sharing.gpus import WHOLE_GPU
from scheduler.control.attempts.attempt_snapshot import GangMember
from scheduler.control.attempts.decision import ReplicaMove, ReplicaNote, short_names
from scheduler.control.attempts.storage.attempt_loader import AttemptRows, exit_to_json
from scheduler.control.attempts.storage.statement_batch import StatementBatch
from scheduler.control.journal import EXECUTOR

_DETAIL_CHARS: Final = 2000

# Built once; columns to change are given as parameters.
_replicas = cast("Table", Replica.__table__)
_ADD_FAILURE: Final = insert(cast("Table", NodeFailure.__table__)).inline()
_CHANGE_REPLICA: Final = update(_replicas).where(
    _replicas.c.id == bindparam("row_id"),
    _replicas.c.generation == bindparam("expected_generation"),
    _replicas.c.state == bindparam("expected_state"),
)
_NOTE_REPLICA: Final = update(_replicas).where(_replicas.c.id == bindparam("row_id"))
_attempts = cast("Table", Attempt.__table__)
_ADD_RELEASED: Final = insert(cast("Table", ReleasedAllocation.__table__)).from_select(
    ["attempt_id", "job_id", "node", "gpu_model", "gpu_milli", "cpu_milli", "memory_bytes", "start_at", "end_at"],
    select(
        _replicas.c.attempt_id,
        _replicas.c.job_id,
        _replicas.c.node,
        _replicas.c.gpu_model,
        case((_replicas.c.gpu_milli > 0, _replicas.c.gpu_milli), else_=bindparam("whole_milli", type_=Integer)),
        _replicas.c.cpu_milli,
        _replicas.c.memory_bytes,
        func.coalesce(_replicas.c.placed_at, _attempts.c.created_at),
        bindparam("end_at", type_=_replicas.c.ended_at.type),
    )
    .join_from(_replicas, _attempts, _attempts.c.id == _replicas.c.attempt_id)
    .where(_replicas.c.id == bindparam("row_id"), _replicas.c.memory_bytes > 0),
    include_defaults=False,
)
_NOTE_PENDING: Final = _NOTE_REPLICA.where(_replicas.c.state == ReplicaState.PENDING.value)
_RANK_AFTER_WORLD: Final = (
    update(_replicas)
    .where(
        _replicas.c.attempt_id == bindparam("is_attempt"), _replicas.c.id.not_in(bindparam("members", expanding=True))
    )
    .values(rank=bindparam("count") + _replicas.c.replica_index)
)


class ReplicaWriter:
    """Adds the statements to ``writes``; ``add_event`` adds an event to the job's history."""

    def __init__(
        self, writes: StatementBatch, rows: AttemptRows, now: datetime, add_event: Callable[..., None]
    ) -> None:
        self.writes = writes
        self.now = now
        self.job_id = rows.job.id
        self.attempt_id = rows.attempt.id
        self.add_event = add_event

    def move(self, moves: Iterable[ReplicaMove]) -> None:
        by_event: defaultdict[ReplicaEvent, list[ReplicaMove]] = defaultdict(list)
        changes: dict[str, tuple[GangMember, dict[str, Any]]] = {}
        for item in moves:
            # A replica that ran and ended since the last pass moves twice: compared with what was read, written once.
            _, values = changes.setdefault(item.member.id, (item.member, {}))
            values |= self._new_values(item)
            by_event[item.event].append(item)
        self._change(changes.values())
        for event, group in by_event.items():
            kind = advance(group[0].member.state, event).kind
            members = [item.member for item in group]
            reasons = [_move_reason(item) for item in group]
            if event in (ReplicaEvent.FAIL, ReplicaEvent.LOSE, ReplicaEvent.RESTART):
                for member, reason in zip(members, reasons, strict=True):
                    self._add_members_event(kind, [member], reason, actor=EXECUTOR)
            else:
                self._add_members_event(
                    kind, members, f"{short_names(members)} {_EVENT_PHRASES[event]}.", actor=EXECUTOR
                )

    def _new_values(self, item: ReplicaMove) -> dict[str, Any]:
        move = advance(item.member.state, item.event)
        values: dict[str, Any] = {"state": move.state.value}
        if Effect.STAMP_STARTED in move.effects:
            values["started_at"] = item.at
        if Effect.STAMP_FINISHED in move.effects:
            values["ended_at"] = item.at
        if item.exit is not None:
            verdict = classify(item.exit)
            values["exit"] = exit_to_json(item.exit, verdict.kind.value, verdict.sentence)
            if verdict.fault is not None:
                self._blame(item.member, item.exit.at, verdict.fault)
        if item.event is ReplicaEvent.RESTART:
            values |= {
                "generation": item.member.generation + 1,
                "exit": None,
                "started_at": None,
                "ended_at": None,
                "detail": "",
                "facts": {},
                "report_seq": 0,
            }
        return values

    def _blame(self, member: GangMember, at: datetime, fault: MachineFault) -> None:
        """Blame its node: written with the end itself, so that no kill comes between the two."""
        if fault.is_xid and not member.gpus:
            # A replica without one of the driver's devices may have read this anywhere.
            fault = replace(fault, is_certain=False)
        row = {
            "node": member.node,
            "job_id": self.job_id,
            "attempt_id": self.attempt_id,
            "replica": member.name,
            "at": at,
        }
        self.writes.add(_ADD_FAILURE, {**row, **asdict(fault)})

    def _change(self, changes: Iterable[tuple[GangMember, Mapping[str, Any]]]) -> None:
        """Write new values, compared with what was read; changes of the same columns are sent together."""
        same_columns: defaultdict[tuple[str, ...], list[tuple[GangMember, Mapping[str, Any]]]] = defaultdict(list)
        for member, values in changes:
            same_columns[tuple(sorted(values))].append((member, values))
        for group in same_columns.values():
            moved = f"{short_names(m for m, _ in group)}: one has moved since it was read"
            for m, values in group:
                key = {"row_id": m.id, "expected_generation": m.generation, "expected_state": m.state.value}
                self.writes.add(_CHANGE_REPLICA, {**key, **values}, stale_message=moved)

    def note(self, notes: Iterable[ReplicaNote]) -> None:
        plain: list[dict[str, Any]] = []
        with_facts: list[dict[str, Any]] = []
        for note in notes:
            values = {"row_id": note.member.id, "detail": note.detail[:_DETAIL_CHARS]}
            if note.facts:
                with_facts.append(values | {"facts": note.facts})
            else:
                plain.append(values)
        for row in (*plain, *with_facts):
            self.writes.add(_NOTE_REPLICA, row)

    def hand_over(self, members: Sequence[GangMember], details: Mapping[str, str]) -> None:
        """``members`` were taken by the executor; ``details``: replica id -> why it was not."""
        created = {m.id: advance(m.state, ReplicaEvent.CREATE).state.value for m in members}
        self._change((member, {"state": created[member.id], "detail": ""}) for member in members)
        for key, detail in details.items():
            self.writes.add(_NOTE_PENDING, {"row_id": key, "detail": detail[:_DETAIL_CHARS]})
        if members:
            nodes = sorted({member.node for member in members})
            where = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes"
            self._add_members_event(
                "replica.starting", members, f"{short_names(members)} handed to {where}.", actor=EXECUTOR
            )

    def rank(self, members: Sequence[GangMember]) -> None:
        """Ranks in a new world with these members."""
        for rank, member in enumerate(members):
            self.writes.add(_NOTE_REPLICA, {"row_id": member.id, "rank": rank})
        # Joining and lost replicas rank after the members of the world.
        ids = [member.id for member in members]
        others = {"is_attempt": self.attempt_id, "members": ids, "count": len(ids)}
        self.writes.add(_RANK_AFTER_WORLD, others, is_unbatched=True)

    def release(self, members: Iterable[GangMember]) -> None:
        """Their resources are free from here on; the rows keep their history."""
        for member in members:
            whole = {"row_id": member.id, "whole_milli": len(member.gpus) * WHOLE_GPU, "end_at": self.now}
            self.writes.add(_ADD_RELEASED, whole)
            self.writes.add(_NOTE_REPLICA, {"row_id": member.id, "cpu_milli": 0, "memory_bytes": 0, "gpus": []})

    def _add_members_event(self, kind: str, members: Sequence[GangMember], reason: str, *, actor: str) -> None:
        listed = [member.name for member in members[:100]]
        self.add_event(kind, reason, actor=actor, data={"replicas": listed, "count": len(members)})


_EVENT_PHRASES: Final = {
    ReplicaEvent.CREATE: "handed over",
    ReplicaEvent.RUN: "running",
    ReplicaEvent.SUCCEED: "finished",
    ReplicaEvent.STOP: "stopped",
}


def _move_reason(item: ReplicaMove) -> str:
    if item.event is ReplicaEvent.RESTART:
        return f"{item.member.name} starts again, the others go on. {item.reason}".strip()
    if item.exit is not None:
        return classify(item.exit).sentence
    return item.reason or f"{item.member.name} {item.event.value}."
