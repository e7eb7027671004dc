"""Secrets of a replica: contracts with the user's secrets, and the attempt's token, which must not stand in a Pod.

Replicas that are created together share one while it stays small: a Secret of its own for each would be half of a
gang's requests. A Pod mounts the files of its own replica alone; its neighbours' are the same user's.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from core.domain.errors import ExecutorRefused
from executors.base import ReplicaOrder
from executors.containers import labels, names
from executors.containers import paths as container_paths
from executors.containers.order_files import render_order
from executors.kubernetes.options import KubernetesOptions

Json = dict[str, Any]

# https://kubernetes.io/docs/concepts/configuration/secret/#restriction-data-size
SECRET_LIMIT_BYTES: Final = 1_048_576
# Each kubelet of the gang fetches all of a shared one.
_SHARED_LIMIT_BYTES: Final = SECRET_LIMIT_BYTES // 4
_TOKEN_KEY: Final = "trainmaster.token"  # noqa: S105 (a name)
_FILE_KEY: Final = "trainmaster.file-"


_Part = tuple[ReplicaOrder, Mapping[str, bytes]]


@dataclass(frozen=True, slots=True)
class SecretLocation:
    """Where the files of a replica are: in the Secret ``name``, its keys behind ``prefix`` if it is shared."""

    name: str
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Bundle:
    """One Secret, and the orders whose files it has."""

    secret: Json
    orders: tuple[ReplicaOrder, ...]

    def location(self, order: ReplicaOrder) -> SecretLocation:
        """Where ``order``'s are in it."""
        return SecretLocation(self.secret["metadata"]["name"], _prefix(order)) if len(self.orders) > 1 else own(order)


def uses_image_command(order: ReplicaOrder) -> bool:
    """Whether the image's own command runs. Kubernetes does not expose it, so the runtime cannot run it."""
    return not order.command


def own(order: ReplicaOrder) -> SecretLocation:
    """The Secret of a replica that shares none: it is called like its Pod."""
    return SecretLocation(names.replica_name(order.key))


def bundle(orders: Sequence[ReplicaOrder], options: KubernetesOptions, namespace: str) -> list[Bundle]:
    """``orders`` of one attempt in as few Secrets as is sensible; the same orders always in the same ones.

    Raises:
        ExecutorRefused: one is larger than a Secret may be (see :func:`files_of`).
    """
    groups: list[list[_Part]] = []
    room = 0
    for order in orders:
        files = files_of(order, options)
        size = _size(files)
        if not groups or size > room:
            groups.append([])
            room = _SHARED_LIMIT_BYTES
        groups[-1].append((order, files))
        room -= size
    return [Bundle(_render(group, options, namespace), tuple(order for order, _ in group)) for group in groups]


def files_of(order: ReplicaOrder, options: KubernetesOptions) -> Mapping[str, bytes]:
    """All that is secret of the replica, by key.

    Raises:
        ExecutorRefused: it is larger than a Secret may be.
    """
    files = _image_command_files(order) if uses_image_command(order) else _order_files(order, options.log_limit_bytes)
    if (size := _size(files)) > SECRET_LIMIT_BYTES:
        raise ExecutorRefused(
            f"The environment of {order.key.role}-{order.key.index} takes {size / 2**20:.1f} MiB, and Kubernetes "
            "carries at most 1 MiB: ask for fewer replicas, or put large values into a file of the job."
        )
    return files


def image_command_env(order: ReplicaOrder) -> dict[str, str]:
    """The environment of an image's own command."""
    return {**order.env, **(order.process_env[0] if order.process_env else {})}


def volume_items(order: ReplicaOrder, location: SecretLocation) -> list[Json] | None:
    """Which keys the Pod mounts, and under which names; ``None``: all of the Secret, as they are called there."""
    if uses_image_command(order):
        paths = _image_command_paths(order)
    elif location.prefix:
        paths = {name: name for name in ("order.json", "order.sh", *(("token",) if order.token is not None else ()))}
    else:
        return None
    return [{"key": f"{location.prefix}{key}", "path": path} for key, path in paths.items()]


def _render(group: Sequence[_Part], options: KubernetesOptions, namespace: str) -> Json:
    first, files = group[0]
    if len(group) == 1:
        name, secret_labels = own(first).name, labels.replica_labels(options.instance, first)
    else:
        name, secret_labels = (
            _shared_name([order for order, _ in group]),
            labels.attempt_labels(options.instance, first),
        )
        files = {f"{_prefix(order)}{key}": content for order, part in group for key, content in part.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace, "labels": secret_labels},
        "type": "Opaque",
        "immutable": True,
        "data": {key: base64.b64encode(content).decode() for key, content in files.items()},
    }


def _shared_name(orders: Sequence[ReplicaOrder]) -> str:
    """Named by its replicas: a creation of a gang's missing replicas must not find the Secret of the whole gang."""
    replica_names = ",".join(names.replica_name(order.key) for order in orders)
    digest = hashlib.sha256(replica_names.encode()).hexdigest()[:16]
    return names.fit(f"{orders[0].key.attempt_id}-orders-{digest}")


def _prefix(order: ReplicaOrder) -> str:
    return f"{names.host_name(order.key.role, order.key.index)}."


def _size(files: Mapping[str, bytes]) -> int:
    return sum(len(content) for content in files.values())


def _order_files(order: ReplicaOrder, log_limit_bytes: int) -> dict[str, bytes]:
    return render_order(
        order,
        image_command=None,
        termination_path=container_paths.TERMINATION_LOG,
        enforced=("cpu", "memory"),  # a Pod cannot say how many processes it may have
        log_limit_bytes=log_limit_bytes,
    )


def _image_command_files(order: ReplicaOrder) -> dict[str, bytes]:
    files = {name: value.encode() for name, value in image_command_env(order).items()}
    if order.token is not None:
        files[_TOKEN_KEY] = order.token.encode()
    for number, content in enumerate(order.files.values()):
        files[f"{_FILE_KEY}{number}"] = content.encode()
    return files


def _image_command_paths(order: ReplicaOrder) -> dict[str, str]:
    """Keys that are files below ``/data/.trainmaster``, and their names there."""
    paths = {_TOKEN_KEY: "token"} if order.token is not None else {}
    for number, path in enumerate(order.files):
        paths[f"{_FILE_KEY}{number}"] = path.removeprefix(f"{container_paths.OWN}/")
    return paths
