"""Heartbeats of the processes of a training, and the analysis of which process holds up the others."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

_SHOWN = 4  # ranks in one sentence


class Heartbeat(NamedTuple):
    """``sequence`` grows with each heartbeat. ``collectives``: number that this process has begun. ``stalled_s``: for
    how long it has made no progress. ``location``: the current line of the script.
    """

    sequence: int
    collectives: int
    stalled_s: float
    location: str
    has_left: bool = False

    def to_text(self) -> str:
        return json.dumps(self)


def parse_heartbeat(text: bytes) -> Optional[Heartbeat]:
    """``None``: the process has joined, but sent no heartbeat yet."""
    fields: List[Any] = json.loads(text)
    return Heartbeat(*fields) if fields else None


class HeartbeatTable:
    """The newest heartbeats of all processes, as one process sees them.

    Args:
        name_of: the name of a rank in messages.
        now_s: of a monotonic clock, as everywhere here.
    """

    def __init__(self, size: int, name_of: Callable[[int], str], now_s: float) -> None:
        self._name_of = name_of
        self._heartbeats: Dict[int, Heartbeat] = {}
        self._received_at = dict.fromkeys(range(size), now_s)

    def record(self, rank: int, heartbeat: Optional[Heartbeat], now_s: float) -> None:
        """Store a heartbeat of ``rank``; a repeated one is ignored."""
        known = self._heartbeats.get(rank)
        if heartbeat is not None and (known is None or heartbeat.sequence != known.sequence):
            self._heartbeats[rank] = heartbeat
            self._received_at[rank] = now_s

    def reset(self, now_s: float) -> None:
        """Restart the silence of all ranks at ``now_s``."""
        self._received_at = dict.fromkeys(self._received_at, now_s)

    def silent(self, now_s: float, for_s: float) -> List[int]:
        """Ranks without a heartbeat for ``for_s`` seconds that did not announce their exit."""
        return [
            rank
            for rank, location in self._received_at.items()
            if now_s - location >= for_s and not self._latest(rank).has_left
        ]

    def sentence(self, now_s: float, after_s: float) -> str:
        """Which ranks have waited for which, for ``after_s`` or longer; empty if none has."""
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
            return f"all {len(stalled)} processes are stalled for {waited_s:.0f} s, {_ranks(stalled[:1])} at {where}"
        return ""

    def _describe_late(self, rank: int, silent: Sequence[int], now_s: float) -> str:
        if rank in silent:
            return describe_silence(now_s - self._received_at[rank])
        return f"is still at {self._latest(rank).location}"

    def _latest(self, rank: int) -> Heartbeat:
        return self._heartbeats.get(rank, Heartbeat(-1, 0, 0.0, "its start"))


def describe_silence(for_s: float) -> str:
    """Describe a silent process."""
    return f"has sent no heartbeat for {for_s:.0f} s, so it is stopped or its machine is unreachable"


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_SHOWN])) + (" and others" if len(ranks) > _SHOWN else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
