"""Maps buckets to folders: a bucket is a volume, or a project's own folder on the shared volume of job outputs.

Permissions are those of jobs (``api.volumes.access``): of a volume of which only some folders are granted, the bucket
shows those. On the output volume the first folder is a project's name; there callers may use only the folders of their
projects.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from trainmaster.spec.fields import NAME_PATTERN

from api.app.cache import CachedVolume
from api.app.unit_of_work import AppContext
from api.auth import Caller
from api.protocols.kit.vertex_table import Table, table_of
from api.volumes.access import (
    access_refusal,
    is_writable_by_everyone,
    projects_with_role,
    usable_parts,
    usable_volumes,
)
from core.domain.errors import Conflict, Forbidden, InvalidRequest, NotFound
from core.storage.registry import FOLDER as MODELS
from core.storage.tree import LeavesVolume, Tree, split_path
from core.storage.volumes import UPLOADS, tree_of

# https://cloud.google.com/storage/docs/buckets#naming; names of volumes are stricter.
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,220}[a-z0-9]|[a-z0-9]")
_PROJECT: Final = re.compile(NAME_PATTERN)
_URI: Final = re.compile(r"gs://(?P<bucket>[^/]+)(?:/(?P<path>.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Bucket:
    """``volume`` and ``base``: the folder, as jobs mount it. ``owners``: on the shared volume, the projects whose
    folders the caller may use; ``None``: all. ``within``: the folders or files that the caller may use; ``None``: all.
    """

    name: str
    volume: str
    base: str
    top: Tree  # of the volume
    is_read_only: bool
    is_shared: bool = False  # the volume of all projects' own folders
    owners: frozenset[str] | None = None
    within: frozenset[str] | None = None

    def tree(self) -> Tree:
        """The bucket's own folder, which may not exist yet. Raises ``LeavesVolume`` if it is a link."""
        if self.base and self.top.is_link(self.base):
            raise LeavesVolume(f"Bucket {self.name} is a link, and is not followed.")
        return self.top.below(self.base)

    def project_of(self, name: str) -> str | None:
        """The name of the project in whose own folder the object ``name`` is; ``None``: in none."""
        owner = name.partition("/")[0] if self.is_shared else self.base
        return owner if _PROJECT.fullmatch(owner) else None

    def location(self, names: Sequence[str]) -> str:
        """volume/path of what is at the path ``names`` in the bucket."""
        return "/".join(filter(None, (self.volume, self.base, *names)))

    def locate(self, path: str, *, makes: bool = False) -> tuple[Tree, str]:
        """The tree that no link in ``path`` may leave, and the path inside it. ``makes``: create the tree's root if
        missing.

        Raises:
            Forbidden, NotFound: the path is in another project's folder, or the write would change a registered model.
        """
        if self.within is not None:
            return self._locate_within(path, self.within, makes=makes)
        owner, _, rest = path.partition("/")
        if makes and self.is_shared and owner == MODELS:
            raise Forbidden(f"{self.name}/{MODELS} holds registered models, which never change; write elsewhere.")
        # An administrator may write to all other folders of the shared volume; projects' links there cannot lead back.
        if self.owners is None and not (makes and self.is_shared and rest):
            if makes and self.base:
                self.tree()
                self.top.make_folder(self.base)
            return self.tree(), path
        if self.owners is not None and (owner not in self.owners or not rest):
            own = ", ".join(f"gs://{self.name}/{name}/" for name in sorted(self.owners)[:3])
            hint = f" Yours are below {own}." if own else ""
            if makes:
                raise Forbidden(f"The first folder of bucket {self.name} is a project of yours.{hint}")
            raise NotFound(f"No such object: {self.name}/{path}")
        if self.top.is_link(owner):
            raise LeavesVolume(f"No such object: {self.name}/{path}")
        if makes:
            self.top.make_folder(owner)
        return self.top.below(owner), rest

    def _locate_within(self, path: str, folders: frozenset[str], *, makes: bool) -> tuple[Tree, str]:
        own = next((folder for folder in folders if path == folder or path.startswith(f"{folder}/")), None)
        if own is None:
            if not makes:
                raise NotFound(f"No such object: {self.name}/{path}")
            hint = ", ".join(f"gs://{self.name}/{folder}/" for folder in sorted(folders)[:3])
            raise Forbidden(f"gs://{self.name}/{path} is not writable here; in this bucket these are: {hint}.")
        if path == own:  # a file
            return self.tree(), path
        if makes:
            if self.base:
                self.top.make_folder(self.base)
            self.tree().make_folder(own)
        return self.tree().below(own), path.removeprefix(f"{own}/")


def volume_of(context: AppContext, own_name: str, projects: frozenset[str]) -> tuple[CachedVolume | None, str]:
    """The volume named ``own_name``, and the bucket's folder in it (a project's own folder, or empty).

    Args:
        projects: the caller's projects.
    """
    volume = context.volumes.find(own_name, context.clock())
    if volume is None and own_name in projects:
        return context.volumes.find(context.settings.default_volume, context.clock()), own_name
    return volume, ""


def find_bucket(
    context: AppContext, caller: Caller, name: str, *, writes: bool = False, table: Table | None = None
) -> Bucket:
    """The bucket of this name, checked for reading or, with ``writes``, writing. ``table``: if it was loaded already.

    Raises:
        NotFound: no such bucket is visible to the caller.
        Forbidden: the bucket is read-only, or the caller is a member of no project.
        Conflict: the control plane cannot access the volume.
    """
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"Invalid bucket name: '{name[:100]}'", field="bucket")
    own = projects_with_role(caller, "member" if writes else "viewer")
    shared = context.settings.default_volume
    own_name = (table_of(context) if table is None else table).bucket(name)
    volume, base = volume_of(context, own_name, own)
    if volume is None:
        if any(each.project == own_name for each in caller.projects.values()):
            raise Forbidden(f"Bucket {name} is your project's own folder; to write needs the role member there.")
        raise NotFound("The specified bucket does not exist.")
    if volume.root is None:
        raise Conflict(
            f"Bucket {name} is a volume that the control plane does not see: it was registered without a root, so its "
            "files are reached from jobs only."
        )
    is_shared = own_name == shared
    within = None
    if not is_shared:
        refusal = access_refusal(context.settings, caller, volume, base, writes=writes)
        if refusal is not None:
            parts = usable_parts(context.settings, caller, volume)
            within = outermost({part.prefix for part in parts if part.is_writable or not writes})
            if base or not within:
                raise Forbidden(f"Bucket {name}: {refusal.message}; {refusal.hint}.")
    elif writes and volume.is_read_only:
        raise Forbidden(f"Bucket {name} is a read-only volume; choose another one to write to.")
    owners = own if is_shared and not caller.is_admin else None
    return Bucket(name, volume.name, base, tree_of(volume), volume.is_read_only, is_shared, owners, within)


def outermost(folders: Collection[str]) -> frozenset[str]:
    """Those that are in none of the others."""
    return frozenset(
        path for path in folders if not any(path.startswith(f"{other}/") for other in folders if other != path)
    )


def open_uri(
    context: AppContext, caller: Caller, uri: str, where: str, *, writes: bool = False, table: Table | None = None
) -> tuple[Bucket, tuple[str, ...]]:
    """The bucket of a ``gs://`` URI, checked as by :func:`find_bucket`, and the names in the URI's path.

    ``where``: of the URI in the request. Raises ``InvalidRequest``, ``NotFound`` or ``Forbidden``.
    """
    match = _URI.fullmatch(uri)
    if match is None:
        raise InvalidRequest(f"{where}: '{uri[:200]}' is no Cloud Storage URI.", field=where)
    with not_found_at(where, uri):
        bucket = find_bucket(context, caller, match["bucket"], writes=writes, table=table)
    return bucket, split_path(match["path"] or "", field=where)


@contextmanager
def not_found_at(where: str, uri: str) -> Iterator[None]:
    """Name the place in the request in the error of a file or bucket that is not found."""
    try:
        yield
    except NotFound as error:
        if error.field == where:
            raise
        raise NotFound(f"{where}: {error.sentence} ({uri[:200]})", field=where) from error


def open_bucket(context: AppContext, name: str) -> Bucket:
    """The bucket for a request without a token: a volume that is granted to everyone for writing."""
    own_name = table_of(context).bucket(name)
    volume = context.volumes.find(own_name, context.clock()) if _NAME.fullmatch(name) else None
    is_shared = own_name == context.settings.default_volume
    if volume is None or volume.root is None or is_shared or not is_writable_by_everyone(volume):
        raise Forbidden(
            f"Bucket {name[:100]} takes nothing without a token; `trainmaster vertex-env` tells how to send one."
        )
    return Bucket(name, volume.name, "", tree_of(volume), is_read_only=False)


def bucket_names(context: AppContext, caller: Caller) -> list[str]:
    """Names of all buckets that the caller may read: volumes, then project folders."""
    volumes = usable_volumes(context, caller)
    projects = {each.project for each in caller.projects.values()}
    return [*volumes, *sorted(projects - set(volumes))]


def bucket_view(name: str) -> dict[str, Any]:
    return {
        "kind": "storage#bucket",
        "id": name,
        "name": name,
        "location": "LOCAL",
        "locationType": "region",
        "storageClass": "STANDARD",
        "metageneration": "1",
        "projectNumber": "0",
        "versioning": {"enabled": False},
        "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}},  # no access lists
        "etag": "CAE=",
    }


def object_path(name: str) -> str:
    """The object's path below its bucket. A name that ends in a slash is a folder.

    Raises:
        InvalidRequest: the name is not a valid file path.
    """
    names = split_path(name.removesuffix("/"), field="name")
    path = "/".join(names)
    if not path or path != name.removesuffix("/") or names[0] == UPLOADS:
        raise InvalidRequest(
            f"Invalid object name: '{name[:100]}'; here objects are files of a volume, so no part of the name may be "
            "empty or a dot.",
            field="name",
        )
    return path
