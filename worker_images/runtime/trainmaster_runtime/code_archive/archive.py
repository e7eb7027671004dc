"""The code archive: checked against its digest, then unpacked so that nothing lands outside the work folder."""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile

MAX_BYTES = 8 * 2**30
MAX_FILES = 500_000
_CHUNK_BYTES = 1 << 20

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO


class ArchiveRefused(Exception):
    """A sentence for the user."""


def unpack(path: str, digest: str | None, target: str, reserved: tuple[str, ...] = ()) -> int:
    """Unpack ``path`` (.tar.gz) into ``target``; returns the number of files.

    Args:
        digest: ``sha256:<hex>`` of the archive, checked before anything is written.
        reserved: names at the top that are mounted over; the archive may hold folders of these names, nothing else.

    Raises:
        ArchiveRefused: wrong digest, or a member that is absolute, climbs out, or is neither file, folder nor link.
        OSError: cannot be read or written.
    """
    with open(path, "rb") as stream:
        if digest is not None:
            _check_digest(stream, digest)
        try:
            with tarfile.open(fileobj=stream, mode="r:*") as archive:
                return _extract(archive, os.path.realpath(target), reserved)
        except (tarfile.TarError, EOFError) as error:
            raise ArchiveRefused("The code archive cannot be read (%s); upload it again." % error) from error


def _check_digest(stream: IO[bytes], digest: str) -> None:
    found = hashlib.sha256()
    while True:
        chunk = stream.read(_CHUNK_BYTES)
        if not chunk:
            break
        found.update(chunk)
    stream.seek(0)
    if digest != "sha256:" + found.hexdigest():
        raise ArchiveRefused(
            "The code archive is not the one that was uploaded: its digest is sha256:%s, expected %s; upload it again."
            % (found.hexdigest(), digest)
        )


def _extract(archive: tarfile.TarFile, root: str, reserved: tuple[str, ...]) -> int:
    links: list[tuple[str, str]] = []
    files = 0
    room = MAX_BYTES
    for member in archive:
        name = _inside(member.name)
        if name == ".":
            continue
        if name in reserved and not member.isdir():
            raise ArchiveRefused(
                "The code archive holds %r where the platform mounts a folder; rename it or leave it out." % name
            )
        files += 1
        room -= member.size if member.isfile() else 0
        if files > MAX_FILES or room < 0:
            raise ArchiveRefused(
                "The code archive unpacks to more than %d files or %d GiB; mount data instead of packing it."
                % (MAX_FILES, MAX_BYTES >> 30)
            )
        where = os.path.join(root, name)
        if member.isdir():
            os.makedirs(where, exist_ok=True)
        elif member.issym():
            links.append((member.linkname, where))
        elif member.islnk():
            _copy(os.path.join(root, _inside(member.linkname)), where)
        elif member.isfile():
            source = archive.extractfile(member)
            if source is not None:
                _write(source, where, member)
        else:
            raise ArchiveRefused("The code archive holds %r, which is neither file, folder nor link." % member.name)
    _make_links(links, root)
    return files


def _inside(name: str) -> str:
    clean = os.path.normpath(name)
    if name.startswith("/") or clean == ".." or clean.startswith("../"):
        raise ArchiveRefused("The code archive holds %r, which lies outside of it; pack the folder again." % name)
    return clean


def _write(source: IO[bytes], where: str, member: tarfile.TarInfo) -> None:
    os.makedirs(os.path.dirname(where), exist_ok=True)
    with open(where, "wb") as stream:
        shutil.copyfileobj(source, stream, _CHUNK_BYTES)
        os.fchmod(stream.fileno(), (member.mode & 0o777) | 0o600)
    os.utime(where, (member.mtime, member.mtime))


def _copy(source: str, where: str) -> None:
    if not os.path.isfile(source):
        raise ArchiveRefused("The code archive holds a hard link to %r, which it does not hold." % source)
    os.makedirs(os.path.dirname(where), exist_ok=True)
    shutil.copy2(source, where)


def _make_links(links: list[tuple[str, str]], root: str) -> None:
    # Links come last, so that no file is ever written through one. Where each ends is asked of the file system when
    # all stand: chains of links cannot be judged by their text.
    for target, where in links:
        if os.path.isabs(target):
            raise ArchiveRefused("The code archive holds a link to %r, outside of it." % target)
        parent = os.path.realpath(os.path.dirname(where))
        if parent != root and not parent.startswith(root + "/"):
            raise ArchiveRefused("The code archive holds %r behind a link that leads out of it." % where)
        os.makedirs(parent, exist_ok=True)
        if os.path.lexists(where):
            raise ArchiveRefused("The code archive holds %r twice." % os.path.relpath(where, root))
        os.symlink(target, where)
    for target, where in links:
        end = os.path.realpath(where)
        if end != root and not end.startswith(root + "/"):
            for _, made in links:
                os.unlink(made)
            raise ArchiveRefused("The code archive holds a link to %r, outside of it." % target)
