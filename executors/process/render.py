"""The order file of the runtime, built purely from a :class:`ReplicaOrder`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from core.domain.errors import ExecutorRefused
from executors.base import ReplicaKey, ReplicaOrder

ORDER_VERSION: Final = 1


def state_name(key: ReplicaKey) -> str:
    """Name of the state folder of one start of a replica."""
    return f"{key.role}-{key.index}.{key.generation}"


def mark_of(key: ReplicaKey) -> str:
    """What every process of this start carries in its environment."""
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
) -> dict[str, Any]:
    """The order file. It holds no token: that is a file of its own."""
    key = order.key
    return {
        "version": ORDER_VERSION,
        "key": {
            "job_id": key.job_id,
            "attempt_id": key.attempt_id,
            "role": key.role,
            "index": key.index,
            "generation": key.generation,
        },
        "attempt_number": order.attempt_number,
        "command": order.command if isinstance(order.command, str) else list(order.command or ()),
        "args": list(order.args),
        "env": dict(order.env),
        "process_env": [dict(env) for env in order.process_env],
        "files": dict(order.files),
        "code_path": order.code_path,
        "code_digest": order.code_digest,
        "mounts": [{"source": m.source, "target": m.target, "read_only": m.read_only} for m in order.mounts],
        "cpu_limit_milli": order.cpu_limit_milli,
        "memory_limit_bytes": order.memory_limit_bytes,
        "shm_bytes": order.shm_bytes,
        "pids_limit": order.pids_limit,
        "stop_grace_s": order.stop_grace.total_seconds(),
        "exit_grace_s": order.exit_grace.total_seconds(),
        "peers_grace_s": order.peers_grace.total_seconds(),
        "peer_hosts": list(order.peer_hosts),
        "deadline_s": order.deadline_s,
        "api_url": order.api_url,
        "view": view,
        "use_cgroups": use_cgroups,
        "boot_id": boot_id,
        "tombstone": tombstone,
        "needed_paths": list(needed_paths),
        "hidden": list(hidden),
    }
