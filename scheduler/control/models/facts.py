"""What is known of a version when it is taken up."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.tables import Checkpoint, Job, Model, ModelFile, ModelVersion, Volume
from core.domain.errors import Conflict, NotFound
from core.registry.sources import Uploaded
from core.storage.outputs import job_output
from core.storage.registry import KnownFile, PlannedFile
from core.storage.tree import Tree
from core.storage.volumes import tree_of


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """``job``: ``None``: it was uploaded. ``told``: paths of the job's checkpoints. ``planned``: all files; ``known``: those that are copied, by path."""

    version: ModelVersion
    model: Model
    job: Job | None
    checkpoint_paths: frozenset[str]
    planned: list[PlannedFile]
    known: dict[str, KnownFile]


def load_facts(session: Session, version_id: str) -> VersionFacts | None:
    """``None``: it is deleted."""
    row = session.execute(
        select(ModelVersion, Model, Job)
        .join(Model, Model.id == ModelVersion.model_id)
        .outerjoin(Job, Job.id == ModelVersion.job_id)
        .where(ModelVersion.id == version_id, ModelVersion.deleted_at.is_(None))
    ).one_or_none()
    if row is None:
        return None
    version, model, job = row
    told = session.scalars(select(Checkpoint.path).where(Checkpoint.job_id == version.job_id)).all()
    files = session.scalars(select(ModelFile).where(ModelFile.version_id == version_id).order_by(ModelFile.path)).all()
    planned = [PlannedFile(file.path, file.source, file.size_bytes, file.mtime_ns) for file in files]
    known = {file.path: KnownFile(file.path, file.size_bytes, file.sha256) for file in files if file.sha256}
    return VersionFacts(version, model, job, frozenset(told), planned, known)


def source_tree(session: Session, facts: VersionFacts) -> Tree:
    """Where its files are read: the job's output, or the volume that they were uploaded to.

    Raises:
        NotFound: the volume was removed.
        Conflict: the control plane does not see it.
    """
    if facts.job is not None:
        return job_output(session, facts.job)
    uploaded = Uploaded.of_json(facts.version.source)
    volume = session.execute(select(Volume).where(Volume.name == uploaded.volume)).scalar_one_or_none()
    if volume is None:
        raise NotFound(f"The volume {uploaded.volume!r} that it was uploaded to is not registered any more.")
    return tree_of(volume).below(uploaded.base)


def registry_volume(session: Session, name: str) -> Tree:
    """Raises ``NotFound`` or ``Conflict``: it cannot be written to."""
    volume = session.execute(select(Volume).where(Volume.name == name)).scalar_one_or_none()
    if volume is None:
        raise NotFound(f"The registry's volume {name!r} is not registered any more.")
    if volume.is_read_only:
        raise Conflict(f"The registry's volume {name!r} is read-only.")
    return tree_of(volume)
