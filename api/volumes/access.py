"""Who may read and write where on volumes.

The only place that decides it: job specs, buckets, studies, endpoints, batch predictions and models ask here.

On the volume of the projects' own folders (``default_volume``) the first folder of a path is a project's name: its
viewers may read below it, its members may also write. Versions of registered models are there, too, below
``.models/<project>``: viewers of the project may read them, and nobody may write to them. Other volumes may be used by
all callers who are a member of some project.
"""

from __future__ import annotations

from dataclasses import dataclass

from api.app.cache import CachedVolume
from api.auth import Caller, Role, has_role
from core.settings import Settings
from core.storage.registry import FOLDER as MODELS
from core.storage.registry import is_place_of


@dataclass(frozen=True, slots=True)
class AccessRefusal:
    """Why access is refused. ``message``: without a full stop; ``hint``: what to do."""

    message: str
    hint: str


def projects_with_role(caller: Caller, role: Role) -> frozenset[str]:
    """Names of the projects in which the caller has at least ``role``."""
    return frozenset(member.project for member in caller.projects.values() if has_role(member.role, role))


def may_use_volumes(caller: Caller) -> bool:
    """Whether the caller may use volumes other than that of the projects' own folders: as their jobs may."""
    return caller.is_admin or bool(projects_with_role(caller, "member"))


def access_refusal(
    settings: Settings, caller: Caller, volume: CachedVolume, path: str, *, writes: bool
) -> AccessRefusal | None:
    """Why ``caller`` may not read or, with ``writes``, read and write everything at and below ``path``.

    ``None``: the caller may. Whether the path exists, and whether a link leads out of it, is not checked here.

    Args:
        settings: of the platform.
        caller: whose roles count, in any of their projects.
        volume: the volume.
        path: normalized; empty for the whole volume.
        writes: also to write, or to delete.
    """
    if writes and volume.is_read_only:
        return AccessRefusal(f"volume {volume.name!r} is read-only", "choose another volume to write to")
    if volume.name == settings.default_volume:
        return _refusal_in_project_folders(caller, volume.name, path, writes=writes)
    if may_use_volumes(caller):
        return None
    return AccessRefusal(
        f"volume {volume.name!r} is for members of projects", "ask an admin of a project for the role member"
    )


def _refusal_in_project_folders(caller: Caller, volume: str, path: str, *, writes: bool) -> AccessRefusal | None:
    owner = path.partition("/")[0]
    if writes and owner == MODELS:
        return AccessRefusal(f"{volume}/{path} has registered models, which are immutable", "mount it read-only")
    own = projects_with_role(caller, "member")
    example = f"{volume}/{min(own)}" if own else f"{volume}/<project>"
    if caller.is_admin:
        if path or not writes:
            return None
        return AccessRefusal(
            f"{volume} as a whole includes registered models, which are immutable",
            f"name a folder in it, such as {example}",
        )
    readable = projects_with_role(caller, "viewer")
    if owner in readable and (owner in own or not writes):
        return None
    if owner in readable:
        return AccessRefusal(
            f"{volume}/{owner} belongs to project {owner!r}, of which you are only a viewer",
            "use it read-only, or ask an admin of the project for the role member",
        )
    if not writes and is_place_of(path, readable):
        return None
    return AccessRefusal(
        f"{volume}/{owner} does not belong to a project of yours",
        f"begin the path with a project of yours, such as {example}/…",
    )
