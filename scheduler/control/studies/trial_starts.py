"""Starting the trials of a study that are due, and drawing points ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from sqlalchemy import insert, update
from trainmaster.studies import Algorithm, Space

from core.db.repositories import studies
from core.db.repositories.submission import JobSubmission, new_job, write_job
from core.db.tables import Archive, Study, Trial
from core.domain.errors import StaleWrite
from core.domain.studies.states import StudyState, TrialState
from core.domain.studies.trials import searched, trial_spec
from core.wakeups import TOPIC_TICK
from scheduler.control.journal import SCHEDULER
from scheduler.control.studies import promotion
from scheduler.control.studies.decisions import algorithm_of, choose_points, initial_points, is_initial, prefetch
from scheduler.control.studies.facts import StudyPassContext
from scheduler.control.studies.promotion import TrialStart
from scheduler.tuning import ObservedTrial, Proposal, ProposalRequest
from scheduler.tuning.proposers import Proposers, is_quick

# Points of one draw: each takes up to some tens of milliseconds, and the lease has its time.
_MAX_DRAWS: Final = 4


class TrialStarter:
    """Starts trials and draws points, as part of one pass about a study."""

    def __init__(self, context: StudyPassContext, proposers: Proposers) -> None:
        self._context = context
        self._proposers = proposers

    def start(self, slots: int) -> int:
        """Start up to ``slots`` trials; how many. Each trial's row and its job's are written together."""
        context, facts, spec = self._context, self._context.facts, self._context.spec
        promoted = promotion.due_starts(context.control, facts, context.history, slots, context.lease.renew_if_due)
        slots = promotion.new_point_slots(facts, slots, len(promoted))
        choice = choose_points(facts, slots)
        ready = [Proposal(dict(point["parameters"]), dict(point["memo"])) for point in choice.starting]
        drawn = self._draw(choice.slots - len(ready), ready) if len(ready) < choice.slots else []
        starts = [*promoted, *(TrialStart(promotion.at_first_rung(spec, point)) for point in (*ready, *drawn))]
        if not starts:
            return 0
        orders = [self._order(number, start) for number, start in enumerate(starts, start=facts.trial_count + 1)]
        with context.lease.fenced() as session:
            studies.change_study(
                session, facts.id, facts.generation, context.now, trial_count=facts.trial_count + len(starts),
                proposed_count=facts.proposed + len(drawn), prefetched_points=list(choice.remaining),
            )  # fmt: skip
            for order in orders:
                job = new_job(order, now=context.now, actor=SCHEDULER, reason=f"Trial of study {facts.name}.")
                write_job(session, job, None)
            session.execute(
                insert(Trial),
                [
                    self._trial_row(number, order.id, start.proposal)
                    for number, (order, start) in enumerate(zip(orders, starts, strict=True), facts.trial_count + 1)
                ],
            )
            if spec.template is not None and spec.template.code is not None:
                # The garbage collection of old archives spares it then.
                session.execute(update(Archive).where(Archive.digest == spec.template.code).values(used_at=context.now))
        context.notify([(TOPIC_TICK, "")])
        return len(starts)

    def prefetch(self) -> tuple[int, bool]:
        """Draw points ahead where they would be waited for; how many, and whether more are wanted."""
        context, facts = self._context, self._context.facts
        if context.spec.template is not None and is_quick(self._question(0, ())):
            return 0, False
        due = prefetch(facts, self.algorithm)
        drawn = []
        if due.count > 0:
            ahead = [Proposal(dict(point["parameters"])) for point in facts.prepared]
            drawn = self._draw(min(due.count, _MAX_DRAWS), ahead)
        if not drawn:
            return 0, False
        with context.lease.fenced() as session:
            # A client may have taken some of the points meanwhile: the new ones are as good all the same.
            row = session.get_one(Study, facts.id, populate_existing=True, with_for_update={"key_share": True})
            if row.state != StudyState.RUNNING or row.proposed_count != facts.proposed:
                raise StaleWrite("the study has moved since its points were drawn")
            left = list(row.prefetched_points)
            front = [point for point in left if not due.is_stale or is_initial(point)]
            reserve = [point for point in left if due.is_stale and not is_initial(point)]
            points = [*front, *(asdict(point) for point in drawn), *reserve][: due.wanted]
            studies.change_study(
                session, facts.id, row.generation, context.now, prefetched_points=points,
                prefetched_after=facts.ended_count, proposed_count=facts.proposed + len(drawn),
            )  # fmt: skip
        return len(drawn), len(points) < due.wanted

    @property
    def algorithm(self) -> Algorithm:
        return algorithm_of(self._context.spec)

    def _draw(self, count: int, ahead: Sequence[Proposal]) -> list[Proposal]:
        """The next points. ``ahead``: points that are chosen already, but are no trials yet."""
        question = self._question(count, ahead)
        if not is_quick(question):
            self._context.lease.renew()
        return self._proposers(question)

    def _question(self, count: int, ahead: Sequence[Proposal]) -> ProposalRequest:
        facts, spec = self._context.facts, self._context.spec
        pending = [Proposal(searched(spec, trial.parameters), dict(trial.memo)) for trial in facts.running]
        results, failed_points = promotion.results_to_learn_from(spec, self._context.history)
        known = [ObservedTrial(result["parameters"], tuple(result["values"])) for result in facts.prior_results]
        return ProposalRequest(
            space=Space.of(spec),
            algorithm=self.algorithm,
            goals=spec.goals,
            seed=facts.seed,
            index=facts.proposed,
            count=count,
            finished=[*known, *results],
            pending=[*pending, *ahead],
            failed_points=failed_points,
            initial=initial_points(facts),
        )

    def _order(self, number: int, start: TrialStart) -> JobSubmission:
        facts, spec = self._context.facts, self._context.spec
        parameters = start.proposal.parameters
        return JobSubmission(
            id=self._context.control.make_id("job"),
            spec=start.spec(trial_spec(spec, number, parameters)),
            project_id=facts.project_id,
            project=facts.project,
            user_id=facts.user_id,
            output_volume=facts.output_volume,
            output_path=None if facts.output_path is None else f"{facts.output_path}/{number}".lstrip("/"),
            cloned_from=None if start.parent is None else start.parent.id,
            resume_from=start.resume_from,
            trial={"study_id": facts.id, "study": facts.name, "number": number, "parameters": parameters},
        )

    def _trial_row(self, number: int, job_id: str, proposal: Proposal) -> dict[str, Any]:
        return {
            "study_id": self._context.facts.id,
            "number": number,
            "job_id": job_id,
            "state": TrialState.RUNNING.value,
            "parameters": proposal.parameters,
            "memo": proposal.memo,
            "reason": "",
            "gpu_s": 0.0,
            "created_at": self._context.now,
        }
