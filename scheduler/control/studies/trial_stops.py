"""Ending trials of a study before their own end: early stopping, population based training, expiry, the study's end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

from sqlalchemy import update

from core.db.engine import unit_of_work
from core.db.repositories import studies
from core.db.repositories.jobs import is_decided
from core.db.tables import Trial
from core.domain.errors import StaleWrite
from core.domain.jobs.states import JobState
from core.domain.studies.curves import Trace
from core.domain.studies.states import StudyState, TrialState
from core.domain.studies.trial_schedulers import decide_early_stops_of_traces
from scheduler.control.studies import promotion
from scheduler.control.studies.decisions import RETRY_KEY
from scheduler.control.studies.facts import RunningTrial, StudyPassContext
from scheduler.control.transitions import cancel_job
from scheduler.tuning import Proposal

# Curves of ended trials that a stopping rule compares with: more would not move a median.
_MAX_CURVES: Final = 1_000
# Every trial's end causes a pass; all curves are judged this often at most.
_CHECK_INTERVAL: Final = timedelta(seconds=1)


def expire_trials(context: StudyPassContext) -> bool:
    """Fail the trials without a job whose program gave no sign of life for the study's ``lost_after``; whether any did.

    A vanished program must not hold its slot for ever. Its point was not tried, so it comes first when a client asks
    again.

    Raises:
        StaleWrite: the study has moved meanwhile.
    """
    facts, now = context.facts, context.now
    limit = now - timedelta(seconds=facts.spec.lost_after_s)
    silent = [trial for trial in facts.running if trial.job_id is None and trial.heard_at <= limit]
    if not silent:
        return False
    reason = (
        "Lost: the program that asked for it told no result and gave no sign of life for "
        f"{facts.spec.lost_after_s:g} s (lost_after)."
    )
    retries: list[dict[str, Any]] = []
    with context.lease.fenced() as session:
        for trial in silent:
            if not studies.expire_trial(session, facts.id, trial.number, now, unheard_since=limit, reason=reason):
                continue  # it gave a sign of life at this moment
            context.add_event(session, "trial.lost", reason, trial=trial.number)
            if RETRY_KEY not in trial.memo:
                retries.append(asdict(Proposal(dict(trial.parameters), {**trial.memo, RETRY_KEY: trial.number})))
        if retries and facts.state in (StudyState.RUNNING, StudyState.PAUSED):
            studies.change_study(
                session, facts.id, facts.generation, now, prefetched_points=[*retries, *facts.prepared]
            )
    return True


def stop_early(context: StudyPassContext) -> bool:
    """Stop the trials that the study's rule, or its population, gives up.

    Returns:
        Whether another pass is due, as the new parts of the curves are too long for one.
    """
    rule, history, facts = context.spec.stopping, context.history, context.facts
    # Reports that come with a trial's end may be the first that a rule gets of it: a trial that has finished its work
    # is left alone.
    watched = {
        trial.number: trial
        for trial in facts.running
        if trial.job_state is JobState.RUNNING and trial.stop is None and trial.job_id and not trial.is_decided
    }
    has_early_stopping = rule is not None or context.spec.population is not None
    if not has_early_stopping or not watched or not history.is_due(context.now, _CHECK_INTERVAL):
        return False
    metric = context.spec.metrics[0]
    # Trials that wait for their next attempt stay followed.
    jobs = {trial.number: trial.job_id for trial in facts.running if trial.job_id}
    with unit_of_work(context.control.sessions, read_only=True) as session:
        traces, is_complete = history.trace_follower.read_new(session, jobs, metric.name, metric.goal)
        others = history.traces(session, facts.id, metric.goal, limit=_MAX_CURVES) if is_complete else []
    if not is_complete:
        # Half of a curve is not compared with any other.
        history.mark_due()
        return True
    own = [traces[number] for number in watched]
    if rule is None:
        _replace_worst(context, watched, own, others)
        return False
    passed = {number: trial.passed_step for number, trial in watched.items()}
    verdicts = decide_early_stops_of_traces(rule, own, others, passed)
    _note_passed_rungs(
        context, [trial for number, trial in watched.items() if passed[number] != trial.passed_step], passed
    )
    for number, trial in watched.items():
        if number in verdicts:
            sentence = f"Stopped early by the study's rule {rule.rule.value}: {verdicts[number].sentence}."
            cancel_trials(context, [trial], "early", "stopped_early", sentence, step=verdicts[number].step)
    return False


def cancel_trials(
    context: StudyPassContext,
    trials: Sequence[RunningTrial],
    kind: str,
    code: str,
    sentence: str,
    *,
    step: int | None = None,
    parents: Sequence[int] = (),
) -> None:
    """Cancel the jobs of these trials, and note why.

    Args:
        kind: ``early`` or ``study``.
        code: why, for programs; also the name of the event.
        step: at which step a stopping rule judged it.
        parents: whose checkpoints its replacement may go on from.

    Raises:
        StaleWrite: a trial has finished meanwhile.
    """
    wakeups: list[tuple[str, str]] = []
    with context.lease.fenced() as session:
        for trial in trials:
            session.execute(
                update(Trial)
                .where(
                    Trial.study_id == context.facts.id, Trial.number == trial.number, Trial.stop.is_(None),
                    Trial.state == TrialState.RUNNING.value,
                )
                .values(stop={"kind": kind, "sentence": sentence, "step": step, "parents": list(parents)})
            )  # fmt: skip
            if trial.job_id is not None:
                wakeups += cancel_job(session, trial.job_id, code, sentence, context.now)
                if kind == "early" and is_decided(session, trial.job_id):
                    raise StaleWrite(f"trial {trial.number} has finished since it was judged")
                context.add_event(session, f"trial.{code}", sentence, trial=trial.number)
    context.notify(wakeups)


def _note_passed_rungs(context: StudyPassContext, trials: Sequence[RunningTrial], passed: Mapping[int, int]) -> None:
    """Note the rungs that these trials passed, so that no process judges them there again. Rare: a trial has few
    rungs.
    """
    if not trials:
        return
    memos = {trial.number: trial.memo_with(passed[trial.number]) for trial in trials}
    with context.lease.fenced() as session:
        studies.change_memos(session, context.facts.id, memos)


def _replace_worst(
    context: StudyPassContext, watched: Mapping[int, RunningTrial], running: Sequence[Trace], others: Sequence[Trace]
) -> None:
    """End the worst members of a population; trials that go on from the best replace them."""
    found = promotion.members_to_replace(context.control, context.facts, running, others, context.lease.renew_if_due)
    for exploit in found:
        sentence = f"It gives its place to a trial that goes on from a better one: {exploit.sentence}."
        trial = watched[exploit.number]
        cancel_trials(context, [trial], "early", "stopped_early", sentence, step=exploit.step, parents=exploit.parents)
