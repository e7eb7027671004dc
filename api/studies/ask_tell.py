"""Ask-and-tell: studies without a template, whose trials a client program evaluates itself."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

from anyio import sleep
from sqlalchemy import Table, insert
from trainmaster.studies import StudySpec
from trainmaster.wire.studies import Suggestions, TrialComplete, TrialView

from api.app.unit_of_work import AppContext, UnitOfWork
from api.jobs.service import digest_of
from api.studies.access import StudyAccess
from api.studies.views import trial_views
from core.db.repositories.studies import change_study, end_trial, numbers_of_client, record_heartbeats, running_count
from core.db.repositories.submission import KeyClaim, claim_key, find_key
from core.db.tables import Study, Trial
from core.domain.errors import Conflict, IdempotencyMismatch, InvalidRequest, NotFound, StaleWrite
from core.domain.studies.budget import BudgetOutcome, BudgetUsage, evaluate_budget
from core.domain.studies.states import StudyState, TrialState
from core.wakeups import TOPIC_STUDY

# Points are prefetched; a request only waits for the first points of a study, or after a burst.
_WAIT_S: Final = 8.0
_POLL_S: Final = 0.05
_MAX_TRIES: Final = 5
_NEW: Final = insert(cast("Table", Trial.__table__))
_STATE_PHRASES: Final = {
    StudyState.PAUSED: "is paused",
    StudyState.STOPPING: "is being stopped",
    StudyState.SUCCEEDED: "has succeeded",
    StudyState.FAILED: "has failed",
    StudyState.CANCELLED: "was cancelled",
}


@dataclass(frozen=True, slots=True)
class SuggestionRequest:
    """A request for trials.

    ``client``: the name of the program; it first gets its own running trials. ``key``: idempotency key; the same key
    gives the same trials.
    """

    count: int = 1
    client: str | None = None
    key: str | None = None

    @property
    def conflict_keys(self) -> list[tuple[str, str]]:
        """Of two requests with a common key, the second gets the trials of the first."""
        return [(kind, name) for kind, name in (("client", self.client), ("key", self.key)) if name is not None]


@dataclass(frozen=True, slots=True)
class SuggestionAnswer:
    """``is_new``: false if an equal earlier request got these trials."""

    suggestions: Suggestions
    is_new: bool = True


# The trials; or the error of this request; or ``None``: no point is ready yet.
Answer = SuggestionAnswer | IdempotencyMismatch | None


async def suggest(context: AppContext, access: StudyAccess, request: SuggestionRequest) -> SuggestionAnswer:
    """Up to ``asked.count`` trials: new ones from the points that were drawn ahead. Waits a while when there is none
    yet.

    Raises:
        IdempotencyMismatch: the key came before with another request.
    """
    until_s = time.monotonic() + _WAIT_S
    # Requests of one token have the same permissions, so they can share a transaction.
    group = ("suggest", access.ref, access.caller.token_id)
    answer = partial(context.run_bounded, _take_with_retries, context, access)
    while True:
        found = await context.coalescer.answer(group, request, answer, conflict_keys=request.conflict_keys)
        if isinstance(found, IdempotencyMismatch):
            raise found
        if found is not None:
            return found
        if time.monotonic() > until_s:
            return _none("There is no point to try now, or the scheduler is away; ask again.")
        await sleep(_POLL_S)


def _take_with_retries(context: AppContext, access: StudyAccess, requests: Sequence[SuggestionRequest]) -> list[Answer]:
    for _ in range(_MAX_TRIES):
        try:
            with context.write() as work:
                return take(work, access, requests)
        except StaleWrite:
            continue  # another request changed the study at the same time
    return [None] * len(requests)


def take(work: UnitOfWork, access: StudyAccess, requests: Sequence[SuggestionRequest]) -> list[Answer]:
    """Assign trials to each request in one transaction; ``None``: no point is ready yet.

    The requests are of one caller, and no client or key occurs twice: the second would get the trials of the first. The
    study's row is locked, so that concurrent requests do not have to be repeated.

    Raises:
        StaleWrite: the study changed nevertheless.
    """
    row, _ = access.load(work.session, is_locked=True)
    batch = _SuggestionBatch(work, access, row, _demand_external(row))
    answers: list[Answer] = []
    for request in requests:
        try:
            answers.append(batch.answer(request))
        except IdempotencyMismatch as wrong:
            answers.append(wrong)  # the other requests are not affected
    batch.write()
    return answers


class _SuggestionBatch:
    """The trials that one transaction assigns to its requests; ``write`` stores them."""

    def __init__(self, work: UnitOfWork, access: StudyAccess, row: Study, spec: StudySpec) -> None:
        self._work, self._access, self._row, self._spec = work, access, row, spec
        self._running: int | None = None
        self._rows: list[dict[str, Any]] = []

    def answer(self, request: SuggestionRequest) -> SuggestionAnswer | None:
        work, row = self._work, self._row
        claim = _claim(self._access, row, request)
        before = None if claim is None else find_key(work.session, claim)
        if before is not None:
            return _again(work, row, [int(number) for number in before.split(",")])
        if row.state != StudyState.RUNNING:
            # A paused study may be resumed.
            return _none(
                f"The study {_STATE_PHRASES[StudyState(row.state)]}. {row.reason}".strip(),
                is_over=row.state != StudyState.PAUSED,
            )
        numbers_of_this_client: list[int] = []
        if request.client is not None:
            numbers_of_this_client = list(numbers_of_client(work.session, row.id, request.client, request.count))
            if numbers_of_this_client:
                record_heartbeats(work.session, row.id, numbers_of_this_client, work.now)
        views = (
            trial_views(work.session, row.id, limit=len(numbers_of_this_client), numbers=numbers_of_this_client)
            if numbers_of_this_client
            else []
        )
        lacking = request.count - len(numbers_of_this_client)
        ahead = self._budget_outcome()
        taken, made = len(self._rows), row.trial_count + len(self._rows)
        chosen = row.prefetched_points[taken : taken + min(lacking, ahead.room)]
        if not chosen and not views:
            if ahead.room:
                work.notify(TOPIC_STUDY, row.id)
                return None
            words = ahead.reason or "The study's maximum of parallel trials is running."
            return _none(words, is_over=bool(ahead.reason))
        numbers = [*numbers_of_this_client, *range(made + 1, made + 1 + len(chosen))]
        if claim is not None:
            before = claim_key(work.session, claim, ",".join(str(number) for number in numbers), work.now)
            if before is not None:  # an equal request was faster
                return _again(work, row, [int(number) for number in before.split(",")])
        return SuggestionAnswer(Suggestions(trials=[*views, *self._begin(chosen, made + 1, request.client)]))

    def write(self) -> None:
        """Raises ``StaleWrite``."""
        taken, row, session = len(self._rows), self._row, self._work.session
        if not taken:
            return
        change_study(
            session, row.id, row.generation, self._work.now,
            trial_count=row.trial_count + taken, prefetched_points=row.prefetched_points[taken:],
        )  # fmt: skip
        session.connection().execute(_NEW, self._rows)
        self._work.notify(TOPIC_STUDY, row.id)

    def _budget_outcome(self) -> BudgetOutcome:
        if self._running is None:
            self._running = running_count(self._work.session, self._row.id)
        # How trials ended does not matter here: the control loop decides whether the study has failed.
        over = self._row.trial_count - self._running
        counts = {TrialState.RUNNING: self._running + len(self._rows), TrialState.SUCCEEDED: over}
        return evaluate_budget(self._spec.budget, BudgetUsage(counts, self._work.now - self._row.started_at))

    def _begin(self, chosen: Sequence[Any], first: int, client: str | None) -> list[TrialView]:
        now = self._work.now
        self._rows += [
            {
                "study_id": self._row.id, "number": number, "job_id": None, "state": TrialState.RUNNING.value,
                "parameters": point["parameters"], "memo": point["memo"], "reason": "", "gpu_s": 0.0, "client": client,
                "created_at": now,
            }
            for number, point in enumerate(chosen, start=first)
        ]  # fmt: skip
        # Views of the new rows without reading them, since the client waits for this.
        return [
            TrialView(number=number, state="running", parameters=point["parameters"], client=client, created_at=now)
            for number, point in enumerate(chosen, start=first)
        ]


def _claim(access: StudyAccess, row: Study, request: SuggestionRequest) -> KeyClaim | None:
    if request.key is None:
        return None
    digest = digest_of("suggestions", {"study": row.id, "count": request.count, "client": request.client})
    return KeyClaim(access.caller.user_id, request.key, digest)


def _again(work: UnitOfWork, row: Study, numbers: list[int]) -> SuggestionAnswer:
    """The trials of an equal earlier request, in their current state."""
    record_heartbeats(work.session, row.id, numbers, work.now)
    trials = trial_views(work.session, row.id, limit=len(numbers), numbers=numbers)
    return SuggestionAnswer(Suggestions(trials=trials), is_new=False)


def _none(reason: str, *, is_over: bool = False) -> SuggestionAnswer:
    return SuggestionAnswer(Suggestions(trials=[], reason=reason, is_over=is_over))


def heartbeat(work: UnitOfWork, access: StudyAccess, number: int) -> TrialView:
    """Record a heartbeat of the trial's client; ignored for a trial that has ended.

    Raises:
        NotFound: there is no such trial.
        Conflict: the platform runs the study's trials.
    """
    row, _ = access.load(work.session)
    _demand_external(row)
    record_heartbeats(work.session, row.id, [number], work.now)
    found = trial_views(work.session, row.id, limit=1, numbers=[number])
    if not found:
        raise _no_trial(row, number)
    return found[0]


def complete(work: UnitOfWork, access: StudyAccess, number: int, body: TrialComplete) -> TrialView:
    """Store the result of a trial. Idempotent for the same result.

    Raises:
        NotFound: there is no such trial.
        Conflict: it has already ended with another result, or the platform runs the study's trials.
        InvalidRequest: a metric is missing, unknown, or not a finite number.
    """
    row, _ = access.load(work.session)
    spec = _demand_external(row)
    trial = work.session.get(Trial, (row.id, number))
    if trial is None:
        raise _no_trial(row, number)
    state = TrialState.FAILED if body.result is None else TrialState.SUCCEEDED
    reason = body.reason or ("the client reported a failure" if body.result is None else "")
    if trial.state != TrialState.RUNNING:
        if (trial.state, trial.result, trial.reason) == (state.value, body.result, reason):
            # The client repeats a request whose response it lost.
            return trial_views(work.session, row.id, limit=1, numbers=[number])[0]
        raise Conflict(f"Trial {number} of study {row.name!r} has already ended: {trial.state}. {trial.reason}".strip())
    if body.result is not None:
        conflict_keys = [metric.name for metric in spec.metrics]
        for name in conflict_keys:
            if name not in body.result:
                raise InvalidRequest(
                    f"result.{name}: the metric is missing; report all metrics, or none.", field="result"
                )
        for name, value in body.result.items():
            if name not in conflict_keys:
                raise InvalidRequest(f"result.{name}: the study has no such metric.", field=f"result.{name}")
            if not math.isfinite(value):
                raise InvalidRequest(f"result.{name}: must be a finite number.", field=f"result.{name}")
    end_trial(work.session, row.id, number, state, work.now, result=body.result, reason=reason)
    work.notify(TOPIC_STUDY, row.id)
    return trial_views(work.session, row.id, limit=1, numbers=[number])[0]


def _no_trial(row: Study, number: int) -> NotFound:
    return NotFound(f"There is no trial {number} in study {row.name!r}.")


def _demand_external(row: Study) -> StudySpec:
    spec = StudySpec.model_validate(row.spec)
    if spec.template is not None:
        raise Conflict(
            f"Study {row.name!r} has a template, so the platform runs its trials; omit the template to run trials "
            "yourself."
        )
    return spec
