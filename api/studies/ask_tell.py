"""Studies whose points a program tries by itself: it asks for some, and tells what came out."""

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
from core.db.repositories.idempotency import claim_key, find_key
from core.db.repositories.studies import change_study, end_trial, numbers_of_client, record_heartbeats, running_count
from core.db.repositories.submission import KeyClaim
from core.db.tables import Study, Trial
from core.domain.errors import Conflict, IdempotencyMismatch, InvalidRequest, NotFound, StaleWrite
from core.domain.studies.budget import BudgetOutcome, BudgetUsage, evaluate_budget
from core.domain.studies.states import StudyState, TrialState
from core.wakeups import TOPIC_STUDY

# Points are drawn ahead; only the first ones of a study, or those after a burst, are waited for.
_WAIT_S: Final = 8.0
_LOOK_S: Final = 0.05
_TRIES: Final = 5
_NEW: Final = insert(cast("Table", Trial.__table__))
_WORDS: Final = {
    StudyState.PAUSED: "is paused",
    StudyState.STOPPING: "is being stopped",
    StudyState.SUCCEEDED: "has succeeded",
    StudyState.FAILED: "has failed",
    StudyState.CANCELLED: "was cancelled",
}


@dataclass(frozen=True, slots=True)
class Ask:
    """``client``: what the program calls itself; it first gets what it has still. ``key``: the same key gives the same trials."""

    count: int = 1
    client: str | None = None
    key: str | None = None

    @property
    def names(self) -> list[tuple[str, str]]:
        """Of two asks that share one, the second gets what the first got."""
        return [(kind, name) for kind, name in (("client", self.client), ("key", self.key)) if name is not None]


@dataclass(frozen=True, slots=True)
class Given:
    """``is_new``: false where the same request had got these trials before."""

    suggestions: Suggestions
    is_new: bool = True


# What was given, what is wrong with this one request, or that no point is ready yet.
Answer = Given | IdempotencyMismatch | None


async def suggest(context: AppContext, access: StudyAccess, asked: Ask) -> Given:
    """Up to ``asked.count`` trials: new ones from the points that were drawn ahead. Waits a while when there is none yet.

    Raises:
        IdempotencyMismatch: the key came before with another request.
    """
    until_s = time.monotonic() + _WAIT_S
    # Of one token: what one of them may, all may.
    line = ("suggest", access.ref, access.caller.token_id)
    give = partial(context.run_bounded, _take, context, access)
    while True:
        found = await context.batcher.answer(line, asked, give, names=asked.names)
        if isinstance(found, IdempotencyMismatch):
            raise found
        if found is not None:
            return found
        if time.monotonic() > until_s:
            return _none("No point is left to be tried, or the scheduler is away; ask again.")
        await sleep(_LOOK_S)


def _take(context: AppContext, access: StudyAccess, asks: Sequence[Ask]) -> list[Answer]:
    for _ in range(_TRIES):
        try:
            with context.write() as work:
                return take(work, access, asks)
        except StaleWrite:
            continue  # somebody has changed the study in the same moment
    return [None] * len(asks)


def take(work: UnitOfWork, access: StudyAccess, asks: Sequence[Ask]) -> list[Answer]:
    """Give trials to each of these in one transaction; ``None``: no point is ready yet.

    They are of one caller, and neither a client nor a key is there twice: what the first of two gets is the second's, too.
    Whatever else changes the study waits meanwhile: of many who ask at once nobody has to begin anew.

    Raises:
        StaleWrite: the study has changed all the same.
    """
    row, _ = access.load(work.session, is_locked=True)
    giving = _Giving(work, access, row, _demand_asked(row))
    answers: list[Answer] = []
    for asked in asks:
        try:
            answers.append(giving.give(asked))
        except IdempotencyMismatch as wrong:
            answers.append(wrong)  # the others' requests are as good as ever
    giving.write()
    return answers


class _Giving:
    """What one transaction gives to those who ask; ``write`` keeps it."""

    def __init__(self, work: UnitOfWork, access: StudyAccess, row: Study, spec: StudySpec) -> None:
        self._work, self._access, self._row, self._spec = work, access, row, spec
        self._running: int | None = None
        self._rows: list[dict[str, Any]] = []

    def give(self, asked: Ask) -> Given | None:
        work, row = self._work, self._row
        claim = _claim(self._access, row, asked)
        before = None if claim is None else find_key(work.session, claim)
        if before is not None:
            return _again(work, row, [int(number) for number in before.split(",")])
        if row.state != StudyState.RUNNING:
            # A paused one goes on some time.
            return _none(
                f"The study {_WORDS[StudyState(row.state)]}. {row.reason}".strip(),
                is_over=row.state != StudyState.PAUSED,
            )
        held: list[int] = []
        if asked.client is not None:
            held = list(numbers_of_client(work.session, row.id, asked.client, asked.count))
            if held:
                record_heartbeats(work.session, row.id, held, work.now)
        kept = trial_views(work.session, row.id, limit=len(held), numbers=held) if held else []
        lacking = asked.count - len(held)
        ahead = self._ahead()
        given, made = len(self._rows), row.trial_count + len(self._rows)
        chosen = row.prefetched_points[given : given + min(lacking, ahead.room)]
        if not chosen and not kept:
            if ahead.room:
                work.notify(TOPIC_STUDY, row.id)
                return None
            words = ahead.reason or "As many trials as it may have at once are being tried."
            return _none(words, is_over=bool(ahead.reason))
        numbers = [*held, *range(made + 1, made + 1 + len(chosen))]
        if claim is not None:
            before = claim_key(work.session, claim, ",".join(str(number) for number in numbers), work.now)
            if before is not None:  # an equal request was quicker
                return _again(work, row, [int(number) for number in before.split(",")])
        return Given(Suggestions(trials=[*kept, *self._begin(chosen, made + 1, asked.client)]))

    def write(self) -> None:
        """Raises ``StaleWrite``."""
        given, row, session = len(self._rows), self._row, self._work.session
        if not given:
            return
        change_study(
            session, row.id, row.generation, self._work.now,
            trial_count=row.trial_count + given, prefetched_points=row.prefetched_points[given:],
        )  # fmt: skip
        session.connection().execute(_NEW, self._rows)
        self._work.notify(TOPIC_STUDY, row.id)

    def _ahead(self) -> BudgetOutcome:
        if self._running is None:
            self._running = running_count(self._work.session, self._row.id)
        # Of those that are over it does not matter here how: whether the study has failed is the control loop's to say.
        over = self._row.trial_count - self._running
        counts = {TrialState.RUNNING: self._running + len(self._rows), TrialState.SUCCEEDED: over}
        return evaluate_budget(self._spec.budget, BudgetUsage(counts, self._work.now - self._row.started_at))

    def _begin(self, chosen: Sequence[Any], first: int, client: str | None) -> list[TrialView]:
        now = self._work.now
        self._rows += [
            {
                "study_id": self._row.id, "number": number, "job_id": None, "state": TrialState.RUNNING.value,
                "parameters": one["parameters"], "memo": one["memo"], "reason": "", "gpu_s": 0.0, "client": client,
                "created_at": now,
            }
            for number, one in enumerate(chosen, start=first)
        ]  # fmt: skip
        # What was just written need not be read: whoever asks waits for this.
        return [
            TrialView(number=number, state="running", parameters=one["parameters"], client=client, created_at=now)
            for number, one in enumerate(chosen, start=first)
        ]


def _claim(access: StudyAccess, row: Study, asked: Ask) -> KeyClaim | None:
    if asked.key is None:
        return None
    digest = digest_of("suggestions", {"study": row.id, "count": asked.count, "client": asked.client})
    return KeyClaim(access.caller.user_id, asked.key, digest)


def _again(work: UnitOfWork, row: Study, numbers: list[int]) -> Given:
    """What an equal request was given, as it is now."""
    record_heartbeats(work.session, row.id, numbers, work.now)
    trials = trial_views(work.session, row.id, limit=len(numbers), numbers=numbers)
    return Given(Suggestions(trials=trials), is_new=False)


def _none(reason: str, *, is_over: bool = False) -> Given:
    return Given(Suggestions(trials=[], reason=reason, is_over=is_over))


def heartbeat(work: UnitOfWork, access: StudyAccess, number: int) -> TrialView:
    """Note that somebody works on the trial; nothing happens to one that is over.

    Raises:
        NotFound: there is no such trial.
        Conflict: its job tells how it is.
    """
    row, _ = access.load(work.session)
    _demand_asked(row)
    record_heartbeats(work.session, row.id, [number], work.now)
    found = trial_views(work.session, row.id, limit=1, numbers=[number])
    if not found:
        raise _no_trial(row, number)
    return found[0]


def complete(work: UnitOfWork, access: StudyAccess, number: int, body: TrialComplete) -> TrialView:
    """Write what a trial came to. The same told again changes nothing and gets the same answer.

    Raises:
        NotFound: there is no such trial.
        Conflict: it has ended otherwise already, or its job tells its result.
        InvalidRequest: a metric is missing, unknown, or no number.
    """
    row, _ = access.load(work.session)
    spec = _demand_asked(row)
    trial = work.session.get(Trial, (row.id, number))
    if trial is None:
        raise _no_trial(row, number)
    state = TrialState.FAILED if body.result is None else TrialState.SUCCEEDED
    reason = body.reason or ("it was told to have failed" if body.result is None else "")
    if trial.state != TrialState.RUNNING:
        if (trial.state, trial.result, trial.reason) == (state.value, body.result, reason):
            # A program tells the same once more where it lost the answer.
            return trial_views(work.session, row.id, limit=1, numbers=[number])[0]
        raise Conflict(f"Trial {number} of study {row.name!r} has ended already: {trial.state}. {trial.reason}".strip())
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
    end_trial(work.session, row.id, number, state, work.now, result=body.result, reason=reason)
    work.notify(TOPIC_STUDY, row.id)
    return trial_views(work.session, row.id, limit=1, numbers=[number])[0]


def _no_trial(row: Study, number: int) -> NotFound:
    return NotFound(f"There is no trial {number} in study {row.name!r}.")


def _demand_asked(row: Study) -> StudySpec:
    spec = StudySpec.model_validate(row.spec)
    if spec.template is not None:
        raise Conflict(
            f"Study {row.name!r} has a template: the platform runs its trials; leave it out to try points yourself."
        )
    return spec
