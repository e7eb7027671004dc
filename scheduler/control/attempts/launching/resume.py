"""The checkpoint that an attempt resumes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session, aliased

from core.db.tables import Attempt, Checkpoint, Job, Volume
from core.domain.errors import InvalidRequest, TrainmasterError
from core.job_users import FOLDER_MODE
from core.storage import checkpoints
from core.storage.resume_sources import ReportedCheckpoint, Resumable, resumable
from core.storage.tree import Tree
from core.storage.volumes import OUTPUT_MOUNT, boundaries_of, grant_prefixes, make_place, tree_of
from scheduler.control.attempts.attempt_snapshot import JobFacts

# A job may keep only its last few checkpoints; the newest existing one is among these.
_REPORTED_LIMIT: Final = 50
# Of all jobs that share its output; older ones mostly precede this job's first attempt, and do not count for that
# reason.
_OTHERS_LIMIT: Final = 500
# Clocks of file servers differ from ours. Only for an output that no other job has: there times tell whose a file is.
_CLOCK_SLACK: Final = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class ResumeSources:
    """What the database knows. ``volume``: ``None`` when the control plane does not see it. ``since``: checkpoints that
    were complete before are another job's. ``chosen``: the checkpoint that a user chose to resume from, and when the
    first attempt after that began. ``excluded_paths``: paths in this output that another job reported last.
    ``parent``: of a trial that goes on from another trial's checkpoint, that trial's job. ``prefixes``: of the grants
    of the output's volume. ``owner``: (uid, gid) of the output where projects have user ids.
    """

    reported: tuple[ReportedCheckpoint, ...]
    volume: Tree | None
    output_path: str
    since: datetime
    chosen: ReportedCheckpoint | None = None
    excluded_paths: frozenset[str] = frozenset()
    parent: Resumable | None = None
    prefixes: Sequence[str] = ()
    owner: tuple[int, int] | None = None

    @property
    def output(self) -> Tree | None:
        return None if self.volume is None else self.volume.below(self.output_path)

    def make_output(self, *, is_shared: bool, owner: tuple[int, int] | None = None) -> None:
        """Make the job's output folder, where the control plane sees its volume.

        Args:
            is_shared: as in ``boundaries_of``.
            owner: (uid, gid) of the created folders.
        """
        if self.volume is not None:
            boundaries = boundaries_of(self.output_path, self.prefixes, is_shared=is_shared)
            mode = 0o775 if self.owner is None else FOLDER_MODE
            make_place(self.volume, self.output_path, boundaries, self.owner or owner, mode)


def load_outputs(session: Session, jobs: Sequence[JobFacts]) -> list[ResumeSources]:
    """The output locations, which is all that a first attempt needs: it has no checkpoints of its own."""
    names = {job.output_volume for job in jobs}
    found = {row.name: row for row in session.scalars(select(Volume).where(Volume.name.in_(names)))}
    volumes = {name: tree_of(row) for name, row in found.items() if row.root is not None}
    parents = _parents(session, jobs)
    prefixes = grant_prefixes(session, names)
    return [
        ResumeSources(
            (),
            volumes.get(job.output_volume),
            job.output_path,
            job.created_at,
            parent=parents.get(job.id),
            prefixes=prefixes.get(job.output_volume, ()),
        )
        for job in jobs
    ]


def load_sources(session: Session, job: JobFacts) -> ResumeSources:
    """Read the inputs of :func:`find_resume_path`."""
    rows = session.execute(
        select(Checkpoint.path, Checkpoint.step, Checkpoint.created_at)
        .where(Checkpoint.job_id == job.id)
        .order_by(Checkpoint.step.desc().nulls_last(), Checkpoint.created_at.desc())
        .limit(_REPORTED_LIMIT)
    ).all()
    volume = session.execute(select(Volume).where(Volume.name == job.output_volume)).scalar_one_or_none()
    excluded_paths = _reported_by_others(session, job)
    own = tuple(
        ReportedCheckpoint(row.path, row.step, row.created_at)
        for row in rows
        if row.path not in excluded_paths or row.created_at >= excluded_paths[row.path]
    )
    choice = session.execute(select(Job.resume_choice).where(Job.id == job.id)).scalar_one_or_none()
    return ResumeSources(
        own,
        None if volume is None or volume.root is None else tree_of(volume),
        job.output_path,
        _own_since(session, job),
        None if choice is None else ReportedCheckpoint(choice["path"], None, _began_after(session, job, choice["at"])),
        frozenset(excluded_paths) - {checkpoint.path for checkpoint in own},
        _parents(session, [job]).get(job.id),
        grant_prefixes(session, [job.output_volume]).get(job.output_volume, ()),
    )


def _parents(session: Session, jobs: Sequence[JobFacts]) -> dict[str, Resumable]:
    """The parents of trials that go on from other trials, by the trial's job."""
    children = [job.id for job in jobs if job.trial is not None and job.resume_from is not None]
    if not children:
        return {}
    child, parent = aliased(Job), aliased(Job)
    query = select(child.id, parent).join(parent, parent.id == child.cloned_from).where(child.id.in_(children))
    return {row[0]: resumable(session, row[1]) for row in session.execute(query.where(parent.deleted_at.is_(None)))}


def _reported_by_others(session: Session, job: JobFacts) -> dict[str, datetime]:
    """Checkpoints reported by jobs that share the output, such as an original that runs next to its clone, and when."""
    rows = session.execute(
        select(Checkpoint.path, Checkpoint.created_at)
        .where(Checkpoint.job_id.in_(_sharers(job)))
        .order_by(Checkpoint.created_at.desc())
        .limit(_OTHERS_LIMIT)
    ).all()
    return {row.path: row.created_at for row in reversed(rows)}


def _sharers(job: JobFacts) -> Select[str]:
    return select(Job.id).where(
        Job.output_volume == job.output_volume, Job.output_path == job.output_path, Job.id != job.id
    )


def _own_since(session: Session, job: JobFacts) -> datetime:
    if session.execute(_sharers(job).limit(1)).scalar_one_or_none() is None:
        return job.created_at - _CLOCK_SLACK
    # A clone often begins seconds after its original wrote its last checkpoint, or while it still writes.
    first = session.execute(select(func.min(Attempt.created_at)).where(Attempt.job_id == job.id)).scalar_one()
    return first or job.created_at


def _began_after(session: Session, job: JobFacts, at: str) -> datetime:
    # The previous attempt may have written one more checkpoint when it was stopped for the choice.
    query = select(func.min(Attempt.created_at)).where(
        Attempt.job_id == job.id, Attempt.created_at > datetime.fromisoformat(at)
    )
    return session.execute(query).scalar_one() or datetime.max.replace(tzinfo=UTC)


def find_resume_path(job: JobFacts, sources: ResumeSources) -> str | None:
    """The newest complete checkpoint of earlier attempts, as a path in the containers; else what a clone was given.

    Reported checkpoints count while they exist; a scan finds unreported ones. After a user chose a checkpoint, only
    those that later attempts wrote precede it. Blocks on the file system.
    """
    chosen = sources.chosen
    if chosen is not None and not _is_there(sources.output, chosen.path):
        chosen = None  # deleted since: the choice is void
    since = None if chosen is None else chosen.at
    recent = [checkpoint for checkpoint in sources.reported if since is None or checkpoint.at > since]
    reported = next((checkpoint for checkpoint in recent if _is_there(sources.output, checkpoint.path)), None)
    found = _scan(sources.output, sources.since if since is None else max(since, sources.since), sources.excluded_paths)
    if reported is not None and (
        found is None or _rank(reported.step, reported.at) >= _rank(found.step, found.modified_at)
    ):
        return f"{OUTPUT_MOUNT}/{reported.path}"
    if found is not None:
        return f"{OUTPUT_MOUNT}/{found.path}"
    if chosen is not None:
        return f"{OUTPUT_MOUNT}/{chosen.path}"
    return explicit_path(job, sources)


def explicit_path(job: JobFacts, sources: ResumeSources) -> str | None:
    """The checkpoint that a clone was given. A trial's parent, which may still run, may have deleted it for newer ones:
    then the nearest that exists, as from the parent's last checkpoint nothing would be left to train. Blocks on the
    file system.
    """
    given, parent = job.resume_from, sources.parent
    if given is None or parent is None or parent.has(given):
        return given
    try:
        return parent.replacement_for(given)
    except InvalidRequest:
        return given  # the trial fails with that path, and says so


def _rank(step: int | None, at: datetime) -> tuple[bool, int, datetime]:
    return (step is not None, step or 0, at)


def _is_there(output: Tree | None, path: str) -> bool:
    if output is None:
        return True  # invisible from here: only the job's report is known
    try:
        return output.exists(path)
    except TrainmasterError:
        return False


def _scan(
    output: Tree | None, since: datetime, excluded_paths: frozenset[str]
) -> checkpoints.ResumableCheckpoint | None:
    if output is None:
        return None
    try:
        return checkpoints.newest_complete(output, since=since, except_paths=excluded_paths)
    except (TrainmasterError, OSError):
        return None  # the volume is away at this moment: the reported checkpoints are left
