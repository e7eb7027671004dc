"""Trials that go on from the checkpoint of another: which are due, and what their jobs begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random  # noqa: TID251 (seeded by the study)
from typing import Any

from sqlalchemy import select
from trainmaster.spec import JobSpec
from trainmaster.studies import Fidelity, Population, Space, StudySpec

from core.db.engine import unit_of_work
from core.db.tables import Job, Trial
from core.domain.errors import InvalidRequest
from core.domain.jobs.states import JobState
from core.domain.studies.promotion import Exploit, RungResult, due_promotions, pbt_replacements
from core.domain.studies.results import TrialResult
from core.domain.studies.states import TrialState
from core.domain.studies.traces import Trace
from core.domain.studies.trials import searched
from core.storage.resume_sources import Resumable, resumable, with_resume_mount
from scheduler.control.context import ControlContext
from scheduler.control.studies.facts import StudyFacts
from scheduler.control.studies.history import StudyHistory
from scheduler.tuning import Observed, Proposal, startup_trials
from scheduler.tuning.perturb import perturbed


@dataclass(frozen=True, slots=True)
class TrialStart:
    """A trial that begins. ``parent``: whose checkpoint it goes on from, with the path that its containers see."""

    proposal: Proposal
    parent: Job | None = None
    resume_from: str | None = None

    def spec(self, spec: JobSpec) -> JobSpec:
        """``spec`` with the parent's output beside its own."""
        if self.parent is None or self.resume_from is None:
            return spec
        return JobSpec.model_validate(with_resume_mount(spec.model_dump(mode="json"), self.parent))


@dataclass(frozen=True, slots=True)
class CheckpointSources:
    """Jobs of trials whose checkpoints others may go on from, as the database knows them. ``keep`` is called before
    files are listed, each time: it may take long, and the round's lease has its time.
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
        """The first of these trials that has a complete checkpoint, its job, and the checkpoint as an heir sees it.

        Lists files: no transaction is open meanwhile.
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
    """At most ``room`` trials that go on from others: of a halving who is promoted, of a population who stands for a
    worse one.

    Whoever stands for a member of which no better one has a checkpoint any more is not among them: see
    :func:`fresh_room`. ``keep``: see :class:`Sources`.
    """
    if facts.spec.fidelity is not None:
        return _asha_starts(control, facts, facts.spec.fidelity, history, room, renew_lease)
    if facts.spec.population is not None:
        return _pbt_starts(control, facts, facts.spec.population, history, room, renew_lease)
    return []


def new_point_slots(facts: StudyFacts, room: int, promoted: int) -> int:
    """How many of ``room`` may be new points, where ``heirs`` of it go on from others.

    Of a population only its first members, and others for those that failed, or gave way to an heir that cannot begin:
    the checkpoints that it was to go on from are gone.
    """
    if facts.spec.population is None:
        return room - promoted
    # What runs, and what trained to its own end: what lacks to the population's size is to be made up for.
    members = facts.spent.running + facts.spent.counts.get(TrialState.SUCCEEDED, 0)
    return max(0, min(room, facts.spec.budget.parallel - members) - promoted)


def at_first_rung(spec: StudySpec, proposal: Proposal) -> Proposal:
    """A new point as its trial gets it: of a halving with the first rung's size."""
    if spec.fidelity is None:
        return proposal
    parameters = {**proposal.parameters, spec.fidelity.parameter: spec.fidelity.rungs[0]}
    return replace(proposal, parameters=parameters)


def results_to_learn_from(spec: StudySpec, history: StudyHistory) -> tuple[list[Observed], list[Mapping[str, Any]]]:
    """Results that proposals learn from, and points that were tried but say nothing: values of one rung compare alone.

    The highest rung that has enough results tells most of what a whole training comes to.
    """
    if spec.fidelity is None:
        return list(history.results), list(history.failed_points)
    by_rung: dict[int, list[Observed]] = {}
    for one in history.results:
        rung = _rung(spec.fidelity, one.parameters)
        by_rung.setdefault(rung, []).append(replace(one, parameters=searched(spec, one.parameters)))
    enough = startup_trials(Space.of(spec))
    chosen = max((rung for rung, some in by_rung.items() if len(some) >= enough), default=0)
    rest = [one.parameters for rung, some in by_rung.items() if rung != chosen for one in some]
    return by_rung.get(chosen, []), [*rest, *(searched(spec, point) for point in history.failed_points)]


def members_to_replace(
    control: ControlContext,
    facts: StudyFacts,
    running: Sequence[Trace],
    others: Sequence[Trace],
    renew_lease: Callable[[], None],
) -> list[Exploit]:
    """Members that end for an heir now; only where a better one has a checkpoint, and the budget allows one more trial."""
    population, budget = facts.spec.population, facts.spec.budget
    if population is None:
        return []
    left = None if budget.trials is None else budget.trials - facts.trial_count
    left = None if left is None else left - sum(trial.stop is not None for trial in facts.running)
    found = pbt_replacements(population, running, others)
    sources = CheckpointSources.of(control, facts.id, (parent for one in found for parent in one.parents), renew_lease)
    able = [one for one in found if sources.first(one.parents) is not None]
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
        RungResult(number, _rung(fidelity, one.parameters), TrialResult(number, one.values).costs(goals)[0])
        for number, one in history.by_number.items()
    ]
    taken = {int(memo["parent"]) for memo in _memos(facts, history).values()}
    due = due_promotions(fidelity, results, taken)[:room]
    sources = CheckpointSources.of(control, facts.id, (one.number for one in due), renew_lease)
    starts = []
    for one in due:
        parameters = {**history.by_number[one.number].parameters, fidelity.parameter: fidelity.rungs[one.rung + 1]}
        memo = {"parent": one.number, "rung": one.rung + 1}
        # One that kept no checkpoint begins anew, with more from the start.
        _, parent, path = sources.first([one.number]) or (one.number, None, None)
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
        source = sources.first([one for one in chance.sample(parents, len(parents)) if not sources.has_succeeded(one)])
        if source is None:
            continue  # all have come to their own end or were deleted meanwhile: a new member takes its place
        parent, job, path = source
        _, point, _ = sources.trials[parent]
        memo = {"parent": parent, "replaces": number}
        starts.append(TrialStart(Proposal(perturbed(space, point, population, chance), memo), job, path))
    return starts


def _memos(facts: StudyFacts, history: StudyHistory) -> dict[int, Mapping[str, Any]]:
    """Of all trials that went on from others, by number."""
    own = {trial.number: trial.memo for trial in facts.running if trial.memo.get("parent") is not None}
    return {**history.memos, **own}


def _rung(fidelity: Fidelity, parameters: Mapping[str, Any]) -> int:
    size = parameters.get(fidelity.parameter, fidelity.min)
    return max((rung for rung, one in enumerate(fidelity.rungs) if one <= size), default=0)
