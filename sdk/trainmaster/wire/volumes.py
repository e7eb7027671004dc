"""API models for registering volumes; ``config``, which depends on the kind, says how containers mount the volume."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, TypeAdapter

from trainmaster.spec.fields import Folder, Name
from trainmaster.spec.model import MAX_ENTRIES
from trainmaster.wire.admin import VolumeAccess
from trainmaster.wire.base import WireRequest

# https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#dns-subdomain-names
_KUBERNETES_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
# https://kubernetes.io/docs/reference/kubernetes-api/config-and-storage-resources/csi-driver-v1/
_DRIVER = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def _folder(path: str) -> str:
    if not path.startswith("/") or ".." in path.split("/") or "\0" in path or len(path) > 4096:
        raise ValueError("must be an absolute path without '..', such as /export/data")
    return path


def _server(name: str) -> str:
    if not name or len(name) > 253 or re.search(r"[\s/,]", name):
        raise ValueError("must be the name or address of the NFS server, such as nfs.example.org")
    return name


def _kubernetes_name(name: str) -> str:
    if not _KUBERNETES_NAME.fullmatch(name):
        raise ValueError("must be a Kubernetes name: lower-case letters, digits, - and .")
    return name


def _driver(name: str) -> str:
    if not _DRIVER.fullmatch(name):
        raise ValueError("must be the name of a CSI driver, such as csi.example.org")
    return name


FolderPath = Annotated[str, AfterValidator(_folder)]
KubernetesName = Annotated[str, AfterValidator(_kubernetes_name)]


class LocalConfig(WireRequest):
    """``path``: the folder's path on the nodes; default: ``root``."""

    path: FolderPath | None = None


class NfsConfig(WireRequest):
    """``path``: the server's export. ``options``: mount options such as ``nfsvers=4.1,nolock``, used by Docker."""

    server: Annotated[str, AfterValidator(_server)]
    path: FolderPath
    options: str | None = Field(default=None, max_length=1000)
    read_only: bool = False


class PvcConfig(WireRequest):
    """``claim``: a PersistentVolumeClaim in the jobs' namespace. ``namespace``: that namespace, to validate it."""

    claim: KubernetesName
    namespace: KubernetesName | None = None
    read_only: bool = False


class CsiConfig(WireRequest):
    """An inline CSI volume in each pod. ``secret``: a Secret in the jobs' namespace."""

    driver: Annotated[str, AfterValidator(_driver)]
    attributes: dict[str, str] = Field(default_factory=dict, max_length=MAX_ENTRIES)
    secret: KubernetesName | None = None
    fs_type: str | None = Field(default=None, max_length=32)
    read_only: bool = False


class VolumeGrantSet(WireRequest):
    """``prefix``: the folder of the volume that it concerns; empty: the whole volume."""

    access: VolumeAccess
    prefix: Folder = ""


class VolumeGrantCreate(VolumeGrantSet):
    """``grantee``: a project, or ``everyone``: the members of all projects."""

    grantee: Name


class _VolumeCreate(WireRequest):
    """``grants``: without any only platform admins may use the volume."""

    name: Name
    root: str | None = None
    is_read_only: bool = False
    grants: list[VolumeGrantCreate] = Field(default_factory=list, max_length=MAX_ENTRIES)


class LocalVolumeCreate(_VolumeCreate):
    kind: Literal["local"] = "local"
    config: LocalConfig = LocalConfig()


class NfsVolumeCreate(_VolumeCreate):
    kind: Literal["nfs"]
    config: NfsConfig


class PvcVolumeCreate(_VolumeCreate):
    kind: Literal["pvc"]
    config: PvcConfig


class CsiVolumeCreate(_VolumeCreate):
    kind: Literal["csi"]
    config: CsiConfig


def _tag(body: Any) -> str:
    """Discriminator, by default ``local``. Tags appear in error locations; "kind=" distinguishes them from fields."""
    kind = body.get("kind", "local") if isinstance(body, dict) else getattr(body, "kind", "local")
    return f"kind={kind}"


VolumeCreate = Annotated[
    Annotated[LocalVolumeCreate, Tag("kind=local")]
    | Annotated[NfsVolumeCreate, Tag("kind=nfs")]
    | Annotated[PvcVolumeCreate, Tag("kind=pvc")]
    | Annotated[CsiVolumeCreate, Tag("kind=csi")],
    Discriminator(_tag, custom_error_type="volume_kind", custom_error_message="kind must be local, nfs, pvc or csi"),
]


def volume_create(body: dict[str, Any]) -> VolumeCreate:
    """``body`` as the request of its kind.

    Raises:
        pydantic.ValidationError: an invalid request.
    """
    return _adapter().validate_python(body)


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[VolumeCreate]:
    return TypeAdapter(VolumeCreate)
