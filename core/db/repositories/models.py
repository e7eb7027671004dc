"""Registered models. A writer locks the model's row first; a version's state is compared and set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from core.db.tables import Job, Model, ModelAlias, ModelFile, ModelHold, ModelVersion
from core.domain.errors import StaleWrite
from core.domain.jobs.states import JobState
from core.domain.model_versions import Stage, VersionEvent, VersionState, advance_version
from core.storage.registry import KnownFile

_OVER: Final = [state.value for state in JobState if state.is_terminal]


def find_model(session: Session, project_id: str, name: str) -> Model | None:
    query = select(Model).where(Model.project_id == project_id, Model.name == name, Model.deleted_at.is_(None))
    return session.execute(query).scalar_one_or_none()


def highest_number(session: Session, project_id: str, name: str) -> int:
    """The highest version number of all models of this name, deleted versions included; 0: none."""
    query = select(func.max(Model.version_count)).where(Model.project_id == project_id, Model.name == name)
    return session.scalars(query).one() or 0


def is_name_used(session: Session, project_id: str, name: str) -> bool:
    """Whether a model ever had this name, deleted ones included."""
    query = select(Model.id).where(Model.project_id == project_id, Model.name == name).limit(1)
    return session.scalars(query).first() is not None


def has_versions(session: Session, model_id: str) -> bool:
    """Whether it ever had a version; deleted ones count, those of an earlier model of the same name do not."""
    return (
        session.scalars(select(ModelVersion.id).where(ModelVersion.model_id == model_id).limit(1)).first() is not None
    )


def lock_model(session: Session, model_id: str) -> Model | None:
    """The row, locked for this transaction and re-read; ``None``: deleted meanwhile."""
    query = select(Model).where(Model.id == model_id, Model.deleted_at.is_(None)).with_for_update()
    return session.execute(query.execution_options(populate_existing=True)).scalar_one_or_none()


def versions_of(model_id: str) -> Any:
    """A query of its versions except those that are being deleted."""
    return select(ModelVersion).where(
        ModelVersion.model_id == model_id,
        ModelVersion.deleted_at.is_(None),
        ModelVersion.state != VersionState.DELETING.value,
    )


def find_number(session: Session, model_id: str, number: int) -> ModelVersion | None:
    found: ModelVersion | None = session.execute(
        versions_of(model_id).where(ModelVersion.number == number)
    ).scalar_one_or_none()
    return found


def newest_ready(session: Session, model_id: str) -> ModelVersion | None:
    query = versions_of(model_id).where(ModelVersion.state == VersionState.READY.value)
    found: ModelVersion | None = session.execute(
        query.order_by(ModelVersion.number.desc()).limit(1)
    ).scalar_one_or_none()
    return found


def find_alias(session: Session, model_id: str, alias: str) -> ModelVersion | None:
    query = (
        select(ModelVersion)
        .join(ModelAlias, ModelAlias.version_id == ModelVersion.id)
        .where(ModelAlias.model_id == model_id, ModelAlias.name == alias)
    )
    return session.execute(query).scalar_one_or_none()


def aliases_of(session: Session, model_ids: Iterable[str]) -> dict[str, dict[str, int]]:
    """By model: alias -> version number."""
    found: dict[str, dict[str, int]] = {model_id: {} for model_id in model_ids}
    query = (
        select(ModelAlias.model_id, ModelAlias.name, ModelVersion.number)
        .join(ModelVersion, ModelVersion.id == ModelAlias.version_id)
        .where(ModelAlias.model_id.in_(found))
        .order_by(ModelAlias.name)
    )
    for model_id, name, number in session.execute(query):
        found[model_id][name] = number
    return found


def holders_of(session: Session, version_ids: Iterable[str]) -> dict[str, list[str]]:
    """By version: which deployments hold it."""
    found: dict[str, list[str]] = {version_id: [] for version_id in version_ids}
    query = select(ModelHold.version_id, ModelHold.holder).where(ModelHold.version_id.in_(found))
    for version_id, holder in session.execute(query.order_by(ModelHold.holder)):
        found[version_id].append(holder)
    return found


def counts_of(session: Session, model_ids: Sequence[str]) -> dict[str, tuple[int, int | None]]:
    """By model: the number of versions, and the number of the newest ready version."""
    live, group = _live_of(model_ids), ModelVersion.model_id
    counts = {row[0]: row[1] for row in session.execute(select(group, func.count()).where(*live).group_by(group))}
    ready = select(group, func.max(ModelVersion.number)).where(*live, ModelVersion.state == VersionState.READY.value)
    newest = {row[0]: row[1] for row in session.execute(ready.group_by(group))}
    return {model_id: (counts.get(model_id, 0), newest.get(model_id)) for model_id in model_ids}


def _live_of(model_ids: Sequence[str]) -> list[Any]:
    """Conditions: the version belongs to these models and is not being deleted."""
    return [
        ModelVersion.model_id.in_(model_ids),
        ModelVersion.state != VersionState.DELETING.value,
        ModelVersion.deleted_at.is_(None),
    ]


def newest_of(session: Session, model_ids: Sequence[str]) -> dict[str, ModelVersion]:
    """By model: its newest version; models without versions are left out."""
    newest = select(func.max(ModelVersion.number)).where(*_live_of(model_ids)).group_by(ModelVersion.model_id)
    numbers = newest.add_columns(ModelVersion.model_id).subquery()
    query = select(ModelVersion).join(
        numbers, (numbers.c.model_id == ModelVersion.model_id) & (numbers.c[0] == ModelVersion.number)
    )
    return {row.model_id: row for row in session.scalars(query)}


def stages_of(session: Session, model_ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """By model: stage -> newest version in it, except stage ``none``."""
    found: dict[str, dict[str, int]] = {model_id: {} for model_id in model_ids}
    group = (ModelVersion.model_id, ModelVersion.stage)
    query = select(*group, func.max(ModelVersion.number)).where(
        *_live_of(model_ids), ModelVersion.stage != Stage.NONE.value
    )
    for model_id, stage, number in session.execute(query.group_by(*group).order_by(*group)):
        found[model_id][stage] = number
    return found


def files_of(session: Session, version_id: str) -> list[KnownFile]:
    """The copied files, by path."""
    query = select(ModelFile.path, ModelFile.size_bytes, ModelFile.sha256).where(
        ModelFile.version_id == version_id, ModelFile.sha256.is_not(None)
    )
    return [
        KnownFile(row.path, row.size_bytes, row.sha256 or "") for row in session.execute(query.order_by(ModelFile.path))
    ]


def file_of(session: Session, version_id: str, path: str) -> KnownFile | None:
    """The file at this path, if copied."""
    if "\0" in path:  # PostgreSQL cannot compare with it
        return None
    found = session.get(ModelFile, (version_id, path))
    return None if found is None or found.sha256 is None else KnownFile(path, found.size_bytes, found.sha256)


def due_versions(session: Session, *, limit: int = 200) -> list[tuple[str, str]]:
    """(id, state) of versions to copy or delete, or whose job has ended, oldest first."""
    query = (
        select(ModelVersion.id, ModelVersion.state)
        .outerjoin(Job, Job.id == ModelVersion.job_id)
        .where(
            or_(
                ModelVersion.state == VersionState.REGISTERING.value,
                (ModelVersion.state == VersionState.DELETING.value) & ModelVersion.deleted_at.is_(None),
                (ModelVersion.state == VersionState.WAITING.value)
                & (Job.state.in_(_OVER) | Job.deleted_at.is_not(None)),
            )
        )
    )
    found = session.execute(query.order_by(ModelVersion.created_at, ModelVersion.id).limit(limit))
    return [(row.id, row.state) for row in found]


def move_version(
    session: Session, version_id: str, state: VersionState, event: VersionEvent, now: datetime, **values: Any
) -> None:
    """Move a version on from ``state``.

    Raises:
        IllegalTransition: ``state`` does not allow it.
        StaleWrite: it is no longer in ``state``.
    """
    after = advance_version(state, event)
    hit = session.execute(
        update(ModelVersion)
        .where(ModelVersion.id == version_id, ModelVersion.state == state.value)
        .values(**values, state=after.value, updated_at=now)
        .execution_options(synchronize_session=False)
    )
    if hit.rowcount != 1:  # type: ignore[attr-defined]
        raise StaleWrite("the version has moved since it was read")


def point_alias(session: Session, model: Model, alias: str, version: ModelVersion, now: datetime) -> int | None:
    """Point the alias to a version, in a transaction that has locked the model; returns the previous version number."""
    row = session.get(ModelAlias, (model.id, alias))
    if row is None:
        session.add(ModelAlias(model_id=model.id, name=alias, version_id=version.id, updated_at=now))
        return None
    before = session.get(ModelVersion, row.version_id)
    row.version_id, row.updated_at = version.id, now
    return None if before is None else before.number


def sources_in_use(session: Session, job: Job) -> set[str]:
    """The checkpoints in the job's output that are being registered."""
    query = (
        select(ModelVersion.source)
        .join(Job, Job.id == ModelVersion.job_id)
        .where(
            ModelVersion.state == VersionState.REGISTERING.value,
            Job.output_volume == job.output_volume,
            Job.output_path == job.output_path,
        )
    )
    return {source["path"] for source in session.scalars(query) if source["kind"] == "checkpoint"}
