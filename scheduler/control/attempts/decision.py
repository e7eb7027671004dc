"""The decision about one attempt: what to record, and which commands the executor gets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from core.domain.jobs.exits import ExitFacts
from core.domain.jobs.lifecycle import ReplicaEvent
from scheduler.control.attempts.attempt_snapshot import GangMember, Stop
from scheduler.control.attempts.ending import AttemptEnd
from scheduler.control.attempts.worlds import WorldChange


@dataclass(frozen=True, slots=True)
class ReplicaMove:
    """``exit``: what the driver reported of the end; ``at``: when it happened there."""

    member: GangMember
    event: ReplicaEvent
    at: datetime
    reason: str = ""
    exit: ExitFacts | None = None


@dataclass(frozen=True, slots=True)
class ReplicaNote:
    """The executor's detail about a replica, for users. ``facts`` empty: unchanged."""

    member: GangMember
    detail: str
    facts: dict[str, object]


@dataclass(frozen=True, slots=True)
class Decision:
    """``moves`` and the other writes are recorded first; then ``creates``, ``world_updates``, ``discards`` and
    ``stops`` are sent.

    ``world``: the next world of an elastic gang; ``releases``: replicas whose resources are free then;
    ``world_updates``: replicas that do not know the newest world yet; ``discards``: replicas that the engine still
    shows although the gang goes on without them. ``end`` is written once the executor has confirmed that nothing of the
    attempt is left. ``recheck_at``: when time alone will change something.
    """

    moves: tuple[ReplicaMove, ...] = ()
    notes: tuple[ReplicaNote, ...] = ()
    stop: Stop | None = None
    is_decided: bool = False
    is_running: bool = False
    counted_restarts: int = 0
    world: WorldChange | None = None
    releases: tuple[GangMember, ...] = ()
    creates: tuple[GangMember, ...] = ()
    world_updates: tuple[GangMember, ...] = ()
    discards: tuple[GangMember, ...] = ()
    stops: tuple[GangMember, ...] = ()
    end: AttemptEnd | None = None
    recheck_at: datetime | None = None

    @property
    def has_writes(self) -> bool:
        return bool(
            self.moves
            or self.notes
            or self.stop
            or self.is_decided
            or self.is_running
            or self.world
            or self.releases
            or self.counted_restarts
        )


def short_names(members: Iterable[GangMember]) -> str:
    """``worker-0, worker-1 and 6 more``: at most three names."""
    listed = [member.name for member in members]
    if len(listed) <= 3:
        return " and ".join([", ".join(listed[:-1]), listed[-1]] if len(listed) > 1 else listed)
    return f"{', '.join(listed[:3])} and {len(listed) - 3} more"
