"""The engine's messages as sentences for users: whether to try again, and what to do."""

from __future__ import annotations

import re
from typing import Final

from core.domain.errors import ExecutorError, ExecutorRefused, ExecutorTryAgain
from executors.base import ReplicaOrder
from executors.docker.engine import EngineError, EngineObjectMissing

_FULL: Final = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_NO_ADDRESSES: Final = re.compile(r"non-overlapping IPv4 address pool|all predefined address pools", re.IGNORECASE)
_NO_SOURCE: Final = re.compile(r"bind source path does not exist: (\S+)")
_NO_TOOLKIT: Final = re.compile(
    r"could not select device driver|unknown or invalid runtime name: nvidia", re.IGNORECASE
)
_NO_DEVICE: Final = re.compile(r"nvidia-container-cli: (?:device error|detection error).*?: (.+)")
_OTHER_ARCHITECTURE: Final = re.compile(r"exec format error|does not match the detected host platform", re.IGNORECASE)
_NO_USER: Final = re.compile(r"unable to find (?:user|group) (\S+?):")
_NO_LIMIT: Final = re.compile(r"Range of CPUs|[Mm]inimum memory limit|exceed")


def not_created(error: EngineError, order: ReplicaOrder, image: str) -> ExecutorError:
    """Why a replica could not be created or started."""
    message, role = error.message, order.key.role
    if match := _NO_SOURCE.search(message):
        return _no_source(order, match.group(1))
    if _FULL.search(message):
        return ExecutorTryAgain("The disk of the Docker engine's machine is full; free space there. It is tried again.")
    if _NO_ADDRESSES.search(message):
        return ExecutorTryAgain(
            "The Docker engine has no addresses left for one more network (each running job has one); it is tried "
            "again. For more, the administrator widens `default-address-pools` of the engine."
        )
    if _NO_TOOLKIT.search(message):
        return ExecutorRefused(
            "The Docker engine cannot give GPUs to containers; the administrator installs the NVIDIA container "
            "toolkit.",
            field=f"roles.{role}.resources.gpus",
        )
    if match := _NO_DEVICE.search(message):
        return ExecutorTryAgain(f"A GPU of this replica does not answer ({match.group(1)}). It is tried again.")
    if _OTHER_ARCHITECTURE.search(message):
        return ExecutorRefused(
            f"Image {image} is made for another kind of processor than the engine's machine has; build it for that "
            "one.",
            field=f"roles.{role}.image",
        )
    if match := _NO_USER.search(message):
        return ExecutorRefused(
            f"Image {image} has the USER {match.group(1)}, which does not exist in it; correct its USER.",
            field=f"roles.{role}.image",
        )
    if isinstance(error, EngineObjectMissing):  # the image, or the network: taken away since we looked
        return ExecutorTryAgain(f"Something was taken away from the Docker engine ({message}); it is tried again.")
    if error.status == 400:
        field = f"roles.{role}.resources" if _NO_LIMIT.search(message) else None
        return ExecutorRefused(f"The Docker engine refused it: {message.rstrip('.')}.", field=field)
    return ExecutorTryAgain(f"The Docker engine failed: {message.rstrip('.')}. It is tried again.")


def _no_source(order: ReplicaOrder, path: str) -> ExecutorRefused:
    mount = next((mount for mount in order.mounts if mount.source.rstrip("/") == path.rstrip("/")), None)
    target = "" if mount is None else f"{mount.target}: "
    volume = "" if mount is None or mount.volume is None else f" of volume {mount.volume.name}"
    return ExecutorRefused(
        f"{target}the folder {path}{volume} does not exist on the Docker engine's machine; check the path, or let the "
        "administrator register the volume with the path that it has there."
    )


_NO_ACCESS: Final = (
    "its registry has no such image, or shows it only after a login; check the name, or have the "
    "administrator run `docker login` for the platform's user"
)
# Pulling. The first that fits counts; ``True``: the user's or the administrator's to mend, so no use in trying again.
_PULL_ERRORS: Final = (
    (re.compile(r"no space left", re.IGNORECASE), False, "the disk of the Docker engine's machine is full"),
    (re.compile(r"toomanyrequests|429|rate limit", re.IGNORECASE), False, "its registry asks us to wait"),
    (
        re.compile(r"invalid reference format|repository name .*must be|could not parse", re.IGNORECASE),
        True,
        "this is no image's name",
    ),
    (
        re.compile(r"may require 'docker login'|does not exist or may|pull access denied", re.IGNORECASE),
        True,
        _NO_ACCESS,
    ),
    (
        re.compile(r"unauthorized|authentication required|no basic auth|denied|forbidden", re.IGNORECASE),
        True,
        "its registry does not let this platform in; the administrator runs `docker login` for the platform's user",
    ),
    (
        re.compile(r"no matching manifest", re.IGNORECASE),
        True,
        "there is none for the processor of the Docker engine's machine",
    ),
    (
        re.compile(r"manifest unknown|manifest for .* not found|not found|no such image", re.IGNORECASE),
        True,
        "its registry has no such image; check name and tag",
    ),
    (
        re.compile(
            r"no such host|server misbehaving|connection refused|timeout|unreachable|reset by peer|EOF|handshake"
        ),
        False,
        "its registry cannot be reached from the Docker engine's machine",
    ),
    (re.compile(r"x509|certificate", re.IGNORECASE), False, "its registry's certificate is not trusted by the engine"),
)


def not_pulled(name: str, message: str) -> ExecutorError:
    """Why an image could not be pulled."""
    message = message.strip().rstrip(".")
    for pattern, is_final, words in _PULL_ERRORS:
        if pattern.search(message):
            kind = ExecutorRefused if is_final else ExecutorTryAgain
            return kind(f"Image {name} cannot be pulled: {words} ({message}).")
    return ExecutorTryAgain(f"Image {name} cannot be pulled ({message}); it is tried again.")
