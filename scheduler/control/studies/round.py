"""One round about one study: collect what has ended, end what goes badly, and begin what is due.

Load → work → write, as for attempts: nothing is open while points are drawn, every write is fenced by the study's lease
and compares what was read, and a process may be killed between any two steps: the next round sees the same truth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session
from trainmaster.studies import Algorithm, Space

from core.bell import TOPIC_TICK
from core.db.engine import unit_of_work
from core.db.leases import HeldLease
from core.db.repositories import studies
from core.db.repositories.events import append_event
from core.db.repositories.new_jobs import JobOrder, new_job
from core.db.repositories.submission import write_job
from core.db.repositories.wait_reasons import user_key
from core.db.tables import Archive, Trial, WaitReason
from core.domain.states import JobState
from core.domain.studies.budget import outlook
from core.domain.studies.results import values_of
from core.domain.studies.states import StudyEvent, StudyState, TrialState, advance_study
from core.domain.studies.stopping import Curve, Verdict, judge_all, make_curve, thinned
from core.domain.studies.trials import trial_spec
from core.ids import new_id
from scheduler.control import fence
from scheduler.control.context import Control
from scheduler.control.journal import SCHEDULER
from scheduler.control.studies import inherit
from scheduler.control.studies.cancel import cancel_job
from scheduler.control.studies.facts import RunningTrial, StudyFacts
from scheduler.control.studies.history import History
from scheduler.control.studies.measure import Measured, measure, missing_words
from scheduler.planning.model import ReasonCode
from scheduler.tuning import Observed, Proposal, Question, chosen_algorithm
from scheduler.tuning.proposers import Proposers, is_quick

# A job's last report may be on its way when its end is seen.
METRIC_GRACE: Final = timedelta(seconds=10)
# Curves of trials that are over which a stopping rule compares with: more would not move a median.
_CURVES: Final = 1_000
# Every trial's end brings a round; all curves are judged this often at most.
_JUDGED_APART: Final = timedelta(seconds=1)
# Trials that one round begins: drawing their points takes up to some tens of milliseconds each, and the lease has its time.
_BEGUN_AT_ONCE: Final = 25
# Points that are drawn ahead for who asks over REST, and for an algorithm that takes its time.
_PREPARED: Final = 16
_IMPOSSIBLE: Final = (ReasonCode.NEVER_FITS, ReasonCode.NO_MATCHING_NODE, ReasonCode.TOO_LARGE)
_BY_INDEX: Final = (Algorithm.GRID, Algorithm.QMC, Algorithm.RANDOM)


class StudyRound:
    """``run`` does what is next, and says whether there may be more."""

    def __init__(
        self, control: Control, lease: HeldLease, facts: StudyFacts, history: History, proposers: Proposers
    ) -> None:
        self.control = control
        self.lease = lease
        self.facts = facts
        self.spec = facts.spec
        self.now = control.clock()
        self._history = history
        self._proposers = proposers

    def run(self) -> bool:
        """Raises ``StaleWrite``: somebody moved something meanwhile; look again."""
        if self._collect():
            return True
        if self.facts.state is StudyState.STOPPING:
            return self._wind_up("The study was stopped.", StudyEvent.CONFIRM_STOP)
        if self.facts.state is not StudyState.RUNNING:
            return False
        if self._go_on():
            return True
        self._stop_early()
        return False

    # What has ended

    def _collect(self) -> bool:
        """Write the results of trials whose jobs are over; whether there were any."""
        over = [trial for trial in self.facts.running if trial.is_over]
        if not over:
            return False
        names = [metric.name for metric in self.spec.metrics]
        with unit_of_work(self.control.sessions, read_only=True) as session:
            told = measure(session, [trial.job_id for trial in over if trial.job_id is not None], names)
            ends = [end for trial in over if (end := self._end_of(session, trial, told)) is not None]
        if not ends:
            return False
        with fence.fenced(self.control, self.lease) as session:
            for number, state, values in ends:
                studies.end_trial(session, self.facts.id, number, state, self.now, **values)
                self._tell(session, f"trial.{state.value}", values["reason"], trial=number)
        return True

    def _end_of(
        self, session: Session, trial: RunningTrial, told: Mapping[str, Measured]
    ) -> tuple[int, TrialState, dict[str, Any]] | None:
        """``None``: its metric may still be on the way."""
        job_id = trial.job_id or ""
        measured = told.get(job_id, Measured())
        result = measured.final(self.spec)
        has_values = values_of(result, [metric.name for metric in self.spec.metrics]) is not None
        is_early = trial.stop is not None and trial.stop.get("kind") == "early"
        sentence = str((trial.exit or {}).get("sentence", ""))
        match trial.job_state:
            case JobState.SUCCEEDED if has_values:
                state, reason = TrialState.SUCCEEDED, ""
            case JobState.SUCCEEDED:
                if trial.finished_at is not None and self.now - trial.finished_at < METRIC_GRACE:
                    return None
                state, reason = TrialState.FAILED, missing_words(session, job_id, self.spec, result)
            case JobState.CANCELLED if is_early and has_values:
                state, reason = TrialState.STOPPED, str((trial.stop or {}).get("sentence", sentence))
            case JobState.CANCELLED:
                state, reason = TrialState.CANCELLED, sentence
            case _:
                state, reason = TrialState.FAILED, sentence
        curve = thinned(self._curve(trial.number, measured, is_over=state is TrialState.SUCCEEDED))
        return (
            trial.number,
            state,
            {
                "result": result if has_values else None,
                "curve": {"steps": list(curve.steps), "values": list(curve.values)} if curve else None,
                "reason": reason,
                "gpu_s": trial.gpu_s,
            },
        )

    # What goes badly

    def _stop_early(self) -> None:
        """End trials that the study's rule gives up."""
        rule = self.spec.stopping
        watched = [t for t in self.facts.running if t.job_state is JobState.RUNNING and t.stop is None and t.job_id]
        is_judged = rule is not None or self.spec.population is not None
        if not is_judged or not watched or not self._history.is_due(self.now, _JUDGED_APART):
            return
        with unit_of_work(self.control.sessions, read_only=True) as session:
            told = measure(session, [t.job_id for t in watched if t.job_id], [self.spec.metrics[0].name])
            others = self._history.curves(session, self.facts.id, limit=_CURVES)
        own = {t.number: self._curve(t.number, told.get(t.job_id or "", Measured())) for t in watched}
        if rule is None:
            self._give_way({t.number: t for t in watched}, list(own.values()), others)
            return
        verdicts = judge_all(rule, self.spec.metrics[0].goal, list(own.values()), others)
        for trial in watched:
            if trial.number in verdicts:
                self._stop(trial, verdicts[trial.number])

    def _give_way(self, watched: Mapping[int, RunningTrial], running: Sequence[Curve], others: Sequence[Curve]) -> None:
        """End the worst members of a population, whose places heirs of the best take."""
        with unit_of_work(self.control.sessions, read_only=True) as session:
            found = inherit.giving_way(session, self.facts, running, others)
        for one in found:
            sentence = f"It gives its place to a trial that goes on from a better one: {one.sentence}."
            self._cancel([watched[one.number]], "early", "stopped_early", sentence, step=one.step, parents=one.parents)

    def _stop(self, trial: RunningTrial, verdict: Verdict) -> None:
        rule = self.spec.stopping
        sentence = f"Stopped early by the study's rule {rule.rule.value if rule else ''}: {verdict.sentence}."
        self._cancel([trial], "early", "stopped_early", sentence, step=verdict.step)

    def _cancel(
        self,
        trials: Sequence[RunningTrial],
        kind: str,
        code: str,
        sentence: str,
        *,
        step: int | None = None,
        parents: Sequence[int] = (),
    ) -> None:
        bells: list[tuple[str, str]] = []
        with fence.fenced(self.control, self.lease) as session:
            for trial in trials:
                session.execute(
                    update(Trial)
                    .where(
                        Trial.study_id == self.facts.id, Trial.number == trial.number, Trial.stop.is_(None),
                        Trial.state == TrialState.RUNNING.value,
                    )
                    .values(stop={"kind": kind, "sentence": sentence, "step": step, "parents": list(parents)})
                )  # fmt: skip
                if trial.job_id is not None:
                    bells += cancel_job(session, trial.job_id, code, sentence, self.now)
                    self._tell(session, f"trial.{code}", sentence, trial=trial.number)
        self._ring(bells)

    # What is due

    def _go_on(self) -> bool:
        facts = self.facts
        ahead = outlook(self.spec.budget, facts.spent)
        if ahead.end is not None:
            return self._wind_up(_sentence(ahead.reason), ahead.end)
        self._note()
        fresh = 0
        if ahead.room and self.spec.template is not None:
            fresh = self._begin(min(ahead.room, _BEGUN_AT_ONCE))
            if not fresh and not facts.spent.running:
                # Nothing is left to draw, and nothing runs that could change that.
                what = "every point of the space was tried"
                if self.spec.population is not None:
                    what = "its population has come to its end"
                ended = outlook(self.spec.budget, facts.spent, exhausted=what)
                if ended.end is not None:
                    return self._wind_up(_sentence(ended.reason), ended.end)
        return fresh > 0 or self._prepare()

    def _begin(self, room: int) -> int:
        """Begin up to ``room`` trials; how many. Each trial's row and its job's are written together."""
        facts = self.facts
        with unit_of_work(self.control.sessions, read_only=True) as session:
            heirs = inherit.due_heirs(session, facts, self._history, room)
        room = inherit.fresh_room(facts, room, len(heirs))
        ready = [Proposal(dict(one["parameters"]), dict(one["memo"])) for one in facts.prepared[:room]]
        rest = facts.prepared[len(ready) :]
        drawn = self._draw(room - len(ready), ready) if len(ready) < room else []
        chosen = [*heirs, *(inherit.Start(inherit.as_begun(self.spec, one)) for one in (*ready, *drawn))]
        if not chosen:
            return 0
        orders = []
        for place, start in enumerate(chosen, start=facts.trial_count + 1):
            parameters = start.proposal.parameters
            about = {"study_id": facts.id, "study": facts.name, "number": place, "parameters": parameters}
            orders.append(
                JobOrder(
                    id=new_id("job"), spec=start.spec(trial_spec(self.spec, place, parameters)),
                    project_id=facts.project_id, project=facts.project,
                    user_id=facts.user_id, output_volume=facts.output_volume,
                    output_path=None if facts.output_path is None else f"{facts.output_path}/{place}".lstrip("/"),
                    cloned_from=None if start.parent is None else start.parent.id,
                    resume_from=start.resume_from, trial=about,
                )
            )  # fmt: skip
        with fence.fenced(self.control, self.lease) as session:
            studies.change_study(
                session, facts.id, facts.generation, self.now,
                trial_count=facts.trial_count + len(chosen), proposed=facts.proposed + len(drawn), prepared=list(rest),
            )  # fmt: skip
            reason = f"Trial of study {facts.name}."
            for order in orders:
                write_job(session, new_job(order, now=self.now, actor=SCHEDULER, reason=reason), None)
            session.execute(
                insert(Trial),
                [
                    _trial_row(facts.id, place, order.id, start.proposal, self.now)
                    for place, (order, start) in enumerate(zip(orders, chosen, strict=True), facts.trial_count + 1)
                ],
            )
            if self.spec.template is not None and self.spec.template.code is not None:
                # Keeps the sweep of old archives away from it.
                session.execute(
                    update(Archive).where(Archive.digest == self.spec.template.code).values(used_at=self.now)
                )
        self._ring([(TOPIC_TICK, "")])
        return len(chosen)

    def _prepare(self) -> bool:
        """Draw points ahead where whoever needs them should not wait for it; whether any were."""
        facts = self.facts
        question = self._question(0, ())
        is_asked = self.spec.template is None
        if not is_asked and is_quick(question):
            return False
        wanted = min(_PREPARED, max(1, self.spec.budget.parallel) * (2 if is_asked else 1))
        if self.spec.budget.trials is not None:
            wanted = min(wanted, self.spec.budget.trials - facts.trial_count)
        kept = list(facts.prepared)
        # What was drawn before the last results is drawn again, but for what does not depend on them.
        if facts.prepared_at != facts.ended_count and question.algorithm not in _BY_INDEX:
            kept = [one for one in kept if one["memo"].get("origin") == "initial"]
        if len(kept) >= wanted:
            return False
        drawn = self._draw(wanted - len(kept), [Proposal(dict(one["parameters"])) for one in kept])
        if not drawn:
            return False
        with fence.fenced(self.control, self.lease) as session:
            studies.change_study(
                session, facts.id, facts.generation, self.now,
                prepared=[*kept, *(asdict(one) for one in drawn)],
                prepared_at=facts.ended_count, proposed=facts.proposed + len(drawn),
            )  # fmt: skip
        return False

    def _draw(self, count: int, ahead: Sequence[Proposal]) -> list[Proposal]:
        """Points that are due next. ``ahead``: those that are chosen already, but no trials yet."""
        question = self._question(count, ahead)
        if not is_quick(question):
            self.lease = fence.renew(self.control, self.lease)
        return self._proposers(question)

    def _question(self, count: int, ahead: Sequence[Proposal]) -> Question:
        facts, spec = self.facts, self.spec
        space = Space.of(spec)
        pending = [Proposal(inherit.searched(spec, trial.parameters), dict(trial.memo)) for trial in facts.running]
        results, spoilt = inherit.learnt_from(spec, self._history)
        known = [Observed(one["parameters"], tuple(one["values"])) for one in facts.known]
        return Question(
            space=space,
            algorithm=chosen_algorithm(space, spec.algorithm, spec.goals, spec.budget.trials),
            goals=spec.goals,
            seed=facts.seed,
            index=facts.proposed,
            count=count,
            finished=[*known, *results],
            pending=[*pending, *ahead],
            spoilt=spoilt,
            initial=spec.initial,
        )

    def _note(self) -> None:
        """What a person should know while it runs: trials that no node can ever hold."""
        facts = self.facts
        shapes = {trial.shape for trial in facts.running if trial.job_state is JobState.QUEUED and trial.shape}
        note = ""
        if shapes:
            shapes |= {user_key(shape, facts.project_id, facts.user_id) for shape in shapes}
            with unit_of_work(self.control.sessions, read_only=True) as session:
                query = select(WaitReason.sentence).where(
                    WaitReason.shape.in_(shapes), WaitReason.code.in_([code.value for code in _IMPOSSIBLE])
                )
                found = session.scalars(query.limit(1)).first()
            note = f"Its trials cannot start: {found}" if found else ""
        if note != facts.note:
            with fence.fenced(self.control, self.lease) as session:
                generation = studies.change_study(session, facts.id, facts.generation, self.now, note=note)
            self.facts = replace(facts, generation=generation, note=note)

    def _wind_up(self, reason: str, event: StudyEvent) -> bool:
        """End the study; what still runs is cancelled first."""
        facts = self.facts
        alive = [trial for trial in facts.running if not trial.is_over]
        waiting = [trial for trial in alive if trial.job_id is not None and trial.stop is None]
        if waiting:
            self._cancel(waiting, "study", "study_stopped", reason)
            return True  # those that waited in the queue have ended already
        own = [trial.number for trial in alive if trial.job_id is None]
        if any(trial.job_id is not None for trial in facts.running):
            return False
        state = advance_study(facts.state, event)
        with fence.fenced(self.control, self.lease) as session:
            studies.change_study(
                session, facts.id, facts.generation, self.now,
                state=state.value, reason=reason, note="", finished_at=self.now, prepared=[],
            )  # fmt: skip
            for number in own:  # whoever works on it is told so when the result comes
                studies.end_trial(session, facts.id, number, TrialState.CANCELLED, self.now, reason=reason)
            self._tell(session, f"study.{state.value}", reason)
        return False

    # The parts

    def _curve(self, number: int, measured: Measured, *, is_over: bool = False) -> Curve:
        return make_curve(number, measured.points.get(self.spec.metrics[0].name, ()), is_over=is_over)

    def _tell(self, session: Session, kind: str, reason: str, *, trial: int | None = None) -> None:
        data: dict[str, Any] = {"study": self.facts.id, "name": self.facts.name}
        if trial is not None:
            data["trial"] = trial
        append_event(
            session, at=self.now, kind=kind, actor=SCHEDULER, project_id=self.facts.project_id, reason=reason, data=data
        )

    def _ring(self, bells: Sequence[tuple[str, str]]) -> None:
        for topic, key in dict.fromkeys(bells):
            self.control.bell.ring(topic, key)


def _trial_row(study_id: str, number: int, job_id: str | None, proposal: Proposal, now: datetime) -> dict[str, Any]:
    return {
        "study_id": study_id,
        "number": number,
        "job_id": job_id,
        "state": TrialState.RUNNING.value,
        "parameters": proposal.parameters,
        "memo": proposal.memo,
        "reason": "",
        "gpu_s": 0.0,
        "created_at": now,
    }


def _sentence(reason: str) -> str:
    text = f"{reason[:1].upper()}{reason[1:]}"
    return text if text.endswith(".") else f"{text}."
