"""From a registered volume to a pod's volume and its mount.

The pod always gets the whole volume and mounts a ``subPath`` of it: kubelet opens that without ever leaving the volume,
so a link that a job has laid in its output leads nowhere. A path joined in the manifest would be followed anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from core.domain.errors import ExecutorRefused
from executors.base import VolumeSource
from executors.kubernetes.api_server.client import Json


def render_volume(
    source: VolumeSource,
    *,
    name: str,
    target: str,
    read_only: bool,
    host_paths: Sequence[str] = (),
    namespace: str = "",
) -> tuple[Json, Json]:
    """The entries for ``volumes`` and ``volumeMounts``, both called ``name``.

    Args:
        host_paths: folders of the nodes that local volumes may lie under; empty: none.
        namespace: the pod's, for claims that say theirs; empty: not compared.

    Raises:
        ExecutorRefused: the volume cannot be mounted here; the sentence names it and says what to do.
    """
    _check_path(source)
    match source.kind:
        case "local":
            kind = {"hostPath": _host_path(source, host_paths)}
        case "nfs":
            kind = {"nfs": {"server": _text(source, "server"), "path": _text(source, "path"), **_read_only(source)}}
        case "pvc":
            kind = {"persistentVolumeClaim": _claim(source, namespace)}
        case "csi":
            kind = {"csi": _csi(source)}
        case _:
            raise ExecutorRefused(
                f"Volume {source.name} is of kind {source.kind}, which Kubernetes cannot mount; use local, nfs, pvc or "
                "csi."
            )
    mount: Json = {"name": name, "mountPath": target, "readOnly": read_only}
    if source.path:
        mount["subPath"] = source.path
    return {"name": name, **kind}, mount


def _host_path(source: VolumeSource, host_paths: Sequence[str]) -> Json:
    path = PurePosixPath(_text(source, "path"))
    if not path.is_absolute() or ".." in path.parts:
        raise ExecutorRefused(f"Volume {source.name}: path {path} must be absolute and without '..'.")
    if not any(path.is_relative_to(folder) for folder in host_paths):
        allowed = f"under {', '.join(host_paths)} only" if host_paths else "nowhere there"
        raise ExecutorRefused(
            f"Volume {source.name} lies at {path} on the nodes, and volumes may lie {allowed}; an administrator allows "
            f"it by TRAINMASTER_HOST_PATHS, such as TRAINMASTER_HOST_PATHS={path}."
        )
    # A node that lacks it says so, instead of giving the job an empty folder of its own.
    return {"path": str(path), "type": "Directory"}


def _claim(source: VolumeSource, namespace: str) -> Json:
    claim = _text(source, "claim")
    home = source.config.get("namespace")
    if home and namespace and home != namespace:
        raise ExecutorRefused(
            f"Volume {source.name} is the claim {claim} of namespace {home}, and this job runs in {namespace}: "
            f"Kubernetes mounts claims of a pod's own namespace only; use a volume whose claim lies in {namespace}."
        )
    return {"claimName": claim, **_read_only(source)}


def _csi(source: VolumeSource) -> Json:
    config = source.config
    volume: Json = {"driver": _text(source, "driver"), **_read_only(source)}
    attributes = config.get("attributes") or {}
    if attributes:
        volume["volumeAttributes"] = {str(key): str(value) for key, value in attributes.items()}
    if config.get("fs_type"):
        volume["fsType"] = str(config["fs_type"])
    if config.get("secret"):
        volume["nodePublishSecretRef"] = {"name": str(config["secret"])}
    return volume


def _read_only(source: VolumeSource) -> Json:
    """Asked of the whole volume only where it was registered so: a volume that is used twice is one volume of the
    pod.
    """
    return {"readOnly": True} if source.config.get("read_only") else {}


def _text(source: VolumeSource, key: str) -> str:
    value: Any = source.config.get(key)
    if not isinstance(value, str) or not value:
        raise ExecutorRefused(
            f"Volume {source.name} of kind {source.kind} was registered without config.{key}; ask an administrator to "
            "register it again."
        )
    return value


def _check_path(source: VolumeSource) -> None:
    path = PurePosixPath(source.path)
    if path.is_absolute() or ".." in path.parts or "\0" in source.path:
        raise ExecutorRefused(f"The path {source.path!r} leads out of volume {source.name}.")
