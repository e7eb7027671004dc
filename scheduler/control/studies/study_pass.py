"""One round about one study: collect what has ended, end what goes badly, and begin what is due.

Load → work → write, as for attempts: nothing is open while points are drawn, every write is fenced by the study's lease
and compares what was read, and a process may be killed between any two steps: the next round sees the same truth.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import insert, select, update
from sqlalchemy.orm import Session
from trainmaster.studies import Algorithm, Space

from core.db.engine import unit_of_work
from core.db.leases import HeldLease
from core.db.repositories import studies
from core.db.repositories.attempts import is_decided
from core.db.repositories.events import append_event
from core.db.repositories.new_jobs import JobOrder, new_job
from core.db.repositories.submission import write_job
from core.db.repositories.wait_reasons import user_key
from core.db.tables import Archive, Study, Trial, WaitReason
from core.domain.errors import StaleWrite
from core.domain.jobs.states import JobState
from core.domain.studies.budget import CHOSEN, PAUSED_AT, outlook
from core.domain.studies.curves import Curve, make_curve, step_of, thinned
from core.domain.studies.results import equal_words, values_of
from core.domain.studies.states import StudyEvent, StudyState, TrialState, advance_study
from core.domain.studies.stopping import Verdict, judge_traces
from core.domain.studies.traces import Trace
from core.domain.studies.trials import searched, text_of, trial_spec
from core.ids import new_id
from core.wakeups import TOPIC_MODELS, TOPIC_TICK
from scheduler.control import fence
from scheduler.control.context import ControlContext
from scheduler.control.journal import SCHEDULER
from scheduler.control.studies import expired_trials, promotion
from scheduler.control.studies.best_trial import register_best_trial
from scheduler.control.studies.cancellation import cancel_job
from scheduler.control.studies.facts import RunningTrial, StudyFacts
from scheduler.control.studies.history import StudyHistory
from scheduler.control.studies.measure import MeasuredMetrics, measure_metrics
from scheduler.control.studies.missing_metric import fully_reported, missing_metric_reason
from scheduler.planning.model import ReasonCode
from scheduler.tuning import Observed, Proposal, Question, choose_algorithm, chosen_algorithm
from scheduler.tuning.prefetch import usable
from scheduler.tuning.propose import gp_is_there, key_of
from scheduler.tuning.proposers import INSTEAD_OF, Proposers, is_quick

# The last report of a replica that could not tell what each road of its metrics brought may be on its way when the end is seen.
METRIC_GRACE: Final = timedelta(seconds=10)
# Curves of trials that are over which a stopping headroom compares with: more would not move a median.
_CURVES: Final = 1_000
# Every trial's end brings a round; all curves are judged this often at most.
_JUDGE_INTERVAL: Final = timedelta(seconds=1)
# Trials that one round begins: drawing their points takes up to some tens of milliseconds each, and the lease has its time.
_MAX_STARTS: Final = 25
# Points that are drawn ahead for who asks over REST, and for an algorithm that takes its time.
_PREFETCHED_POINTS: Final = 16
_MAX_DRAWS: Final = 4
# Whoever asks may take this part of them before new ones are drawn, where no result has come.
_REFILL_FRACTION: Final = 4
_IMPOSSIBLE: Final = (ReasonCode.NEVER_FITS, ReasonCode.NO_MATCHING_NODE, ReasonCode.TOO_LARGE)
_NO_GP: Final = "Its points are TPE's: GP needs torch for several metrics, which the control plane has not."
_GP_FAILED: Final = "GP could not draw some of its points; they are TPE's."
_FAILED: Final = "could not draw some of its points; others stand in their place."
_NOTHING_LEFT: Final = (
    "It went on from trial {}: where a script finds nothing left to train behind a checkpoint, let it report the metric of "
    "that checkpoint"
)
_BY_INDEX: Final = (Algorithm.GRID, Algorithm.QMC, Algorithm.RANDOM)


class StudyPass:
    """``run`` does what is next, and says whether there may be more."""

    def __init__(
        self, control: ControlContext, lease: HeldLease, facts: StudyFacts, history: StudyHistory, proposers: Proposers
    ) -> None:
        self.control = control
        self.lease = lease
        self.facts = facts
        self.spec = facts.spec
        self.now = control.clock()
        self._history = history
        self._proposers = proposers
        self._renewed_at = self.now

    def run(self) -> bool:
        """Raises ``StaleWrite``: somebody moved something meanwhile; look again."""
        if self._collect() or expired_trials.expire_trials(self.control, self.lease, self.facts, self.now):
            return True
        if self.facts.state is StudyState.STOPPING:
            return self._finish("The study was stopped.", StudyEvent.CONFIRM_STOP)
        if self.facts.state is not StudyState.RUNNING:
            return False
        if self.facts.blocked:
            return self._pause_blocked()
        if self._continue():
            return True
        return self._stop_trials_early()

    # What has ended

    def _collect(self) -> bool:
        """Write the results of trials whose jobs are over; whether there were any."""
        over = [trial for trial in self.facts.running if trial.is_over]
        if not over:
            return False
        names = [metric.name for metric in self.spec.metrics]
        with unit_of_work(self.control.sessions, read_only=True) as session:
            jobs = [trial.job_id for trial in over if trial.job_id is not None]
            whole = fully_reported(session, jobs)  # before the values: what comes in between is not missed
            told = measure_metrics(session, jobs, names)
            ends = [end for trial in over if (end := self._end_of(session, trial, told, whole)) is not None]
        if not ends:
            return False
        with fence.fenced(self.control, self.lease) as session:
            for number, state, values in ends:
                studies.end_trial(session, self.facts.id, number, state, self.now, **values)
                self._add_event(session, f"trial.{state.value}", values["reason"], trial=number)
        return True

    def _end_of(
        self, session: Session, trial: RunningTrial, told: Mapping[str, MeasuredMetrics], told_all: Collection[str]
    ) -> tuple[int, TrialState, dict[str, Any]] | None:
        """``None``: its metric may still be on the way."""
        job_id = trial.job_id or ""
        measured = told.get(job_id, MeasuredMetrics())
        result = measured.final(self.spec)
        has_values = values_of(result, [metric.name for metric in self.spec.metrics]) is not None
        is_early = trial.stop is not None and trial.stop.get("kind") == "early"
        sentence = str((trial.exit or {}).get("sentence", ""))
        match trial.job_state:
            case JobState.SUCCEEDED if has_values:
                state, reason = TrialState.SUCCEEDED, ""
            case JobState.SUCCEEDED:
                is_fresh = trial.finished_at is not None and self.now - trial.finished_at < METRIC_GRACE
                if is_fresh and job_id not in told_all:
                    return None
                state, reason = TrialState.FAILED, missing_metric_reason(session, job_id, self.spec, result, measured)
                if trial.memo.get("parent") is not None:
                    reason += f". {_NOTHING_LEFT.format(trial.memo['parent'])}"
            case JobState.CANCELLED if is_early and has_values:
                state, reason = TrialState.STOPPED, str((trial.stop or {}).get("sentence", sentence))
            case JobState.CANCELLED:
                state, reason = TrialState.CANCELLED, sentence
            case _:
                state, reason = TrialState.FAILED, sentence
        if has_values and state.has_result:
            # Its best value counts; that it did not stay there is to be seen all the same.
            reason = " ".join(text for text in (reason, measured.divergence(self.spec.metrics[0].name)) if text)
        whole = self._curve(trial.number, measured, is_over=state is TrialState.SUCCEEDED)
        curve, counted = thinned(whole), (result or {}).get(self.spec.metrics[0].name)
        return (
            trial.number,
            state,
            {
                "result": result if has_values else None,
                "curve": {"steps": list(curve.steps), "values": list(curve.values), "counted": step_of(whole, counted)}
                if curve
                else None,
                "reason": reason,
                "gpu_s": trial.gpu_s,
            },
        )

    # What goes badly

    def _stop_trials_early(self) -> bool:
        """End trials that the study's headroom gives up; whether their curves are too long for one look, and another one is due."""
        headroom = self.spec.stopping
        # Reports that come with its end may be the first to show a headroom how a trial went: one that has done all is left alone.
        watched = [
            t for t in self.facts.running
            if t.job_state is JobState.RUNNING and t.stop is None and t.job_id and not t.is_decided
        ]  # fmt: skip
        is_judged = headroom is not None or self.spec.population is not None
        if not is_judged or not watched or not self._history.is_due(self.now, _JUDGE_INTERVAL):
            return False
        metric = self.spec.metrics[0]
        # Those that wait for their next attempt are not forgotten meanwhile.
        jobs = {trial.number: trial.job_id for trial in self.facts.running if trial.job_id}
        with unit_of_work(self.control.sessions, read_only=True) as session:
            traces, is_all = self._history.trace_follower.read_new(session, jobs, metric.name, metric.goal)
            others = self._history.traces(session, self.facts.id, metric.goal, limit=_CURVES) if is_all else []
        if not is_all:
            # Half of a curve is compared with nobody's.
            self._history.reset_judged()
            return True
        own = [traces[trial.number] for trial in watched]
        if headroom is None:
            self._replace_worst({t.number: t for t in watched}, own, others)
            return False
        passed = {trial.number: trial.passed for trial in watched}
        verdicts = judge_traces(headroom, own, others, passed)
        self._note_passed_rungs([trial for trial in watched if passed[trial.number] != trial.passed], passed)
        for trial in watched:
            if trial.number in verdicts:
                self._stop(trial, verdicts[trial.number])
        return False

    def _note_passed_rungs(self, trials: Sequence[RunningTrial], passed: Mapping[int, int]) -> None:
        """Note the rungs that these came past, so that no process asks them there again; a rung comes a few times in a trial."""
        if not trials:
            return
        memos = {trial.number: trial.memo_with(passed[trial.number]) for trial in trials}
        with fence.fenced(self.control, self.lease) as session:
            studies.change_memos(session, self.facts.id, memos)

    def _replace_worst(
        self, watched: Mapping[int, RunningTrial], running: Sequence[Trace], others: Sequence[Trace]
    ) -> None:
        """End the worst members of a population, whose places heirs of the best take."""
        found = promotion.pbt_replacements(self.control, self.facts, running, others, self._renew_lease_if_due)
        for one in found:
            sentence = f"It gives its place to a trial that goes on from a better one: {one.sentence}."
            self._cancel([watched[one.number]], "early", "stopped_early", sentence, step=one.step, parents=one.parents)

    def _stop(self, trial: RunningTrial, verdict: Verdict) -> None:
        headroom = self.spec.stopping
        sentence = (
            f"Stopped early by the study's headroom {headroom.headroom.value if headroom else ''}: {verdict.sentence}."
        )
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
        wakeups: list[tuple[str, str]] = []
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
                    wakeups += cancel_job(session, trial.job_id, code, sentence, self.now)
                    if kind == "early" and is_decided(session, trial.job_id):
                        raise StaleWrite(f"trial {trial.number} has finished since it was judged")
                    self._add_event(session, f"trial.{code}", sentence, trial=trial.number)
        self._notify(wakeups)

    # What is due

    def _pause_blocked(self) -> bool:
        """Begin no more trials in the name of who may not submit jobs any more; what runs goes on, as when it is paused."""
        with fence.fenced(self.control, self.lease) as session:
            state = advance_study(self.facts.state, StudyEvent.PAUSE)
            reason = (
                f"Paused: {self.facts.blocked}. Resume it once that is mended, or clone it to go on in another name."
            )
            spec = session.get_one(Study, self.facts.id).spec
            studies.change_study(
                session, self.facts.id, self.facts.generation, self.now, state=state.value, reason=reason, note="",
                spec={**spec, PAUSED_AT: self.now.isoformat()},
            )  # fmt: skip
            self._add_event(session, "study.paused", reason)
        return False

    def _continue(self) -> bool:
        facts = self.facts
        ahead = outlook(self.spec.budget, facts.spent)
        if ahead.end is not None:
            return self._finish(_sentence(ahead.reason), ahead.end)
        self._update_note()
        fresh = 0
        if ahead.room and self.spec.template is not None:
            fresh = self._start_trials(min(ahead.room, _MAX_STARTS))
        is_idle = bool(ahead.room) and not fresh and not facts.spent.running
        if is_idle and self.spec.template is not None and (ended := self._exhausted()):
            return self._finish(*ended)
        if facts.running or fresh:
            self._proposers.expect(self._algorithm)
        drawn, goes_on = self._prefetch_points()
        is_used_up = self.spec.template is None and not facts.prepared and not drawn
        if is_idle and is_used_up and (ended := self._exhausted()):
            return self._finish(*ended)
        return fresh > 0 or goes_on

    def _exhausted(self) -> tuple[str, StudyEvent] | None:
        """How it ends where nothing is left to draw, and nothing runs that could change that."""
        what = "every point of the space was tried"
        if self.facts.prior_results:
            what += ", by trials of the studies that it was warm-started from"
            what += ", too" if self.facts.spent.made else ""
        if self.spec.population is not None:
            what = "its population has come to its end"
        elif self.spec.algorithm is not Algorithm.GRID and Space.of(self.spec).size is None:
            what = "chance found no point any more that satisfies the constraints"
        ended = outlook(self.spec.budget, self.facts.spent, exhausted=what)
        if ended.end is StudyEvent.FAIL and self.facts.prior_results and not self.facts.spent.made:
            # Whoever asked what is best here has the answer.
            none = " No model is registered, since no trial of its own has run." if self.spec.winner is not None else ""
            return f"Nothing new to try: {what}. {self._best_known()}{none}", StudyEvent.SUCCEED
        return None if ended.end is None else (_sentence(ended.reason), ended.end)

    def _best_known(self) -> str:
        """The best that warm-starting brought, in words; of several metrics in the first one."""
        metric = self.spec.metrics[0]
        best = min(self.facts.prior_results, key=lambda one: metric.sign * one["values"][0])
        point = ", ".join(f"{name}={text_of(value)}" for name, value in best["parameters"].items())
        values = ", ".join(
            f"{one.name} {value:.6g}" for one, value in zip(self.spec.metrics, best["values"], strict=True)
        )
        return f"The best of those has {values}: {point}."

    def _start_trials(self, room: int) -> int:
        """Begin up to ``room`` trials; how many. Each trial's row and its job's are written together."""
        facts = self.facts
        promoted = promotion.due_promotions(self.control, facts, self._history, room, self._renew_lease_if_due)
        room = promotion.new_point_slots(facts, room, len(promoted))
        missed = facts.ended_count - facts.prepared_at
        used = usable(len(facts.prepared), room, missed, self.spec.budget.parallel)
        own = [one for one in facts.prepared if _is_initial(one)]
        taken, rest = facts.prepared[:used], facts.prepared[used:]
        if used < min(len(facts.prepared), room):
            # The user's own are as good as ever; of the others one begins, and the next round draws anew.
            taken = own[:room] or taken
            room, rest = len(taken), own[len(taken) :]
        ready = [Proposal(dict(one["parameters"]), dict(one["memo"])) for one in taken]
        drawn = self._draw(room - len(ready), ready) if len(ready) < room else []
        chosen = [
            *promoted,
            *(promotion.TrialStart(promotion.at_first_rung(self.spec, one)) for one in (*ready, *drawn)),
        ]
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
                trial_count=facts.trial_count + len(chosen), proposed_count=facts.proposed + len(drawn), prefetched_points=list(rest),
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
        self._notify([(TOPIC_TICK, "")])
        return len(chosen)

    def _prefetch_points(self) -> tuple[int, bool]:
        """Draw points ahead where whoever needs them should not wait for it; how many, and whether more are wanted."""
        facts = self.facts
        question = self._question(0, ())
        is_asked = self.spec.template is None
        if not is_asked and is_quick(question):
            return 0, False
        wanted = min(_PREFETCHED_POINTS, max(1, self.spec.budget.parallel) * (2 if is_asked else 1))
        if self.spec.budget.trials is not None:
            wanted = min(wanted, self.spec.budget.trials - facts.trial_count)
        own = sum(_is_initial(one) for one in facts.prepared)
        # Those from before the last results are a reserve: whoever asks next gets one that knows of them. One for each result,
        # as whoever has told one asks for one, and one more, so that none of the reserve grows old: to draw all anew for each
        # result would take longer than short trials do.
        is_behind = facts.prepared_at != facts.ended_count and question.algorithm not in _BY_INDEX
        lacking = wanted - len(facts.prepared)
        if is_behind:
            lacking = min(wanted - own, max(lacking, facts.ended_count - facts.prepared_at + 1))
        elif is_asked and lacking <= wanted // _REFILL_FRACTION:
            lacking = 0  # it would be drawn once more with the next result
        drawn = []
        if lacking > 0:
            ahead = [Proposal(dict(one["parameters"])) for one in facts.prepared]
            drawn = self._draw(min(lacking, _MAX_DRAWS), ahead)
        if not drawn:
            return 0, False
        with fence.fenced(self.control, self.lease) as session:
            # Somebody may have asked meanwhile, and got some of those that were there: that makes the new ones no worse.
            row = session.get_one(Study, facts.id, populate_existing=True, with_for_update={"key_share": True})
            if row.state != StudyState.RUNNING or row.proposed_count != facts.proposed:
                raise StaleWrite("the study has moved since its points were drawn")
            left = list(row.prefetched_points)
            front = [one for one in left if not is_behind or _is_initial(one)]
            reserve = [one for one in left if is_behind and not _is_initial(one)]
            prepared = [*front, *(asdict(one) for one in drawn), *reserve][:wanted]
            studies.change_study(
                session, facts.id, row.generation, self.now,
                prefetched_points=prepared, prefetched_after=facts.ended_count, proposed_count=facts.proposed + len(drawn),
            )  # fmt: skip
        return len(drawn), len(prepared) < wanted

    def _draw(self, count: int, ahead: Sequence[Proposal]) -> list[Proposal]:
        """Points that are due next. ``ahead``: those that are chosen already, but no trials yet."""
        question = self._question(count, ahead)
        if not is_quick(question):
            self.lease = fence.renew(self.control, self.lease)
        return self._proposers(question)

    def _question(self, count: int, ahead: Sequence[Proposal]) -> Question:
        facts, spec = self.facts, self.spec
        space = Space.of(spec)
        pending = [Proposal(searched(spec, trial.parameters), dict(trial.memo)) for trial in facts.running]
        results, spoilt = promotion.results_to_learn_from(spec, self._history)
        known = [Observed(one["parameters"], tuple(one["values"])) for one in facts.prior_results]
        return Question(
            space=space,
            algorithm=self._algorithm,
            goals=spec.goals,
            seed=facts.seed,
            index=facts.proposed,
            count=count,
            finished=[*known, *results],
            pending=[*pending, *ahead],
            spoilt=spoilt,
            initial=self._own_points(),
        )

    def _own_points(self) -> Sequence[Mapping[str, Any]]:
        """The user's points that are tried first: not those that the study was warm-started with a result of."""
        if not self.facts.prior_results or self.facts.proposed >= len(self.spec.initial):
            return self.spec.initial
        tried = {key_of(one["parameters"]) for one in self.facts.prior_results}
        return [point for point in self.spec.initial if key_of(point) not in tried]

    @property
    def _algorithm(self) -> Algorithm:
        spec = self.spec
        return chosen_algorithm(Space.of(spec), spec.algorithm, spec.goals, spec.budget.trials)

    def _update_note(self) -> None:
        """What a person should know while it runs: trials that no node can ever hold, points of another algorithm, and
        results that are all the same.
        """
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
        note = " ".join(sentence for sentence in (note, self._about_points(), self._about_results()) if sentence)
        chosen = self._choice()
        if note != facts.note or chosen != facts.chosen:
            with fence.fenced(self.control, self.lease) as session:
                values: dict[str, Any] = {"note": note}
                if chosen != facts.chosen:
                    values["spec"] = {**session.get_one(Study, facts.id).spec, CHOSEN: chosen}
                generation = studies.change_study(session, facts.id, facts.generation, self.now, **values)
            self.facts = replace(facts, generation=generation, note=note, chosen=chosen)

    def _choice(self) -> dict[str, str] | None:
        """Which algorithm ``auto`` is, and why; ``None``: the user has chosen. A larger budget may change it."""
        spec = self.spec
        if spec.algorithm is not Algorithm.AUTO:
            return None
        found = choose_algorithm(Space.of(spec), spec.algorithm, spec.goals, spec.budget.trials)
        return {"algorithm": found.algorithm.value, "reason": found.reason}

    def _about_points(self) -> str:
        """Said once and kept, though the trials that it is about end."""
        facts = self.facts
        if self.spec.algorithm is Algorithm.GP and len(self.spec.metrics) > 1 and not gp_is_there():
            return _NO_GP
        memos = [*(trial.memo for trial in facts.running), *(one["memo"] for one in facts.prepared)]
        failed = _GP_FAILED
        if self.spec.algorithm not in (Algorithm.GP, Algorithm.AUTO):
            failed = f"{self.spec.algorithm.value} {_FAILED}"
        return failed if failed in facts.note or any(INSTEAD_OF in memo for memo in memos) else ""

    def _about_results(self) -> str:
        return equal_words((one.parameters, one.values) for one in self._history.results)

    def _finish(self, reason: str, event: StudyEvent) -> bool:
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
        # Nobody tried them yet: where the study is extended, they come first again.
        own_points = [dict(one) for one in facts.prepared if _is_initial(one)]
        with fence.fenced(self.control, self.lease) as session:
            registered = None
            if facts.blocked and self.spec.winner is not None:
                # The run of the winner would be one more job in the name of who may submit none.
                reason = f"{reason} Its best trial is not registered: {facts.blocked}."
            elif event is not StudyEvent.FAIL:
                registered = register_best_trial(session, self.control, facts, self.now)
            studies.change_study(
                session, facts.id, facts.generation, self.now,
                state=state.value, reason=reason, note=self._about_results(), finished_at=self.now, prefetched_points=own_points,
                best_trial=registered or facts.winner,
            )  # fmt: skip
            for number in own:  # whoever works on it is told so when the result comes
                studies.end_trial(session, facts.id, number, TrialState.CANCELLED, self.now, reason=reason)
            self._add_event(session, f"study.{state.value}", reason)
        if registered is not None:
            self._notify([(TOPIC_TICK, ""), (TOPIC_MODELS, "")])
        return False

    # The parts

    def _renew_lease_if_due(self) -> None:
        """Renew the lease before something that may take long, where a part of its time is over."""
        if self.control.clock() - self._renewed_at >= self.control.lease_ttl / 4:
            self.lease = fence.renew(self.control, self.lease)
            self._renewed_at = self.control.clock()

    def _curve(self, number: int, measured: MeasuredMetrics, *, is_over: bool = False) -> Curve:
        return make_curve(number, measured.points.get(self.spec.metrics[0].name, ()), is_over=is_over)

    def _add_event(self, session: Session, kind: str, reason: str, *, trial: int | None = None) -> None:
        data: dict[str, Any] = {"study": self.facts.id, "name": self.facts.name}
        if trial is not None:
            data["trial"] = trial
        append_event(
            session, at=self.now, kind=kind, actor=SCHEDULER, project_id=self.facts.project_id, reason=reason, data=data
        )

    def _notify(self, wakeups: Sequence[tuple[str, str]]) -> None:
        for topic, key in dict.fromkeys(wakeups):
            self.control.wakeup.notify(topic, key)


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


def _is_initial(prepared: Mapping[str, Any]) -> bool:
    """Whether a point comes before all that are drawn: the user's own, and those whose trials were lost."""
    return bool(prepared["memo"].get("origin") == "initial" or expired_trials.RETRY_KEY in prepared["memo"])


def _sentence(reason: str) -> str:
    text = f"{reason[:1].upper()}{reason[1:]}"
    return text if text.endswith(".") else f"{text}."
