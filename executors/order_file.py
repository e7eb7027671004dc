"""The fields of every order file, on each engine; ``trainmaster_runtime.order`` reads them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from executors.base import ReplicaOrder

ORDER_VERSION: Final = 1


def order_fields(
    order: ReplicaOrder,
    *,
    view: str,
    command: Sequence[str] | str,
    env: Mapping[str, str] | None = None,
    log_limit_bytes: int = 0,
) -> dict[str, Any]:
    """The fields that do not depend on the engine. The token that the runtime reports with is a file of its own.

    Args:
        view: how ``/data`` is made: ``private``, ``mapped`` or ``as_is``.
        command: what to run; the order's own may be ``None``.
        env: instead of the order's.
        log_limit_bytes: room that the replica's log takes at most; 0: no limit.
    """
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
        "command": command if isinstance(command, str) else list(command),
        "args": list(order.args),
        "env": dict(order.env if env is None else env),
        "process_env": [dict(extra) for extra in order.process_env],
        "files": dict(order.files),
        "environment": dict(order.environment),
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
        "log_limit_bytes": log_limit_bytes,
        "view": view,
        "world": order.world,
        "joins_warm": order.joins_warm,
        **({"secret_names": sorted(order.secret_names)} if order.secret_names else {}),
    }


def world_fields(order: ReplicaOrder) -> dict[str, Any]:
    """A world update for a running replica. It holds no secret:
    variables of the job's spec stay in the replica as they are.
    """
    return {
        "world": order.world,
        "command": order.command if isinstance(order.command, str) else list(order.command or ()),
        "args": list(order.args),
        "env": {name: value for name, value in order.env.items() if name not in order.job_variables},
        "process_env": [dict(extra) for extra in order.process_env],
        "files": dict(order.files),
        "kept_env": sorted(order.job_variables),
    }
