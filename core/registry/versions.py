"""Model versions for their users: serving, batch prediction, AutoML, adapters of other protocols.

``register_from_job`` and ``register_upload`` create one, ``ready`` finds one to use, ``hold`` and ``release`` mark its
use.
``lineage_of`` records where it came from: the job itself may be deleted later.
All work in the caller's transaction; the control loop (``scheduler.control.registrar``) does the copying.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from trainmaster.spec.enums import role_order
from trainmaster.wire.models import LATEST, ModelLineage

from core.db.repositories import models
from core.db.repositories.events import append_event
from core.db.repositories.metrics.reads import SeriesFilter, StoredSeries, find_names, find_series
from core.db.repositories.metrics.steps import values_at
from core.db.tables import (
    Attempt,
    Checkpoint,
    Job,
    MlflowRun,
    Model,
    ModelChange,
    ModelHold,
    ModelVersion,
    Project,
    Trial,
    User,
)
from core.domain.errors import Conflict, NotFound, Unavailable
from core.domain.jobs.states import JobState
from core.domain.metrics import SYSTEM
from core.domain.model_versions import Stage, VersionState
from core.ids import new_id
from core.registry.sources import SourceRequest, UploadedSource
from core.storage.registry import KnownFile, place_of

_SERIES: Final = 500
_NAMES: Final = 200
_PARAMETERS: Final = 500


@dataclass(frozen=True, slots=True)
class Author:
    """Who makes a change. ``user``: the name in histories; ``actor``: as in events, such as ``user:ann``."""

    user_id: str
    user: str
    actor: str


@dataclass(frozen=True, slots=True)
class VersionMetadata:
    """Metadata of a new version. ``aliases`` are set once it is ready.

    ``keeps_better``: for a study's best trial: an alias is not moved if it points to a better version of such a study.
    """

    description: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    aliases: Sequence[str] = ()
    stage: Stage = Stage.NONE
    keeps_better: bool = False


@dataclass(frozen=True, slots=True)
class ReadyVersion:
    """A complete, immutable version. ``volume`` and ``path``: to be mounted read-only.

    ``image``: of the job that trained it, ``None``: it had none. ``manifest``: by path, relative to ``path``.
    """

    id: str
    project: str
    model: str
    version: int
    volume: str
    path: str
    image: str | None
    format: str
    digest: str
    size_bytes: int
    manifest: tuple[KnownFile, ...]
    lineage: ModelLineage


@dataclass(frozen=True, slots=True)
class ReadyFile:
    """A file of a ready version. ``path``: on the volume; ``known.path``: in the version."""

    volume: str
    path: str
    known: KnownFile


def ready(session: Session, project_id: str, model: str, ref: str | int) -> ReadyVersion:
    """The version of this number or alias; ``latest``: the newest ready one.

    Raises:
        NotFound: there is no such model, version or alias.
        Conflict: it is not ready.
    """
    row = _demand_ready(session, project_id, model, ref)
    lineage = ModelLineage.model_validate(row.lineage or {})
    image = lineage.images.get("chief") or next(iter(lineage.images.values()), None)
    return ReadyVersion(
        id=row.id,
        project=session.scalars(select(Project.name).where(Project.id == project_id)).one(),
        model=model,
        version=row.number,
        volume=row.volume,
        path=row.path,
        image=image,
        format=row.format,
        digest=row.digest or "",
        size_bytes=row.size_bytes or 0,
        manifest=tuple(models.files_of(session, row.id)),
        lineage=lineage,
    )


def ready_file(session: Session, project_id: str, model: str, ref: str | int, path: str) -> ReadyFile:
    """One file of what :func:`ready` finds, without reading the whole manifest.

    Raises:
        NotFound: there is no such model, version, alias or file.
        Conflict: the version is not ready.
    """
    row = _demand_ready(session, project_id, model, ref)
    known = models.file_of(session, row.id, path)
    if known is None:
        raise NotFound(f"Version {row.number} of model {model!r} has no file {path!r}.")
    return ReadyFile(row.volume, f"{row.path}/{path}", known)


def _demand_ready(session: Session, project_id: str, model: str, ref: str | int) -> ModelVersion:
    row = find_version(session, demand_model(session, project_id, model), ref)
    if row.state != VersionState.READY:
        hint = f": {row.reason}" if row.reason else "; wait until it is ready."
        raise Conflict(f"Version {row.number} of model {model!r} is {row.state}{hint}")
    return row


def hold(session: Session, version_id: str, holder: str, now: datetime) -> None:
    """Mark the version as deployed by ``holder``, such as ``endpoint digits``, which prevents its deletion. Idempotent.

    Raises:
        NotFound: it was deleted meanwhile.
    """
    row = session.get(ModelVersion, version_id)
    model = None if row is None else models.lock_model(session, row.model_id)
    if row is None or model is None:
        raise NotFound("The version was deleted.")
    session.refresh(row)
    if row.state != VersionState.READY:
        raise NotFound(f"Version {row.number} of model {model.name!r} was deleted.")
    if session.get(ModelHold, (version_id, holder)) is None:
        session.add(ModelHold(version_id=version_id, holder=holder, created_at=now))
        session.flush()


def release(session: Session, version_id: str, holder: str) -> None:
    """Drop the hold. Idempotent."""
    session.execute(delete(ModelHold).where(ModelHold.version_id == version_id, ModelHold.holder == holder))


def register_from_job(
    session: Session,
    now: datetime,
    job: Job,
    model: str,
    by: Author,
    request: SourceRequest,
    *,
    volume: str,
    metadata: VersionMetadata = VersionMetadata(),
    when_done: bool = False,
    version_id: str | None = None,
) -> ModelVersion:
    """Create a new version of ``model``, which is created if missing; the control loop copies its files.

    Does not check the files: errors become the version's ``reason``. Notify ``TOPIC_MODELS`` after the commit.

    Args:
        model: a valid name.
        volume: of the projects' own folders (the setting ``default_volume``), where the registry stores its files.
        when_done: for an unfinished job: wait for its success.
        version_id: a new id, if the caller needs it beforehand.

    Raises:
        Conflict: the job has not ended, and neither ``when_done`` nor a checkpoint is given.
    """
    state = JobState(job.state)
    waits = False
    if request.checkpoint is None and not state.is_terminal:
        if not when_done:
            raise Conflict(
                f"Job {job.name!r} is {state.value}: its output may still change. Wait for its end, have the version "
                "registered when it is done (when_done), or register one of its checkpoints.",
                field="job",
            )
        waits = True
    made = _new_version(
        session, now, job.project_id, model, by, volume=volume, metadata=metadata, version_id=version_id
    )
    made.job_id = job.id
    made.source = {
        "kind": request.kind,
        "job": job.id,
        "path": request.path if request.checkpoint is None else request.checkpoint.strip("/"),
    }
    if waits:
        made.state = VersionState.WAITING.value
        made.reason = f"It waits for the success of job {job.name!r}."
    _add(session, now, made, by, metadata, reason=f"of job {job.id}")
    return made


def register_upload(
    session: Session,
    now: datetime,
    project_id: str,
    model: str,
    by: Author,
    uploaded: UploadedSource,
    *,
    volume: str,
    metadata: VersionMetadata = VersionMetadata(),
) -> ModelVersion:
    """The same for files that no job of ours wrote. The caller has checked that the user may read them."""
    made = _new_version(session, now, project_id, model, by, volume=volume, metadata=metadata, version_id=None)
    made.source = uploaded.to_json()
    _add(session, now, made, by, metadata, reason=f"of {uploaded.location}")
    return made


def _new_version(
    session: Session,
    now: datetime,
    project_id: str,
    model: str,
    by: Author,
    *,
    volume: str,
    metadata: VersionMetadata,
    version_id: str | None,
) -> ModelVersion:
    """The model's next version, with its number but without its source."""
    row = make_model(session, now, project_id, model, by)
    row.version_count += 1
    row.updated_at = now
    project = session.scalars(select(Project.name).where(Project.id == project_id)).one()
    version_id = version_id or new_id("version")
    return ModelVersion(
        id=version_id,
        model_id=row.id,
        project_id=project_id,
        user_id=by.user_id,
        number=row.version_count,
        state=VersionState.REGISTERING.value,
        reason="",
        stage=metadata.stage.value,
        description=metadata.description,
        labels=dict(metadata.labels),
        registration={"aliases": sorted(set(metadata.aliases)), "user": by.user}
        | ({"keeps_better": True} if metadata.keeps_better else {}),
        volume=volume,
        path=place_of(project, version_id),
        created_at=now,
        updated_at=now,
    )


def _add(
    session: Session, now: datetime, made: ModelVersion, by: Author, metadata: VersionMetadata, *, reason: str
) -> None:
    session.add(made)
    session.flush()
    model = session.get_one(Model, made.model_id)
    record_change(session, now, model, by, "version.registered", version=made.number, reason=reason)
    if metadata.stage is not Stage.NONE:
        record_change(
            session, now, model, by, "stage.changed", version=made.number, before=Stage.NONE, after=metadata.stage
        )


def make_model(session: Session, now: datetime, project_id: str, name: str, by: Author) -> Model:
    """The project's model of this name, locked for this transaction; created if missing."""
    for _ in range(3):
        found = models.find_model(session, project_id, name)
        locked = None if found is None else models.lock_model(session, found.id)
        if locked is not None:
            return locked
        row = Model(
            id=new_id("model"), project_id=project_id, user_id=by.user_id, name=name, created_at=now, updated_at=now,
            version_count=models.highest_number(session, project_id, name),
        )  # fmt: skip
        try:
            with session.begin_nested():
                session.add(row)
        except IntegrityError:
            continue  # another request created it meanwhile
        record_change(session, now, row, by, "model.created")
        return row
    raise Unavailable("The model is being changed by others; try again.", retry_after_s=1.0)


def record_change(
    session: Session,
    now: datetime,
    model: Model,
    by: Author,
    what: str,
    *,
    version: int | None = None,
    name: str = "",
    before: object = None,
    after: object = None,
    reason: str = "",
) -> None:
    """Append to the model's history and to the project's events."""
    session.add(
        ModelChange(
            model_id=model.id, at=now, user=by.user, kind=what, version=version, name=name,
            before=None if before is None else str(before), after=None if after is None else str(after), reason=reason,
        )
    )  # fmt: skip
    about = {"version": version, "name": name, "before": before, "after": after}
    kind = what if what.startswith("model.") else f"model.{what.replace('.', '_')}"
    append_event(
        session, at=now, kind=kind, actor=by.actor, project_id=model.project_id, reason=reason,
        data={"model": model.name, **{key: str(value) for key, value in about.items() if value not in (None, "")}},
    )  # fmt: skip


def demand_model(session: Session, project_id: str, name: str) -> Model:
    """Raises ``NotFound``."""
    row = models.find_model(session, project_id, name)
    if row is None:
        raise NotFound(f"There is no model {name!r} in this project.")
    return row


def find_version(session: Session, model: Model, ref: str | int) -> ModelVersion:
    """By number, alias, or ``latest``. Raises ``NotFound``."""
    text = str(ref)
    if text == LATEST:
        row, what = models.newest_ready(session, model.id), "version that is ready"
    elif text.isdecimal() and len(text) < 10:
        row, what = models.find_number(session, model.id, int(text)), f"version {text}"
    else:
        row, what = models.find_alias(session, model.id, text), f"version or alias {text!r}"
    if row is None:
        raise NotFound(f"Model {model.name!r} has no {what}.")
    return row


def lineage_of(session: Session, job: Job, *, checkpoint: str | None, step: int | None, user: str) -> ModelLineage:
    """The job as it is now. ``checkpoint``: its path; then the metrics are those of its step. ``user``: who registers
    it.
    """
    spec: dict[str, Any] = job.spec
    roles: dict[str, Any] = spec.get("roles") or {}
    attempt = job.attempt_count or None
    metrics: dict[str, float] = {}
    if checkpoint is not None:
        job_spec = session.execute(
            select(Checkpoint, Attempt.number)
            .join(Attempt, Attempt.id == Checkpoint.attempt_id)
            .where(Checkpoint.job_id == job.id, Checkpoint.path == checkpoint)
        ).one_or_none()
        if job_spec is not None:
            attempt, step = job_spec[1], job_spec[0].step if job_spec[0].step is not None else step
            metrics = _finite(job_spec[0].metrics)
        if step is not None and not metrics:
            metrics = _metrics_at(session, job.id, step)
    else:
        metrics = _last_metrics(session, job.id)
    trial = job.trial or {}
    if trial and checkpoint is None:
        row = session.get(Trial, (trial["study_id"], trial["number"]))
        if row is not None and row.job_id == job.id:  # not the rerun of the best trial, which has its own
            metrics |= _finite(row.result or {})
    return ModelLineage(
        job=job.id,
        job_name=job.name,
        job_state=job.state,
        attempt=attempt,
        user=user or session.scalars(select(User.name).where(User.id == job.user_id)).first() or "",
        code=spec.get("code"),
        images={name: image for name, role in roles.items() if (image := role.get("image") or spec.get("image"))},
        commands={
            name: _command_line(role.get("command") or spec.get("command"), role.get("args") or spec.get("args"))
            for name, role in roles.items()
        },
        data=_data_of(spec),
        parameters=_parameters_of(session, job),
        metrics=metrics,
        step=step,
        study=trial.get("study"),
        study_id=trial.get("study_id"),
        trial=trial.get("number"),
        cloned_from=job.cloned_from,
        spec=spec,
    )


def lineage_of_upload(location: str, *, user: str) -> ModelLineage:
    """The training is unknown. ``location``: volume/path."""
    return ModelLineage(job="", job_name="", user=user, data=[location])


def _command_line(command: Any, args: Any) -> str:
    words = [command] if isinstance(command, str) else [str(word) for word in command or ()]
    return " ".join([*words, *(str(arg) for arg in args or ())])


def _data_of(spec: dict[str, Any]) -> list[str]:
    mounts = [f"{mount['volume']}/{mount.get('path') or ''}".rstrip("/") for mount in spec.get("mounts") or ()]
    return [*([str(spec["input"])] if spec.get("input") else []), *mounts]


def _parameters_of(session: Session, job: Job) -> dict[str, Any]:
    """Of its trial, and as logged to MLflow in the newest run."""
    query = select(MlflowRun.params).where(MlflowRun.job_id == job.id, MlflowRun.is_deleted.is_(False))
    run = session.scalars(query.order_by(MlflowRun.started_at.desc(), MlflowRun.id).limit(1)).first()
    found = {**(run or {}), **(job.trial or {}).get("parameters", {})}
    return dict(list(found.items())[:_PARAMETERS])


def _metrics_at(session: Session, job_id: str, step: int) -> dict[str, float]:
    names = [
        row.name
        for row in find_names(session, job_id, SeriesFilter(kind="scalar", without_prefix=SYSTEM), limit=_NAMES)
    ]
    return values_at(session, job_id, [step], names, replicas=2).get(step, {}) if names else {}


def _last_metrics(session: Session, job_id: str) -> dict[str, float]:
    """The last value of each: of the newest attempt, the chief before a worker, the first replica of a role."""
    best: dict[str, StoredSeries] = {}
    for series in find_series(session, [job_id], SeriesFilter(kind="scalar", without_prefix=SYSTEM), limit=_SERIES):
        if series.last_value is None or not math.isfinite(series.last_value):
            continue
        known = best.get(series.name)
        if known is None or _weight(series) < _weight(known):
            best[series.name] = series
    return {name: series.last_value for name, series in sorted(best.items())[:_NAMES] if series.last_value is not None}


def _weight(series: StoredSeries) -> tuple[Any, ...]:
    return (-series.attempt, role_order(series.role), series.index)


def _finite(values: Any) -> dict[str, float]:
    return {
        str(name): float(value)
        for name, value in dict(values).items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }
