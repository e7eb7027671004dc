"""Where a job writes."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.tables import Job, Volume
from core.domain.errors import NotFound
from core.storage.tree import Tree
from core.storage.volumes import output_tree


def job_output(session: Session, job: Job) -> Tree:
    """The job's output folder, and nothing outside of it. The folder itself may not have been made yet.

    Raises:
        NotFound: its volume was removed.
        Conflict: the control plane does not see the volume.
    """
    volume = session.execute(select(Volume).where(Volume.name == job.output_volume)).scalar_one_or_none()
    if volume is None:
        raise NotFound(f"The volume {job.output_volume!r} of this job's output is not registered any more.")
    return output_tree(volume, job.output_path)
