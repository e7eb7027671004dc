"""Victim selection: a minimal set whose eviction certainly makes one gang fit, with as few GPU-seconds lost as
possible.

The simple equivalent tries every set of evictable units, the cheapest first. Instead, nodes are ranked by the cost
per member gained (:mod:`.node_ranking`). For gangs that fit on one node, the best few nodes are evaluated one by
one; for gangs on several nodes, as many nodes are cleared as necessary. Finally, every unit without whose
eviction the gang fits as well is spared, the most expensive first: the set is always minimal, though a different one
may be cheaper.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from core.domain.sharing.resources import ResourceRequest
from scheduler.planning.placement.capacity import FreeAmounts, slots_in
from scheduler.planning.placement.demand import Demand
from scheduler.planning.placement.partial import PartialPlacement
from scheduler.planning.preemption.eviction import Evictable, EvictionWhatIf
from scheduler.planning.preemption.node_ranking import NodeRanking

# Nodes that are worked out evictable by evictable; more are not likely to hold a cheaper set than the cheapest of so
# many.
_NODES_TRIED: Final = 32
# Units on one node of which every subset is tried while it may be cheaper than the best known: 256 subsets.
_PIECES_TRIED: Final = 8


@dataclass(frozen=True, slots=True)
class VictimSet:
    """``evictables``: the victims, the cheapest first. ``draft``: placement of the gang."""

    evictables: tuple[Evictable, ...]
    draft: PartialPlacement

    @property
    def cost(self) -> tuple[object, ...]:
        return _cost(self.evictables)


def _cost(evictables: Sequence[Evictable]) -> tuple[object, ...]:
    """Fewest GPU-seconds, then fewest jobs, then the youngest."""
    return (
        sum(evictable.cost for evictable in evictables),
        len(evictables),
        sorted(evictable.order for evictable in evictables),
    )


class VictimSearch:
    """Selects victims for one gang among the units of ``ranking``, on the hypothetical capacity ``what_if``.

    ``what_if`` is modified during the search and restored afterwards.
    """

    def __init__(self, demand: Demand, ranking: NodeRanking, what_if: EvictionWhatIf) -> None:
        self.demand = demand
        self.ranking = ranking
        self.what_if = what_if

    def choose(self) -> VictimSet | None:
        """The cheapest set found; ``None`` if the gang would not fit even with all units evicted."""
        on_several_nodes = self._on_several()
        on_single_node = self._on_single_node()
        return min(
            (choice for choice in (on_several_nodes, on_single_node) if choice is not None),
            key=lambda c: c.cost,
            default=None,
        )

    # ---- one node ----

    def _on_single_node(self) -> VictimSet | None:
        single_request = self.demand.single_member
        if single_request is None:
            return None
        request, models = single_request
        bundles, _ = self.ranking.bundles(request, models, self.demand.pool, self.what_if)
        best: tuple[tuple[object, ...], list[Evictable]] | None = None
        for _, number, _, _ in bundles[:_NODES_TRIED]:
            victims = self._cheapest_on(number, request, models)
            if victims is not None:
                key = (*_cost(victims), number)
                if best is None or key < best[0]:
                    best = (key, victims)
        return None if best is None else self._pruned(best[1])

    def _cheapest_on(self, number: int, request: ResourceRequest, models: Sequence[str]) -> list[Evictable] | None:
        """Evict in order of cost until the gang fits, then spare superfluous units, the most expensive first; also
        try cheaper subsets of the first few units.
        """
        candidates = self.ranking.on_node(number)
        victims: list[Evictable] = []
        for evictable in candidates:
            victims.append(evictable)
            if self._fits_on(number, victims, request, models):
                break
        else:
            return None
        for evictable in reversed(list(victims)):
            fewer = [single for single in victims if single is not evictable]
            if self._fits_on(number, fewer, request, models):
                victims = fewer
        return self._cheaper(number, candidates[:_PIECES_TRIED], victims, request, models)

    def _cheaper(
        self,
        number: int,
        candidates: Sequence[Evictable],
        victims: list[Evictable],
        request: ResourceRequest,
        models: Sequence[str],
    ) -> list[Evictable]:
        best, bound = victims, _cost(victims)
        sets: list[list[Evictable]] = [[]]
        for evictable in candidates:
            for evictables in list(sets):
                subset = [*evictables, evictable]
                if _cost(subset) >= bound:
                    continue
                if self._fits_on(number, subset, request, models):
                    best, bound = subset, _cost(subset)
                else:
                    sets.append(subset)
        return best

    def _fits_on(
        self, number: int, evictables: Iterable[Evictable], request: ResourceRequest, models: Sequence[str]
    ) -> bool:
        left: FreeAmounts = self.what_if.free_after(number, evictables)
        headroom = self.what_if.capacity.headroom
        if self.demand.respects_headroom and headroom is not None:
            left = headroom.left_beyond(number, left)
        return slots_in(left[0], left[1], left[2], request, models, 1, left[3]) > 0

    # ---- several nodes ----

    def _on_several(self) -> VictimSet | None:
        """Clear nodes in order of cost per member gained, as many as necessary."""
        group = self.demand.merged[0]
        bundles, present = self.ranking.bundles(group.request, group.models, self.demand.pool, self.what_if)
        missing, first = group.count - present, 0
        while first < len(bundles) and missing > 0:
            missing -= bundles[first][3]
            first += 1
        if missing > 0:
            return None  # evicting all of them does not make enough room
        low, high = 0, max(1, first)
        while True:
            evictables = self._all_of(bundles[:high])
            if self._fits_without(evictables) is not None:
                break
            if high >= len(bundles):
                return self._pruned(self.ranking.remaining)
            low, high = high, 2 * high
        while low + 1 < min(high, len(bundles)):
            middle = (low + min(high, len(bundles))) // 2
            fewer = self._all_of(bundles[:middle])
            if self._fits_without(fewer) is None:
                low = middle
            else:
                high, evictables = middle, fewer
        return self._pruned(evictables)

    def _all_of(self, bundles: Iterable[tuple[float, int, int, int]]) -> list[Evictable]:
        """The units of all bundles, each once."""
        units = [evictable for _, number, count, _ in bundles for evictable in self.ranking.on_node(number)[:count]]
        return list({evictable.key: evictable for evictable in units}.values())

    def _fits_without(self, evictables: Sequence[Evictable]) -> PartialPlacement | None:
        self.what_if.evict(evictables)
        draft = self.what_if.fits(self.demand)
        self.what_if.restore(evictables)
        return draft

    def _pruned(self, evictables: Sequence[Evictable]) -> VictimSet | None:
        """The subset of ``evictables`` that is necessary for the gang to fit."""
        draft = self._fits_without(evictables)
        if draft is None:
            return None
        # Only units on the gang's nodes can be in its way.
        remaining = [evictable for evictable in evictables if any(use[0] in draft.left for use in evictable.uses)]
        self.what_if.evict(remaining)
        pruned_draft = self.what_if.fits(self.demand)
        if pruned_draft is None:  # the bounded search found less with fewer evictions: evict all
            self.what_if.evict(evictables)
            remaining, pruned_draft = list(evictables), draft
        for evictable in sorted(remaining, key=lambda single: single.order, reverse=True):
            self.what_if.restore([evictable])
            smaller_draft = self.what_if.fits(self.demand)
            if smaller_draft is None:
                self.what_if.evict([evictable])
            else:
                remaining.remove(evictable)
                pruned_draft = smaller_draft
        self.what_if.restore(remaining)
        return VictimSet(tuple(sorted(remaining, key=lambda single: single.order)), pruned_draft) if remaining else None
