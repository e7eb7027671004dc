"""Callers of the Cloud Storage API, and the buckets that each may use.

Users send their tokens. A job's script sends its attempt's token: it may use what the job mounts, with the mounts'
rights. Vertex AI's SDK sends no token when it stages packages.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import Depends, Request
from trainmaster.spec import JobSpec

from api.app.token_scopes import Scope
from api.app.unit_of_work import AppContext, AppContextDep
from api.auth import Caller
from api.http.connections import is_proxied
from api.protocols.gcs import buckets
from api.protocols.gcs.buckets import Bucket, outermost, volume_of
from api.protocols.kit.script_access import ScriptAccess, script_or_caller
from api.protocols.kit.vertex_table import table_of
from core.db.tables import Job
from core.domain.errors import Forbidden, NotFound, Unauthenticated
from core.domain.ids import AttemptId
from core.storage.volumes import split_location, tree_of

# As `aiplatform.utils` names what it stages: aiplatform-<time>-<package>.tar.gz.
PACKAGE: Final = re.compile(
    r"(?:[^/]+/){0,20}aiplatform-[0-9]{4}-[0-9]{2}-[0-9]{2}-[0-9:.]{8,20}-[\w.+-]{1,150}\.(?:tar\.gz|whl)"
)
PACKAGE_LIMIT_BYTES: Final = 64 * 2**20
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1"})
# A foreign web page in a local browser must not act for the local user.
_OF_PAGES: Final = ("origin", "sec-fetch-site")

# An attempt's id stands for the job's script, which may use what the job has mounted.
StorageCaller = Caller | AttemptId


def find_bucket(context: AppContext, caller: StorageCaller, name: str, *, writes: bool = False) -> Bucket:
    """The bucket of this name, if ``caller`` may read or, with ``writes``, write there. Raises ``NotFound``,
    ``Forbidden``.
    """
    if isinstance(caller, Caller):
        return buckets.find_bucket(context, caller, name, writes=writes)
    return _script_bucket(context, caller, name, writes=writes)


def bucket_names(context: AppContext, caller: StorageCaller) -> list[str]:
    return buckets.bucket_names(context, caller) if isinstance(caller, Caller) else _script_buckets(context, caller)


def _storage_caller(scope: Scope) -> Callable[..., Awaitable[StorageCaller]]:
    async def storage_caller(request: Request, context: AppContextDep) -> StorageCaller:
        return await script_or_caller(request, context, scope)

    return storage_caller


async def _uploader(request: Request, context: AppContextDep) -> StorageCaller | None:
    """The caller; ``None`` if the request has no token but may stage a new package.

    ``CustomJob.from_local_script`` of Vertex AI's SDK sends no token to a storage emulator, whatever its credentials.
    """
    if "authorization" in request.headers or "cookie" in request.headers:
        return await script_or_caller(request, context, Scope.WRITE)
    setting = context.settings.vertex_open_staging
    is_here = request.client is not None and request.client.host in _LOOPBACK
    is_direct = not is_proxied(request.headers) and not any(name in request.headers for name in _OF_PAGES)
    if is_direct and (setting == "anywhere" or (setting == "loopback" and is_here)):
        return None
    raise Unauthenticated(
        "This needs a token: with API_ENDPOINT_OVERRIDE instead of STORAGE_EMULATOR_HOST Google's client sends one "
        "(`trainmaster vertex-env`)."
    )


StorageReader = Annotated[StorageCaller, Depends(_storage_caller(Scope.READ))]
StorageWriter = Annotated[StorageCaller, Depends(_storage_caller(Scope.WRITE))]
Uploader = Annotated[StorageCaller | None, Depends(_uploader)]


# --- buckets of a script ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Mounted:
    """A folder or file of a volume that a job mounts."""

    volume: str
    path: str
    is_writable: bool


def _script_bucket(context: AppContext, attempt: AttemptId, name: str, *, writes: bool) -> Bucket:
    """The bucket of this name, limited to what the script's job mounts.

    Raises:
        NotFound, Forbidden: the job mounts nothing of the bucket, or may only read.
        AttemptEnded: the attempt ended more than a minute ago.
    """
    project, mounted = _mounted(context, attempt)
    volume, base = volume_of(context, table_of(context).bucket(name), frozenset({project}))
    mounts = [] if volume is None else [mount for mount in mounted if mount.volume == volume.name]
    paths = {mount.path: mount.is_writable for mount in sorted(mounts, key=lambda mount: mount.is_writable)}
    known = {below: paths[path] for path in paths if (below := _below(path, base)) is not None}
    if volume is None or volume.root is None or not known:
        raise NotFound(
            f"Bucket {name} is none of this job's. A job has those that its command, arguments, environment, packages "
            f"or base output directory name, so name gs://{name} in one of them."
        )
    folders = frozenset(path for path, is_writable in known.items() if is_writable or not writes)
    if not folders or (writes and volume.is_read_only):
        raise Forbidden(f"Bucket {name} is read-only for this job.")
    is_shared = volume.name == context.settings.default_volume and not base
    owners = frozenset({project}) if is_shared else None
    within = None if "" in folders else outermost(folders)
    return Bucket(name, volume.name, base, tree_of(volume), volume.is_read_only, is_shared, owners, within)


def _script_buckets(context: AppContext, attempt: AttemptId) -> list[str]:
    """Names of the buckets of which the job mounts something."""
    project, mounted = _mounted(context, attempt)
    shared = context.settings.default_volume
    own = {project for mount in mounted if mount.volume == shared and _below(mount.path, project) is not None}
    return [*sorted({mount.volume for mount in mounted} - own), *sorted(own)]


def _mounted(context: AppContext, attempt: AttemptId) -> tuple[str, list[_Mounted]]:
    """The name of the attempt's project, and the job's mounts."""
    with context.read() as work:
        access = ScriptAccess(attempt).load(work.session, work.now)
        job = work.session.get_one(Job, access.job_id)
        spec = JobSpec.model_validate(job.spec)
        mounts = [_Mounted(job.output_volume, job.output_path.strip("/"), is_writable=True)]
    mounts += [_Mounted(mount.volume, mount.path.strip("/"), is_writable=not mount.read_only) for mount in spec.mounts]
    if spec.input is not None:
        volume, path = split_location(spec.input, field="input")
        mounts.append(_Mounted(volume, path.strip("/"), is_writable=False))
    return access.project, mounts


def _below(path: str, base: str) -> str | None:
    """``path`` relative to ``base``: empty if it contains all of ``base``; ``None`` if it lies elsewhere."""
    if not base:
        return path
    if not path or path == base:
        return ""
    return path.removeprefix(f"{base}/") if path.startswith(f"{base}/") else None
