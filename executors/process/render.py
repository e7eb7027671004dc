"""The order file of the runtime, built purely from a :class:`ReplicaOrder`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.domain.errors import ExecutorRefused
from executors.base import ReplicaKey, ReplicaOrder
from executors.order_file import order_fields


def state_name(key: ReplicaKey) -> str:
    """Name of the state folder of one start of a replica."""
    return f"{key.role}-{key.index}.{key.generation}"


def mark_of(key: ReplicaKey) -> str:
    """Value of the variable that every process of this start has in its environment."""
    return f"{key.attempt_id}/{state_name(key)}"


def check(order: ReplicaOrder, node: str) -> None:
    """Raise :class:`ExecutorRefused` for what plain processes cannot do."""
    if order.image is not None:
        raise ExecutorRefused(
            "This platform runs plain processes (TRAINMASTER_EXECUTOR=process) and cannot run image "
            f"{order.image}; leave out `image`, or use a platform with a container engine.",
            field=f"roles.{order.key.role}.image",
        )
    if not order.command:
        raise ExecutorRefused(
            f"Role {order.key.role} has no command, and without an image there is none to fall back on; set `command`.",
            field=f"roles.{order.key.role}.command",
        )
    if order.node != node:
        raise ExecutorRefused(f"Replica {order.key.role}-{order.key.index} was placed on {order.node}, this is {node}.")


def render(
    order: ReplicaOrder,
    *,
    boot_id: str,
    tombstone: str,
    needed_paths: Sequence[str],
    hidden: Sequence[str],
    view: str,
    use_cgroups: bool,
    api_file: str,
    log_limit_bytes: int = 0,
) -> dict[str, Any]:
    """The order file. The token that the runtime reports with is a file of its own."""
    return {
        **order_fields(order, view=view, command=order.command or (), log_limit_bytes=log_limit_bytes),
        "api_file": api_file,
        "use_cgroups": use_cgroups,
        "boot_id": boot_id,
        "tombstone": tombstone,
        "needed_paths": list(needed_paths),
        "hidden": list(hidden),
    }
