"""What the processes of a training tell of themselves, and who holds the others up."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

_SHOWN = 4  # ranks in one sentence


class Heartbeat(NamedTuple):
    """``beat`` grows with each sign. ``collectives``: how many this process has begun. ``still_s``: for how long it has
    not moved. ``at``: the line of the script that it is at.
    """

    sequence: int
    collectives: int
    stalled_s: float
    location: str
    has_left: bool = False

    def to_text(self) -> str:
        return json.dumps(self)


def parse_heartbeat(text: bytes) -> Optional[Heartbeat]:
    """``None``: the process has only come so far."""
    fields: List[Any] = json.loads(text)
    return Heartbeat(*fields) if fields else None


class HeartbeatTable:
    """The newest signs of all, as one process sees them.

    Args:
        name_of: how a sentence calls a rank.
        now_s: of any clock that does not jump, as everywhere here.
    """

    def __init__(self, size: int, name_of: Callable[[int], str], now_s: float) -> None:
        self._name_of = name_of
        self._heartbeats: Dict[int, Heartbeat] = {}
        self._received_at = dict.fromkeys(range(size), now_s)

    def note(self, rank: int, heartbeat: Optional[Heartbeat], now_s: float) -> None:
        """Keep what ``rank`` tells; the same sign twice is no sign of life."""
        known = self._heartbeats.get(rank)
        if heartbeat is not None and (known is None or heartbeat.sequence != known.sequence):
            self._heartbeats[rank] = heartbeat
            self._received_at[rank] = now_s

    def reset(self, now_s: float) -> None:
        """Take all for heard of now."""
        self._received_at = dict.fromkeys(self._received_at, now_s)

    def silent(self, now_s: float, for_s: float) -> List[int]:
        """Who has given no sign for so long, and did not say that it leaves."""
        return [
            rank
            for rank, location in self._received_at.items()
            if now_s - location >= for_s and not self._latest(rank).has_left
        ]

    def sentence(self, now_s: float, after_s: float) -> str:
        """Who has waited for whom, for ``after_s`` or longer; empty when nobody has."""
        heartbeats = {rank: self._latest(rank) for rank in self._received_at if not self._latest(rank).has_left}
        silent = self.silent(now_s, after_s)
        furthest = max((heartbeat.collectives for heartbeat in heartbeats.values()), default=0)
        late = [rank for rank, heartbeat in heartbeats.items() if rank in silent or heartbeat.collectives < furthest]
        stalled = [
            rank for rank, heartbeat in heartbeats.items() if rank not in late and heartbeat.stalled_s >= after_s
        ]
        if not stalled:
            return ""
        waited_s = min(heartbeats[rank].stalled_s for rank in stalled)
        where = heartbeats[stalled[0]].location
        if late:
            others = "; ".join(
                f"{self._name_of(rank)} {self._describe_late(rank, silent, now_s)}" for rank in late[:_SHOWN]
            )
            more = f"; and {len(late) - _SHOWN} more" if len(late) > _SHOWN else ""
            return f"{_ranks(stalled)} waited for {waited_s:.0f} s at {where}: {others}{more}"
        if len(stalled) == len(heartbeats) and len(stalled) > 1:
            return (
                f"all {len(stalled)} processes have stood still for {waited_s:.0f} s, {_ranks(stalled[:1])} at {where}"
            )
        return ""

    def _describe_late(self, rank: int, silent: Sequence[int], now_s: float) -> str:
        if rank in silent:
            return describe_silence(now_s - self._received_at[rank])
        return f"is still at {self._latest(rank).location}"

    def _latest(self, rank: int) -> Heartbeat:
        return self._heartbeats.get(rank, Heartbeat(-1, 0, 0.0, "its start"))


def describe_silence(for_s: float) -> str:
    """What is said of a process that is silent."""
    return f"has given no sign of life for {for_s:.0f} s, so it is stopped or its machine is away"


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_SHOWN])) + (" and others" if len(ranks) > _SHOWN else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
