"""Removing what a job wrote."""

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
    """The folder that the platform made for one job alone."""

    tree: Tree
    path: str

    def remove(self) -> None:
        """Blocks until all files are gone; a folder that is not there is fine."""
        self.tree.delete(self.path)


def output_to_remove(session: Session, job: Job) -> OwnFolder:
    """The job's folder, to be removed after the commit.

    Raises:
        Conflict: the user named the folder, so that others may use it; or the control plane does not see it.
    """
    if job.output_path.rpartition("/")[2] != job.id:
        raise Conflict(
            f"The output {job.output_volume}/{job.output_path} was named by the job and may hold files of others; "
            "delete the job without `files` and the files by hand."
        )
    volume = session.execute(select(Volume).where(Volume.name == job.output_volume)).scalar_one_or_none()
    if volume is None:
        raise Conflict(f"Volume {job.output_volume!r} is not registered any more; delete the job without `files`.")
    return OwnFolder(tree_of(volume), job.output_path)
