"""Conversion of attempt and replica rows to their REST views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainmaster.wire.jobs import AttemptView, ExitView, ReplicaView

from core.db.tables import Attempt, Replica
from core.domain.contracts.context import ranked_roles
from core.domain.jobs.progress_rate import progress_view
from core.domain.jobs.states import ReplicaState


def attempt_view(attempt: Attempt, replicas: Sequence[Replica]) -> AttemptView:
    return AttemptView(
        id=attempt.id,
        number=attempt.number,
        state=attempt.state,
        executor=attempt.executor,
        world=attempt.world,
        world_reason=attempt.world_reason,
        resume_from=attempt.resume_from,
        end=exit_view(attempt.end),
        is_counted=attempt.counts_as_restart,
        created_at=attempt.created_at,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        replicas=replica_views(attempt, replicas),
    )


def replica_views(attempt: Attempt, replicas: Sequence[Replica]) -> list[ReplicaView]:
    """Views of some of the attempt's replicas, with addresses and ranks from the attempt's layout."""
    layout = attempt.layout or ()
    addresses = {(member["role"], member["index"]): f"{member['host']}:{member['ports'][0]}" for member in layout}
    ranked = ranked_roles(member["role"] for member in layout)
    ranks = {name: rank for rank, name in enumerate(name for name in addresses if name[0] in ranked)}
    return [
        _replica_view(replica, addresses.get(name), ranks.get(name))
        for replica in replicas
        for name in [(replica.role, replica.index)]
    ]


def _replica_view(replica: Replica, address: str | None, rank: int | None) -> ReplicaView:
    return ReplicaView(
        role=replica.role,
        index=replica.index,
        rank=rank,
        state=replica.state,
        generation=replica.generation,
        node=replica.node,
        gpus=[str(gpu) for gpu in replica.gpus],
        gpu_part=replica.gpu_milli / 1000 if replica.gpu_milli else None,
        address=address,
        exit=exit_view(replica.exit),
        detail=replica.detail,
        facts=replica.facts,
        started_at=replica.started_at,
        ended_at=replica.ended_at,
        heartbeat_at=replica.heartbeat_at,
        progress=progress_view(replica.progress, is_running=replica.state == ReplicaState.RUNNING),
    )


def exit_view(stored: Mapping[str, Any] | None) -> ExitView | None:
    """How a replica or an attempt ended, as the control loop stored it; ``kind`` and ``sentence`` are always set."""
    if not stored:
        return None
    return ExitView(
        kind=str(stored.get("kind") or stored.get("cause") or "platform"),
        sentence=str(stored.get("sentence", "")),
        exit_code=stored.get("exit_code"),
        role=stored.get("role"),
        index=stored.get("index"),
    )
