"""Creation of studies, and actions on existing ones: stop, pause, resume, extend, delete."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from anyio import to_thread
from pydantic import ValidationError
from sqlalchemy.orm import Session
from trainmaster.spec import SpecError
from trainmaster.spec.error_messages import explain_error
from trainmaster.studies import Budget, Space, StudySpec, parse_study, parse_study_text
from trainmaster.wire.studies import StudyCreate, StudyExtend, StudyImportance, StudyPrediction

from api.app.cache import LruCache
from api.app.unit_of_work import AppContext, UnitOfWork
from api.auth import Caller
from api.forecasts.service import answer, why_never
from api.jobs.service import Submission, check_in_transaction, check_submission, invalid_spec
from api.quotas.storage import demand_storage
from api.studies.access import StudyAccess
from api.studies.views import results
from core.db.repositories.questions import QuestionKind
from core.db.repositories.studies import change_study, ended_trials, gpu_seconds, trial_counts
from core.db.repositories.submission import KeyClaim, claim_key, find_key
from core.db.tables import Study
from core.domain.errors import Conflict, InvalidRequest, InvalidSpec, NotFound
from core.domain.studies.budget import IGNORED_FAILURES, PAUSED_AT, resumed_start
from core.domain.studies.results import best, values_of
from core.domain.studies.states import StudyEvent, StudyState, TrialState, advance_study
from core.domain.studies.trials import searched, size_of
from core.ids import new_id
from core.storage.volumes import split_location
from core.wakeups import TOPIC_STUDY

# Warm start: the best trials of each earlier study.
_PRIOR_TRIAL_LIMIT: Final = 200
_ANSWER_LIMIT: Final = 256
_MAX_AHEAD: Final = 200  # trials ahead at most, unless the request states more
_MIN_AHEAD: Final = 10

_answers: Final = LruCache[tuple[Any, ...], Mapping[str, Any]](_ANSWER_LIMIT)


@dataclass(frozen=True, slots=True)
class StudyDraft:
    """A checked study. ``submission``: of its template, ``None`` without one. ``cloned_from``: a study's id."""

    spec: StudySpec
    project_id: str
    submission: Submission | None
    cloned_from: str | None = None


@dataclass(frozen=True, slots=True)
class StudyCreated:
    """``is_new``: false if an equal earlier request created the study."""

    row: Study
    is_new: bool = True


def read_study(request: StudyCreate) -> StudySpec:
    """The canonical spec. Raises ``InvalidRequest`` (none, or two) or ``InvalidSpec`` (every mistake in it)."""
    if (request.spec is None) == (request.spec_text is None):
        raise InvalidRequest("State the study as `spec` (an object) or as `spec_text` (YAML), not both.", field="spec")
    try:
        return parse_study(request.spec) if request.spec is not None else parse_study_text(request.spec_text or "")
    except SpecError as error:
        raise invalid_spec(error) from error


def check_study(context: AppContext, caller: Caller, spec: StudySpec) -> StudyDraft:
    """Check, without an open transaction, that the template can run here for this caller."""
    mistakes: list[InvalidSpec] = []
    with context.read() as work:
        project_id = caller.member_of(work.session, spec.project, "member").project_id
        if spec.warm_start:
            mistakes += _prior_trials(work.session, caller, spec)[1]
    submission = None
    if spec.template is not None:
        try:
            submission = check_submission(context, caller, spec.template)
        except InvalidSpec as error:
            mistakes.append(_with_template_fields(error))
    if mistakes:
        raise _combined(mistakes)
    return StudyDraft(spec, project_id, submission)


def created_before(work: UnitOfWork, caller: Caller, key: str | None, digest: str) -> StudyCreated | None:
    """The study that an equal request with this key created; ``None``: there is none.

    Called before all checks: a repeated request has the same answer, even if nodes or volumes have changed.

    Raises:
        Conflict: the study of the key was deleted.
        IdempotencyMismatch: the key was used for another request.
    """
    study_id = None if key is None else find_key(work.session, KeyClaim(caller.user_id, key, digest))
    return None if study_id is None else StudyCreated(_load_created(work.session, study_id), is_new=False)


def demand_feasible(context: AppContext, caller: Caller, draft: StudyDraft) -> None:
    """Refuse a study whose trials could never start: it would spend its whole time without a trial.

    A single infeasible job is accepted and shows its wait reason; a study hides that behind its trials, while its time
    runs. Call it in a thread of the server, without an open transaction.

    Raises:
        InvalidSpec: the planner finds no node that could ever run the template's job.
    """
    if draft.submission is None:
        return
    reason = why_never(context, caller, draft.submission)
    if reason is None:
        return
    field = _field_of(draft.submission, reason.numbers)
    hint = "create it with `wait_for_nodes` if such a node is to come, or give the template a `max_wait`"
    sentence = reason.sentence.rstrip(".")
    errors: list[dict[str, str | None]] = [
        {"path": field, "message": f"no trial could ever start: {sentence}", "hint": hint}
    ]
    raise InvalidSpec(f"{field}: no trial could ever start: {sentence}; {hint}.", field=field, errors=errors)


def _field_of(submission: Submission, numbers: Mapping[str, Any]) -> str:
    """The field of the template that the planner's reason is about."""
    if numbers.get("short_of"):
        name = str(numbers["short_of"][0])
    elif "node_selector" in numbers:
        return "template.node_selector"
    elif "gpu_models" in numbers:
        name = "gpu_type" if numbers["gpu_models"] else "gpus"
    else:
        return "template"
    role = numbers.get("role")
    return f"template.roles.{role}.resources.{name}" if role and len(submission.spec.roles) > 1 else f"template.{name}"


def demand_room(context: AppContext, draft: StudyDraft) -> None:
    """For a study that is not created yet. Raises ``StorageQuotaExceeded``: its jobs may store nothing."""
    if draft.submission is not None:
        with context.read() as work:
            demand_storage(work.session, draft.submission.member.project_id)


def create(
    work: UnitOfWork, caller: Caller, draft: StudyDraft, reason: str = "", *, key: str | None = None, digest: str = ""
) -> StudyCreated:
    """Write the study; the control loop starts its first trials.

    Args:
        work: the transaction.
        caller: the study's user.
        draft: the checked study.
        reason: of its creation, for its history.
        key: idempotency key: the same request with the same key creates no second study.
        digest: of the request.

    Raises:
        Conflict: the study of the key was deleted.
        IdempotencyMismatch: the key was used for another request.
        InvalidSpec: a secret or the code archive is missing, or a study for the warm start cannot be used.
        StorageQuotaExceeded: the project's quota is used up.
    """
    study_id = new_id("study")
    if key is not None:
        before = claim_key(work.session, KeyClaim(caller.user_id, key, digest), study_id, work.now)
        if before is not None:
            return StudyCreated(_load_created(work.session, before), is_new=False)
    spec = draft.spec
    prior_trials, mistakes = _prior_trials(work.session, caller, spec)
    if mistakes:
        raise _combined(mistakes)
    output: tuple[str, str | None] = ("", None)
    if draft.submission is not None and spec.template is not None:
        try:
            check_in_transaction(work, draft.submission).demand_room()
        except InvalidSpec as error:
            raise _with_template_fields(error) from error
        output = (draft.submission.output.volume, None)
        if spec.template.output is not None:
            output = split_location(spec.template.output, field="template.output")
    row = Study(
        id=study_id,
        project_id=draft.project_id,
        user_id=caller.user_id,
        name=spec.name,
        spec=spec.model_dump(mode="json"),
        seed=spec.seed if spec.seed is not None else _seed_of(study_id),
        state=StudyState.RUNNING.value,
        generation=1,
        reason="",
        note="",
        output_volume=output[0],
        output_path=output[1],
        trial_count=0,
        proposed_count=0,
        prefetched_points=[],
        prefetched_after=0,
        prior_trials=prior_trials,
        cloned_from=draft.cloned_from,
        created_at=work.now,
        started_at=work.now,
        updated_at=work.now,
    )
    work.session.add(row)
    work.session.flush()
    record_event(work, caller, row, "study.created", reason)
    work.notify(TOPIC_STUDY, row.id)
    return StudyCreated(row)


def request_transition(work: UnitOfWork, access: StudyAccess, event: StudyEvent, reason: str) -> Study:
    """Apply a user's transition to the study.

    Raises:
        IllegalTransition: the study's state does not allow it.
        StaleWrite: the study changed at the same time.
    """
    row, _ = access.load(work.session)
    state = StudyState(row.state)
    if event is StudyEvent.STOP and state in (StudyState.STOPPING, StudyState.CANCELLED):
        return row  # idempotent: a client may repeat a request whose response it lost
    after = advance_study(state, event)
    values: dict[str, Any] = {"state": after.value, "reason": reason}
    if event is StudyEvent.PAUSE:
        values["spec"] = {**row.spec, PAUSED_AT: work.now.isoformat()}
    elif event is StudyEvent.RESUME:
        values["started_at"] = resumed_start(row.started_at, row.spec.get(PAUSED_AT), work.now)
        values["spec"] = {name: item for name, item in row.spec.items() if name != PAUSED_AT}
    _change(work, row, **values)
    record_event(work, access.caller, row, f"study.{event.value}_requested", reason)
    work.notify(TOPIC_STUDY, row.id)
    return row


def extend(work: UnitOfWork, access: StudyAccess, body: StudyExtend) -> Study:
    """Add to the budget; a study that has ended continues.

    Raises:
        IllegalTransition: the study is being stopped.
        InvalidRequest: nothing is added, the limit does not exist, or the sum is too large; or the study would end
            again at
            once, since too many trials failed or another part of the budget is spent.
    """
    row, _ = access.load(work.session)
    added = body.model_dump(exclude_none=True)
    if not added:
        raise InvalidRequest(
            "State what to add: trials, max_time, gpu_hours, failed_trials, or parallel.", field="trials"
        )
    spec = StudySpec.model_validate(row.spec)
    budget = spec.budget.model_dump()
    for name, more in added.items():
        if name != "parallel" and budget[name] is None:
            raise InvalidRequest(f"{name}: the study has no limit of {name}.", field=name)
        budget[name] = more if name == "parallel" else budget[name] + more
    before = StudyState(row.state)
    if before.is_terminal and "max_time" in added:
        # The time starts again now, and the earlier time is spent: only the added time is left.
        budget["max_time"] = added["max_time"]
    changed = _whole_budget(budget)
    if spec.population is not None and int(changed.parallel * spec.population.quantile) < 1:
        raise InvalidRequest(
            f"parallel={changed.parallel} is too small for quantile={spec.population.quantile:g}: the worst "
            f"{100 * spec.population.quantile:g} % of {changed.parallel} trials is none; use parallel ≥ "
            f"{math.ceil(1 / spec.population.quantile)}.",
            field="parallel",
        )
    state = advance_study(before, StudyEvent.EXTEND)
    values: dict[str, Any] = {"spec": {**row.spec, "budget": changed.model_dump(mode="json")}, "state": state.value}
    if before.is_terminal:
        # It may have ended because of failures whose cause is fixed by now.
        counts = trial_counts(work.session, [row.id])[row.id]
        _demand_left(work, row, changed, sum(counts.values()))
        failed = counts.get(TrialState.FAILED, 0)
        if changed.failed_trials is not None and failed > changed.failed_trials:
            raise InvalidRequest(
                f"failed_trials: {failed} trials failed, but the budget allows {changed.failed_trials}: the study "
                "would end again at once; add to failed_trials as well.",
                field="failed_trials",
            )
        values["spec"][IGNORED_FAILURES] = failed
        values |= {"reason": "", "finished_at": None}
        if budget["max_time"] is not None:
            values["started_at"] = work.now
    _change(work, row, **values)
    words = ", ".join(f"{name} {'=' if name == 'parallel' else '+'} {more:g}" for name, more in added.items())
    record_event(work, access.caller, row, "study.extended", words)
    work.notify(TOPIC_STUDY, row.id)
    return row


def _demand_left(work: UnitOfWork, row: Study, budget: Budget, made: int) -> None:
    """Raises ``InvalidRequest``: another part of the budget is spent, so the study would end again at once."""
    if budget.trials is not None and made >= budget.trials:
        raise InvalidRequest(
            f"trials: all {made} trials are spent: the study would end again at once; add to trials as well.",
            field="trials",
        )
    if budget.gpu_hours is not None and gpu_seconds(work.session, row.id) >= budget.gpu_hours * 3600:
        raise InvalidRequest(
            f"gpu_hours: all {budget.gpu_hours:g} GPU-hours are spent: the study would end again at once; add to "
            "gpu_hours as well.",
            field="gpu_hours",
        )


def _whole_budget(budget: Mapping[str, Any]) -> Budget:
    """The budget. Raises ``InvalidRequest`` for the first limit that is too large."""
    try:
        return Budget.model_validate(budget)
    except ValidationError as error:
        (first, *_) = error.errors(include_url=False)
        name = str(first["loc"][0])
        raise InvalidRequest(f"{name}: all together {explain_error(first, Budget).message}.", field=name) from error


def delete(work: UnitOfWork, access: StudyAccess) -> None:
    """Delete an ended study; its trials' jobs stay. Raises ``Conflict``: the study has not ended."""
    row, _ = access.load(work.session)
    if not StudyState(row.state).is_terminal:
        raise Conflict(f"Study {row.name!r} is {row.state}; stop it, wait for its end, then delete it.")
    _change(work, row, deleted_at=work.now)
    record_event(work, access.caller, row, "study.deleted", "")


def record_event(work: UnitOfWork, caller: Caller, row: Study, kind: str, reason: str) -> None:
    data = {"study": row.id, "name": row.name}
    work.record_event(kind, caller.actor, project_id=row.project_id, reason=reason, data=data)


def _load_created(session: Session, study_id: str) -> Study:
    found = session.get(Study, study_id)
    if found is None or found.deleted_at is not None:
        raise Conflict("The study of this Idempotency-Key was deleted; use a new key.")
    return found


def _change(work: UnitOfWork, row: Study, **values: Any) -> None:
    change_study(work.session, row.id, row.generation, work.now, **values)
    work.session.refresh(row)


def _seed_of(study_id: str) -> int:
    return int.from_bytes(hashlib.sha256(study_id.encode()).digest()[:4]) % 2**31


def _with_template_fields(error: InvalidSpec) -> InvalidSpec:
    """The same error, with fields of the study's template."""

    def path_of(path: str | None) -> str:
        return f"template.{path}" if path else "template"

    errors: list[dict[str, str | None]] = [{**item, "path": path_of(item.get("path"))} for item in error.errors]
    return InvalidSpec(f"template: {error.sentence}", field=path_of(error.field), errors=errors)


def _combined(mistakes: Sequence[InvalidSpec]) -> InvalidSpec:
    """One error with all mistakes."""
    if len(mistakes) == 1:
        return mistakes[0]
    sentence = " ".join(mistake.sentence for mistake in mistakes)
    return InvalidSpec(
        sentence, field=mistakes[0].field, errors=[item for mistake in mistakes for item in mistake.errors]
    )


def _prior_trials(session: Session, caller: Caller, spec: StudySpec) -> tuple[list[dict[str, Any]], list[InvalidSpec]]:
    """For the warm start: the best trials of earlier studies whose points are in this study's space; and the
    mistakes.
    """
    space = Space.of(spec)
    found: list[dict[str, Any]] = []
    mistakes: list[InvalidSpec] = []
    for number, ref in enumerate(spec.warm_start):
        try:
            found += _points_of(session, caller, spec, space, ref, f"warm_start[{number}]")
        except InvalidSpec as error:
            mistakes.append(error)
    return found, mistakes


def _points_of(
    session: Session, caller: Caller, spec: StudySpec, space: Space, ref: str, field: str
) -> list[dict[str, Any]]:
    names = [metric.name for metric in spec.metrics]
    try:
        other, _ = StudyAccess(caller, ref, "viewer").load(session)
    except NotFound as error:
        raise _refused(field, f"there is no study {ref!r} that you may see") from error
    other_spec = StudySpec.model_validate(other.spec)
    if [metric.name for metric in other_spec.metrics] != names or other_spec.goals != spec.goals:
        raise _refused(field, f"study {ref!r} is to {_aim(other_spec)}, but this one is to {_aim(spec)}")
    sign = spec.metrics[0].sign
    rows: Mapping[int, Any] = {row.number: row for row in ended_trials(session, other.id)}
    ranked = sorted(results(session, other.id, other_spec), key=lambda result: sign * result.values[0])
    # Of a study with successive halving, the trials of the largest size: only values of one size are comparable.
    sizes = {result.number: size_of(other_spec, rows[result.number].parameters) for result in ranked}
    whole = [result for result in ranked if sizes[result.number] == max(sizes.values())]
    fitting = (
        {"parameters": point, "values": list(values_of(rows[result.number].result, names) or ())}
        for result in whole
        if space.fault(point := searched(other_spec, rows[result.number].parameters)) is None
    )
    points = list(islice(fitting, _PRIOR_TRIAL_LIMIT))
    if whole and not points:
        raise _refused(field, f"no trial of study {ref!r} is in this study's search space")
    return points


def _aim(spec: StudySpec) -> str:
    return " and ".join(f"{metric.goal.value} {metric.name}" for metric in spec.metrics)


def _refused(field: str, sentence: str) -> InvalidSpec:
    return InvalidSpec(
        f"{field}: {sentence}.", field=field, errors=[{"path": field, "message": sentence, "hint": None}]
    )


async def importance(context: AppContext, access: StudyAccess, metric: str | None) -> StudyImportance:
    """The importance of the parameters for one metric; ``None``: for the only one, or for all metrics together.

    Raises:
        InvalidRequest: the study has no such metric.
        Unavailable: no scheduler answers in time.
    """
    study_id, spec, count, _ = await to_thread.run_sync(_read_results, context, access)
    names = [item.name for item in spec.metrics]
    if metric is not None and metric not in names:
        raise InvalidRequest(f"metric: the study has {', '.join(names)}, not {metric!r}.", field="metric")
    reported_metric = metric or (names[0] if len(names) == 1 else None)
    question = {"study_id": study_id, "what": "importance", "metric": reported_metric}
    found = await _cached_answer(context, access, count, question)
    return StudyImportance(metric=reported_metric, **found)


async def prediction(context: AppContext, access: StudyAccess, more: int | None) -> StudyPrediction:
    """The expected best after ``more`` trials; unstated: the rest of the budget or, without one, as many as there were.

    Raises:
        Unavailable: no scheduler answers in time.
    """
    study_id, spec, count, leader = await to_thread.run_sync(_read_results, context, access)
    left = (spec.budget.trials or 0) - count
    ahead = more or max(_MIN_AHEAD, min(left if left > 0 else count, _MAX_AHEAD))
    question = {"study_id": study_id, "what": "prediction", "more": ahead}
    found = await _cached_answer(context, access, count, question)
    return StudyPrediction(metric=spec.metrics[0].name, best=leader, **found)


def _read_results(context: AppContext, access: StudyAccess) -> tuple[str, StudySpec, int, float | None]:
    with context.read() as work:
        row, _ = access.load(work.session)
        spec = StudySpec.model_validate(row.spec)
        found = results(work.session, row.id, spec)
    leader = best(found, spec.goals)
    return row.id, spec, len(found), leader.values[0] if leader else None


async def _cached_answer(
    context: AppContext, access: StudyAccess, count: int, question: Mapping[str, Any]
) -> Mapping[str, Any]:
    """The scheduler's answer, cached as long as no further trial has a result."""
    key = (count, *sorted((name, str(value)) for name, value in question.items()))
    known = _answers.get(key)
    if known is None:
        known = await answer(context, access.caller, QuestionKind.STUDY, question)
        _answers.put(key, known)
    return known
