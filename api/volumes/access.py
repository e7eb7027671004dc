"""Who may read and write where on volumes.

The only place that decides it: job specs, buckets, studies, endpoints, batch predictions and models ask here.

On the volume of the projects' own folders (``default_volume``) the first folder of a path is a project's name: its
viewers may read below it, its members may also write. Versions of registered models are there, too, below
``.models/<project>``: viewers of the project may read them, and nobody may write to them.

Other volumes have grants, of the whole volume or of a folder in it: to a project, whose viewers may read and whose
members may also write if the grant says so, or to everyone, which means the members of all projects. Without a grant
only platform admins may use a volume.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from api.app.cache import CachedVolume
from api.app.unit_of_work import AppContext
from api.auth import Caller, JobAccess, ProjectMembership, Role, has_role
from core.db.tables import Job
from core.domain.errors import Forbidden
from core.settings import Settings
from core.storage.registry import FOLDER as MODELS
from core.storage.registry import is_place_of
from core.storage.tree import Tree
from core.storage.volumes import is_at_or_below, job_output


@dataclass(frozen=True, slots=True)
class AccessRefusal:
    """Why access is refused. ``message``: without a full stop; ``hint``: what to do."""

    message: str
    hint: str


def projects_with_role(caller: Caller, role: Role) -> frozenset[str]:
    """Names of the projects in which the caller has at least ``role``."""
    return frozenset(member.project for member in caller.projects.values() if has_role(member.role, role))


@dataclass(frozen=True, slots=True)
class UsablePart:
    """A folder of a volume that a caller may use. ``prefix``: empty for the whole volume."""

    prefix: str
    is_writable: bool


def usable_parts(settings: Settings, caller: Caller, volume: CachedVolume) -> list[UsablePart]:
    """The parts of ``volume`` that ``caller`` may use, in order of prefix; on the projects' own volume without models
    and, for platform admins, with them.
    """
    if caller.is_admin:
        found = {"": True}
    elif volume.name == settings.default_volume:
        found = {member.project: has_role(member.role, "member") for member in caller.projects.values()}
    else:
        found = {}
        for part in _granted_parts(caller, volume):
            found[part.prefix] = part.is_writable or found.get(part.prefix, False)
    return [
        UsablePart(prefix, is_writable and not volume.is_read_only) for prefix, is_writable in sorted(found.items())
    ]


def usable_volumes(context: AppContext, caller: Caller) -> dict[str, list[UsablePart]]:
    """The volumes of which the caller may use some part: those parts by the volume's name, in its order."""
    volumes = context.volumes.all(context.clock())
    parts = {volume.name: usable_parts(context.settings, caller, volume) for volume in volumes}
    return {name: found for name, found in parts.items() if found}


def is_writable_by_everyone(volume: CachedVolume) -> bool:
    """Whether the members of all projects may write to the whole volume."""
    return not volume.is_read_only and any(
        grant.project_id is None and not grant.prefix and grant.is_writable for grant in volume.grants
    )


def readable_output(context: AppContext, access: JobAccess) -> Tree:
    """The files of a job's output, which the caller may read.

    Raises:
        NotFound, Conflict: as ``JobAccess.load`` and ``job_output`` do.
        Forbidden: as of ``demand_output_access``.
    """
    with context.read() as work:
        job, member = access.load_with_member(work.session)
        tree = job_output(work.session, job)
    _demand_access_to_output(context, access, job, member, writes=False)
    return tree


def demand_output_access(context: AppContext, access: JobAccess, *, writes: bool) -> None:
    """Check that the caller may read or, with ``writes``, change the files of the job's output. Call it outside of
    transactions.

    Raises:
        NotFound, Forbidden: as of ``JobAccess.load``.
        Forbidden: the job's spec named a folder of which the caller has no such right, or not any more.
    """
    with context.read() as work:
        job, member = access.load_with_member(work.session)
    _demand_access_to_output(context, access, job, member, writes=writes)


def _demand_access_to_output(
    context: AppContext, access: JobAccess, job: Job, member: ProjectMembership, *, writes: bool
) -> None:
    label = f"The output of job {job.name!r}"
    demand_location_access(context, access.caller, member, label, job.output_volume, job.output_path, writes=writes)


def demand_location_access(
    context: AppContext, caller: Caller, member: ProjectMembership, label: str, volume: str, path: str, *, writes: bool
) -> None:
    """``label``: the first words of the sentence. ``member``: just checked; the cached roles may be seconds old.

    Raises:
        Forbidden: the caller may not read or, with ``writes``, write there.
    """
    known = context.volumes.find(volume, context.clock())
    if known is None:
        return  # whoever uses it says so
    caller = replace(caller, projects={**caller.projects, member.project_id: member})
    refusal = access_refusal(context.settings, caller, known, path, writes=writes)
    if refusal is not None:
        raise Forbidden(f"{label}: {refusal.message}; {refusal.hint}.")


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
    return None if caller.is_admin else _refusal_by_grants(caller, volume, path, writes=writes)


def _granted_parts(caller: Caller, volume: CachedVolume) -> Iterator[UsablePart]:
    """One of each grant that concerns the caller."""
    is_member = bool(projects_with_role(caller, "member"))
    for grant in volume.grants:
        if grant.project_id is None:
            if is_member:
                yield UsablePart(grant.prefix, grant.is_writable)
        elif (member := caller.projects.get(grant.project_id)) is not None:
            yield UsablePart(grant.prefix, grant.is_writable and has_role(member.role, "member"))


def _refusal_by_grants(caller: Caller, volume: CachedVolume, path: str, *, writes: bool) -> AccessRefusal | None:
    parts = list(_granted_parts(caller, volume))
    covering = [part for part in parts if is_at_or_below(path, part.prefix)]
    if any(part.is_writable or not writes for part in covering):
        return None
    place = f"{volume.name}/{path}" if path else f"volume {volume.name!r}"
    grants = [grant for grant in volume.grants if is_at_or_below(path, grant.prefix)]
    own = projects_with_role(caller, "member")
    if not own and any(grant.project_id is None for grant in grants):
        return AccessRefusal(f"{place} is for members of projects", "ask an admin of a project for the role member")
    writers = {grant.project_id for grant in grants if grant.is_writable}
    if names := [member.project for project_id, member in caller.projects.items() if project_id in writers]:
        return AccessRefusal(
            f"{place} is writable for members of project {min(names)!r}, of which you are only a viewer",
            "use it read-only, or ask an admin of the project for the role member",
        )
    access, project = "write" if writes else "read", min(own, default="<project>")
    hint = f"ask a platform admin for `trainmaster volumes grant {volume.name} {project} {access}`"
    if covering:
        return AccessRefusal(f"{place} is read-only for your projects", f"use it read-only, or {hint}")
    usable = sorted(part.prefix for part in parts if part.is_writable or not writes)
    if usable:
        hint = f"use {volume.name}/{usable[0]}, or {hint}"
    return AccessRefusal(f"{place} is not granted to a project of yours", hint)


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
