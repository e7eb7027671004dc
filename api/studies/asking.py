"""Studies whose points a program tries by itself: it asks for some, and tells what came out."""

from __future__ import annotations

import math
import time
from typing import Any, Final

from anyio import sleep
from sqlalchemy import insert
from trainmaster.studies import StudySpec
from trainmaster.wire.studies import Suggestions, TrialComplete, TrialView

from api.studies.access import StudyAccess
from api.studies.views import trial_views
from api.work import Platform, Work
from core.bell import TOPIC_STUDY
from core.db.repositories.studies import change_study, end_trial, running_count
from core.db.tables import Study, Trial
from core.domain.errors import Conflict, InvalidRequest, NotFound, StaleWrite
from core.domain.studies.budget import Spent, outlook
from core.domain.studies.states import StudyState, TrialState

# Points are drawn ahead; only the first ones of a study, or those after a burst, are waited for.
_WAIT_S: Final = 8.0
_LOOK_S: Final = 0.05
_TRIES: Final = 5


async def suggest(platform: Platform, access: StudyAccess, count: int) -> Suggestions:
    """Up to ``count`` new trials, from the points that were drawn ahead. Waits a while when there is none yet."""
    until_s = time.monotonic() + _WAIT_S
    while True:
        found = await platform.run_hot(_take, platform, access, count)
        if found is not None:
            return found
        if time.monotonic() > until_s:
            return Suggestions(trials=[], reason="No point is left to be tried, or the scheduler is away; ask again.")
        await sleep(_LOOK_S)


def _take(platform: Platform, access: StudyAccess, count: int) -> Suggestions | None:
    for _ in range(_TRIES):
        try:
            with platform.write() as work:
                return _take_once(work, access, count)
        except StaleWrite:
            continue  # somebody else has taken some in the same moment
    return None


def _take_once(work: Work, access: StudyAccess, count: int) -> Suggestions | None:
    row, _ = access.load(work.session)
    spec = _demand_asked(row)
    if row.state != StudyState.RUNNING:
        return Suggestions(trials=[], reason=f"The study is {row.state}. {row.reason}".strip())
    # Of those that are over it does not matter here how: whether the study has failed is the control loop's to say.
    running = running_count(work.session, row.id)
    counts = {TrialState.RUNNING: running, TrialState.SUCCEEDED: row.trial_count - running}
    ahead = outlook(spec.budget, Spent(counts, work.now - row.started_at))
    if not ahead.room:
        return Suggestions(trials=[], reason=ahead.reason or "As many trials as it may have at once are being tried.")
    work.ring(TOPIC_STUDY, row.id)
    chosen = row.prepared[: min(count, ahead.room)]
    if not chosen:
        return None
    first = row.trial_count + 1
    change_study(
        work.session, row.id, row.generation, work.now,
        trial_count=row.trial_count + len(chosen), prepared=row.prepared[len(chosen) :],
    )  # fmt: skip
    rows: list[dict[str, Any]] = [
        {
            "study_id": row.id, "number": number, "job_id": None, "state": TrialState.RUNNING.value,
            "parameters": one["parameters"], "memo": one["memo"], "reason": "", "gpu_s": 0.0, "created_at": work.now,
        }
        for number, one in enumerate(chosen, start=first)
    ]  # fmt: skip
    work.session.execute(insert(Trial), rows)
    return Suggestions(trials=trial_views(work.session, row.id, after=first - 1, limit=len(chosen)))


def complete(work: Work, access: StudyAccess, number: int, body: TrialComplete) -> TrialView:
    """Write what a trial came to.

    Raises:
        NotFound: there is no such trial.
        Conflict: it has ended already, or its job tells its result.
        InvalidRequest: a metric is missing, unknown, or no number.
    """
    row, _ = access.load(work.session)
    spec = _demand_asked(row)
    trial = work.session.get(Trial, (row.id, number))
    if trial is None:
        raise NotFound(f"There is no trial {number} in study {row.name!r}.")
    if trial.state != TrialState.RUNNING:
        raise Conflict(f"Trial {number} of study {row.name!r} has ended already: {trial.state}.")
    if body.result is not None:
        names = [metric.name for metric in spec.metrics]
        for name in names:
            if name not in body.result:
                raise InvalidRequest(
                    f"result.{name}: the metric is missing; tell all of them, or none.", field="result"
                )
        for name, value in body.result.items():
            if name not in names:
                raise InvalidRequest(f"result.{name}: the study has no such metric.", field=f"result.{name}")
            if not math.isfinite(value):
                raise InvalidRequest(f"result.{name}: must be a finite number.", field=f"result.{name}")
    state = TrialState.FAILED if body.result is None else TrialState.SUCCEEDED
    reason = body.reason or ("it was told to have failed" if body.result is None else "")
    end_trial(work.session, row.id, number, state, work.now, result=body.result, reason=reason)
    work.ring(TOPIC_STUDY, row.id)
    return trial_views(work.session, row.id, limit=1, numbers=[number])[0]


def _demand_asked(row: Study) -> StudySpec:
    spec = StudySpec.model_validate(row.spec)
    if spec.template is not None:
        raise Conflict(
            f"Study {row.name!r} has a template: the platform runs its trials; leave it out to try points yourself."
        )
    return spec
