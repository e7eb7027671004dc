"""Who speaks Cloud Storage: users by their tokens, and Vertex AI's SDK without one, where it cannot send it."""

from __future__ import annotations

import re
from typing import Annotated, Final

from fastapi import Depends, Request

from api.auth import Caller, Scope, authenticate, require
from api.work import PlatformDep
from core.domain.errors import Forbidden, Unauthenticated

# As `aiplatform.utils` names what it stages: aiplatform-<time>-<package>.tar.gz.
PACKAGE: Final = re.compile(
    r"(?:[^/]+/){0,20}aiplatform-[0-9]{4}-[0-9]{2}-[0-9]{2}-[0-9:.]{8,20}-[\w.+-]{1,150}\.(?:tar\.gz|whl)"
)
PACKAGE_LIMIT_BYTES: Final = 64 * 2**20
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1"})
# Whoever asks through a proxy on this machine comes from somewhere else.
_FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
# A page of somebody else's, in a browser on this machine, is not who sits at it.
_OF_PAGES: Final = ("origin", "sec-fetch-site")


async def _uploader(request: Request, platform: PlatformDep) -> Caller | None:
    """``None``: who may stage a new package without a token.

    ``CustomJob.from_local_script`` of Vertex AI's SDK sends none to a storage emulator, whatever credentials it was given.
    """
    if "authorization" in request.headers or "cookie" in request.headers:
        found = await authenticate(request, platform)
        if not found.may(Scope.WRITE):
            raise Forbidden("This needs a token of scope write; log in with another one.")
        return found
    setting = platform.settings.vertex_open_staging
    is_here = request.client is not None and request.client.host in _LOOPBACK
    is_direct = not any(name in request.headers for name in (*_FORWARDED, *_OF_PAGES))
    if setting == "anywhere" or (setting == "loopback" and is_here and is_direct):
        return None
    raise Unauthenticated("This needs a token; `trainmaster vertex-env` tells how Google's client sends one.")


StorageReader = Annotated[Caller, Depends(require(Scope.READ))]
StorageWriter = Annotated[Caller, Depends(require(Scope.WRITE))]
Uploader = Annotated[Caller | None, Depends(_uploader)]
