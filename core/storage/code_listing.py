"""Listing and comparing code archives as streams: nothing is unpacked or trusted.

An archive is whatever a user sent. Counts, sizes and names are measured while streaming, memory holds one chunk at a
time, and every limit is reported as a sentence.
"""

from __future__ import annotations

import hashlib
import posixpath
import tarfile
import time
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, cast

from core.domain.errors import InvalidRequest

# Larger archives are data packed with the code.
UNPACKED_LIMIT: Final = 256 * 2**20  # bytes
FILE_LIMIT: Final = 20_000
TEXT_LIMIT: Final = 96 * 2**10  # bytes of a shown file
TEXTS_LIMIT: Final = 2 * 2**20  # bytes of all texts of one archive
WITHIN_S: Final = 15.0

_PIECE: Final = 64 * 2**10
_NAME_LIMIT: Final = 4096  # characters
_GZIP: Final = 31  # zlib's wbits for gzip with a 32 KiB window
# Exceptions of tarfile and zlib for malformed input; an endless chain of headers exhausts the stack.
_BROKEN: Final = (tarfile.TarError, zlib.error, EOFError, ValueError, OverflowError, RecursionError)


class CodeUnreadable(InvalidRequest):
    """Damaged, malicious, or larger than code is."""


@dataclass(frozen=True, slots=True)
class CodeFile:
    """``digest``: SHA-256 of the bytes, or of a link's target."""

    size_bytes: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class CodeText:
    """``text`` is ``None`` if it is not shown; then ``note`` says why."""

    text: str | None
    note: str = ""


def list_code(archive: Path) -> dict[str, CodeFile]:
    """The files of a .tar.gz by path. The later one of two equal paths counts, as when unpacking.

    Raises:
        CodeUnreadable: damaged, malicious or too large.
        FileNotFoundError: it is gone.
    """
    found: dict[str, CodeFile] = {}
    with _opened(archive) as members:
        for name, member, stream in members:
            summed = hashlib.sha256()
            size = 0
            for piece in _pieces(member, stream):
                summed.update(piece)
                size += len(piece)
            found[name] = CodeFile(size, summed.digest())
    return found


def read_texts(archive: Path, names: Collection[str]) -> dict[str, CodeText]:
    """The texts of these files, if they are text and small enough. Raises like ``list_code``."""
    found: dict[str, CodeText] = {}
    room = TEXTS_LIMIT
    with _opened(archive) as members:
        for name, member, stream in members:
            if name not in names:
                continue
            if member.size > TEXT_LIMIT:
                found[name] = CodeText(None, f"It is larger than {TEXT_LIMIT >> 10} KiB.")
                continue
            if member.size > room:
                found[name] = CodeText(None, "More differs than is shown at once.")
                continue
            data = b"".join(_pieces(member, stream))
            room -= len(data)
            found[name] = _text_of(data)
    return found


def _text_of(data: bytes) -> CodeText:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return CodeText(None, "It is not text.")
    return CodeText(None, "It is not text.") if "\0" in text else CodeText(text)


@contextmanager
def _opened(archive: Path) -> Iterator[Iterator[tuple[str, tarfile.TarInfo, _Stream]]]:
    with archive.open("rb") as file:
        stream = _Stream(file)
        try:
            yield _members(stream)
        except _BROKEN as error:
            raise CodeUnreadable("The code archive is damaged; it cannot be compared.") from error


def _members(stream: _Stream) -> Iterator[tuple[str, tarfile.TarInfo, _Stream]]:
    """Its files and links, without folders and devices."""
    count = 0
    with tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r:") as tar:
        while (member := tar.next()) is not None:
            cast("Any", tar).members.clear()  # it would hold all of them
            count += 1
            if count > FILE_LIMIT:
                raise CodeUnreadable(
                    f"The code archive holds more than {FILE_LIMIT:,} files; it is too large to compare."
                )
            name = posixpath.normpath(member.name)
            if len(name) > _NAME_LIMIT:
                raise CodeUnreadable("The code archive holds a name of more than 4,096 characters; it is not compared.")
            if member.issym() or member.islnk() or (member.isreg() and not member.issparse()):
                yield name, member, stream


def _pieces(member: tarfile.TarInfo, stream: _Stream) -> Iterator[bytes]:
    """The bytes of a file, or the target of a link."""
    if not member.isreg():
        yield f"a link to {member.linkname}\n".encode("utf-8", "replace")
        return
    stream.seek(member.offset_data)
    left = member.size
    while left > 0:
        piece = stream.read(min(_PIECE, left))
        if not piece:
            raise EOFError("the archive ends in the middle of a file")
        left -= len(piece)
        yield piece


class _Stream:
    """The decompressed bytes, forward only, in small chunks, within the limits of size and time.

    ``tarfile`` reads from it, so that a header that claims a gigabyte, or seeks backwards, is refused.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._zip = zlib.decompressobj(_GZIP)
        self._is_fresh = True  # between concatenated gzip files, the only place where the bytes may end
        self._packed = b""
        self._at = 0
        self._until = time.monotonic() + WITHIN_S

    def tell(self) -> int:
        return self._at

    def seek(self, where: int) -> int:
        if where < self._at:
            raise tarfile.ReadError("a header leads back")
        while self._at < where and self.read(min(_PIECE, where - self._at)):
            pass
        return self._at

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _PIECE:
            raise tarfile.ReadError("a header is too large")
        pieces: list[bytes] = []
        left = size
        while left > 0 and (piece := self._inflate(left)):
            pieces.append(piece)
            left -= len(piece)
        self._at += size - left
        if self._at > UNPACKED_LIMIT:
            raise CodeUnreadable(
                f"The code archive unpacks to more than {UNPACKED_LIMIT >> 20} MiB; it is too large to compare."
            )
        return b"".join(pieces)

    def _inflate(self, most: int) -> bytes:
        """At least one byte, at most ``most``; empty at the end."""
        while True:
            if time.monotonic() > self._until:
                raise CodeUnreadable(
                    f"The code archive is not read in {WITHIN_S:g} seconds; it is too large to compare."
                )
            if self._zip.eof:  # gzip files may be concatenated
                self._packed = self._zip.unused_data.lstrip(b"\0")
                self._zip, self._is_fresh = zlib.decompressobj(_GZIP), True
            if not self._packed:
                self._packed = self._file.read(_PIECE)
                if not self._packed:
                    if not self._is_fresh:
                        raise EOFError("the gzip file is cut short")
                    return b""
            self._is_fresh = False
            data = self._zip.decompress(self._packed, most)
            self._packed = self._zip.unconsumed_tail
            if data:
                return data
