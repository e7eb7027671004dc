"""Buckets of a job's script: with the attempt's token it may use what the job mounts, with the mounts' rights."""

from __future__ import annotations

from dataclasses import dataclass

from trainmaster.spec import JobSpec

from api.app.unit_of_work import AppContext
from api.protocols.gcs.buckets import Bucket, volume_of
from api.protocols.mlflow.callers import ScriptAccess
from api.protocols.vertex.table import Table, table_of
from core.db.tables import Job
from core.domain.errors import Forbidden, NotFound
from core.domain.ids import AttemptId
from core.storage.volumes import split_location, tree_of


@dataclass(frozen=True, slots=True)
class Mounted:
    """A folder or file of a volume that a job mounts."""

    volume: str
    path: str
    is_writable: bool


def script_bucket(
    context: AppContext, attempt: AttemptId, name: str, *, writes: bool = False, table: Table | None = None
) -> Bucket:
    """The bucket of this name, limited to what the script's job mounts.

    Raises:
        NotFound, Forbidden: the job mounts nothing of the bucket, or may only read.
        AttemptEnded: the attempt ended more than a minute ago.
    """
    project, mounted = _mounted(context, attempt)
    table = table_of(context) if table is None else table
    volume, base = volume_of(context, table.bucket(name), frozenset({project}))
    found = [] if volume is None else [one for one in mounted if one.volume == volume.name]
    paths = {one.path: one.is_writable for one in sorted(found, key=lambda one: one.is_writable)}
    known = {below: paths[path] for path in paths if (below := _below(path, base)) is not None}
    if volume is None or volume.root is None or not known:
        raise NotFound(
            f"Bucket {name} is none of this job's. A job has those that its command, arguments, environment, packages "
            f"or base output directory name, so name gs://{name} in one of them."
        )
    folders = frozenset(path for path, is_writable in known.items() if is_writable or not writes)
    if not folders or (writes and volume.is_read_only):
        raise Forbidden(f"Bucket {name} is read-only for this job.")
    shared = volume.name == context.settings.default_volume
    is_shared = shared and not base
    owners = frozenset({project}) if is_shared else None
    within = None if "" in folders else _outermost(folders)
    return Bucket(name, volume.name, base, tree_of(volume), volume.is_read_only, is_shared, owners, within)


def script_buckets(context: AppContext, attempt: AttemptId) -> list[str]:
    """Names of the buckets of which the job mounts something."""
    project, mounted = _mounted(context, attempt)
    shared = context.settings.default_volume
    own = {project for one in mounted if one.volume == shared and _below(one.path, project) is not None}
    return [*sorted({one.volume for one in mounted} - own), *sorted(own)]


def _mounted(context: AppContext, attempt: AttemptId) -> tuple[str, list[Mounted]]:
    """The name of the attempt's project, and the job's mounts."""
    with context.read() as work:
        access = ScriptAccess(attempt).load(work.session, work.now)
        job = work.session.get_one(Job, access.job_id)
        spec = JobSpec.model_validate(job.spec)
        found = [Mounted(job.output_volume, job.output_path.strip("/"), is_writable=True)]
    found += [Mounted(one.volume, one.path.strip("/"), is_writable=not one.read_only) for one in spec.mounts]
    if spec.input is not None:
        volume, path = split_location(spec.input, field="input")
        found.append(Mounted(volume, path.strip("/"), is_writable=False))
    return access.project, found


def _below(path: str, base: str) -> str | None:
    """``path`` relative to ``base``: empty if it contains all of ``base``; ``None`` if it lies elsewhere."""
    if not base:
        return path
    if not path or path == base:
        return ""
    return path.removeprefix(f"{base}/") if path.startswith(f"{base}/") else None


def _outermost(folders: frozenset[str]) -> frozenset[str]:
    return frozenset(
        path for path in folders if not any(path.startswith(f"{other}/") for other in folders if other != path)
    )
