"""Converts an untrusted zip to a code archive as a stream: nothing is unpacked to disk, and every claim is checked."""

from __future__ import annotations

import errno
import gzip
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Final, cast

from core.domain.errors import InvalidRequest

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
    found = archive.infolist()
    if len(found) > FILE_LIMIT:
        raise InvalidRequest(
            f"The package holds more than {FILE_LIMIT:,} files; leave some out with `excludes` or a .gitignore file."
        )
    return iter(sorted(found, key=lambda info: info.filename))


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
