"""Registration of model versions, and changes of models and versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import delete, select
from sqlalchemy.orm import Session
from trainmaster.wire import models as wire

from api.app.unit_of_work import AppContext, UnitOfWork
from api.auth import Caller, ProjectAccess, ProjectMembership, has_role
from api.jobs.service import digest_of
from api.models.access import ModelAccess, by_of
from api.models.views import version_detail
from api.quotas.storage import demand_storage
from api.volumes.access import demand_location_access
from core.db.repositories import models
from core.db.repositories.storage_usage import add_bytes
from core.db.repositories.submission import KeyClaim, claim_key, find_key
from core.db.tables import Checkpoint, Job, Model, ModelAlias, ModelVersion
from core.domain.errors import Conflict, Forbidden, InvalidRequest, NotFound
from core.domain.jobs.states import JobState
from core.domain.model_versions import Stage, VersionEvent, VersionState
from core.ids import new_id
from core.registry import versions
from core.registry.sources import SourceRequest, find_source
from core.registry.versions import VersionMetadata
from core.storage.registry import demand_room
from core.storage.tree import split_path
from core.storage.volumes import job_output, tree_of
from core.wakeups import TOPIC_MODELS

_SHOWN: Final = 5


def create(work: UnitOfWork, access: ProjectAccess, body: wire.ModelCreate, key: str | None) -> Model:
    """Create a model without versions. Raises ``Conflict``: the project already has a model of this name."""
    project = access.load(work.session)
    row = Model(
        id=new_id("model"),
        project_id=project.id,
        user_id=access.caller.user_id,
        name=body.name,
        description=body.description,
        labels=dict(body.labels),
        created_at=work.now,
        updated_at=work.now,
        version_count=models.highest_number(work.session, project.id, body.name),
    )
    before = _claim(work, access.caller, key, {"project": access.name, **body.model_dump(mode="json")}, row.id)
    if before is not None:
        found = work.session.get(Model, before)
        if found is None or found.deleted_at is not None:
            raise Conflict("The model of this Idempotency-Key was deleted; use a new key.")
        return found
    work.add_unique(row, f"Model {body.name!r} already exists; choose another name.")
    _record_change(work, access.caller, row, "model.created")
    return row


# --- registering -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegistrationDraft:
    """A checked registration, prepared without an open transaction."""

    job_id: str
    member: ProjectMembership
    source: SourceRequest
    size_bytes: int = 0  # to be copied, if known


def check(context: AppContext, access: ProjectAccess, body: wire.VersionRegister) -> RegistrationDraft:
    """Check that the files to register exist. Reads the job's output; no database session is open meanwhile.

    Raises:
        NotFound: the job (of this project) or the files do not exist.
        Conflict: the job still writes, the checkpoint is incomplete, or the control plane cannot read the output.
        InvalidRequest, PayloadTooLarge, InsufficientStorage: the files cannot be registered.
    """
    if body.path is not None and body.checkpoint is not None:
        raise InvalidRequest("State either a path or a checkpoint, not both.", field="checkpoint")
    if body.when_done and body.checkpoint is not None:
        raise InvalidRequest("A checkpoint is registered at once; omit when_done.", field="when_done")
    source = SourceRequest(body.path, body.checkpoint)
    if body.path is not None:
        split_path(body.path)
    with context.read() as work:
        member = access.caller.member_of(work.session, access.name, access.role)
        job = _job(work.session, member, body.job)
        state = JobState(job.state)
        has_ended = state.is_terminal
        if body.when_done and has_ended and state is not JobState.SUCCEEDED:
            raise Conflict(f"Job {job.name!r} has not succeeded: it is {state.value}.", field="job")
        tree = job_output(work.session, job)
        reported = set(work.session.scalars(select(Checkpoint.path).where(Checkpoint.job_id == job.id)))
        trial = (job.trial or {}).get("number")
        output = (job.output_volume, job.output_path)
    demand_location_access(context, access.caller, member, f"The output of job {body.job!r}", *output, writes=False)
    volume = context.volumes.find(context.settings.default_volume, context.clock())
    if volume is None or volume.root is None or volume.is_read_only:
        raise Conflict(
            f"The registry's volume {context.settings.default_volume!r} is not registered, read-only, or not "
            "accessible to the control plane; an admin can change that."
        )
    size_bytes = 0
    if has_ended or source.checkpoint is not None:
        found = find_source(
            tree, source, reported=reported, trial=trial, limit_bytes=context.settings.model_limit_bytes
        )
        size_bytes = found.size_bytes
        demand_room(tree_of(volume), size_bytes)
    return RegistrationDraft(job.id, member, source, size_bytes)


def find_registered(
    context: AppContext, access: ProjectAccess, model: str, body: wire.VersionRegister, key: str | None
) -> wire.VersionDetail | None:
    """The version that an equal earlier request registered; its files may be gone from the job's output by now."""
    if key is None:
        return None
    with context.read() as work:
        access.load(work.session)
        before = find_key(work.session, _claim_of(access.caller, key, _request_content(access, model, body)))
        return None if before is None else version_detail(work.session, *_made(work.session, before))


def register(
    work: UnitOfWork,
    access: ProjectAccess,
    model: str,
    draft: RegistrationDraft,
    body: wire.VersionRegister,
    *,
    volume: str,
    key: str | None = None,
) -> tuple[Model, ModelVersion]:
    """Write the version; the control loop copies its files. Raises ``StorageQuotaExceeded``."""
    version_id = new_id("version")
    before = _claim(work, access.caller, key, _request_content(access, model, body), version_id)
    if before is not None:
        return _made(work.session, before)
    demand_storage(work.session, draft.member.project_id, draft.size_bytes)
    add_bytes(work.session, draft.member.project_id, draft.size_bytes, work.now)
    row = versions.register_from_job(
        work.session,
        work.now,
        _job(work.session, draft.member, draft.job_id),
        model,
        by_of(access.caller),
        draft.source,
        volume=volume,
        metadata=VersionMetadata(body.description, body.labels, body.aliases, Stage(body.stage)),
        when_done=body.when_done,
        version_id=version_id,
    )
    work.notify(TOPIC_MODELS)
    return _made(work.session, row.id)


def _request_content(access: ProjectAccess, model: str, body: wire.VersionRegister) -> dict[str, object]:
    return {"project": access.name, "model": model, **body.model_dump(mode="json")}


def _claim_of(caller: Caller, key: str, content: dict[str, object]) -> KeyClaim:
    return KeyClaim(caller.user_id, key, digest_of("model", content))


def _claim(work: UnitOfWork, caller: Caller, key: str | None, content: dict[str, object], made_id: str) -> str | None:
    return None if key is None else claim_key(work.session, _claim_of(caller, key, content), made_id, work.now)


def _made(session: Session, version_id: str) -> tuple[Model, ModelVersion]:
    row = session.get(ModelVersion, version_id)
    model = None if row is None else session.get(Model, row.model_id)
    if row is None or model is None or row.state == VersionState.DELETING:
        raise Conflict("The version of this Idempotency-Key was deleted; use a new key.")
    return model, row


def _job(session: Session, member: ProjectMembership, ref: str) -> Job:
    """A job of this project only: jobs of other projects must not be disclosed."""
    own = select(Job).where(Job.project_id == member.project_id, Job.deleted_at.is_(None))
    job = session.execute(own.where(Job.id == ref)).scalar_one_or_none()
    if job is None:
        newest = own.where(Job.name == ref).order_by(Job.created_at.desc(), Job.id.desc()).limit(1)
        job = session.execute(newest).scalar_one_or_none()
    if job is None:
        raise NotFound(f"There is no job {ref!r} in project {member.project!r}.", field="job")
    return job


# --- changing --------------------------------------------------------------------------------------------------------


def change_model(work: UnitOfWork, access: ModelAccess, body: wire.ModelChanges) -> Model:
    row = _locked(work, access)
    _change(work, access, row, row, body, version=None)
    return row


def change_version(
    work: UnitOfWork, access: ModelAccess, ref: str, body: wire.VersionChanges
) -> tuple[Model, ModelVersion]:
    model = _locked(work, access)
    row = versions.find_version(work.session, model, ref)
    _change(work, access, model, row, body, version=row.number)
    return model, row


def _change(
    work: UnitOfWork,
    access: ModelAccess,
    model: Model,
    row: Model | ModelVersion,
    body: wire.ModelChanges | wire.VersionChanges,
    *,
    version: int | None,
) -> None:
    if body.description is not None:
        row.description = body.description
    if body.labels is not None:
        row.labels = dict(body.labels)
    if body.is_protected is not None and body.is_protected != row.is_protected:
        what = "protection.set" if body.is_protected else "protection.cleared"
        row.is_protected = body.is_protected
        _record_change(work, access.caller, model, what, version=version)
    row.updated_at = model.updated_at = work.now
    work.session.flush()


def set_stage(work: UnitOfWork, access: ModelAccess, ref: str, body: wire.StageRequest) -> tuple[Model, ModelVersion]:
    """Any stage may follow any other; the history records user and time."""
    model = _locked(work, access)
    row = versions.find_version(work.session, model, ref)
    if row.stage != body.stage:
        before, row.stage, row.updated_at = row.stage, body.stage, work.now
        _record_change(
            work,
            access.caller,
            model,
            "stage.changed",
            version=row.number,
            before=before,
            after=body.stage,
            reason=body.reason,
        )
        work.session.flush()
    return model, row


def set_alias(work: UnitOfWork, access: ModelAccess, alias: str, body: wire.AliasRequest) -> Model:
    """Point the alias to a version, atomically.

    Raises:
        NotFound: there is no such version.
        Conflict: the version is not ready; or the alias does not point to ``expected``.
    """
    model = _locked(work, access)
    row = versions.find_version(work.session, model, body.version)
    if row.state != VersionState.READY:
        raise Conflict(
            f"Version {row.number} is {row.state}; an alias points to a version that is ready.", field="version"
        )
    current = models.aliases_of(work.session, [model.id])[model.id].get(alias)
    if body.expected is not None and body.expected != (current or 0):
        points = f"points to version {current}" if current else "does not exist"
        raise Conflict(f"Alias {alias!r} now {points}; read the model again.", field="expected")
    if current == row.number:
        return model
    before = models.point_alias(work.session, model, alias, row, work.now)
    _record_change(
        work,
        access.caller,
        model,
        "alias.moved",
        version=row.number,
        name=alias,
        before=before,
        after=row.number,
        reason=body.reason,
    )
    work.session.flush()
    return model


def remove_alias(work: UnitOfWork, access: ModelAccess, alias: str) -> None:
    """Raises ``NotFound``."""
    model = _locked(work, access)
    current = models.aliases_of(work.session, [model.id])[model.id].get(alias)
    if current is None:
        raise NotFound(f"Model {model.name!r} has no alias {alias!r}.")
    _drop_aliases(work, access, model, {alias: current})


def _drop_aliases(work: UnitOfWork, access: ModelAccess, model: Model, aliases: dict[str, int]) -> None:
    for alias, number in aliases.items():
        work.session.execute(delete(ModelAlias).where(ModelAlias.model_id == model.id, ModelAlias.name == alias))
        _record_change(
            work,
            access.caller,
            model,
            "alias.removed",
            version=number,
            name=alias,
            before=number,
        )


# --- deleting --------------------------------------------------------------------------------------------------------


def delete_version(work: UnitOfWork, access: ModelAccess, ref: str, *, force: bool) -> None:
    """Delete a version; its files are removed in the background.

    Raises:
        Conflict: without ``force``: it is protected, an alias points to it, or it is deployed.
        Forbidden: ``force``, but the caller is not an admin of the project.
    """
    _demand_admin(work, access, force=force)
    model = _locked(work, access)
    row = versions.find_version(work.session, model, ref)
    if not force:
        _demand_free(work, model, row)
    _delete(work, access, model, row)


def delete_model(work: UnitOfWork, access: ModelAccess, *, force: bool) -> None:
    """Delete a model with all its versions; its name becomes free. Raises like ``delete_version``."""
    _demand_admin(work, access, force=force)
    model = _locked(work, access)
    rows = work.session.scalars(models.versions_of(model.id).order_by(ModelVersion.number)).all()
    if not force:
        if model.is_protected:
            raise Conflict(f"Model {model.name!r} is protected; remove the protection first.")
        for row in rows:
            _demand_free(work, model, row)
    for row in rows:
        _delete(work, access, model, row)
    model.deleted_at = work.now
    _record_change(work, access.caller, model, "model.deleted")
    work.session.flush()


def _delete(work: UnitOfWork, access: ModelAccess, model: Model, row: ModelVersion) -> None:
    aliases = models.aliases_of(work.session, [model.id])[model.id]
    _drop_aliases(work, access, model, {name: number for name, number in aliases.items() if number == row.number})
    models.move_version(work.session, row.id, VersionState(row.state), VersionEvent.DELETE, work.now)
    _record_change(work, access.caller, model, "version.deleted", version=row.number)
    work.notify(TOPIC_MODELS)


def _demand_free(work: UnitOfWork, model: Model, row: ModelVersion) -> None:
    what = f"Version {row.number} of model {model.name!r}"
    if row.is_protected:
        raise Conflict(f"{what} is protected; remove the protection first.")
    aliases = [
        name for name, number in models.aliases_of(work.session, [model.id])[model.id].items() if number == row.number
    ]
    if aliases:
        shown = ", ".join(aliases[:_SHOWN])
        raise Conflict(f"{what} has the alias {shown}; move or remove the alias first.")
    holders = models.holders_of(work.session, [row.id])[row.id]
    if holders:
        raise Conflict(
            f"{what} is deployed, or a rollback target, at {', '.join(holders[:_SHOWN])}; undeploy it first."
        )


def _demand_admin(work: UnitOfWork, access: ModelAccess, *, force: bool) -> None:
    if force and not has_role(access.member(work.session).role, "admin"):
        raise Forbidden(
            "Only an admin of the project can delete with force; ask an admin, or undeploy and unprotect it."
        )


def _locked(work: UnitOfWork, access: ModelAccess) -> Model:
    row = models.lock_model(work.session, access.load(work.session).id)
    if row is None:
        raise NotFound(f"There is no model {access.name!r} in this project.")
    return row


def _record_change(work: UnitOfWork, caller: Caller, model: Model, what: str, **details: Any) -> None:
    versions.record_change(work.session, work.now, model, by_of(caller), what, **details)
