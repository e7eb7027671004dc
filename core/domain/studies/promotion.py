"""ASHA promotions and PBT exploits.

Pure functions over curves and results. Asynchronous successive halving (Li et al., MLSys 2020): a trial among the best
of its
rung is promoted as soon as that is known, without waiting for the whole rung. Population-based training (Jaderberg et
al.,
2017): the worst members copy the weights of the best and perturb their parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from trainmaster.studies import Fidelity, Population

from core.domain.studies.traces import Trace


@dataclass(frozen=True, slots=True)
class RungResult:
    """The result of trial ``number`` at its rung, counted from 0. Lower ``cost`` is better."""

    number: int
    rung: int
    cost: float


@dataclass(frozen=True, slots=True)
class Exploit:
    """Trial ``number``, among the worst at ``step``, is replaced by a clone of one of ``parents``, the best first."""

    number: int
    step: int
    parents: tuple[int, ...]
    sentence: str


def due_promotions(fidelity: Fidelity, results: Sequence[RungResult], promoted: AbstractSet[int]) -> list[RungResult]:
    """The trials to promote to the next rung now, highest rungs first, in each the best first.

    Args:
        results: of all trials that have one, with the rung of each.
        promoted: numbers of the trials promoted before.
    """
    found: list[RungResult] = []
    for rung in reversed(range(len(fidelity.rungs) - 1)):
        ranked = sorted((one for one in results if one.rung == rung), key=lambda one: (one.cost, one.number))
        best = ranked[: len(ranked) // fidelity.reduction]
        found += [one for one in best if one.number not in promoted]
    return found


def pbt_replacements(population: Population, running: Sequence[Trace], others: Sequence[Trace]) -> list[Exploit]:
    """The members to replace now, by number. ``others``: traces of ended trials.

    A member is evaluated every ``interval`` steps, by its value at that step, against all members that came as far; not
    before
    it has trained for an interval itself. Members that lag by an interval or more (new ones, or on slower GPUs) are not
    waited
    for, but count for the size of the quantile while they run. Trials that have trained to the end leave no checkpoint
    to clone.
    Deterministic.
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
        # Ties are not worse.
        if curve.number not in worst or costs[curve.number] <= costs[best[-1]]:
            continue
        parents = tuple(number for number in best if not every[number].is_over)
        if not parents:
            continue
        place = ranked.index(curve.number) + 1
        sentence = f"it was {place} of {len(ranked)} at step {step}"
        found[curve.number] = Exploit(curve.number, step, parents, sentence)
    return [found[number] for number in sorted(found)]
