"""What the processes of a training tell of themselves, and who holds the others up."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence

_SHOWN = 4  # ranks in one sentence


class Sign(NamedTuple):
    """``beat`` grows with each sign. ``collectives``: how many this process has begun. ``still_s``: for how long it has
    not moved. ``at``: the line of the script that it is at.
    """

    beat: int
    collectives: int
    still_s: float
    at: str
    has_left: bool = False

    def to_text(self) -> str:
        return json.dumps(self)


def read_sign(text: bytes) -> Optional[Sign]:
    """``None``: the process has only come so far."""
    fields: List[Any] = json.loads(text)
    return Sign(*fields) if fields else None


class Board:
    """The newest signs of all, as one process sees them.

    Args:
        name_of: how a sentence calls a rank.
        now_s: of any clock that does not jump, as everywhere here.
    """

    def __init__(self, size: int, name_of: Callable[[int], str], now_s: float) -> None:
        self._name_of = name_of
        self._signs: Dict[int, Sign] = {}
        self._heard_at = dict.fromkeys(range(size), now_s)

    def note(self, rank: int, sign: Optional[Sign], now_s: float) -> None:
        """Keep what ``rank`` tells; the same sign twice is no sign of life."""
        known = self._signs.get(rank)
        if sign is not None and (known is None or sign.beat != known.beat):
            self._signs[rank] = sign
            self._heard_at[rank] = now_s

    def begin_anew(self, now_s: float) -> None:
        """Take all for heard of now."""
        self._heard_at = dict.fromkeys(self._heard_at, now_s)

    def silent(self, now_s: float, for_s: float) -> List[int]:
        """Who has given no sign for so long, and did not say that it leaves."""
        return [rank for rank, at in self._heard_at.items() if now_s - at >= for_s and not self._of(rank).has_left]

    def sentence(self, now_s: float, after_s: float) -> str:
        """Who has waited for whom, for ``after_s`` or longer; empty when nobody has."""
        signs = {rank: self._of(rank) for rank in self._heard_at if not self._of(rank).has_left}
        silent = self.silent(now_s, after_s)
        furthest = max((sign.collectives for sign in signs.values()), default=0)
        late = [rank for rank, sign in signs.items() if rank in silent or sign.collectives < furthest]
        still = [rank for rank, sign in signs.items() if rank not in late and sign.still_s >= after_s]
        if not still:
            return ""
        waited_s = min(signs[rank].still_s for rank in still)
        where = signs[still[0]].at
        if late:
            others = "; ".join(f"{self._name_of(rank)} {self._doing(rank, silent, now_s)}" for rank in late[:_SHOWN])
            more = f"; and {len(late) - _SHOWN} more" if len(late) > _SHOWN else ""
            return f"{_ranks(still)} waited for {waited_s:.0f} s at {where}: {others}{more}"
        if len(still) == len(signs) and len(still) > 1:
            return f"all {len(still)} processes have stood still for {waited_s:.0f} s, {_ranks(still[:1])} at {where}"
        return ""

    def _doing(self, rank: int, silent: Sequence[int], now_s: float) -> str:
        if rank in silent:
            return missing(now_s - self._heard_at[rank])
        return f"is still at {self._of(rank).at}"

    def _of(self, rank: int) -> Sign:
        return self._signs.get(rank, Sign(-1, 0, 0.0, "its start"))


def missing(for_s: float) -> str:
    """What is said of a process that is silent."""
    return f"has given no sign of life for {for_s:.0f} s, so it is stopped or its machine is away"


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_SHOWN])) + (" and others" if len(ranks) > _SHOWN else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
