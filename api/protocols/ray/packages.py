"""Packages that Ray's client uploads: zip files, stored as our code archives.

An untrusted zip is converted as a stream: nothing is unpacked to disk, and every claim is checked.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final, cast

from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from api.app.unit_of_work import AppContext
from api.archives import announce_archive, archive_store, register_archive
from api.auth import Caller
from api.protocols.kit.errors import NotServed
from api.protocols.kit.streams import BLOCK_BYTES, large_blocks
from api.protocols.ray.requests import PACKAGE_NAME, PROTOCOL
from core.db.engine import insert_into
from core.db.tables import Archive, RayPackage
from core.domain.errors import InvalidRequest, NotFound, PayloadTooLarge
from core.storage.archives import WrongOffset

# Temporary files are on the archives' disk, which has the space; they vanish with their descriptor.
_FOLDER: Final = "partial"
# The same limits as the runtime's for code archives.
UNPACKED_LIMIT: Final = 8 * 2**30  # bytes
FILE_LIMIT: Final = 100_000
_LEVEL: Final = 6
_BROKEN: Final = (
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,  # an unknown compression method or version
    RuntimeError,  # encrypted
    OverflowError,
    ValueError,
    OSError,  # shorter than it says
)


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
    if digest is None or not archive_store(context).has(digest):
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
    store = archive_store(context)
    progress = announce_archive(context, caller, digest, packed.seek(0, os.SEEK_END))
    while not progress.is_complete:
        packed.seek(progress.received_bytes)
        chunk = packed.read(BLOCK_BYTES)
        try:
            progress = store.append(digest, caller.user_id, offset=progress.received_bytes, chunk=chunk)
        except WrongOffset:  # the same package is uploaded twice at once
            progress = store.upload_progress(digest, caller.user_id)
    register_archive(context, caller, progress)
    return digest


def _temporary(folder: Path) -> IO[bytes]:
    folder.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryFile(dir=folder)


def _too_large(limit: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"The package is larger than {limit:,} bytes; leave files out with `excludes` or a .gitignore file, and mount "
        "data from a volume."
    )


# --- from zip to .tar.gz ---------------------------------------------------------------------------------------------


def repack(source: IO[bytes], target: IO[bytes], *, unpacked_limit: int = UNPACKED_LIMIT) -> int:
    """Write the files of the zip ``source`` as a .tar.gz to ``target``; the number of them.

    The same files give the same bytes, whenever they were packed. The execute bit is preserved.

    Raises:
        InvalidRequest: no zip, a damaged or encrypted one, names that lead out of it, links, too much in it.
    """
    try:
        archive = zipfile.ZipFile(source)
    except _BROKEN as error:
        raise InvalidRequest(f"The package is no zip file: {error}; upload it again.") from error
    count = 0
    with (
        archive,
        gzip.GzipFile(filename="", mode="wb", fileobj=target, compresslevel=_LEVEL, mtime=0) as packed,
        tarfile.open(fileobj=cast("IO[bytes]", packed), mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        room = unpacked_limit
        for info in _members(archive):
            member = _member_of(info)
            room -= member.size
            if room < 0:
                raise InvalidRequest(
                    f"The package unpacks to more than {unpacked_limit // 2**20:,} MiB; leave data out with `excludes` "
                    "or a .gitignore file, and mount data from a volume."
                )
            if member.isdir():
                tar.addfile(member)
                continue
            count += 1
            # Reads exactly the size in the header, or fails; at the end the checksum is verified.
            with _readable_errors(info), archive.open(info) as stream:
                tar.addfile(member, stream)
    return count


def _members(archive: zipfile.ZipFile) -> Iterator[zipfile.ZipInfo]:
    members = archive.infolist()
    if len(members) > FILE_LIMIT:
        raise InvalidRequest(
            f"The package holds more than {FILE_LIMIT:,} files; leave some out with `excludes` or a .gitignore file."
        )
    return iter(sorted(members, key=lambda info: info.filename))


def _member_of(info: zipfile.ZipInfo) -> tarfile.TarInfo:
    name = info.filename
    parts = name.rstrip("/").split("/")
    if not name.strip("/") or name.startswith("/") or ".." in parts or "\\" in name or _is_unwritable(name):
        raise InvalidRequest(f"The package holds {name[:100]!r}, which is no path in a folder; pack it again.")
    mode = info.external_attr >> 16
    if stat.S_ISLNK(mode):
        raise InvalidRequest(f"The package holds the link {name[:100]!r}; pack what it leads to instead.")
    member = tarfile.TarInfo("/".join(part for part in parts if part not in ("", ".")))
    if info.is_dir():
        member.type, member.mode = tarfile.DIRTYPE, 0o755
    else:
        member.size, member.mode = info.file_size, 0o755 if mode & stat.S_IXUSR else 0o644
    return member


def _is_unwritable(name: str) -> bool:
    return "\0" in name or any(len(part.encode("utf-8", "replace")) > 255 for part in name.split("/"))


@contextmanager
def _readable_errors(info: zipfile.ZipInfo) -> Iterator[None]:
    """Translate errors of reading a member to ``InvalidRequest``."""
    try:
        yield
    except _BROKEN as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise  # the target disk is full
        raise InvalidRequest(
            f"The package's file {info.filename[:100]!r} cannot be read: {error}; upload it again."
        ) from error
