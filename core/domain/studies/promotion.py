"""Who goes on from whose checkpoint: successive halving's promotions, and a population's exploits.

Pure functions over curves and results. Halving as ASHA has it (Li et al., MLSys 2020): who is among the best of a rung is
promoted as soon as that is known, nobody waits for the whole rung. Populations as in Jaderberg et al., 2017: the worst
members copy the weights of the best and change their parameters a little.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from trainmaster.studies import Fidelity, Population

from core.domain.studies.traces import Trace


@dataclass(frozen=True, slots=True)
class RungResult:
    """What trial ``number`` came to at its rung, 0 the first. Less ``cost`` is better."""

    number: int
    rung: int
    cost: float


@dataclass(frozen=True, slots=True)
class Exploit:
    """Trial ``number``, among the worst at ``step``, gives its place to an heir of one of ``parents``, the best first."""

    number: int
    step: int
    parents: tuple[int, ...]
    sentence: str


def due_promotions(fidelity: Fidelity, results: Sequence[RungResult], promoted: AbstractSet[int]) -> list[RungResult]:
    """Who goes on to the next rung now, the highest rungs first, in each the best first.

    Args:
        results: of all trials that have one, with the rung that each ran at.
        promoted: numbers of those that were promoted before.
    """
    found: list[RungResult] = []
    for rung in reversed(range(len(fidelity.rungs) - 1)):
        ranked = sorted((one for one in results if one.rung == rung), key=lambda one: (one.cost, one.number))
        best = ranked[: len(ranked) // fidelity.reduction]
        found += [one for one in best if one.number not in promoted]
    return found


def pbt_replacements(population: Population, running: Sequence[Trace], others: Sequence[Trace]) -> list[Exploit]:
    """Members that give up their place now, by number. ``others``: of trials that are over.

    A member is looked at each ``interval`` steps, with what it reached by then, beside all that came as far; and not before
    it has worked an interval itself. Nobody waits for members that are an interval or more behind (a new one in place of one
    that failed, or on a slower GPU), but while they stay they count for how many a quantile is. Of who has trained to the end nothing is left
    to go on from. The same curves always give the same answer.
    """
    every = {curve.number: curve for curve in (*others, *running) if curve}
    found: dict[int, Exploit] = {}
    for curve in sorted((curve for curve in running if curve), key=lambda one: (one.steps[-1], one.number)):
        step = curve.steps[-1] // population.interval * population.interval
        if step < curve.steps[0] + population.interval - 1:
            continue
        costs = {one.number: cost for one in every.values() if (cost := one.value_at(step)) is not None}
        late = {one.number for one in running if one and one.steps[-1] <= step - population.interval}
        behind = len(late - costs.keys() - found.keys())
        few = min(int((len(costs) + behind) * population.quantile), len(costs) // 2)
        if not few:
            continue
        ranked = sorted(costs, key=lambda number: (costs[number], number))
        best, worst = ranked[:few], ranked[-few:]
        # Of equal ones none is worse.
        if curve.number not in worst or costs[curve.number] <= costs[best[-1]]:
            continue
        parents = tuple(number for number in best if not every[number].is_over)
        if not parents:
            continue
        place = ranked.index(curve.number) + 1
        sentence = f"it was {place} of {len(ranked)} at step {step}"
        found[curve.number] = Exploit(curve.number, step, parents, sentence)
    return [found[number] for number in sorted(found)]
