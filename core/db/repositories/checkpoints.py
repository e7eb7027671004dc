"""What users decided about checkpoints, and which of them are in use."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from sqlalchemy import and_, delete, or_, select
from sqlalchemy.orm import Session

from core.db.repositories.metric_reads import Filter, Window, find_series, read_chart
from core.db.tables import Attempt, Checkpoint, Job, KeptCheckpoint
from core.domain.retention import Candidate
from core.domain.states import JobState
from core.inspection.landing import Landed, all_landed
from core.storage.outputs import OUTPUT_MOUNT, RESUME_MOUNT
from core.storage.tree import Tree

# Series that are looked at, lookups of one call, and points at one step.
_SERIES: Final = 24
_LOOKUPS: Final = 240
_POINTS: Final = 4096
_OVER: Final = [state.value for state in JobState if state.is_terminal]


def kept_paths(session: Session, job: Job) -> set[str]:
    """The checkpoints in the job's output that are kept for ever, whichever job of this output they were kept for."""
    query = (
        select(KeptCheckpoint.path)
        .join(Job, Job.id == KeptCheckpoint.job_id)
        .where(Job.output_volume == job.output_volume, Job.output_path == job.output_path)
    )
    return set(session.scalars(query))


def used_paths(session: Session, job: Job) -> set[str]:
    """The checkpoints in the job's output that a job which has not ended goes on from, or was told to."""
    shares = and_(Job.output_volume == job.output_volume, Job.output_path == job.output_path)
    rows = session.execute(
        select(Job.cloned_from, shares.label("shares"), Job.resume_from, Job.resume_choice, Attempt.resume_from)
        .outerjoin(Attempt, and_(Attempt.job_id == Job.id, Attempt.ended_at.is_(None)))
        .where(Job.state.not_in(_OVER), Job.deleted_at.is_(None), or_(shares, Job.cloned_from == job.id))
    ).all()
    found: set[str] = set()
    for cloned_from, is_here, given, choice, used in rows:
        mounts = [OUTPUT_MOUNT] * bool(is_here) + [RESUME_MOUNT] * (cloned_from == job.id)
        for path in (given, used):
            found |= {path.removeprefix(f"{mount}/") for mount in mounts if path and path.startswith(f"{mount}/")}
        if choice and is_here:
            found.add(choice["path"])
    return found


def complete_of(session: Session, job: Job, tree: Tree) -> list[tuple[Candidate, Landed]]:
    """The complete checkpoints in the output ``tree`` of ``job``, with what it told of them; in no order.

    Raises:
        TrainmasterError: the volume is away.
    """
    rows = session.execute(
        select(Checkpoint.path, Checkpoint.step, Checkpoint.metrics, Checkpoint.created_at).where(
            Checkpoint.job_id == job.id
        )
    )
    told = {row.path: row for row in rows}
    found = []
    for landed in all_landed(tree):
        row = told.get(landed.path)
        # Of a folder the job knows best when it is complete; of a file its end tells.
        if landed.is_complete or (row is not None and landed.is_dir):
            step = landed.step if row is None or row.step is None else row.step
            metrics = {} if row is None else row.metrics
            found.append((Candidate(landed.path, step, landed.modified_at, metrics), landed))
    return found


def metrics_at(
    session: Session, job_id: str, steps: Sequence[int], *, names: Sequence[str] = (), lookups: int = _LOOKUPS
) -> dict[int, dict[str, float]]:
    """The last values that the job's processes told at these steps, of the metrics ``names`` or of the first few.

    For as many steps, the first ones first, as ``lookups`` allow: each step of each series is looked up by itself.
    """
    if not steps:
        return {}
    only = Filter(names=names, kind="scalar", without_prefix="system/")
    series = find_series(session, [job_id], only, limit=_SERIES)
    found: dict[int, dict[str, float]] = {}
    for step in steps[: lookups // max(1, len(series))]:
        values = found.setdefault(step, {})
        for one in series:  # by attempt: the newest one's word counts
            points = read_chart(session, one, Window("step", step, step), _POINTS).points
            if points is not None and len(points) and math.isfinite(points.values[-1]):
                values[one.name] = points.values[-1]
    return found


def forget(session: Session, job: Job, path: str) -> None:
    """No job of this output tells of the checkpoint any more."""
    same = select(Job.id).where(Job.output_volume == job.output_volume, Job.output_path == job.output_path)
    session.execute(delete(Checkpoint).where(Checkpoint.job_id.in_(same), Checkpoint.path == path))
