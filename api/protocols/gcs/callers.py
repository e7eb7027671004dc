"""Callers of the Cloud Storage API: users (their tokens), job scripts (attempt tokens), and Vertex AI's SDK, which
sends no token when it stages packages.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Annotated, Final

from fastapi import Depends, Request

from api.app.unit_of_work import AppContext, AppContextDep
from api.auth import Caller, Scope, attempt_or_caller
from api.protocols.gcs import buckets
from api.protocols.gcs.job_buckets import script_bucket, script_buckets
from core.domain.errors import Forbidden, Unauthenticated
from core.domain.ids import AttemptId

# As `aiplatform.utils` names what it stages: aiplatform-<time>-<package>.tar.gz.
PACKAGE: Final = re.compile(
    r"(?:[^/]+/){0,20}aiplatform-[0-9]{4}-[0-9]{2}-[0-9]{2}-[0-9:.]{8,20}-[\w.+-]{1,150}\.(?:tar\.gz|whl)"
)
PACKAGE_LIMIT_BYTES: Final = 64 * 2**20
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1"})
# With a proxy on this machine the real client may be elsewhere.
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
# A foreign web page in a local browser must not act for the local user.
_OF_PAGES: Final = ("origin", "sec-fetch-site")


# An attempt's id stands for the job's script, which may use what the job has mounted.
StorageCaller = Caller | AttemptId


def find_bucket(context: AppContext, caller: StorageCaller, name: str, *, writes: bool = False) -> buckets.Bucket:
    """The bucket of this name, if ``who`` may read or, with ``writes``, write there. Raises ``NotFound``,
    ``Forbidden``.
    """
    if isinstance(caller, Caller):
        return buckets.find_bucket(context, caller, name, writes=writes)
    return script_bucket(context, caller, name, writes=writes)


def bucket_names(context: AppContext, caller: StorageCaller) -> list[str]:
    return buckets.bucket_names(context, caller) if isinstance(caller, Caller) else script_buckets(context, caller)


def _storage_caller(scope: Scope) -> Callable[..., Awaitable[StorageCaller]]:
    async def storage_caller(request: Request, context: AppContextDep) -> StorageCaller:
        return await _authenticated(request, context, scope)

    return storage_caller


async def _authenticated(request: Request, context: AppContext, scope: Scope) -> StorageCaller:
    found = await attempt_or_caller(request, context)
    if isinstance(found, Caller) and not found.may(scope):
        raise Forbidden(f"This needs a token of scope {scope}; log in with another one.")
    return found


async def _uploader(request: Request, context: AppContextDep) -> StorageCaller | None:
    """The caller; ``None`` if the request has no token but may stage a new package.

    ``CustomJob.from_local_script`` of Vertex AI's SDK sends no token to a storage emulator, whatever its credentials.
    """
    if "authorization" in request.headers or "cookie" in request.headers:
        return await _authenticated(request, context, Scope.WRITE)
    setting = context.settings.vertex_open_staging
    is_here = request.client is not None and request.client.host in _LOOPBACK
    is_direct = not any(name in request.headers for name in (*_FORWARDED, *_OF_PAGES))
    if setting == "anywhere" or (setting == "loopback" and is_here and is_direct):
        return None
    raise Unauthenticated("This needs a token; `trainmaster vertex-env` tells how Google's client sends one.")


StorageReader = Annotated[StorageCaller, Depends(_storage_caller(Scope.READ))]
StorageWriter = Annotated[StorageCaller, Depends(_storage_caller(Scope.WRITE))]
Uploader = Annotated[StorageCaller | None, Depends(_uploader)]
