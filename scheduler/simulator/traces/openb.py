"""Alibaba's openb traces (cluster-trace-gpu-v2023; Weng et al., "Beware of Fragmentation", ATC 2023): pods and nodes.

- Pods: ``name, cpu_milli, memory_mib, num_gpu, gpu_milli``, in some lists also ``gpu_spec, creation_time,
  scheduled_time, deletion_time``; seconds. With ``num_gpu`` 1 a pod asks for ``gpu_milli`` thousandths of one device;
  ``gpu_spec`` lists models separated by ``|``, and without it any model will do.
- Nodes: ``sn, cpu_milli, memory_mib, gpu, model``; all GPUs of a node are of one model.

The run time is from ``scheduled_time`` to ``deletion_time``. A pod that was never placed is assumed to run for its
whole lifetime, since its run time is unknown; one without ``deletion_time`` never ends. A pod without
``creation_time`` is created when it was scheduled, and without both times at 0. ``qos`` and ``pod_phase`` are
ignored.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from core.domain.ids import NodeId
from core.domain.sharing.gpus import WHOLE_GPU
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import NodeSnapshot
from scheduler.simulator.errors import ScenarioError
from scheduler.simulator.reading.arrival import Arrival, from_zero
from scheduler.simulator.traces.rows import number, read_rows, whole

_MIB: Final = 2**20
_NODES: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
_PODS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
_TIMES: Final = ("creation_time", "scheduled_time")


def read_nodes(path: Path) -> tuple[NodeSnapshot, ...]:
    """The nodes, all empty. Raises :class:`ScenarioError` with file, line and column."""
    nodes: dict[str, NodeSnapshot] = {}
    for line, row in read_rows(path, _NODES):
        where = f"{path.name}, line {line}"
        name, model, gpus = row["sn"], row["model"], whole(row, "gpu", where)
        if not name or name in nodes:
            raise ScenarioError(f"{where}: sn: {name!r} {'stands twice' if name else 'is no name'}")
        if gpus and not model:
            raise ScenarioError(f"{where}: model: is missing for {gpus} GPUs")
        amounts = Amounts(
            whole(row, "cpu_milli", where), whole(row, "memory_mib", where) * _MIB, {model: gpus} if gpus else {}
        )
        nodes[name] = NodeSnapshot(NodeId(name), {}, amounts, amounts)
    if not nodes:
        raise ScenarioError(f"{path.name}: lists no node")
    return tuple(nodes.values())


def read(path: Path) -> list[Arrival]:
    """The pods by creation, the earliest at 0. Raises :class:`ScenarioError` with file, line and column."""
    arrivals = (_arrival(row, f"{path.name}, line {line}") for line, row in read_rows(path, _PODS))
    return from_zero(sorted(arrivals, key=lambda arrival: arrival.at_s))


def _arrival(row: Mapping[str, str], where: str) -> Arrival:
    times_s = {column: number(row, column, where) for column in _TIMES if row.get(column)}
    created_s = next(iter(times_s.values()), 0.0)
    since = "scheduled_time" if "scheduled_time" in times_s else "creation_time"
    began_s = times_s.get(since, 0.0)
    ended_s = number(row, "deletion_time", where) if row.get("deletion_time") else math.inf
    if ended_s < began_s:
        raise ScenarioError(f"{where}: deletion_time: {row['deletion_time']!r} is before {since} {row.get(since)!r}")
    gang = Gang((GangRole("worker", 1, _request(row, where)),))
    return Arrival(row["name"], created_s, ended_s - began_s, gang, gang.shape())


def _request(row: Mapping[str, str], where: str) -> ResourceRequest:
    count, part = whole(row, "num_gpu", where), whole(row, "gpu_milli", where)
    if count and not 1 <= part <= WHOLE_GPU:
        raise ScenarioError(f"{where}: gpu_milli: {row['gpu_milli']!r} is not 1 to {WHOLE_GPU}")
    if count > 1 and part < WHOLE_GPU:
        raise ScenarioError(f"{where}: gpu_milli: {row['gpu_milli']!r} of each of {count} GPUs; parts are of one GPU")
    models = tuple(model for model in (row.get("gpu_spec") or "").split("|") if model) if count else ()
    is_part = count == 1 and part < WHOLE_GPU
    return ResourceRequest(
        whole(row, "cpu_milli", where),
        whole(row, "memory_mib", where) * _MIB,
        0 if is_part else count,
        models,
        part if is_part else 0,
    )
