"""Whom to stop so that one gang surely fits: as few GPU-seconds lost as can be found, and nobody who need not go.

The simple equivalent tries every set of those who may be stopped, the cheapest first. The difference: single nodes are
tried one by one, each with its own cheapest few; for gangs on several nodes the nodes are cleared in the order of what
a member gained there costs, as many as are needed. Whatever was found, everybody without whose end the gang fits too is
left alone again, the dearest first; so a set is always minimal, though another one may be cheaper.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from core.domain.resources import Request
from scheduler.planning.capacity import slots_in
from scheduler.planning.clearing import Clearing, Piece, more
from scheduler.planning.demand import Demand
from scheduler.planning.draft import Draft, Left

# Nodes that are worked out piece by piece; more are not likely to hold a cheaper set than the cheapest of so many.
_NODES_TRIED: Final = 64


@dataclass(frozen=True, slots=True)
class Choice:
    """``pieces``: who goes, the cheapest first. ``draft``: where the gang will be."""

    pieces: tuple[Piece, ...]
    draft: Draft

    @property
    def cost(self) -> tuple[object, ...]:
        return (
            sum(piece.cost for piece in self.pieces),
            len(self.pieces),
            [piece.order for piece in self.pieces],
        )


class Victims:
    """Choices for one gang among ``pieces``, on what ``clearing`` has free.

    ``clearing`` is used for trying, and left as it was.
    """

    def __init__(self, demand: Demand, pieces: Sequence[Piece], clearing: Clearing) -> None:
        self.demand = demand
        self.pieces = sorted(pieces, key=lambda piece: piece.order)
        self.clearing = clearing
        self._on: dict[int, list[Piece]] = {}
        flags = demand.pool.flags
        for piece in self.pieces:
            for number in {held[0] for held in piece.held}:
                if flags[number] and number not in clearing.closed:
                    self._on.setdefault(number, []).append(piece)

    def choose(self) -> Choice | None:
        """The cheapest that is found; ``None``: not even without all of them would the gang fit."""
        clearing = self.clearing
        clearing.clear(self.pieces)
        widest = clearing.fits(self.demand)
        clearing.restore(self.pieces)
        if widest is None:
            return None
        found = [choice for choice in (self._on_one_node(), self._on_several(widest)) if choice is not None]
        return min(found, key=lambda choice: choice.cost, default=None)

    # ---- one node ----

    def _on_one_node(self) -> Choice | None:
        whole = self.demand.as_one
        if whole is None:
            return None
        request, models = whole
        best: tuple[tuple[object, ...], list[Piece]] | None = None
        for number in self._nearest(request, models):
            chosen = self._cheapest_on(number, request, models)
            if chosen is None:
                continue
            key = (sum(p.cost for p in chosen), len(chosen), [p.order for p in chosen], number)
            if best is None or key < best[0]:
                best = (key, chosen)
        return None if best is None else self._pruned(best[1])

    def _nearest(self, request: Request, models: Sequence[str]) -> list[int]:
        """Nodes on which it may fit, those first on which the cheapest pieces, taken in turn, cost the least."""
        ranked: list[tuple[float, int]] = []
        for number, pieces in self._on.items():
            left = self.clearing.after(number, ())
            cost = 0.0
            for piece in pieces:
                left = self._without(number, left, piece)
                cost += piece.cost
                if _fits(left, request, models):
                    ranked.append((cost, number))
                    break
        return [number for _, number in sorted(ranked)[:_NODES_TRIED]]

    @staticmethod
    def _without(number: int, left: Left, piece: Piece) -> Left:
        for at, request, model, members in piece.held:
            if at == number:
                left = more(left, request, model, members)
        return left

    def _cheapest_on(self, number: int, request: Request, models: Sequence[str]) -> list[Piece] | None:
        """Taken in turn until it fits, then those given back that need not go, the dearest first."""
        chosen: list[Piece] = []
        for piece in self._on[number]:
            chosen.append(piece)
            if _fits(self.clearing.after(number, chosen), request, models):
                break
        else:
            return None
        for piece in sorted(chosen, key=lambda one: one.order, reverse=True):
            fewer = [one for one in chosen if one is not piece]
            if _fits(self.clearing.after(number, fewer), request, models):
                chosen = fewer
        return chosen

    # ---- several nodes ----

    def _on_several(self, widest: Draft) -> Choice | None:
        """Nodes are cleared in the order of what a member gained costs there, as many as it takes."""
        group = self.demand.merged[0]
        bundles: list[tuple[float, int, list[Piece]]] = []
        for number, pieces in self._on.items():
            before = _slots(self.clearing.after(number, ()), group.request, group.models, group.count)
            best: tuple[float, list[Piece]] | None = None
            cost, taken = 0.0, list[Piece]()
            for piece in pieces:
                taken = [*taken, piece]
                cost += piece.cost
                gained = _slots(self.clearing.after(number, taken), group.request, group.models, group.count) - before
                if gained > 0 and (best is None or cost / gained < best[0]):
                    best = (cost / gained, taken)
            if best is not None:
                bundles.append((best[0], number, best[1]))
        bundles.sort(key=lambda bundle: bundle[:2])
        low, high = 0, len(bundles)
        while low < high:
            middle = (low + high) // 2
            if self._fits_without(_all_of(bundles[: middle + 1])) is None:
                low = middle + 1
            else:
                high = middle
        chosen = _all_of(bundles[: low + 1]) if low < len(bundles) else self.pieces
        return self._pruned(chosen, None if low < len(bundles) else widest)

    def _fits_without(self, pieces: Sequence[Piece]) -> Draft | None:
        self.clearing.clear(pieces)
        draft = self.clearing.fits(self.demand)
        self.clearing.restore(pieces)
        return draft

    def _pruned(self, pieces: Sequence[Piece], draft: Draft | None = None) -> Choice | None:
        """Of these, those without whose end the gang would not fit."""
        draft = draft or self._fits_without(pieces)
        if draft is None:
            return None
        # Only who stands where the gang will be can be in its way.
        kept = [piece for piece in pieces if any(held[0] in draft.left for held in piece.held)]
        self.clearing.clear(kept)
        drafted = self.clearing.fits(self.demand)
        if drafted is None:  # the search found less without the others: keep them all
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


def _fits(left: Left, request: Request, models: Sequence[str]) -> bool:
    return _slots(left, request, models, 1) > 0


def _slots(left: Left, request: Request, models: Sequence[str], most: int) -> int:
    cpu, memory, gpus, shares = left
    return slots_in(cpu, memory, gpus, request, models, most, shares)


def _all_of(bundles: Iterable[tuple[float, int, list[Piece]]]) -> list[Piece]:
    """The pieces of all of them, each once."""
    return list({piece.key: piece for _, _, pieces in bundles for piece in pieces}.values())
