"""Packages that Ray's client uploads: zip files, stored as our code archives."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import IO, Final

from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from api.app.unit_of_work import AppContext
from api.archives.service import announce, note_complete, store_of
from api.auth import Caller
from api.protocols.kit.errors import NotServed
from api.protocols.kit.streams import BLOCK_BYTES, large_blocks
from api.protocols.ray.repack import repack
from api.protocols.ray.runtime_env import PACKAGE_NAME, PROTOCOL
from core.db.tables import Archive, RayPackage
from core.db.upsert import insert_into
from core.domain.errors import InvalidRequest, NotFound, PayloadTooLarge
from core.storage.archives import WrongOffset

# Temporary files are on the archives' disk, which has the space; they vanish with their descriptor.
_FOLDER: Final = "partial"


def check_package_name(protocol: str, name: str) -> None:
    """Raises ``InvalidRequest`` for a name that is not a package's."""
    if name.endswith(".whl"):
        raise NotServed("Wheels (py_modules) are not served by this platform; name them in pip.")
    if protocol != PROTOCOL or not PACKAGE_NAME.fullmatch(name):
        raise InvalidRequest(f"A package is named {PROTOCOL}/<name>.zip.")


def digest_of_package(session: Session, context: AppContext, caller: Caller, name: str) -> str:
    """Digest of the code archive made from the caller's package. Raises ``NotFound`` if it must be uploaded."""
    query = (
        select(Archive.digest)
        .join(RayPackage, RayPackage.digest == Archive.digest)
        .where(RayPackage.user_id == caller.user_id, RayPackage.name == name, Archive.is_complete)
    )
    digest = session.execute(query).scalar_one_or_none()
    if digest is None or not store_of(context).has(digest):
        raise NotFound(f"Package {PROTOCOL}://{name} does not exist.")
    return digest


async def upload(context: AppContext, caller: Caller, name: str, blocks: AsyncIterator[bytes], announced: int) -> None:
    """Store a package, replacing one of the same name. ``announced``: size in bytes, 0 if unknown.

    Raises:
        PayloadTooLarge, InvalidRequest (no zip), InsufficientStorage.
    """
    limit = context.settings.archive_limit_bytes
    if announced > limit:
        raise _too_large(limit)
    folder = context.settings.archive_dir / _FOLDER
    with await run_in_threadpool(_temporary, folder) as package:
        size = 0
        async for block in large_blocks(blocks):
            size += len(block)
            if size > limit:
                raise _too_large(limit)
            await run_in_threadpool(package.write, block)
        await run_in_threadpool(_keep, context, caller, name, package)


def _keep(context: AppContext, caller: Caller, name: str, package: IO[bytes]) -> None:
    with _temporary(context.settings.archive_dir / _FOLDER) as packed:
        package.seek(0)
        repack(package, packed)
        digest = _send(context, caller, packed)
    with context.write() as work:
        fresh = insert_into(work.session, RayPackage).values(
            user_id=caller.user_id, name=name, digest=digest, created_at=work.now
        )
        # The same package may be uploaded twice at once.
        again = {"digest": fresh.excluded.digest, "created_at": fresh.excluded.created_at}
        work.session.execute(fresh.on_conflict_do_update(index_elements=["user_id", "name"], set_=again))


def _send(context: AppContext, caller: Caller, packed: IO[bytes]) -> str:
    """Store a .tar.gz as a code archive, as our own client does; returns the digest."""
    packed.flush()
    packed.seek(0)
    digest = f"sha256:{hashlib.file_digest(packed, 'sha256').hexdigest()}"  # type: ignore[arg-type]
    store = store_of(context)
    found = announce(context, caller, digest, packed.seek(0, os.SEEK_END))
    while not found.is_complete:
        packed.seek(found.received_bytes)
        chunk = packed.read(BLOCK_BYTES)
        try:
            found = store.append(digest, caller.user_id, offset=found.received_bytes, chunk=chunk)
        except WrongOffset:  # the same package is uploaded twice at once
            found = store.look(digest, caller.user_id)
    note_complete(context, caller, found)
    return digest


def _temporary(folder: Path) -> IO[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryFile(dir=folder)


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"The package is larger than {limit:,} bytes; leave files out with `excludes` or a .gitignore file, and mount "
        "data from a volume."
    )
