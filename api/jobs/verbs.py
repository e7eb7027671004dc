"""Actions on existing jobs: cancel, pause, resume, delete, also with the output."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Any, Final

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from api.app.unit_of_work import UnitOfWork
from api.auth import Caller
from core.db.repositories.events import last_events_of_job
from core.db.repositories.jobs import live_attempt_id, set_job
from core.db.tables import Attempt, Job, Volume
from core.domain.errors import Conflict, IllegalTransition
from core.domain.jobs.lifecycle import Effect, JobEvent, advance, can_advance
from core.domain.jobs.states import DesiredState, JobState
from core.storage.volumes import OUTPUT_MOUNT, has_own_output, tree_of
from core.wakeups import TOPIC_RECONCILE, TOPIC_STUDY, TOPIC_TICK


class Verb(StrEnum):
    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"


_EVENTS: Final = {Verb.CANCEL: JobEvent.CANCEL, Verb.PAUSE: JobEvent.PAUSE, Verb.RESUME: JobEvent.RESUME}
_WANTED: Final = {Verb.CANCEL: DesiredState.CANCEL, Verb.PAUSE: DesiredState.PAUSE, Verb.RESUME: DesiredState.RUN}
# Idempotent: a request for the current state changes nothing and is no error, since clients may repeat lost requests.
_REACHED: Final = {
    Verb.CANCEL: frozenset({JobState.CANCELLED, JobState.CANCELLING}),
    Verb.PAUSE: frozenset({JobState.PAUSED}),
    Verb.RESUME: frozenset[JobState](),
}
_HISTORY_EVENTS: Final = 5  # latest events in the error of a refused action


def request(work: UnitOfWork, caller: Caller, job: Job, verb: Verb, reason: str) -> None:
    """Store the desired state. A waiting job changes its state at once; the control loop moves one with a live attempt.

    ``job`` must be locked for this transaction.

    Raises:
        IllegalTransition: the job's state does not allow it; with the reason, what to do, and the job's last events.
        StaleWrite: the job changed at the same time.
    """
    try:
        _request(work, caller, job, verb, reason)
    except IllegalTransition as refused:
        named = _of_job(refused, job)
        named.history = tuple(last_events_of_job(work.session, job.id, limit=_HISTORY_EVENTS))
        raise named from refused


def _of_job(refused: IllegalTransition, job: Job) -> IllegalTransition:
    """The same error with the job's name, for clients that act on many jobs at once."""
    return IllegalTransition(f"Job {job.name!r} {refused.sentence.removeprefix('The job ')}")


def _request(work: UnitOfWork, caller: Caller, job: Job, verb: Verb, reason: str) -> None:
    state, wanted = JobState(job.state), _WANTED[verb]
    if state in _REACHED[verb] or (job.desired_state == wanted and verb is not Verb.RESUME and not state.is_terminal):
        return
    if state in (JobState.QUEUED, JobState.PAUSED) and can_advance(state, _EVENTS[verb]):
        _move_now(work, caller, job, _EVENTS[verb], wanted, reason)
        return
    if verb is Verb.RESUME:
        # A pause that has not happened yet can be taken back; else the transition table decides.
        if job.desired_state != DesiredState.PAUSE or state not in (JobState.STARTING, JobState.RUNNING):
            advance(state, JobEvent.RESUME)
    elif job.desired_state == DesiredState.CANCEL or not can_advance(state, _EVENTS[verb]):
        # A cancel cannot be taken back: pausing such a job is refused as if it were already being cancelled.
        current = JobState.CANCELLING if job.desired_state == DesiredState.CANCEL and not state.is_terminal else state
        advance(current, _EVENTS[verb])
    set_job(work.session, job, desired_state=wanted.value, updated_at=work.now)
    record_event(work, caller, job, f"job.{verb}_requested", reason)
    live = live_attempt_id(work.session, job.id)
    if live is not None:
        work.notify(TOPIC_RECONCILE, live)


def resume_from(work: UnitOfWork, caller: Caller, job: Job, checkpoint: str, reason: str) -> None:
    """Resume the job from one of its checkpoints; a running job is stopped and started again.

    Attempts after the next one resume from checkpoints written from now on. ``job`` must be locked for this
    transaction.

    Raises:
        IllegalTransition: the job has ended, or is being cancelled.
        StaleWrite: the job changed at the same time.
    """
    state = JobState(job.state)
    is_ending = job.desired_state == DesiredState.CANCEL or state is JobState.CANCELLING
    if state.is_terminal or is_ending:
        try:
            advance(JobState.CANCELLING if is_ending and not state.is_terminal else state, JobEvent.RESUME)
        except IllegalTransition as refused:
            raise _of_job(refused, job) from refused
    changes: dict[str, Any] = {"resume_choice": {"path": checkpoint, "at": work.now.isoformat()}}
    if not job.attempt_count:  # the first attempt starts from this field
        changes["resume_from"] = f"{OUTPUT_MOUNT}/{checkpoint}"
    set_job(work.session, job, **changes, updated_at=work.now)
    purpose = f"to resume from {checkpoint}" + (f": {reason}" if reason else "")
    if state is JobState.PAUSED:
        _move_now(work, caller, job, JobEvent.RESUME, DesiredState.RUN, purpose)
        return
    set_job(work.session, job, desired_state=DesiredState.RUN.value, updated_at=work.now)
    record_event(work, caller, job, "job.checkpoint_chosen", purpose)
    live = live_attempt_id(work.session, job.id)
    if live is None:
        return
    # Stopped like a paused job; since its desired state is not paused, it returns to the queue.
    stop = {"cause": "pause", "sentence": f"Stopped by {caller.user} {purpose}.", "at": work.now.isoformat()}
    work.session.execute(
        update(Attempt)
        .where(Attempt.id == live, Attempt.stop.is_(None))
        .values(stop=stop, generation=Attempt.generation + 1)
        .execution_options(synchronize_session=False)
    )
    work.notify(TOPIC_RECONCILE, live)


def _move_now(work: UnitOfWork, caller: Caller, job: Job, event: JobEvent, wanted: DesiredState, reason: str) -> None:
    move = advance(JobState(job.state), event)
    changes: dict[str, Any] = {"state": move.state.value, "desired_state": wanted.value, "updated_at": work.now}
    if Effect.STAMP_QUEUED in move.effects:
        changes["queued_at"] = work.now
    if Effect.STAMP_FINISHED in move.effects:
        changes["finished_at"] = work.now
    if Effect.CLEAR_WAIT in move.effects:
        changes |= {"wait_reason": None, "not_before": None}
    if move.state is JobState.CANCELLED:
        by = f"Cancelled by {caller.user}"
        changes["exit"] = {"kind": "cancelled", "sentence": f"{by}: {reason}" if reason else f"{by}."}
    set_job(work.session, job, **changes)
    record_event(work, caller, job, move.kind, reason)
    if Effect.RING_TICK in move.effects:
        work.notify(TOPIC_TICK)
    if job.trial is not None and move.state.is_terminal:
        work.notify(TOPIC_STUDY, job.trial["study_id"])


def delete(work: UnitOfWork, caller: Caller, job: Job) -> None:
    """Delete an ended job: it is no longer listed; its rows stay for the history.

    Raises:
        Conflict: the job has not ended.
    """
    if not JobState(job.state).is_terminal:
        raise Conflict(f"Job {job.name!r} is {job.state}; cancel it, wait for its end, then delete it.")
    if live_attempt_id(work.session, job.id) is not None:
        raise Conflict(f"The last attempt of job {job.name!r} is still being cleaned up; try again in a moment.")
    set_job(work.session, job, deleted_at=work.now, updated_at=work.now)
    record_event(work, caller, job, "job.deleted", "")


def output_to_remove(session: Session, job: Job) -> Callable[[], None]:
    """Deletes the job's own folder with all files; to be called after the commit. Blocks until they are gone.

    Raises:
        Conflict: the job's spec named the folder, so other jobs may use it; or the control plane cannot access it.
    """
    if not has_own_output(job):
        raise Conflict(
            f"The output {job.output_volume}/{job.output_path} was named by the job's spec and may have files of other "
            "jobs; delete the job without `files`, and the files by hand."
        )
    volume = session.execute(select(Volume).where(Volume.name == job.output_volume)).scalar_one_or_none()
    if volume is None:
        raise Conflict(f"Volume {job.output_volume!r} is no longer registered; delete the job without `files`.")
    return partial(tree_of(volume).delete, job.output_path)


def delete_ended(work: UnitOfWork, caller: Caller, job: Job, refusal: Callable[[], str]) -> bool:
    """Like ``delete``, for clients of other systems; false while the last processes are still being cleaned up.

    ``refusal`` makes the error message for a job that has not ended; it is called when ``job`` is locked and reloaded.

    Raises:
        Conflict: the job has not ended.
    """
    lock(work.session, job)
    try:
        delete(work, caller, job)
    except Conflict as refused:
        if not JobState(job.state).is_terminal:
            raise Conflict(refusal()) from refused
        return False
    return True


def lock(session: Session, job: Job) -> None:
    """Lock the row until the transaction ends, and reload it: the control loop may have changed it."""
    # An update without a change locks on both databases; SQLite has no SELECT … FOR UPDATE.
    session.execute(update(Job).where(Job.id == job.id).values(id=Job.id).execution_options(synchronize_session=False))
    session.refresh(job)


def record_event(work: UnitOfWork, caller: Caller, job: Job, kind: str, reason: str) -> None:
    """Add an action of ``caller`` to the job's history."""
    work.record_event(kind, caller.actor, project_id=job.project_id, job_id=job.id, reason=reason)
