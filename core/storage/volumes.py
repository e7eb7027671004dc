"""Trees of registered volumes and of jobs' outputs on them, and the check of free space before writing."""

from __future__ import annotations

import os
from typing import Final, Protocol

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.tables import Job, Volume
from core.domain.errors import Conflict, InsufficientStorage, InvalidRequest, NotFound
from core.storage.tree import LeavesVolume, Tree, TreeEntry, split_path

# Reserved on the volume for its other users.
RESERVE_BYTES: Final = 64 * 2**20
# The output's path in containers.
OUTPUT_MOUNT: Final = "/data/output"
# The path at which a clone sees the output it resumes from. Its own output is a new folder, so that neither job
# overwrites the other's logs and checkpoints.
RESUME_MOUNT: Final = "/data/resume"


class VolumeFacts(Protocol):
    """The attributes needed of a volume that is no row."""

    @property
    def name(self) -> str: ...
    @property
    def root(self) -> str | None: ...


def split_location(location: str, *, field: str = "path") -> tuple[str, str]:
    """``datasets/digits/train`` as the volume's name and the normalized path inside it, which may be empty.

    Raises:
        InvalidRequest: no volume named, or a hostile path.
    """
    volume, _, path = location.partition("/")
    if not volume:
        raise InvalidRequest(f"{field} must be volume/path, for example datasets/digits.", field=field)
    return volume, "/".join(split_path(path, field=field))


def tree_of(volume: Volume | VolumeFacts) -> Tree:
    """The files of ``volume`` as visible to the control plane.

    Raises:
        Conflict: the volume was registered without ``root``.
    """
    if volume.root is None:
        raise Conflict(
            f"The control plane does not see volume {volume.name}: it was registered without a root, "
            "so its files are reached from jobs only."
        )
    return Tree(volume.root, label=f"Volume {volume.name}")


def _output_tree(volume: Volume | VolumeFacts, output_path: str) -> Tree:
    """A job's output folder as a tree of its own: links that lead to other folders of the volume are refused."""
    return tree_of(volume).below(output_path)


def find_place(tree: Tree, path: str, *, is_shared: bool) -> TreeEntry:
    """The status of a path to be mounted into a job.

    ``is_shared``: the volume of all projects' own folders. Access there is decided by the name of the path's first
    folder, so that no link may lead out of it.

    Raises:
        LeavesVolume: a link on the way leads out of the volume, or to another project.
        NotFound: nothing is there.
    """
    first, _, rest = path.partition("/")
    if not is_shared:
        return tree.stat(path)
    if tree.is_link(first):
        raise LeavesVolume(f"{path} does not exist: its first folder is a link.")
    return tree.below(first).stat(rest)


def make_place(tree: Tree, path: str, *, is_shared: bool, owner: tuple[int, int] | None = None) -> None:
    """Create the folder ``path``, by the same rule about links. ``owner``: as in ``Tree.make_folder``, except for a
    project's own folder, which stays the platform's.
    """
    first, _, rest = path.partition("/")
    if not is_shared or not rest:
        tree.make_folder(path, owner=owner)
        return
    if tree.is_link(first):
        raise LeavesVolume(f"{path} does not exist: its first folder is a link.")
    tree.make_folder(first)
    tree.below(first).make_folder(rest, owner=owner)


def demand_room(tree: Tree, size_bytes: int, holder: str, advice: str) -> None:
    """Raises ``InsufficientStorage`` if the file system of ``tree`` lacks the space.

    ``holder``: the sentence's first words, such as "The registry's volume". ``advice``: what to do, its last part.
    """
    with tree.open_folder() as fd:
        status = os.fstatvfs(fd)
    free = status.f_bavail * status.f_frsize
    if free < size_bytes + RESERVE_BYTES:
        raise InsufficientStorage(f"{holder} has no room for {size_bytes:,} bytes ({free:,} are free); {advice}")


def job_output(session: Session, job: Job) -> Tree:
    """The job's output folder as a confined tree. The folder itself may not exist yet.

    Raises:
        NotFound: its volume was removed.
        Conflict: the volume has no root on the control plane.
    """
    volume = session.execute(select(Volume).where(Volume.name == job.output_volume)).scalar_one_or_none()
    if volume is None:
        raise NotFound(f"The volume {job.output_volume!r} of this job's output is not registered any more.")
    return _output_tree(volume, job.output_path)
