"""Whom to stop so that one gang surely fits: as few GPU-seconds lost as can be found, and nobody who need not go.

The simple equivalent tries every set of those who may be stopped, the cheapest first. The difference: nodes are ranked
by what a member gained there costs (:mod:`.ranking`). Of single nodes the best few are worked out one by one; for gangs
on several nodes as many are cleared as it takes. Whatever was found, everybody without whose end the gang fits too is
left alone again, the dearest first: so a set is always minimal, though another one may be cheaper.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from core.domain.sharing.resources import Request
from scheduler.planning.placement.capacity import slots_in
from scheduler.planning.placement.demand import Demand
from scheduler.planning.placement.partial import Draft, Left
from scheduler.planning.preemption.eviction import Clearing, Piece
from scheduler.planning.preemption.node_ranking import Ranking

# Nodes that are worked out piece by piece; more are not likely to hold a cheaper set than the cheapest of so many.
_NODES_TRIED: Final = 32
# Pieces on one node of which every set is tried, as far as it may be cheaper than what is known: 256 sets.
_PIECES_TRIED: Final = 8


@dataclass(frozen=True, slots=True)
class Choice:
    """``pieces``: who goes, the cheapest first. ``draft``: where the gang will be."""

    pieces: tuple[Piece, ...]
    draft: Draft

    @property
    def cost(self) -> tuple[object, ...]:
        return _cost(self.pieces)


def _cost(pieces: Sequence[Piece]) -> tuple[object, ...]:
    """Fewest GPU-seconds, then fewest jobs, then the youngest."""
    return sum(piece.cost for piece in pieces), len(pieces), sorted(piece.order for piece in pieces)


class Victims:
    """Choices for one gang among the pieces of ``ranking``, on what ``clearing`` has free.

    ``clearing`` is used for trying, and left as it was.
    """

    def __init__(self, demand: Demand, ranking: Ranking, clearing: Clearing) -> None:
        self.demand = demand
        self.ranking = ranking
        self.clearing = clearing

    def choose(self) -> Choice | None:
        """The cheapest that is found; ``None``: not even without all of them would the gang fit."""
        several = self._on_several()
        one = self._on_one_node()
        return min((choice for choice in (several, one) if choice is not None), key=lambda c: c.cost, default=None)

    # ---- one node ----

    def _on_one_node(self) -> Choice | None:
        whole = self.demand.as_one
        if whole is None:
            return None
        request, models = whole
        bundles, _ = self.ranking.bundles(request, models, self.demand.pool, self.clearing)
        best: tuple[tuple[object, ...], list[Piece]] | None = None
        for _, number, _, _ in bundles[:_NODES_TRIED]:
            chosen = self._cheapest_on(number, request, models)
            if chosen is not None:
                key = (*_cost(chosen), number)
                if best is None or key < best[0]:
                    best = (key, chosen)
        return None if best is None else self._pruned(best[1])

    def _cheapest_on(self, number: int, request: Request, models: Sequence[str]) -> list[Piece] | None:
        """Taken in turn until it fits, then those given back that need not go, the dearest first; any cheaper set of the
        first few.
        """
        present = self.ranking.on(number)
        chosen: list[Piece] = []
        for piece in present:
            chosen.append(piece)
            if self._fits_on(number, chosen, request, models):
                break
        else:
            return None
        for piece in reversed(list(chosen)):
            fewer = [one for one in chosen if one is not piece]
            if self._fits_on(number, fewer, request, models):
                chosen = fewer
        return self._cheaper(number, present[:_PIECES_TRIED], chosen, request, models)

    def _cheaper(
        self, number: int, present: Sequence[Piece], chosen: list[Piece], request: Request, models: Sequence[str]
    ) -> list[Piece]:
        best, bound = chosen, _cost(chosen)
        sets: list[list[Piece]] = [[]]
        for piece in present:
            for pieces in list(sets):
                tried = [*pieces, piece]
                if _cost(tried) >= bound:
                    continue
                if self._fits_on(number, tried, request, models):
                    best, bound = tried, _cost(tried)
                else:
                    sets.append(tried)
        return best

    def _fits_on(self, number: int, pieces: Iterable[Piece], request: Request, models: Sequence[str]) -> bool:
        left: Left = self.clearing.after(number, pieces)
        keeping = self.clearing.room.keeping
        if self.demand.keeps_off and keeping is not None:
            left = keeping.beside(number, left)
        return slots_in(left[0], left[1], left[2], request, models, 1, left[3]) > 0

    # ---- several nodes ----

    def _on_several(self) -> Choice | None:
        """Nodes are cleared in the order of what a member gained costs there, as many as it takes."""
        group = self.demand.merged[0]
        bundles, present = self.ranking.bundles(group.request, group.models, self.demand.pool, self.clearing)
        missing, first = group.count - present, 0
        while first < len(bundles) and missing > 0:
            missing -= bundles[first][3]
            first += 1
        if missing > 0:
            return None  # not even all of them make enough room
        low, high = 0, max(1, first)
        while True:
            pieces = self._all_of(bundles[:high])
            if self._fits_without(pieces) is not None:
                break
            if high >= len(bundles):
                return self._pruned(self.ranking.alive)
            low, high = high, 2 * high
        while low + 1 < min(high, len(bundles)):
            middle = (low + min(high, len(bundles))) // 2
            fewer = self._all_of(bundles[:middle])
            if self._fits_without(fewer) is None:
                low = middle
            else:
                high, pieces = middle, fewer
        return self._pruned(pieces)

    def _all_of(self, bundles: Iterable[tuple[float, int, int, int]]) -> list[Piece]:
        """The pieces of all of them, each once."""
        found = [piece for _, number, pieces, _ in bundles for piece in self.ranking.on(number)[:pieces]]
        return list({piece.key: piece for piece in found}.values())

    def _fits_without(self, pieces: Sequence[Piece]) -> Draft | None:
        self.clearing.clear(pieces)
        draft = self.clearing.fits(self.demand)
        self.clearing.restore(pieces)
        return draft

    def _pruned(self, pieces: Sequence[Piece]) -> Choice | None:
        """Of these, those without whose end the gang would not fit."""
        draft = self._fits_without(pieces)
        if draft is None:
            return None
        # Only who stands where the gang will be can be in its way.
        kept = [piece for piece in pieces if any(held[0] in draft.left for held in piece.held)]
        self.clearing.clear(kept)
        drafted = self.clearing.fits(self.demand)
        if drafted is None:  # a search found less without the others: all of them go
            self.clearing.clear(pieces)
            kept, drafted = list(pieces), draft
        for piece in sorted(kept, key=lambda one: one.order, reverse=True):
            self.clearing.restore([piece])
            found = self.clearing.fits(self.demand)
            if found is None:
                self.clearing.clear([piece])
            else:
                kept.remove(piece)
                drafted = found
        self.clearing.restore(kept)
        return Choice(tuple(sorted(kept, key=lambda one: one.order)), drafted) if kept else None
