"""Bounded random access to a checkpoint's files, confined to its volume."""

from __future__ import annotations

import io
import os
import stat
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from core.domain.errors import NotFound, TrainmasterError
from core.inspection.model import CHUNK_BYTES, Unreadable
from core.storage.tree import Tree

_OPEN_FILES: Final = 64
_NAMES_LIMIT: Final = 20_000
# Limit of a zip file's directory: 46 bytes a file and its name, so a million files at most.
_DIRECTORY_LIMIT: Final = 64 * 2**20


class Folder:
    """The folder ``base`` of a tree; the number of open files is bounded."""

    def __init__(self, tree: Tree, base: str = "") -> None:
        self._tree = tree
        self._base = base
        self._open: OrderedDict[str, int] = OrderedDict()

    def file(self, name: str) -> File:
        """The existing file ``name``. Raises ``Unreadable``."""
        return File(self, name, os.fstat(self.descriptor(name)).st_size)

    def has(self, name: str) -> bool:
        try:
            self.descriptor(name)
        except Unreadable:
            return False
        return True

    def names(self, name: str = "") -> list[str]:
        """All files below the folder ``name``, as paths relative to it, in order; without links."""
        found: list[str] = []
        try:
            with self._tree.open_folder(self._path(name)) as top:
                for at, _, names, folder in os.fwalk(".", dir_fd=top, follow_symlinks=False):
                    found += [os.path.normpath(f"{at}/{file}") for file in names if _is_file(file, folder)]
                    if len(found) > _NAMES_LIMIT:
                        raise Unreadable(f"It holds more than {_NAMES_LIMIT:,} files.")
        except (TrainmasterError, OSError) as error:
            raise _missing_file(name or self._base, error) from error
        return sorted(found)

    def descriptor(self, name: str) -> int:
        fd = self._open.get(name)
        if fd is None:
            try:
                fd = self._tree.open_file(self._path(name))
            except (TrainmasterError, OSError) as error:
                raise _missing_file(name, error) from error
            self._open[name] = fd
            if len(self._open) > _OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
        self._open.move_to_end(name)
        return fd

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def _path(self, name: str) -> str:
        if ".." in name.split("/") or name.startswith("/") or "\0" in name:
            raise Unreadable(f"It names the file {name[:100]!r}, which is not in its folder.")
        return f"{self._base}/{name}" if self._base and name else self._base or name


def _is_file(name: str, folder: int) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False  # vanished since


def _missing_file(name: str, error: Exception) -> Unreadable:
    if isinstance(error, NotFound):
        return Unreadable(f"{name} does not exist (any more), or is no file.")
    words = error.sentence if isinstance(error, TrainmasterError) else str(error)
    return Unreadable(f"{name} cannot be read: {words}")


@dataclass(frozen=True, slots=True)
class File:
    """``size`` bytes of a file from ``base`` on; reads beyond them are refused."""

    folder: Folder
    name: str
    size: int
    base: int = 0

    def read(self, offset: int, length: int) -> bytes:
        """Exactly so many bytes. Raises ``Unreadable``."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise Unreadable(
                f"{self.name} is cut short or damaged: it has {self.size:,} bytes, and says that "
                f"{length:,} lie at {offset:,}."
            )
        parts: list[bytes] = []
        left, at = length, self.base + offset
        while left:
            try:
                data = os.pread(self.folder.descriptor(self.name), left, at)
            except OSError as error:
                raise _missing_file(self.name, error) from error
            if not data:
                raise Unreadable(f"{self.name} became shorter while it was read.")
            parts.append(data)
            left -= len(data)
            at += len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def part(self, offset: int, length: int) -> File:
        """A part as a file of its own. Raises ``Unreadable`` if it is out of bounds."""
        if offset < 0 or length < 0 or offset + length > self.size:
            raise Unreadable(f"{self.name} is cut short or damaged: a part of it lies behind its end.")
        return File(self.folder, self.name, length, self.base + offset)

    def stream(self) -> io.BufferedReader:
        """A file object for libraries. It has no descriptor, so that they cannot map or reopen it."""
        return io.BufferedReader(_Stream(self), 2**16)


class _Stream(io.RawIOBase):
    def __init__(self, file: File) -> None:
        self._file = file
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        if start + offset < 0:
            raise ValueError("before the beginning")
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]  # what io hands over
        length = max(0, min(len(buffer), self._file.size - self._at))
        data = self._file.read(self._at, length)
        buffer[:length] = data
        self._at += length
        return length


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """Elements stored contiguously in a file."""

    file: File
    offset: int
    length: int

    def chunks(self) -> Iterator[bytes]:
        for at in range(0, self.length, CHUNK_BYTES):
            yield self.file.read(self.offset + at, min(CHUNK_BYTES, self.length - at))


@dataclass(frozen=True, slots=True)
class Inline:
    """A few elements in memory."""

    data: bytes

    def chunks(self) -> Iterator[memoryview]:
        view = memoryview(self.data)
        for at in range(0, len(view), CHUNK_BYTES):
            yield view[at : at + CHUNK_BYTES]


@dataclass(frozen=True, slots=True)
class CompressedMember:
    """A compressed member of a zip file, decompressed in chunks; its first ``skip`` bytes are a header."""

    archive: Zip
    name: str
    skip: int
    length: int

    def chunks(self) -> Iterator[bytes]:
        left = self.length
        with self.archive.open(self.name) as member:
            self.archive.unpack(member, self.skip, self.name)
            while left:
                data = self.archive.unpack(member, min(CHUNK_BYTES, left), self.name)
                left -= len(data)
                yield data


class Zip:
    """A zip file's members. Raises ``Unreadable`` if it is none, or incomplete."""

    def __init__(self, file: File) -> None:
        self.file = file
        self._check_directory()
        try:
            self._zip = zipfile.ZipFile(file.stream())
        except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, OSError) as error:
            raise Unreadable(f"{file.name} is no complete zip file; its writer may not have finished it.") from error
        self.members = {info.filename: info for info in self._zip.infolist()}

    def _check_directory(self) -> None:
        # The size is stored at the file's end; checked before the library reads the directory into memory.
        tail_bytes = min(self.file.size, 22 + 2**16 - 1)
        tail = self.file.read(self.file.size - tail_bytes, tail_bytes)
        at = tail.rfind(b"PK\x05\x06")
        if at < 0 or at + 22 > len(tail):
            raise Unreadable(f"{self.file.name} is no complete zip file; its writer may not have finished it.")
        size = int.from_bytes(tail[at + 12 : at + 16], "little")
        if size == 0xFFFFFFFF:
            record = tail.rfind(b"PK\x06\x06", 0, at)
            size = int.from_bytes(tail[record + 40 : record + 48], "little") if record >= 0 else 0
        if size > _DIRECTORY_LIMIT:
            raise Unreadable(f"{self.file.name} names more files than can be listed.")

    def data(self, name: str, skip: int, length: int) -> StoredBytes | CompressedMember:
        """``length`` bytes of a member from ``skip`` on."""
        info = self.members.get(name)
        if info is None:
            raise Unreadable(f"{self.file.name} lacks its part {name[:100]}.")
        if info.file_size < skip + length:
            raise Unreadable(f"{self.file.name}: its part {name[:100]} is shorter than it should be.")
        if info.compress_type != zipfile.ZIP_STORED:
            return CompressedMember(self, name, skip, length)
        return StoredBytes(self.file, self._begin(info) + skip, length)

    def window(self, name: str) -> File:
        """An uncompressed member as a file."""
        info = self.members[name]
        if info.compress_type != zipfile.ZIP_STORED:
            raise Unreadable(f"{self.file.name}: its part {name[:100]} is compressed, so it cannot be read in parts.")
        return self.file.part(self._begin(info), info.file_size)

    def read(self, name: str, limit: int) -> bytes:
        """A small member whole."""
        info = self.members.get(name)
        if info is None:
            raise Unreadable(f"{self.file.name} lacks its part {name[:100]}.")
        if info.file_size > limit:
            raise Unreadable(
                f"{self.file.name}: its part {name[:100]} has {info.file_size:,} bytes, more than {limit:,}."
            )
        with self.open(name) as member:
            return self.unpack(member, info.file_size, name)

    def open(self, name: str) -> zipfile.ZipExtFile:
        try:
            member = self._zip.open(name)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, OSError) as error:
            raise Unreadable(f"{self.file.name}: its part {name[:100]} cannot be read ({error}).") from error
        assert isinstance(member, zipfile.ZipExtFile)  # noqa: S101 (opened for reading)
        return member

    def unpack(self, member: zipfile.ZipExtFile, length: int, name: str) -> bytes:
        """Exactly so many more bytes of an open member."""
        parts = []
        left = length
        while left:
            try:
                data = member.read(min(left, CHUNK_BYTES))
            except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
                raise Unreadable(f"{self.file.name}: its part {name[:100]} is damaged ({error}).") from error
            if not data:
                raise Unreadable(f"{self.file.name}: its part {name[:100]} is shorter than it should be.")
            parts.append(data)
            left -= len(data)
        return b"".join(parts)

    def _begin(self, info: zipfile.ZipInfo) -> int:
        head = self.file.read(info.header_offset, 30)
        if head[:4] != b"PK\x03\x04":
            raise Unreadable(f"{self.file.name} is damaged: a part of it does not begin where it should.")
        return info.header_offset + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
