"""Trials that go on from another trial's checkpoint: ASHA promotions and replacements of population based training."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random  # noqa: TID251 (seeded by the study)
from typing import Any, Final

from sqlalchemy import select
from trainmaster.spec import JobSpec
from trainmaster.studies import Fidelity, Parameter, ParameterType, Population, Scale, Space, StudySpec
from trainmaster.studies.space import bounds, value_at

from core.db.engine import unit_of_work
from core.db.tables import Job, Trial
from core.domain.errors import InvalidRequest
from core.domain.jobs.states import JobState
from core.domain.studies.curves import Trace
from core.domain.studies.results import TrialResult
from core.domain.studies.states import TrialState
from core.domain.studies.trial_schedulers import Exploit, RungResult, due_promotions, pbt_replacements
from core.domain.studies.trials import searched
from core.storage.resume_sources import Resumable, resumable, with_resume_mount
from scheduler.control.context import ControlContext
from scheduler.control.studies.facts import StudyFacts
from scheduler.control.studies.history import StudyHistory
from scheduler.tuning import ObservedTrial, Proposal, startup_trials

# Redraws of changes that break a constraint; then the parent's values remain.
_REDRAWS: Final = 200


@dataclass(frozen=True, slots=True)
class TrialStart:
    """A trial to start. ``parent``: the job whose checkpoint it goes on from; ``resume_from``: the path in
    containers.
    """

    proposal: Proposal
    parent: Job | None = None
    resume_from: str | None = None

    def spec(self, spec: JobSpec) -> JobSpec:
        """``spec`` with the parent's output mounted next to its own."""
        if self.parent is None or self.resume_from is None:
            return spec
        return JobSpec.model_validate(with_resume_mount(spec.model_dump(mode="json"), self.parent))


@dataclass(frozen=True, slots=True)
class CheckpointSources:
    """Jobs of trials whose checkpoints others may go on from. ``renew_lease`` is called each time before files are
    listed, which may take long.
    """

    trials: Mapping[int, tuple[Job, Mapping[str, Any], Resumable]]
    renew_lease: Callable[[], None]

    @classmethod
    def of(
        cls, control: ControlContext, study_id: str, numbers: Iterable[int], renew_lease: Callable[[], None]
    ) -> CheckpointSources:
        wanted = sorted(set(numbers))
        if not wanted:
            return cls({}, renew_lease)
        query = (
            select(Trial.number, Trial.parameters, Job)
            .join(Job, Job.id == Trial.job_id)
            .where(Trial.study_id == study_id, Trial.number.in_(wanted), Job.deleted_at.is_(None))
        )
        with unit_of_work(control.sessions, read_only=True) as session:
            rows = session.execute(query).all()
            return cls(
                {row.number: (row.Job, row.parameters, resumable(session, row.Job)) for row in rows}, renew_lease
            )

    def has_succeeded(self, number: int) -> bool:
        """Whether the trial has trained to its own end."""
        return number in self.trials and self.trials[number][0].state == JobState.SUCCEEDED

    def first(self, numbers: Sequence[int]) -> tuple[int, Job, str] | None:
        """The first of these trials with a complete checkpoint, its job, and the checkpoint's path in a new trial.

        Lists files: no transaction may be open.
        """
        for number in numbers:
            if number in self.trials:
                job, _, source = self.trials[number]
                self.renew_lease()
                try:
                    return number, job, source.newest()
                except InvalidRequest:
                    continue
        return None


def due_starts(
    control: ControlContext, facts: StudyFacts, history: StudyHistory, room: int, renew_lease: Callable[[], None]
) -> list[TrialStart]:
    """At most ``room`` trials that go on from others: promotions of successive halving, replacements of a population.

    Without replacements of members of which no better member has a checkpoint any more: see :func:`new_point_slots`.
    ``renew_lease``: see :class:`CheckpointSources`.
    """
    if facts.spec.fidelity is not None:
        return _asha_starts(control, facts, facts.spec.fidelity, history, room, renew_lease)
    if facts.spec.population is not None:
        return _pbt_starts(control, facts, facts.spec.population, history, room, renew_lease)
    return []


def new_point_slots(facts: StudyFacts, room: int, promoted: int) -> int:
    """How many of ``room`` trials may be new points, where ``promoted`` of them go on from others.

    Of a population only its first members, and substitutes for members that failed, or whose replacement cannot start
    because the checkpoints of its parents are gone.
    """
    if facts.spec.population is None:
        return room - promoted
    # Running trials, and those that trained to their own end: the rest of the population's size may be filled up.
    members = facts.spent.running + facts.spent.counts.get(TrialState.SUCCEEDED, 0)
    return max(0, min(room, facts.spec.budget.parallel - members) - promoted)


def at_first_rung(spec: StudySpec, proposal: Proposal) -> Proposal:
    """A new point as its trial gets it: for successive halving with the size of the first rung."""
    if spec.fidelity is None:
        return proposal
    parameters = {**proposal.parameters, spec.fidelity.parameter: spec.fidelity.rungs[0]}
    return replace(proposal, parameters=parameters)


def results_to_learn_from(
    spec: StudySpec, history: StudyHistory
) -> tuple[list[ObservedTrial], list[Mapping[str, Any]]]:
    """Results that proposals learn from, and points that were tried without such a result: only values of the same rung
    compare.

    The highest rung with enough results is closest to a whole training.
    """
    if spec.fidelity is None:
        return list(history.results), list(history.failed_points)
    by_rung: dict[int, list[ObservedTrial]] = {}
    for result in history.results:
        rung = _rung(spec.fidelity, result.parameters)
        by_rung.setdefault(rung, []).append(replace(result, parameters=searched(spec, result.parameters)))
    enough = startup_trials(Space.of(spec))
    chosen = max((rung for rung, results in by_rung.items() if len(results) >= enough), default=0)
    rest = [result.parameters for rung, results in by_rung.items() if rung != chosen for result in results]
    return by_rung.get(chosen, []), [*rest, *(searched(spec, point) for point in history.failed_points)]


def members_to_replace(
    control: ControlContext,
    facts: StudyFacts,
    running: Sequence[Trace],
    others: Sequence[Trace],
    renew_lease: Callable[[], None],
) -> list[Exploit]:
    """Members to replace now; only where a better one has a checkpoint, and the budget allows one more trial."""
    population, budget = facts.spec.population, facts.spec.budget
    if population is None:
        return []
    left = None if budget.trials is None else budget.trials - facts.trial_count
    left = None if left is None else left - sum(trial.stop is not None for trial in facts.running)
    found = pbt_replacements(population, running, others)
    sources = CheckpointSources.of(
        control, facts.id, (parent for exploit in found for parent in exploit.parents), renew_lease
    )
    able = [exploit for exploit in found if sources.first(exploit.parents) is not None]
    return able if left is None else able[: max(0, left)]


def _asha_starts(
    control: ControlContext,
    facts: StudyFacts,
    fidelity: Fidelity,
    history: StudyHistory,
    room: int,
    renew_lease: Callable[[], None],
) -> list[TrialStart]:
    goals = facts.spec.goals
    results = [
        RungResult(number, _rung(fidelity, result.parameters), TrialResult(number, result.values).costs(goals)[0])
        for number, result in history.by_number.items()
    ]
    taken = {int(memo["parent"]) for memo in _memos(facts, history).values()}
    due = due_promotions(fidelity, results, taken)[:room]
    sources = CheckpointSources.of(control, facts.id, (promotion.number for promotion in due), renew_lease)
    starts = []
    for promotion in due:
        parameters = {
            **history.by_number[promotion.number].parameters,
            fidelity.parameter: fidelity.rungs[promotion.rung + 1],
        }
        memo = {"parent": promotion.number, "rung": promotion.rung + 1}
        # Without a checkpoint it starts from the beginning, with the larger size.
        _, parent, path = sources.first([promotion.number]) or (promotion.number, None, None)
        starts.append(TrialStart(Proposal(parameters, memo), parent, path))
    return starts


def _pbt_starts(
    control: ControlContext,
    facts: StudyFacts,
    population: Population,
    history: StudyHistory,
    room: int,
    renew_lease: Callable[[], None],
) -> list[TrialStart]:
    replaced = {memo.get("replaces") for memo in _memos(facts, history).values()}
    space = Space.of(facts.spec)
    due = {number: parents for number, parents in sorted(history.replaced_members.items()) if number not in replaced}
    sources = CheckpointSources.of(
        control, facts.id, (parent for parents in due.values() for parent in parents), renew_lease
    )
    starts: list[TrialStart] = []
    for number, parents in due.items():
        if len(starts) >= room:
            break
        chance = Random(f"heir:{facts.seed}:{number}")  # noqa: S311 (no secret)
        source = sources.first(
            [parent for parent in chance.sample(parents, len(parents)) if not sources.has_succeeded(parent)]
        )
        if source is None:
            continue  # all parents have ended by themselves or were deleted meanwhile: a new member takes the place
        parent, job, path = source
        _, point, _ = sources.trials[parent]
        memo = {"parent": parent, "replaces": number}
        starts.append(TrialStart(Proposal(perturbed(space, point, population, chance), memo), job, path))
    return starts


def _memos(facts: StudyFacts, history: StudyHistory) -> dict[int, Mapping[str, Any]]:
    """Memos of all trials that went on from others, by number."""
    own = {trial.number: trial.memo for trial in facts.running if trial.memo.get("parent") is not None}
    return {**history.memos, **own}


def _rung(fidelity: Fidelity, parameters: Mapping[str, Any]) -> int:
    size = parameters.get(fidelity.parameter, fidelity.min)
    return max((rung for rung, limit in enumerate(fidelity.rungs) if limit <= size), default=0)


def perturbed(space: Space, point: Mapping[str, Any], population: Population, chance: Random) -> dict[str, Any]:
    """PBT's explore step: ``point``, each parameter moved up or down or, by ``population.resample``, resampled.

    Newly active parameters are drawn, inactive ones dropped. If no change satisfies the constraints: ``point``.
    """
    for _ in range(_REDRAWS):
        moved: dict[str, Any] = {}
        for name, parameter in space.parameters.items():
            if not space.is_active(name, moved):
                continue
            if name not in point or chance.random() < population.resample:
                moved[name] = value_at(parameter, chance.random())
            else:
                moved[name] = _moved(parameter, point[name], population.perturb, chance)
        if space.holds(moved) and json.dumps(moved) != json.dumps(dict(point)):
            return moved
    return dict(point)


def _moved(parameter: Parameter, value: Any, by: float, chance: Random) -> Any:
    """A neighbour of ``value``: numbers times or divided by the factor ``1 + by``, ordered values the next one."""
    up = chance.random() < 0.5
    if parameter.type is ParameterType.CATEGORICAL:
        return value
    if not parameter.has_range:
        ordered = sorted(parameter.values, key=float)
        place = ordered.index(value) + (1 if up else -1)
        return ordered[min(len(ordered) - 1, max(0, place))]
    low, high = bounds(parameter)
    if parameter.scale is Scale.REVERSE_LOG:  # near its maximum: the distance to it is scaled by the factor
        room = low + high - value
        moved = low + high - (room / (1 + by) if up else room * (1 + by))
    else:
        step = abs(value) or (high - low)  # zero times a factor stays zero
        moved = value * (1 + by if up else 1 / (1 + by)) if value > 0 else value + (step * by if up else -step * by)
    moved = min(high, max(low, moved))
    if parameter.type is ParameterType.INTEGER:
        rounded = math.ceil(moved) if up else math.floor(moved)
        return int(min(high, max(low, rounded)))
    return moved
