"""Deletion of a job's output."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.tables import Job, Volume
from core.domain.errors import Conflict
from core.storage.tree import Tree
from core.storage.volumes import tree_of


@dataclass(frozen=True, slots=True)
class OwnFolder:
    """The folder that the platform created for one job."""

    tree: Tree
    path: str

    def remove(self) -> None:
        """Delete all files; blocks until they are gone. A missing folder is fine."""
        self.tree.delete(self.path)


def output_to_remove(session: Session, job: Job) -> OwnFolder:
    """The job's folder, to be removed after the commit.

    Raises:
        Conflict: the job's spec named the folder, so other jobs may use it; or the control plane cannot access it.
    """
    if job.output_path.rpartition("/")[2] != job.id:
        raise Conflict(
            f"The output {job.output_volume}/{job.output_path} was named by the job's spec and may have files of other "
            "jobs; delete the job without `files`, and the files by hand."
        )
    volume = session.execute(select(Volume).where(Volume.name == job.output_volume)).scalar_one_or_none()
    if volume is None:
        raise Conflict(f"Volume {job.output_volume!r} is no longer registered; delete the job without `files`.")
    return OwnFolder(tree_of(volume), job.output_path)
