"""Trees of registered volumes and of jobs' outputs on them, and the check of free space before writing."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Final, Protocol

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.tables import Job, Project, Volume, VolumeGrant
from core.domain.errors import Conflict, InsufficientStorage, InvalidRequest, NotFound
from core.domain.jobs.volume_room import VolumeRoom
from core.storage.tree import LeavesVolume, Tree, TreeEntry, split_path

# Reserved on the volume for its other users.
RESERVE_BYTES: Final = 64 * 2**20
# Folder of unfinished uploads at a bucket's root. In the bucket of all projects' own folders, names in it begin with
# the project's name and a full stop, which no project's name has.
UPLOADS: Final = ".uploads"
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


def has_own_output(job: Job) -> bool:
    """Whether the output is a folder of the job alone; one that the spec named may have other jobs' files."""
    return job.output_path.rpartition("/")[2] == job.id


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


def is_at_or_below(path: str, folder: str) -> bool:
    """``folder``: empty for the whole volume. Both are normalized."""
    return not folder or path == folder or path.startswith(f"{folder}/")


def boundaries_of(path: str, prefixes: Collection[str], *, is_shared: bool = False) -> tuple[str, ...]:
    """Folders on the way to ``path`` that no link may leave, since access is decided by their names; outermost first.

    Args:
        path: normalized.
        prefixes: of the volume's grants.
        is_shared: the volume of all projects' own folders: the path's first folder.
    """
    found = {prefix for prefix in prefixes if prefix and is_at_or_below(path, prefix)}
    if is_shared and path:
        found.add(path.partition("/")[0])
    return tuple(sorted(found, key=len))


def confined(tree: Tree, path: str, boundaries: Sequence[str]) -> tuple[Tree, str]:
    """The tree of the innermost boundary, and the rest of ``path`` in it. Raises ``LeavesVolume``."""
    trees, rest = _trees_of(tree, path, boundaries)
    outer = ""
    for above, boundary in zip(trees, boundaries, strict=False):
        if above.is_link(boundary.removeprefix(outer).lstrip("/")):
            raise LeavesVolume(f"{path} does not exist: its folder {boundary} is a link.")
        outer = boundary
    return trees[-1], rest


def _trees_of(tree: Tree, path: str, boundaries: Sequence[str]) -> tuple[list[Tree], str]:
    """``tree`` and that of each boundary, each below the one before, and the rest of ``path`` in the last."""
    trees, outer = [tree], ""
    for boundary in boundaries:
        trees.append(trees[-1].below(boundary.removeprefix(outer).lstrip("/")))
        outer = boundary
    return trees, path.removeprefix(outer).lstrip("/")


def find_place(tree: Tree, path: str, boundaries: Sequence[str]) -> TreeEntry:
    """The status of a path to be mounted into a job. ``boundaries``: see :func:`boundaries_of`.

    Raises:
        LeavesVolume: a link on the way leads out of the volume, or of a boundary.
        NotFound: nothing is there.
    """
    tree, rest = confined(tree, path, boundaries)
    return tree.stat(rest)


def make_place(
    tree: Tree, path: str, boundaries: Sequence[str], owner: tuple[int, int] | None = None, mode: int = 0o775
) -> None:
    """Create the folder ``path``, by the same rule about links. ``owner``, ``mode``: as in ``Tree.make_folder``, except
    for the innermost boundary, such as a project's own folder, which stays the platform's.
    """
    if not boundaries or boundaries[-1] == path:
        tree.make_folder(path, owner=owner, mode=mode)
        return
    tree.make_folder(boundaries[-1])
    tree, rest = confined(tree, path, boundaries)
    tree.make_folder(rest, owner=owner, mode=mode)


def grant_prefixes(session: Session, volumes: Collection[str]) -> dict[str, list[str]]:
    """The prefixes of the volumes' grants, by the volume's name, as far as there are any."""
    query = select(Volume.name, VolumeGrant.prefix).join(VolumeGrant, VolumeGrant.volume_id == Volume.id)
    found: dict[str, list[str]] = {}
    for name, prefix in session.execute(query.where(Volume.name.in_(volumes), VolumeGrant.prefix != "")):
        found.setdefault(name, []).append(prefix)
    return found


def demand_room(tree: Tree, size_bytes: int, holder: str, advice: str) -> None:
    """Raises ``InsufficientStorage`` if the file system of ``tree`` lacks the space.

    ``holder``: the sentence's first words, such as "The registry's volume". ``advice``: what to do, its last part.
    """
    free = read_room(tree).free
    if free < size_bytes + RESERVE_BYTES:
        raise InsufficientStorage(f"{holder} has no room for {size_bytes:,} bytes ({free:,} are free); {advice}")


def read_room(tree: Tree) -> VolumeRoom:
    """The space on the file system of ``tree``. Raises as every method of :class:`Tree`."""
    with tree.open_folder() as fd:
        status = os.fstatvfs(fd)
    free_files = status.f_favail if status.f_files else None
    return VolumeRoom(status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize, free_files)


def job_output(session: Session, job: Job) -> Tree:
    """The job's output folder as a confined tree. The folder itself may not exist yet.

    Raises:
        NotFound: its volume was removed.
        Conflict: the volume has no root on the control plane.
    """
    volume = session.execute(select(Volume).where(Volume.name == job.output_volume)).scalar_one_or_none()
    if volume is None:
        raise NotFound(f"The volume {job.output_volume!r} of this job's output is not registered any more.")
    prefixes = list(session.scalars(select(VolumeGrant.prefix).where(VolumeGrant.volume_id == volume.id)))
    # On the volume of the projects' own folders, which has no grants, the first folder is a project's.
    owner = select(Project.id).where(Project.name == job.output_path.partition("/")[0])
    is_shared = not prefixes and session.scalars(owner).first() is not None
    boundaries = boundaries_of(job.output_path, prefixes, is_shared=is_shared)
    trees, rest = _trees_of(tree_of(volume), job.output_path, boundaries)
    return trees[-1].below(rest)
