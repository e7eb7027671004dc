"""The demand of a gang, prepared once per shape: members with equal requests form one group."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from core.domain.sharing.gpus import accepted_models
from core.domain.sharing.resources import Gang, GangRole, ResourceRequest
from scheduler.planning.placement.cluster import ClusterIndex, NodePool

SERVER_ROLE = "ps"
_COMPANION_ROLE = "worker"


@dataclass(frozen=True, slots=True)
class MemberGroup:
    """``count`` equal members. ``models``: GPU models that are accepted and present, best first.

    ``is_spread``: no two members on one node.
    """

    request: ResourceRequest
    models: tuple[str, ...]
    count: int
    roles: tuple[tuple[str, int], ...]  # (role, replicas) in rank order
    is_spread: bool = False

    @property
    def may_share_a_node(self) -> bool:
        return not self.is_spread or self.count == 1

    @property
    def max_per_node(self) -> int:
        """The most members that one node may hold."""
        return 1 if self.is_spread else self.count

    @property
    def is_servers(self) -> bool:
        """Whether these are parameter servers that are placed apart; other servers may share a group
        with other roles.
        """
        return self.roles[0][0] == SERVER_ROLE

    @property
    def is_picky(self) -> bool:
        """Whether the order of ``models`` is the user's. A single wish that several models fulfil ranks none of them
        first.
        """
        wishes = len(self.request.gpu_models)
        return wishes > 1 or (wishes == 1 and len(self.models) == 1)


@dataclass(frozen=True, slots=True)
class Demand:
    """A gang as the placement sees it.

    Attributes:
        merged: all members, equal requests in one group, the most demanding first.
        trainers: the same without the parameter servers.
        servers: parameter servers placed next to the companions; ``None`` if there are none, or if they request GPUs
            and are placed like other members.
        companion: index of the group in ``trainers`` next to which the servers are placed.
        respects_headroom: it must leave the GPU headroom (:mod:`.gpu_headroom`) free.
    """

    gang: Gang
    pool: NodePool
    merged: tuple[MemberGroup, ...]
    trainers: tuple[MemberGroup, ...]
    servers: MemberGroup | None
    companion: int
    respects_headroom: bool = False

    @property
    def uses_gpus(self) -> bool:
        return self.merged[0].request.uses_gpu

    @property
    def is_scattered(self) -> bool:
        """Whether servers must not share nodes with other roles or with each other.

        Then ``merged`` keeps them in groups of their own, and one node cannot hold the gang.
        """
        servers = [group for group in self.merged if group.is_servers]
        if not servers:
            return False
        is_apart = self.gang.servers == "apart" and len(servers) < len(self.merged)
        return is_apart or any(not group.may_share_a_node for group in servers)

    @property
    def single_member(self) -> tuple[ResourceRequest, tuple[str, ...]] | None:
        """The request of the whole gang on a single node, and the GPU models that all groups accept.

        ``None`` where groups accept different models or parts of a GPU, so that a sum is not sufficient.
        """
        with_gpus = [group for group in self.merged if group.request.uses_gpu]
        if len({group.models for group in with_gpus}) > 1 or any(group.request.gpu_milli for group in with_gpus):
            return None
        total = ResourceRequest(
            sum(group.count * group.request.cpu_milli for group in self.merged),
            sum(group.count * group.request.memory_bytes for group in self.merged),
            sum(group.count * group.request.gpu_count for group in self.merged),
        )
        return total, with_gpus[0].models if with_gpus else ()

    def touched_nodes(self, cluster: ClusterIndex) -> frozenset[int]:
        """A superset of the nodes that it may ever use: gangs with a node in common compete.

        Cached per cluster, so that a queue of many shapes costs nothing.
        """
        if all(group.request.uses_gpu for group in self.merged):
            return cluster.with_models(self.pool, frozenset(m for group in self.merged for m in group.models))
        return cluster.with_models(self.pool, None)


def demand_of(gang: Gang, cluster: ClusterIndex) -> Demand:
    if gang.servers is not None or gang.spread_servers:
        server_roles = [role for role in gang.roles if role.role == SERVER_ROLE]
        trainers = _groups([role for role in gang.roles if role.role != SERVER_ROLE], cluster)
        groups = [replace(group, is_spread=gang.spread_servers) for group in _groups(server_roles, cluster)]
        merged = tuple(sorted((*trainers, *groups), key=_demanding_first))
        return Demand(gang, cluster.pool_of(gang), merged, trainers, None, 0)
    merged = _groups(gang.roles, cluster)
    servers = [role for role in gang.roles if role.role == SERVER_ROLE and not role.request.uses_gpu]
    others = [role for role in gang.roles if role not in servers]
    if not servers or not others:
        return Demand(gang, cluster.pool_of(gang), merged, merged, None, 0)
    trainers = _groups(others, cluster)
    by_worker = [n for n, group in enumerate(trainers) if any(role == _COMPANION_ROLE for role, _ in group.roles)]
    largest = max(range(len(trainers)), key=lambda n: (trainers[n].count, -n))
    companion = by_worker[0] if by_worker else largest
    return Demand(gang, cluster.pool_of(gang), merged, trainers, _groups(servers, cluster)[0], companion)


def _groups(roles: Iterable[GangRole], cluster: ClusterIndex) -> tuple[MemberGroup, ...]:
    by_request: dict[ResourceRequest, list[tuple[str, int]]] = {}
    for role in roles:
        if role.replicas > 0:
            by_request.setdefault(role.request, []).append((role.role, role.replicas))
    groups = [
        MemberGroup(request, _models(request, cluster), sum(count for _, count in members), tuple(members))
        for request, members in by_request.items()
    ]
    return tuple(sorted(groups, key=_demanding_first))


def _models(request: ResourceRequest, cluster: ClusterIndex) -> tuple[str, ...]:
    if not request.uses_gpu:
        return ()
    return accepted_models(request.gpu_models, cluster.gpu_models) if request.gpu_models else cluster.gpu_models


def _demanding_first(group: MemberGroup) -> tuple[object, ...]:
    request = group.request
    # A group that accepts fewer models has fewer candidate nodes.
    return (
        -request.gpu_count,
        -request.gpu_milli,
        len(group.models),
        -request.cpu_milli,
        -request.memory_bytes,
        group.roles,
    )
