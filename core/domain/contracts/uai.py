"""UAI Train: ``python <cmd>`` in the working directory, with its five arguments appended.

A node runs one process, and ``RANK`` is the node's number: it contradicts torchrun, so only this mode sets it so.
"""

from __future__ import annotations

import re
from typing import Final

from core.domain.contracts.context import ReplicaContext

_PYTHON: Final = re.compile(r"(?:\S*/)?python[0-9.]*\Z")


def variables(replica_context: ReplicaContext) -> dict[str, str]:
    """The environment of PyTorch jobs in this mode; empty for a replica without a rank."""
    if replica_context.member is None:
        return {}
    root = replica_context.world.root
    return {
        "MASTER_ADDR": root.host,
        "MASTER_PORT": str(root.ports.torch),
        "RANK": str(replica_context.member.node_rank),
        "WORKER_NUM": str(len(replica_context.world.members)),
        "WORKER_GPU_NUM": str(replica_context.gpu_count),
    }


def command(written: tuple[str, ...] | str | None) -> tuple[str, ...] | str | None:
    """``python <cmd>``; a command that names its Python already stays as it is."""
    if written is None:
        return None
    if isinstance(written, str):
        first = written.split(maxsplit=1)[0] if written.strip() else ""
        return written if _PYTHON.match(first) else f"python {written}"
    return written if _PYTHON.match(written[0]) else ("python", *written)


def arguments(replica_context: ReplicaContext) -> tuple[str, ...]:
    """The arguments appended to every command, in this order."""
    paths = replica_context.context.paths
    return (
        f"--work_dir={paths.work}",
        f"--data_dir={paths.data}",
        f"--output_dir={paths.output}",
        f"--log_dir={paths.output}",
        f"--num_gpus={replica_context.gpu_count}",
    )
