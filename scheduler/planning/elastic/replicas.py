"""The replicas that a running elastic gang has, and how many of them it can do without."""

from __future__ import annotations

from dataclasses import replace

from scheduler.planning.forecast.reservation import node_uses
from scheduler.planning.model import RunningGang
from scheduler.planning.placement.cluster import ClusterIndex
from scheduler.planning.preemption.eviction import NodeUse


def replicas_to_spare(gang: RunningGang) -> int:
    """How many replicas of its elastic role it has above its minimum."""
    role = gang.gang.elastic
    return 0 if role is None else max(0, sum(name == role.role for name, _ in gang.nodes) - role.replicas)


def elastic_indices(gang: RunningGang) -> list[tuple[int, int]]:
    """Index and position in ``nodes`` of every replica of the elastic role."""
    role = gang.gang.elastic
    positions = [at for at, (name, _) in enumerate(gang.nodes) if role is not None and name == role.role]
    if len(gang.indices) == len(gang.nodes):
        return [(gang.indices[at], at) for at in positions]
    return list(enumerate(positions))


def uses_by_index(gang: RunningGang, cluster: ClusterIndex) -> list[tuple[int, NodeUse]]:
    """What each replica of the elastic role holds on schedulable nodes, by its index."""
    found: list[tuple[int, NodeUse]] = []
    for index, at in elastic_indices(gang):
        alone = replace(gang, nodes=gang.nodes[at : at + 1], gpu_models=gang.gpu_models[at : at + 1])
        found += [(index, held) for held in node_uses(alone, cluster)]
    return found
