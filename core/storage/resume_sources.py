"""Resuming from another job's checkpoint: the mount, and the choice of the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.tables import Checkpoint, Job
from core.domain.errors import InvalidRequest, TrainmasterError
from core.inspection.discovery import CheckpointFiles, find_checkpoints
from core.storage.checkpoints import FOLDER, is_checkpoint_name, step_in
from core.storage.tree import Tree
from core.storage.volumes import RESUME_MOUNT, job_output

# A job may retain its last few only; the newest existing one is among these.
_REPORTED_LIMIT: Final = 50


def with_resume_mount(spec: Mapping[str, Any], job: Job) -> dict[str, Any]:
    """``spec`` with the output of ``job`` mounted read-only at ``RESUME_MOUNT``."""
    mount = {"volume": job.output_volume, "path": job.output_path, "at": RESUME_MOUNT, "read_only": True}
    others = [other for other in spec.get("mounts") or () if other.get("at") != RESUME_MOUNT]
    return {**spec, "mounts": [*others, mount]}


@dataclass(frozen=True, slots=True)
class ReportedCheckpoint:
    """A checkpoint that the job reported. ``path`` is relative to the output."""

    path: str
    step: int | None
    at: datetime


@dataclass(frozen=True, slots=True)
class Resumable:
    """What the database knows of a job's checkpoints. ``reported``: newest first. ``output``: where to check that they
    exist, and for more; ``None``: not visible from here.
    """

    name: str
    reported: tuple[ReportedCheckpoint, ...]
    output: Tree | None

    def newest(self) -> str:
        """The newest complete checkpoint, reported or found in the output, as the containers of the job's clone see it.

        Lists files, which may be slow on a network volume: call it outside of transactions.

        Raises:
            InvalidRequest: there is none.
        """
        return self._chosen(None)

    def replacement_for(self, path: str) -> str:
        """The replacement for the missing checkpoint ``path``: the next later one, else the newest."""
        return self._chosen(step_in(path.rpartition("/")[2]))

    def _chosen(self, step: int | None) -> str:
        found = self._found()
        if not found:
            raise InvalidRequest(
                f"Job {self.name!r} has no complete checkpoint to resume from; clone it without `resume`.",
                field="resume",
            )
        newest = max(found, key=lambda checkpoint: (checkpoint.step is not None, checkpoint.step or 0, checkpoint.at))
        after = (
            []
            if step is None
            else [checkpoint for checkpoint in found if checkpoint.step is not None and checkpoint.step >= step]
        )
        chosen = min(after, key=lambda checkpoint: checkpoint.step or 0, default=newest)
        return f"{RESUME_MOUNT}/{chosen.path}"

    def has(self, path: str) -> bool:
        """Whether the checkpoint that a clone was given exists, as far as visible. Blocks on the file system."""
        if self.output is None:
            return True
        try:
            return self.output.exists(path.removeprefix(f"{RESUME_MOUNT}/"))
        except TrainmasterError:
            return True  # away at this moment

    def _found(self) -> list[ReportedCheckpoint]:
        if self.output is None:
            return list(self.reported)
        try:
            landed = {checkpoint.path: checkpoint for checkpoint in find_checkpoints(self.output)}
            # For a folder, the job's report says when it is complete; for a file, its end does.
            there = [
                checkpoint
                for checkpoint in self.reported
                if (landed[checkpoint.path].is_complete or landed[checkpoint.path].is_dir
                    if checkpoint.path in landed else self.output.exists(checkpoint.path))
            ]  # fmt: skip
        except (TrainmasterError, OSError):
            return list(self.reported)  # away at this moment: what the job told of is left
        known = {checkpoint.path for checkpoint in there}
        return [
            *there,
            *(
                ReportedCheckpoint(checkpoint.path, checkpoint.step, checkpoint.modified_at)
                for checkpoint in landed.values()
                if checkpoint.is_complete and checkpoint.path not in known and _is_for_resuming(checkpoint)
            ),
        ]


def _is_for_resuming(landed: CheckpointFiles) -> bool:
    """Whether it is a training state, not a final model or a settings file next to it."""
    if not landed.path.startswith(f"{FOLDER}/"):
        return landed.format == "huggingface" and landed.step is not None
    return landed.is_dir or landed.step is not None or is_checkpoint_name(landed.path)


def resumable(session: Session, job: Job) -> Resumable:
    """The query for the newest checkpoint of ``job``, to be evaluated after the transaction."""
    query = select(Checkpoint.path, Checkpoint.step, Checkpoint.created_at).where(Checkpoint.job_id == job.id)
    rows = session.execute(
        query.order_by(Checkpoint.step.desc().nulls_last(), Checkpoint.created_at.desc()).limit(_REPORTED_LIMIT)
    )
    reported = tuple(ReportedCheckpoint(row.path, row.step, row.created_at) for row in rows)
    try:
        output = job_output(session, job)
    except TrainmasterError:
        output = None
    return Resumable(job.name, reported, output)


def resume_path(session: Session, job: Job) -> str:
    """The newest checkpoint of ``job``, as the containers of its clone see it; see :meth:`Resumable.newest`."""
    return resumable(session, job).newest()
