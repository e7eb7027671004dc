"""The files that are copied into a container before it starts, as one tar archive: runtime, order, code, empty
folders.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from executors.containers import paths


@dataclass(frozen=True, slots=True)
class Owner:
    """The container's user; ``uid`` of ``None``: only the image knows, so that files must be open to all in it."""

    uid: int | None
    gid: int = 0

    def mode(self, mode: int) -> int:
        """``mode`` of a file for the owner alone, widened to all users where the owner is unknown."""
        return mode if self.uid is not None else mode | (mode >> 3) | (mode >> 6)


def owner_of(uid: int, gid: int, image_user: str) -> Owner:
    """The container's user: the platform's ``uid``, or with 0 the image's own user."""
    if uid:
        return Owner(uid, gid)
    user, _, group = image_user.partition(":")
    if user in ("", "0", "root"):
        return Owner(0)
    if not user.isdigit() or (group and not group.isdigit()):
        return Owner(None)
    return Owner(int(user), int(group or 0))


def runtime_members(archive: bytes) -> bytes:
    """The members of the runtime image's folder, renamed to where they belong, without an archive's end."""
    top = paths.RUNTIME.strip("/")
    with tarfile.open(fileobj=io.BytesIO(archive)) as source:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as target:
            target.addfile(_folder("trainmaster", Owner(0), 0o755))
            for member in source:
                _, _, below = member.name.partition("/")
                member.name = f"{top}/{below}" if below else top
                member.uid = member.gid = 0
                member.uname = member.gname = ""
                target.addfile(member, source.extractfile(member) if member.isfile() else None)
            end = out.tell()
        return out.getvalue()[:end]


def pack(
    runtime: bytes, order_files: Mapping[str, bytes], scratch: Sequence[str], owner: Owner, code: Path | None
) -> BinaryIO:
    """The archive to unpack at ``/``. Close it.

    Args:
        runtime: what :func:`runtime_members` gives.
        scratch: folders that the container's user may write in.
        code: an archive of code to put at ``paths.CODE``.
    """
    # Code may be large: it goes through the disk, not through memory.
    out: BinaryIO = io.BytesIO() if code is None else tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
    out.write(runtime)
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        top = paths.ORDER.strip("/")
        tar.addfile(_folder(top, owner, owner.mode(0o500)))
        for name, content in order_files.items():
            tar.addfile(_file(f"{top}/{name}", len(content), owner, owner.mode(0o400)), io.BytesIO(content))
        for path in scratch:
            tar.addfile(_folder(path.strip("/"), owner, 0o777 if owner.uid is None else 0o755))
        if code is not None:
            with code.open("rb") as stream:
                tar.addfile(_file(paths.CODE.strip("/"), code.stat().st_size, owner, owner.mode(0o400)), stream)
    out.seek(0)
    return out


def single_file_archive(name: str, content: bytes, owner: Owner, *, mtime: int = 0) -> bytes:
    """An archive of a single file. ``mtime``: its time of change, in seconds."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as tar:
        member = _file(name, len(content), owner, owner.mode(0o400))
        member.mtime = mtime
        tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def _file(name: str, size: int, owner: Owner, mode: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, mode
    member.uid, member.gid = owner.uid or 0, owner.gid
    return member


def _folder(name: str, owner: Owner, mode: int) -> tarfile.TarInfo:
    member = _file(name, 0, owner, mode)
    member.type = tarfile.DIRTYPE
    return member
