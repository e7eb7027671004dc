"""Discovers this process's rank from the environment of any launcher."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from trainmaster_train.context import ContextError, environment_number

# torch's own default.
_DEFAULT_PORT = 29500
_UNRANKED = frozenset({"ps", "evaluator"})


@dataclass(frozen=True)
class RankAssignment:
    """``address``: host and port at which rank 0 waits for the others; ``None`` for a single process.

    ``contract``: the source, such as ``torchrun`` or ``TF_CONFIG``.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    address: Optional[Tuple[str, int]] = None
    contract: str = "alone"


def discover_ranks(environ: Optional[Mapping[str, str]] = None, *, local_rank: Optional[int] = None) -> RankAssignment:
    """The rank in the environment, from the first launcher whose variables are complete.

    In this order: torch (torchrun, the platform), UAI Train (``RANK`` is the node's number there), Horovod, Open MPI
    and MPICH, ``TF_CONFIG``, Vertex's ``CLUSTER_SPEC``. Without any of them: a single process.

    Args:
        local_rank: rank of this process on its node, for a script that starts a process for each GPU itself, as with
            UAI Train; then all nodes have ``WORKER_GPU_NUM`` processes.

    Raises:
        ContextError: a variable has an invalid value, or this replica (a ps) does not train with the others.
    """
    env = os.environ if environ is None else environ
    for read in _CONTRACTS:
        assignment = read(env, local_rank)
        if assignment is not None:
            return _checked(assignment)
    return RankAssignment()


def _torch(env: Mapping[str, str], local_rank: Optional[int]) -> Optional[RankAssignment]:
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= env.keys():
        return None
    return RankAssignment(
        rank=environment_number(env, "RANK"),
        world_size=environment_number(env, "WORLD_SIZE"),
        local_rank=environment_number(env, "LOCAL_RANK", 0) if local_rank is None else local_rank,
        local_world_size=environment_number(env, "LOCAL_WORLD_SIZE", 1),
        address=(env["MASTER_ADDR"], environment_number(env, "MASTER_PORT", _DEFAULT_PORT)),
        contract="torchrun" if "TORCHELASTIC_RUN_ID" in env else "torch",
    )


def _uai(env: Mapping[str, str], local_rank: Optional[int]) -> Optional[RankAssignment]:
    if not {"RANK", "WORKER_NUM", "MASTER_ADDR"} <= env.keys():
        return None
    processes = 1 if local_rank is None else max(1, environment_number(env, "WORKER_GPU_NUM", 1))
    index_on_node = local_rank or 0
    return RankAssignment(
        rank=environment_number(env, "RANK") * processes + index_on_node,
        world_size=environment_number(env, "WORKER_NUM") * processes,
        local_rank=index_on_node,
        local_world_size=processes,
        address=(env["MASTER_ADDR"], environment_number(env, "MASTER_PORT", _DEFAULT_PORT)),
        contract="UAI Train",
    )


def _horovod(env: Mapping[str, str], local_rank: Optional[int]) -> Optional[RankAssignment]:
    del local_rank
    return _of_launcher(env, "Horovod", "HOROVOD_{}", env.get("HOROVOD_GLOO_RENDEZVOUS_ADDR"))


def _mpi(env: Mapping[str, str], local_rank: Optional[int]) -> Optional[RankAssignment]:
    del local_rank
    host = env.get("TRAINMASTER_HOSTS", "").split(",")[0].partition(":")[0]
    ranks = _of_launcher(env, "Open MPI", "OMPI_COMM_WORLD_{}", host or None)
    if ranks is not None or "PMI_RANK" not in env:
        return ranks
    names = {"RANK": "PMI_RANK", "SIZE": "PMI_SIZE", "LOCAL_RANK": "MPI_LOCALRANKID", "LOCAL_SIZE": "MPI_LOCALNRANKS"}
    return _of_launcher(
        {**{short: env[name] for short, name in names.items() if name in env}, **_master(env)},
        "MPICH",
        "{}",
        host or None,
    )


def _of_launcher(env: Mapping[str, str], contract: str, pattern: str, host: Optional[str]) -> Optional[RankAssignment]:
    """``pattern``: formats ``RANK``, ``SIZE``, ``LOCAL_RANK`` and ``LOCAL_SIZE`` into names of variables."""
    if pattern.format("RANK") not in env or pattern.format("SIZE") not in env:
        return None
    size = environment_number(env, pattern.format("SIZE"))
    local_size = environment_number(env, pattern.format("LOCAL_SIZE"), 1)
    host = env.get("MASTER_ADDR") or host or ("127.0.0.1" if local_size == size else None)
    if host is None:
        raise ContextError(
            f"MASTER_ADDR: {contract} sets the ranks, but not the address of rank 0; set it to that host's name"
        )
    return RankAssignment(
        rank=environment_number(env, pattern.format("RANK")),
        world_size=size,
        local_rank=environment_number(env, pattern.format("LOCAL_RANK"), 0),
        local_world_size=local_size,
        address=(host, environment_number(env, "MASTER_PORT", _DEFAULT_PORT)),
        contract=contract,
    )


def _tf_config(env: Mapping[str, str], local_rank: Optional[int]) -> Optional[RankAssignment]:
    del local_rank
    cluster, task = _cluster(env, "TF_CONFIG")
    ranked = [role for role in ("chief", "master", "worker") if role in cluster]
    return _of_cluster("TF_CONFIG", cluster, task, ranked)


def _vertex(env: Mapping[str, str], local_rank: Optional[int]) -> Optional[RankAssignment]:
    del local_rank
    cluster, task = _cluster(env, "CLUSTER_SPEC")
    return _of_cluster(
        "CLUSTER_SPEC", cluster, task, [pool for pool in ("workerpool0", "workerpool1") if pool in cluster]
    )


def _of_cluster(
    name: str, cluster: Mapping[str, List[str]], task: Mapping[str, Any], ranked: Sequence[str]
) -> Optional[RankAssignment]:
    if not ranked or not task:
        return None
    role = task.get("type")
    if role not in ranked:
        raise ContextError(f"{name}: a {role} does not train with the others; start no process group there")
    before = sum(len(cluster[other]) for other in ranked[: ranked.index(role)])
    try:
        host, _, port = cluster[ranked[0]][0].rpartition(":")
        # The framework's own port: it is free if torch trains.
        address = (host.strip("[]"), int(port))
        rank = before + int(task.get("index", 0))
    except (LookupError, ValueError, TypeError) as error:
        raise ContextError(f"{name}: must map each role to its list of host:port, and name the task's index") from error
    return RankAssignment(
        rank=rank, world_size=sum(len(cluster[other]) for other in ranked), address=address, contract=name
    )


def _cluster(env: Mapping[str, str], name: str) -> Tuple[Dict[str, List[str]], Dict[str, Any]]:
    text = env.get(name, "")
    if not text:
        return {}, {}
    try:
        value = json.loads(text)
        return dict(value.get("cluster", {})), dict(value.get("task", {}))
    except (ValueError, TypeError, AttributeError) as error:
        raise ContextError(f"{name}: must be a JSON object with `cluster` and `task`") from error


def _master(env: Mapping[str, str]) -> Dict[str, str]:
    return {name: env[name] for name in ("MASTER_ADDR", "MASTER_PORT") if name in env}


def _checked(assignment: RankAssignment) -> RankAssignment:
    if not 0 <= assignment.rank < assignment.world_size:
        raise ContextError(
            f"{assignment.contract}: rank {assignment.rank} of {assignment.world_size} processes is impossible; "
            "ranks begin with 0"
        )
    return assignment


_CONTRACTS: Tuple[Callable[[Mapping[str, str], Optional[int]], Optional[RankAssignment]], ...] = (
    _torch,
    _uai,
    _horovod,
    _mpi,
    _tf_config,
    _vertex,
)
