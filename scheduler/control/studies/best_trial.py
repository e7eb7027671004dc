"""Registering a study's best trial at its end: a model version of its output, or of one more run of its point."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.db.repositories.submission import JobSubmission, new_job, write_job
from core.db.tables import Archive, Job, ModelVersion, Trial, User
from core.domain.model_versions import VersionState
from core.domain.studies.results import TrialResult, best, values_of
from core.domain.studies.states import TrialState
from core.domain.studies.trials import winner_spec
from core.registry.sources import SourceRequest
from core.registry.versions import Author, VersionMetadata, register_from_job
from scheduler.control.context import ControlContext
from scheduler.control.journal import SCHEDULER
from scheduler.control.studies.facts import StudyFacts


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
