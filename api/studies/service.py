"""Creating studies, and what users ask of those that are there."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy.orm import Session
from trainmaster.spec import SpecError
from trainmaster.studies import Budget, Space, StudySpec, parse_study, parse_study_text
from trainmaster.wire.studies import StudyCreate, StudyExtend

from api.auth import Caller
from api.jobs.service import Submission, check_in_transaction, check_submission, invalid_spec
from api.studies.access import StudyAccess
from api.studies.views import results
from api.work import Platform, Work
from core.bell import TOPIC_STUDY
from core.db.repositories.events import append_event
from core.db.repositories.studies import change_study, ended_trials
from core.db.tables import Study
from core.domain.errors import Conflict, InvalidRequest, InvalidSpec, NotFound
from core.domain.studies.results import values_of
from core.domain.studies.states import StudyEvent, StudyState, advance_study
from core.ids import new_id
from core.storage.volumes import split_location

# Of another study's trials: the best ones.
_KNOWN: Final = 200


@dataclass(frozen=True, slots=True)
class Draft:
    """A study that may be created. ``submission``: of its template, ``None`` without one."""

    spec: StudySpec
    project_id: str
    submission: Submission | None


def read_study(request: StudyCreate) -> StudySpec:
    """The canonical spec. Raises ``InvalidRequest`` (none, or two) or ``InvalidSpec`` (every mistake in it)."""
    if (request.spec is None) == (request.spec_text is None):
        raise InvalidRequest(
            "Give the study as `spec` (an object) or as `spec_text` (YAML), one of the two.", field="spec"
        )
    try:
        return parse_study(request.spec) if request.spec is not None else parse_study_text(request.spec_text or "")
    except SpecError as error:
        raise invalid_spec(error) from error


def check_study(platform: Platform, caller: Caller, spec: StudySpec) -> Draft:
    """Prove, without an open transaction, that the template can run here for this caller."""
    if spec.template is None:
        with platform.read() as work:
            return Draft(spec, caller.member_of(work.session, spec.project, "member").project_id, None)
    try:
        submission = check_submission(platform, caller, spec.template)
    except InvalidSpec as error:
        raise _of_template(error) from error
    return Draft(spec, submission.member.project_id, submission)


def create(work: Work, caller: Caller, draft: Draft, reason: str = "") -> Study:
    """Write the study; the control loop begins its first trials. ``reason``: of its making, for its history.

    Raises:
        InvalidSpec: a secret or the code archive is missing, or a study to begin with is none.
    """
    spec = draft.spec
    known = _known(work.session, caller, spec)
    study_id = new_id("study")
    output: tuple[str, str | None] = ("", None)
    if draft.submission is not None and spec.template is not None:
        try:
            check_in_transaction(work, draft.submission)
        except InvalidSpec as error:
            raise _of_template(error) from error
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
        proposed=0,
        prepared=[],
        prepared_at=0,
        known=known,
        created_at=work.now,
        started_at=work.now,
        updated_at=work.now,
    )
    work.session.add(row)
    work.session.flush()
    tell(work, caller, row, "study.created", reason)
    work.ring(TOPIC_STUDY, row.id)
    return row


def ask(work: Work, access: StudyAccess, event: StudyEvent, reason: str) -> Study:
    """Move the study as its user wants.

    Raises:
        IllegalTransition: its state does not allow it.
        StaleWrite: it moved in the same moment.
    """
    row, _ = access.load(work.session)
    state = StudyState(row.state)
    if event is StudyEvent.STOP and state in (StudyState.STOPPING, StudyState.CANCELLED):
        return row  # a client may repeat a request that it lost sight of
    after = advance_study(state, event)
    _change(work, row, state=after.value, reason=reason)
    tell(work, access.caller, row, f"study.{event.value}_requested", reason)
    work.ring(TOPIC_STUDY, row.id)
    return row


def extend(work: Work, access: StudyAccess, body: StudyExtend) -> Study:
    """Add to the budget; a study that has ended goes on.

    Raises:
        IllegalTransition: it is being stopped.
        InvalidRequest: nothing is added, or to what has no limit.
    """
    row, _ = access.load(work.session)
    added = body.model_dump(exclude_none=True)
    if not added:
        raise InvalidRequest("Say by what: trials, max_time, gpu_hours, failed_trials, or parallel.", field="trials")
    spec = StudySpec.model_validate(row.spec)
    budget = spec.budget.model_dump()
    for name, more in added.items():
        if name != "parallel" and budget[name] is None:
            raise InvalidRequest(f"{name}: the study has no limit of {name}.", field=name)
        budget[name] = more if name == "parallel" else budget[name] + more
    try:
        changed = Budget.model_validate(budget)
    except ValueError as error:
        raise InvalidRequest("trials: a study has at most 10,000 trials.", field="trials") from error
    before = StudyState(row.state)
    state = advance_study(before, StudyEvent.EXTEND)
    values: dict[str, Any] = {"spec": {**row.spec, "budget": changed.model_dump(mode="json")}, "state": state.value}
    if before.is_terminal:
        values |= {"reason": "", "finished_at": None}
        if budget["max_time"] is not None:
            values["started_at"] = work.now
    _change(work, row, **values)
    words = ", ".join(f"{name} {'=' if name == 'parallel' else '+'} {more:g}" for name, more in added.items())
    tell(work, access.caller, row, "study.extended", words)
    work.ring(TOPIC_STUDY, row.id)
    return row


def delete(work: Work, access: StudyAccess) -> None:
    """Forget an ended study; its trials' jobs stay. Raises ``Conflict``: it has not ended."""
    row, _ = access.load(work.session)
    if not StudyState(row.state).is_terminal:
        raise Conflict(f"Study {row.name!r} is {row.state}; stop it and wait for its end, then delete it.")
    _change(work, row, deleted_at=work.now)
    tell(work, access.caller, row, "study.deleted", "")


def tell(work: Work, caller: Caller, row: Study, kind: str, reason: str) -> None:
    append_event(
        work.session, at=work.now, kind=kind, actor=caller.actor, project_id=row.project_id, reason=reason,
        data={"study": row.id, "name": row.name},
    )  # fmt: skip


def _change(work: Work, row: Study, **values: Any) -> None:
    change_study(work.session, row.id, row.generation, work.now, **values)
    work.session.refresh(row)


def _seed_of(study_id: str) -> int:
    return int.from_bytes(hashlib.sha256(study_id.encode()).digest()[:4]) % 2**31


def _of_template(error: InvalidSpec) -> InvalidSpec:
    """The same, told of the study's template."""

    def place(path: str | None) -> str:
        return f"template.{path}" if path else "template"

    told: list[dict[str, str | None]] = [{**one, "path": place(one.get("path"))} for one in error.errors]
    return InvalidSpec(f"template: {error.sentence}", field=place(error.field), errors=told)


def _known(session: Session, caller: Caller, spec: StudySpec) -> list[dict[str, Any]]:
    """What earlier studies found: the best of their trials whose points are in this study's space."""
    space, names = Space.of(spec), [metric.name for metric in spec.metrics]
    found: list[dict[str, Any]] = []
    for number, ref in enumerate(spec.warm_start):
        field = f"warm_start[{number}]"
        try:
            other, _ = StudyAccess(caller, ref, "viewer").load(session)
        except NotFound as error:
            raise _refused(field, f"there is no study {ref!r} that you may see") from error
        its = StudySpec.model_validate(other.spec)
        if [metric.name for metric in its.metrics] != names or its.goals != spec.goals:
            raise _refused(
                field, f"study {ref!r} is about {', '.join(m.name for m in its.metrics)}, not {', '.join(names)}"
            )
        sign = spec.metrics[0].sign
        ranked = sorted(results(session, other.id, its), key=lambda one: sign * one.values[0])[:_KNOWN]
        rows: Mapping[int, Any] = {row.number: row for row in ended_trials(session, other.id)}
        points = [
            {"parameters": rows[one.number].parameters, "values": list(values_of(rows[one.number].result, names) or ())}
            for one in ranked
            if space.fault(rows[one.number].parameters) is None
        ]
        if ranked and not points:
            raise _refused(field, f"no trial of study {ref!r} is a point of this study's space")
        found += points
    return found


def _refused(field: str, sentence: str) -> InvalidSpec:
    return InvalidSpec(
        f"{field}: {sentence}.", field=field, errors=[{"path": field, "message": sentence, "hint": None}]
    )
