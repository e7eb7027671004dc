"""The nodes of one snapshot, numbered by id, the pools (sets of nodes) that jobs may use, and arrays with a number per
node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from core.domain.sharing.gpus import WHOLE_GPU
from core.domain.sharing.resources import Gang, ResourceRequest
from scheduler.planning.model import NodeSnapshot

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


RACK_LABEL = "topology/rack"
ZONE_LABEL = "topology/zone"
_LEVEL_LABELS = {"rack": RACK_LABEL, "zone": ZONE_LABEL}
# Smaller arrays are sorted by all keys at once.
_FEW = 64


class NodePool:
    """A set of node numbers: ``members`` for iteration, ``flags`` for membership tests."""

    __slots__ = ("flags", "members", "numbers")

    def __init__(self, members: Sequence[int], size: int) -> None:
        self.members = tuple(members)
        self.numbers: Ints = np.sort(np.array(self.members, dtype=np.int64))
        self.flags = bytearray(size)
        for number in self.members:
            self.flags[number] = 1


@dataclass(frozen=True, slots=True)
class Rooms:
    """Nodes, ascending, with the number of members that fit on each: at least one. The arrays must not be modified."""

    numbers: Ints
    slots: Ints

    @property
    def total(self) -> int:
        return int(self.slots.sum())

    def where(self, flags: Flags) -> Rooms:
        return Rooms(self.numbers[flags], self.slots[flags])

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self.numbers.tolist(), self.slots.tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.numbers)


class NodeTotals:
    """The allocatable amounts of every node, in columns."""

    __slots__ = ("cpu", "gpus", "memory")

    def __init__(self, nodes: Sequence[NodeSnapshot], models: Sequence[str]) -> None:
        self.cpu: Ints = np.array([node.allocatable.cpu_milli for node in nodes], dtype=np.int64)
        self.memory: Ints = np.array([node.allocatable.memory_bytes for node in nodes], dtype=np.int64)
        self.gpus: dict[str, Ints] = {
            model: np.array([node.allocatable.gpus.get(model, 0) for node in nodes], dtype=np.int64) for model in models
        }

    def members(self, request: ResourceRequest, models: Sequence[str], numbers: Ints) -> Ints:
        """How many members each of these nodes holds when empty."""
        members = np.full(len(numbers), 1 << 40, dtype=np.int64)
        if request.uses_gpu:
            members = np.zeros(len(numbers), dtype=np.int64)
            for model in models:
                whole = self.gpus[model][numbers]
                members += whole // request.gpu_count if request.gpu_count else whole * (WHOLE_GPU // request.gpu_milli)
        if request.cpu_milli:
            np.minimum(members, self.cpu[numbers] // request.cpu_milli, out=members)
        if request.memory_bytes:
            np.minimum(members, self.memory[numbers] // request.memory_bytes, out=members)
        return members


class ClusterIndex:
    """Nodes in the order of their ids, so that the order in the snapshot does not matter."""

    __slots__ = (
        "_by_label",
        "_by_members",
        "_by_selector",
        "_domain_names",
        "_domain_numbers",
        "_domains",
        "_with_models",
        "all_nodes",
        "cpu_share",
        "cpu_shares",
        "gpu_models",
        "has_gpus",
        "is_mixed",
        "largest",
        "model_number",
        "models_of",
        "nodes",
        "number_of",
        "rack_of",
        "racks",
        "totals",
        "with_model",
        "zone_of",
        "zones",
    )

    def __init__(self, nodes: Iterable[NodeSnapshot]) -> None:
        self.nodes = tuple(sorted(nodes, key=lambda node: node.id))
        self.number_of = {node.id: number for number, node in enumerate(self.nodes)}
        self.models_of = tuple(
            tuple(
                sorted(
                    {
                        m
                        for amounts_of_node in (node.allocatable, node.free)
                        for m, count in amounts_of_node.gpus.items()
                        if count > 0
                    }
                )
            )
            for node in self.nodes
        )
        # CPU share of each GPU of a node; nodes without GPUs reserve no share.
        self.cpu_share = tuple(
            node.allocatable.cpu_milli // max(1, node.allocatable.gpu_count) if models else 0
            for node, models in zip(self.nodes, self.models_of, strict=True)
        )
        # Largest number of devices of each model on one node.
        self.largest: dict[str, int] = {}
        for node in self.nodes:
            for amounts in (node.allocatable, node.free):
                for model, count in amounts.gpus.items():
                    if count > 0:
                        self.largest[model] = max(count, self.largest.get(model, 0))
        self.gpu_models = tuple(sorted(self.largest))
        # A walk over the models visits a node twice only if it has two models.
        self.is_mixed = any(len(models) > 1 for models in self.models_of)
        self.racks = tuple(node.labels.get(RACK_LABEL, "") for node in self.nodes)
        self.zones = tuple(node.labels.get(ZONE_LABEL, "") for node in self.nodes)
        self.cpu_shares: Ints = np.array(self.cpu_share, dtype=np.int64)
        self.has_gpus: Flags = np.array([bool(models) for models in self.models_of], dtype=np.bool_)
        self.with_model: dict[str, Flags] = {
            model: np.array([model in models for models in self.models_of], dtype=np.bool_) for model in self.gpu_models
        }
        self.model_number = {model: number for number, model in enumerate(self.gpu_models)}
        self.totals = NodeTotals(self.nodes, self.gpu_models)
        self.rack_of, self.zone_of = _ranks(self.racks), _ranks(self.zones)
        self.all_nodes = NodePool(range(len(self.nodes)), len(self.nodes))
        self._by_members: dict[tuple[int, ...], NodePool] = {self.all_nodes.members: self.all_nodes}
        self._by_selector: dict[tuple[tuple[str, str], ...], NodePool] = {(): self.all_nodes}
        self._by_label: dict[tuple[str, str], frozenset[int]] | None = None
        self._domains: dict[tuple[int, str, str], NodePool] = {}
        self._domain_numbers: dict[str, tuple[tuple[str, ...], Ints]] = {}
        self._domain_names: dict[str, tuple[str, ...]] = {}
        self._with_models: dict[tuple[int, frozenset[str] | None], frozenset[int]] = {}

    def pool_of(self, gang: Gang) -> NodePool:
        """The nodes that carry every label of the gang's selector. Equal sets are the same object."""
        pool = self._by_selector.get(gang.node_selector)
        if pool is None:
            members: frozenset[int] | None = None
            for pair in gang.node_selector:
                matching = self._labelled(pair)
                members = matching if members is None else members & matching
            pool = self._by_selector[gang.node_selector] = self.pool(sorted(members or ()))
        return pool

    def domain_names(self, level: str) -> tuple[str, ...]:
        """Per node the name of its rack or zone. A node without the label is a domain of its own."""
        names = self._domain_names.get(level)
        if names is None:
            label = _LEVEL_LABELS[level]
            names = tuple(node.labels.get(label) or f"node {node.id}" for node in self.nodes)
            self._domain_names[level] = names
        return names

    def domains_of(self, level: str) -> tuple[tuple[str, ...], Ints]:
        """The sorted names of all racks or zones, and per node the number of its own."""
        numbering = self._domain_numbers.get(level)
        if numbering is None:
            names = self.domain_names(level)
            numbering = self._domain_numbers[level] = (tuple(sorted(set(names))), _ranks(names))
        return numbering

    def domain(self, pool: NodePool, level: str, name: str) -> NodePool:
        """The part of ``pool`` inside one rack or zone."""
        key = (id(pool), level, name)
        domain_pool = self._domains.get(key)
        if domain_pool is None:
            names = self.domain_names(level)
            numbers_in: dict[str, list[int]] = {}
            for number in pool.members:
                numbers_in.setdefault(names[number], []).append(number)
            for domain_name, members in numbers_in.items():
                self._domains[id(pool), level, domain_name] = self.pool(members)
            domain_pool = self._domains[key] if key in self._domains else self.pool(())
        return domain_pool

    def with_models(self, pool: NodePool, models: frozenset[str] | None) -> frozenset[int]:
        """The nodes of ``pool`` with GPUs of any of ``models``; ``None``: all nodes."""
        key = (id(pool), models)
        numbers = self._with_models.get(key)
        if numbers is None:
            numbers = frozenset(n for n in pool.members if models is None or not models.isdisjoint(self.models_of[n]))
            self._with_models[key] = numbers
        return numbers

    def pool(self, members: Sequence[int]) -> NodePool:
        """The pool of these nodes, in this order. It lives as long as the cluster, since caches refer to pools by
        identity.
        """
        key = tuple(members)
        pool = self._by_members.get(key)
        if pool is None:
            pool = self._by_members[key] = NodePool(key, len(self.nodes))
        return pool

    def _labelled(self, pair: tuple[str, str]) -> frozenset[int]:
        if self._by_label is None:
            sets: dict[tuple[str, str], set[int]] = {}
            for number, node in enumerate(self.nodes):
                for item in node.labels.items():
                    sets.setdefault(item, set()).add(number)
            self._by_label = {item: frozenset(numbers) for item, numbers in sets.items()}
        return self._by_label.get(pair, frozenset())


def _ranks(names: Sequence[str]) -> Ints:
    """Numbers in the order of the names."""
    ranks = {name: rank for rank, name in enumerate(sorted(set(names)))}
    return np.array([ranks[name] for name in names], dtype=np.int64)


def least(keys: Sequence[Ints]) -> int:
    """The position of the smallest element by the first key, then by the second, and so on."""
    positions = np.flatnonzero(keys[0] == keys[0].min())
    for key in keys[1:]:
        if len(positions) == 1:
            break
        values = key[positions]
        positions = positions[values == values.min()]
    return int(positions[0])


def smallest(keys: Sequence[Ints], count: int) -> Ints:
    """The positions of the ``count`` smallest elements, in order. In large arrays only candidates are sorted."""
    among: Ints = np.arange(len(keys[0]))
    smaller: list[Ints] = []
    missing = min(count, len(among))
    for key in keys:
        if len(among) <= max(_FEW, missing) or not missing:
            break
        values = key[among]
        last = np.partition(values, missing - 1)[missing - 1]
        smaller.append(among[values < last])
        missing -= len(smaller[-1])
        among = among[values == last]
    candidates = np.concatenate([*smaller, among])
    order = np.lexsort([key[candidates] for key in reversed(keys)])
    return candidates[order[:count]]
