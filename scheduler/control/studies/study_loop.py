"""Reconciling studies: passes under the study's lease, until there is nothing more to do now.

A pass collects ended trials, stops bad ones early, and starts the trials that are due. Load → work → write, as for
attempts: no transaction is open while points are drawn, every write is fenced by the study's lease and compares what
was read, and a process may be killed between any two steps: the next pass sees the same truth.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from sqlalchemy import select, update
from sqlalchemy.orm import Session
from trainmaster.wire.jobs import INFEASIBLE_CODES

from core.db.engine import unit_of_work
from core.db.repositories import studies
from core.db.repositories.planning import user_shape_key
from core.db.repositories.submission import JobSubmission, new_job, write_job
from core.db.tables import Archive, Job, ModelVersion, Study, Trial, User, WaitReason
from core.domain.jobs.states import JobState
from core.domain.model_versions import VersionState
from core.domain.studies.budget import CHOSEN, PAUSED_AT, evaluate_budget
from core.domain.studies.results import TrialResult, best, equal_words, values_of
from core.domain.studies.states import StudyEvent, StudyState, TrialState, advance_study
from core.domain.studies.trials import winner_spec
from core.registry.sources import SourceRequest
from core.registry.versions import Author, VersionMetadata, register_from_job
from core.wakeups import TOPIC_MODELS, TOPIC_STUDY, TOPIC_TICK
from scheduler.control.context import ControlContext
from scheduler.control.fence import RenewedLease
from scheduler.control.journal import SCHEDULER
from scheduler.control.leased_loop import LeasedLoop
from scheduler.control.studies.decisions import (
    algorithm_of,
    as_sentence,
    auto_choice,
    end_without_points,
    is_initial,
    is_metric_pending,
    note_on_points,
    trial_end,
)
from scheduler.control.studies.facts import StudyFacts, StudyPassContext, load_study
from scheduler.control.studies.history import StudyHistory
from scheduler.control.studies.reported_metrics import (
    ReportedMetrics,
    fully_reported,
    missing_metric_reason,
    read_metrics,
)
from scheduler.control.studies.trial_starts import TrialStarter
from scheduler.control.studies.trial_stops import cancel_trials, expire_trials, stop_early
from scheduler.tuning.propose import has_gaussian_process
from scheduler.tuning.proposers import Proposers


def register_best_trial(
    session: Session, control: ControlContext, facts: StudyFacts, now: datetime
) -> dict[str, Any] | None:
    """Register the best trial, as stored in ``Study.best_trial``; ``None``: none is asked for, none succeeded, or it is
    registered already.

    In the transaction that ends the study, so that a kill leaves both or neither. Only trials that trained to their own
    end count: the output of a trial that was stopped early is half. After the commit, send ``TOPIC_TICK`` and
    ``TOPIC_MODELS``.

    Raises:
        Unavailable: other processes are changing the model.
    """
    spec = facts.spec
    if spec.winner is None:
        return None
    number = _best_of(session, facts)
    if number is None or _is_registered(session, facts, number):
        return None
    trial = session.get_one(Trial, (facts.id, number))
    job = session.get(Job, trial.job_id)
    runs_again = bool(spec.winner.arguments)
    if job is None or (job.deleted_at is not None and not runs_again):
        return None  # deleted meanwhile
    if runs_again:
        job = _run_again(session, control, facts, trial, now)
    user = session.get(User, facts.user_id)
    by = Author(facts.user_id, user.name if user is not None else "", SCHEDULER)
    labels = {"study": facts.name, "trial": str(number)}
    description = f"The best of {facts.spent.trial_count} trials of study {facts.name}, trial {number}."
    version = register_from_job(
        session, now, job, spec.winner.model, by, SourceRequest(spec.winner.path),
        volume=control.default_volume, when_done=runs_again,
        metadata=VersionMetadata(description, labels, spec.winner.aliases, keeps_better=True),
    )  # fmt: skip
    return {"trial": number, "job": job.id, "version": version.id}


def _best_of(session: Session, facts: StudyFacts) -> int | None:
    names = [metric.name for metric in facts.spec.metrics]
    rows = session.execute(
        select(Trial.number, Trial.result).where(
            Trial.study_id == facts.id, Trial.state == TrialState.SUCCEEDED.value, Trial.job_id.is_not(None)
        )
    )
    results = ((row.number, values_of(row.result, names)) for row in rows)
    best_result = best(
        [TrialResult(number, values) for number, values in results if values is not None], facts.spec.goals
    )
    return None if best_result is None else best_result.number


def _is_registered(session: Session, facts: StudyFacts, number: int) -> bool:
    """Whether an earlier end of the study, before it was extended, has registered this trial."""
    registered = facts.winner
    if registered is None or registered["trial"] != number:
        return False
    version = session.get(ModelVersion, registered["version"])
    return version is not None and version.state not in (VersionState.FAILED, VersionState.DELETING)


def _run_again(session: Session, control: ControlContext, facts: StudyFacts, trial: Trial, now: datetime) -> Job:
    trial_of = {
        "study_id": facts.id, "study": facts.name, "number": trial.number, "parameters": dict(trial.parameters),
    }  # fmt: skip
    order = JobSubmission(
        id=control.make_id("job"), spec=winner_spec(facts.spec, trial.number, trial.parameters),
        project_id=facts.project_id, project=facts.project, user_id=facts.user_id, output_volume=facts.output_volume,
        output_path=None if facts.output_path is None else f"{facts.output_path}/{trial.number}-best".lstrip("/"),
        trial=trial_of,
    )  # fmt: skip
    reason = f"Trial {trial.number}, the best of study {facts.name}, is run once more."
    write_job(session, new_job(order, now=now, actor=SCHEDULER, reason=reason), None)
    code = order.spec.code
    if code is not None:
        # The garbage collection of old archives spares it then.
        session.execute(update(Archive).where(Archive.digest == code).values(used_at=now))
    return session.get_one(Job, order.id)


_MAX_PASSES: Final = 12
# Studies whose results are cached.
_CACHED_HISTORIES: Final = 64
# Rows of one query; no study is left out, however many there are.
PAGE_SIZE: Final = 1000
# Trials that one pass starts: drawing a point takes up to some tens of milliseconds, and the lease has its time.
_MAX_STARTS: Final = 25


class StudyPass:
    """``run`` does what is next, and returns whether there may be more."""

    def __init__(
        self,
        control: ControlContext,
        lease: RenewedLease,
        facts: StudyFacts,
        history: StudyHistory,
        proposers: Proposers,
    ) -> None:
        self._context = StudyPassContext(control, lease, facts, history, control.clock())
        self._proposers = proposers
        self._starter = TrialStarter(self._context, proposers)

    def run(self) -> bool:
        """Raises ``StaleWrite``: another process has moved something meanwhile."""
        facts = self._context.facts
        if self._collect() or expire_trials(self._context):
            return True
        if facts.state is StudyState.STOPPING:
            return self._finish("The study was stopped.", StudyEvent.CONFIRM_STOP)
        if facts.state is not StudyState.RUNNING:
            return False
        if facts.blocked:
            return self._pause_blocked()
        if self._start_or_end():
            return True
        return stop_early(self._context)

    def _collect(self) -> bool:
        """Write the results of trials whose jobs are over; whether there were any."""
        context, spec = self._context, self._context.spec
        ended_trials = [trial for trial in context.facts.running if trial.is_over]
        if not ended_trials:
            return False
        names = [metric.name for metric in spec.metrics]
        ends = []
        with unit_of_work(context.control.sessions, read_only=True) as session:
            jobs = [trial.job_id for trial in ended_trials if trial.job_id is not None]
            # Before the values: a report that comes in between is not missed.
            reporting_jobs = fully_reported(session, jobs)
            metrics = read_metrics(session, jobs, names)
            for trial in ended_trials:
                job_id = trial.job_id or ""
                reported = metrics.get(job_id, ReportedMetrics())
                result, missing_reason = reported.final(spec), None
                if trial.job_state is JobState.SUCCEEDED and values_of(result, names) is None:
                    if is_metric_pending(trial, context.now, is_fully_reported=job_id in reporting_jobs):
                        continue
                    missing_reason = missing_metric_reason(session, job_id, spec, result, reported)
                ends.append(trial_end(trial, spec, reported, missing_reason))
        if not ends:
            return False
        with context.lease.fenced() as session:
            for end in ends:
                studies.end_trial(session, context.facts.id, end.number, end.state, context.now, **end.values)
                context.add_event(session, f"trial.{end.state.value}", end.values["reason"], trial=end.number)
        return True

    def _pause_blocked(self) -> bool:
        """Start no more trials for a user who may not submit jobs any more; running ones go on, as in any pause."""
        context, facts = self._context, self._context.facts
        with context.lease.fenced() as session:
            state = advance_study(facts.state, StudyEvent.PAUSE)
            reason = f"Paused: {facts.blocked}. Resume it once that is mended, or clone it to go on in another name."
            spec = session.get_one(Study, facts.id).spec
            studies.change_study(
                session, facts.id, facts.generation, context.now, state=state.value, reason=reason, note="",
                spec={**spec, PAUSED_AT: context.now.isoformat()},
            )  # fmt: skip
            context.add_event(session, "study.paused", reason)
        return False

    def _start_or_end(self) -> bool:
        """Start trials and draw points while the budget lasts; end the study where it is spent."""
        spec = self._context.spec
        budget = evaluate_budget(spec.budget, self._context.facts.spent)
        if budget.end is not None:
            return self._finish(as_sentence(budget.reason), budget.end)
        self._update_note()
        facts = self._context.facts
        start_count = 0
        if budget.room and spec.template is not None:
            start_count = self._starter.start(min(budget.room, _MAX_STARTS))
        is_idle = bool(budget.room) and not start_count and not facts.spent.running
        if is_idle and spec.template is not None and (end := end_without_points(facts)):
            return self._finish(*end)
        if facts.running or start_count:
            self._proposers.expect(algorithm_of(spec))
        drawn_count, goes_on = self._starter.prefetch()
        has_no_points = spec.template is None and not facts.prepared and not drawn_count
        if is_idle and has_no_points and (end := end_without_points(facts)):
            return self._finish(*end)
        return start_count > 0 or goes_on

    def _update_note(self) -> None:
        """What a user should know while the study runs: trials that fit no node, points of another algorithm, and
        results that are all equal.
        """
        context, facts = self._context, self._context.facts
        shapes = {trial.shape for trial in facts.running if trial.job_state is JobState.QUEUED and trial.shape}
        note = ""
        if shapes:
            shapes |= {user_shape_key(shape, facts.project_id, facts.user_id) for shape in shapes}
            with unit_of_work(context.control.sessions, read_only=True) as session:
                query = select(WaitReason.sentence).where(
                    WaitReason.shape.in_(shapes), WaitReason.code.in_(INFEASIBLE_CODES)
                )
                sentence = session.scalars(query.limit(1)).first()
            note = f"Its trials cannot start: {sentence}" if sentence else ""
        notes = (note, note_on_points(facts, has_torch=has_gaussian_process()), self._note_on_results())
        note = " ".join(sentence for sentence in notes if sentence)
        chosen = auto_choice(facts.spec)
        if note != facts.note or chosen != facts.chosen:
            with context.lease.fenced() as session:
                values: dict[str, Any] = {"note": note}
                if chosen != facts.chosen:
                    values["spec"] = {**session.get_one(Study, facts.id).spec, CHOSEN: chosen}
                generation = studies.change_study(session, facts.id, facts.generation, context.now, **values)
            context.facts = replace(facts, generation=generation, note=note, chosen=chosen)

    def _note_on_results(self) -> str:
        return equal_words((result.parameters, result.values) for result in self._context.history.results)

    def _finish(self, reason: str, event: StudyEvent) -> bool:
        """End the study; running trials are cancelled first."""
        context, facts = self._context, self._context.facts
        running_trials = [trial for trial in facts.running if not trial.is_over]
        uncancelled = [trial for trial in running_trials if trial.job_id is not None and trial.stop is None]
        if uncancelled:
            cancel_trials(context, uncancelled, "study", "study_stopped", reason)
            return True  # those that waited in the queue have ended already
        without_job = [trial.number for trial in running_trials if trial.job_id is None]
        if any(trial.job_id is not None for trial in facts.running):
            return False
        state = advance_study(facts.state, event)
        # They were not tried yet: where the study is extended, they come first again.
        initial = [dict(point) for point in facts.prepared if is_initial(point)]
        with context.lease.fenced() as session:
            best_trial = None
            if facts.blocked and facts.spec.winner is not None:
                # Running the best point again would be one more job of a user who may not submit any.
                reason = f"{reason} Its best trial is not registered: {facts.blocked}."
            elif event is not StudyEvent.FAIL:
                best_trial = register_best_trial(session, context.control, facts, context.now)
            studies.change_study(
                session, facts.id, facts.generation, context.now, state=state.value, reason=reason,
                note=self._note_on_results(), finished_at=context.now, prefetched_points=initial,
                best_trial=best_trial or facts.winner,
            )  # fmt: skip
            for number in without_job:  # its program is told so when it reports the result
                studies.end_trial(session, facts.id, number, TrialState.CANCELLED, context.now, reason=reason)
            context.add_event(session, f"study.{state.value}", reason)
        if best_trial is not None:
            context.notify([(TOPIC_TICK, ""), (TOPIC_MODELS, "")])
        return False


class StudyLoop:
    """One per process, thread-safe."""

    def __init__(self, control: ControlContext, proposers: Proposers | None = None) -> None:
        self._control = control
        self._proposers = proposers or Proposers()
        self._histories: dict[str, StudyHistory] = {}
        self._loop = LeasedLoop(control, kind="study", topic=TOPIC_STUDY, max_passes=_MAX_PASSES)
        self._lock = threading.Lock()

    def reconcile(self, study_id: str) -> None:
        """Bring the study as far as it goes now. Harmless to repeat, and to call from two threads at once.

        Raises:
            Unavailable: the database is away.
        """

        def run_pass(lease: RenewedLease) -> bool:
            history = self._history(study_id)
            with unit_of_work(self._control.sessions, read_only=True) as session:
                facts = load_study(session, study_id, self._control.clock(), history)
            return facts is not None and StudyPass(self._control, lease, facts, history, self._proposers).run()

        self._loop.reconcile(study_id, run_pass)

    def notify_due(self) -> None:
        """Wake up every study that may have something to do, in case its wake-up was lost."""
        with unit_of_work(self._control.sessions, read_only=True) as session:
            page = due = list(studies.live_studies(session, limit=PAGE_SIZE))
            while len(page) == PAGE_SIZE:
                page = list(studies.live_studies(session, after=page[-1], limit=PAGE_SIZE))
                due += page
        for study_id in due:
            self._control.wakeup.notify(TOPIC_STUDY, study_id)

    def close(self) -> None:
        self._proposers.close()

    def _history(self, study_id: str) -> StudyHistory:
        with self._lock:
            history = self._histories.pop(study_id, None) or StudyHistory()
            self._histories[study_id] = history
            while len(self._histories) > _CACHED_HISTORIES:
                del self._histories[next(iter(self._histories))]
        return history
