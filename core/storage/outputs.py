"""A job's output."""

from __future__ import annotations

from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.tables import Job, Volume
from core.domain.errors import NotFound
from core.storage.tree import Tree
from core.storage.volumes import output_tree

# The output's path in containers.
OUTPUT_MOUNT: Final = "/data/output"
# The path at which a clone sees the output it resumes from. Its own output is a new folder, so that neither job
# overwrites the other's logs and checkpoints.
RESUME_MOUNT: Final = "/data/resume"


def job_output(session: Session, job: Job) -> Tree:
    """The job's output folder as a confined tree. The folder itself may not exist yet.

    Raises:
        NotFound: its volume was removed.
        Conflict: the volume has no root on the control plane.
    """
    volume = session.execute(select(Volume).where(Volume.name == job.output_volume)).scalar_one_or_none()
    if volume is None:
        raise NotFound(f"The volume {job.output_volume!r} of this job's output is not registered any more.")
    return output_tree(volume, job.output_path)
