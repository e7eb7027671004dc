"""A job that goes on from a checkpoint of another one: what it mounts, and which checkpoint that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.tables import Checkpoint, Job
from core.domain.errors import InvalidRequest, TrainmasterError
from core.storage.checkpoints import FoundCheckpoint, newest_complete
from core.storage.outputs import RESUME_MOUNT, job_output
from core.storage.tree import Tree


def with_resume_mount(spec: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """``spec`` with the output of ``job`` mounted read-only at ``RESUME_MOUNT``."""
    mount = {"volume": job.output_volume, "path": job.output_path, "at": RESUME_MOUNT, "read_only": True}
    others = [other for other in spec.get("mounts") or () if other.get("at") != RESUME_MOUNT]
    return {**spec, "mounts": [*others, mount]}


@dataclass(frozen=True, slots=True)
class Resumable:
    """What the database knows of a job's checkpoints. ``output``: where to look for more; ``None``: not to be seen from here."""

    name: str
    told_path: str | None
    told_step: int | None
    output: Tree | None

    def newest(self) -> str:
        """The newest checkpoint, told or found in the output, as the containers of the job's clone see it.

        Lists files, which may take its time on a network volume: call it outside of transactions.

        Raises:
            InvalidRequest: there is none.
        """
        found = self._in_the_output()
        if found is not None and (self.told_path is None or (found.step or 0) > (self.told_step or 0)):
            return f"{RESUME_MOUNT}/{found.path}"
        if self.told_path is None:
            raise InvalidRequest(
                f"Job {self.name!r} has no complete checkpoint to resume from; clone it without `resume`.",
                field="resume",
            )
        return f"{RESUME_MOUNT}/{self.told_path}"

    def _in_the_output(self) -> FoundCheckpoint | None:
        if self.output is None:
            return None
        try:
            return newest_complete(self.output)
        except (TrainmasterError, OSError):
            return None  # not ours to see, or away at this moment: what the job told of is left


def resumable(session: Session, job: Job) -> Resumable:
    """What to ask for the newest checkpoint of ``job`` once the transaction is closed."""
    query = select(Checkpoint.path, Checkpoint.step).where(Checkpoint.job_id == job.id)
    told = session.execute(
        query.order_by(Checkpoint.step.desc().nulls_last(), Checkpoint.created_at.desc()).limit(1)
    ).one_or_none()
    try:
        output = job_output(session, job)
    except TrainmasterError:
        output = None
    return Resumable(job.name, None if told is None else told.path, None if told is None else told.step, output)


def resume_path(session: Session, job: Job) -> str:
    """The newest checkpoint of ``job``, as the containers of its clone see it; see :meth:`Resumable.newest`."""
    return resumable(session, job).newest()
