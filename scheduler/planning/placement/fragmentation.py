"""Fragmentation score: how much of a node's free GPUs typical requests could still use.

The simple equivalent, after Fragmentation Gradient Descent (Weng et al., USENIX ATC 2023): of all nodes with room
take the one whose usefulness for typical requests drops least. FGD asks whether one typical request could use a free
device. Here the score is the amount that *as many of them as fit* would fill, CPU and memory included, and of several
requests (``_DRAWS``, drawn by frequency) the one that fills most, since the planner can choose which job to place
there:

    usable(node) = E[max over _DRAWS requests of (members that fit x their GPUs)]
    loss(node, member) = usable(before) - usable(after) - the member's own GPUs

Zero loss means that no hole was spoilt; a negative loss, that something unusable was used. Ties go to the smaller
hole, then to the node with the least CPU.

Nodes with equal free amounts are one *state*; a state is scored once per request, in bulk with numpy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from core.domain.sharing.gpus import WHOLE_GPU, accepted_models, after_part
from core.domain.sharing.resources import ResourceRequest
from scheduler.planning.model import QueuedGang, Snapshot
from scheduler.planning.placement.cluster import ClusterIndex, NodePool

# The best of so many drawn requests counts. One draw is the mean, as if the planner had no choice; with very many
# draws only the best request counts, as if it never ran out. 1, 2, 4 and 8 were tried on openb and on the workloads
# of tests/unit/planning/test_fragmentation.py: 4 is best or second best on all, and no choice differs by more than 1
# %.
_DRAWS: Final = 4
# The most frequent requests represent all: more would cost time and change little.
_MOST_REQUESTS: Final = 160
# A prior worth this many members: jobs of 1, 2, 4 and 8 GPUs with their share of the node's CPU and memory. It
# decides while little demand is known.
_PRIOR_WEIGHT: Final = 8.0
_PRIOR_SIZES: Final = (1, 2, 4, 8)
# So many new states are scored each time a request comes, the tightest first: frequent requests soon know all states,
# and rare ones cost little. A request is frequent from this many members on.
_FEW_STATES: Final = 48
_RARE_STATES: Final = 12
_OFTEN: Final = 16.0

_NEVER: Final = np.iinfo(np.int64).max
_UNSEEN: Final = _NEVER - 1
_Floats = NDArray[np.float64]
_Ints = NDArray[np.int64]
_Flags = NDArray[np.bool_]
_Amounts = tuple[int, int, int, tuple[int, ...]]  # CPU, memory, whole devices, left of shared ones
_State = tuple[str, int, int, int, tuple[int, ...]]  # the GPU model before these
_RequestKey = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class WorkloadProfile:
    """The recent demand: requests with GPUs, and how many members ask for each."""

    requests: tuple[tuple[ResourceRequest, float], ...] = ()
    known: int = 0  # the first ``known`` requests are real demand, the others are the prior

    @classmethod
    def of_snapshot(
        cls, snapshot: Snapshot, cluster: ClusterIndex, can_run: Callable[[QueuedGang], bool]
    ) -> WorkloadProfile:
        """From all running and waiting gangs, so that starting a gang changes nothing.

        Args:
            can_run: whether the empty cluster could hold a gang; called once per shape. No hole is reserved for
                others.
        """
        shapes = Counter(job.shape for job in snapshot.queued)
        firsts = {job.shape: job for job in snapshot.queued}
        members = Counter[ResourceRequest]()
        for shape, jobs in shapes.items():
            roles = firsts[shape].gang.roles
            # Not called for shapes without GPUs: whether they can run may depend on this profile.
            if not any(role.request.uses_gpu for role in roles) or not can_run(firsts[shape]):
                continue
            for role in roles:
                members[role.request] += jobs * role.replicas
        for running in snapshot.running:
            for role in running.gang.roles:
                members[role.request] += role.replicas
        return cls.of(members.items(), cluster)

    @classmethod
    def of(cls, members: Iterable[tuple[ResourceRequest, float]], cluster: ClusterIndex) -> WorkloadProfile:
        """From the members of gangs plus the prior. Empty if no node has GPUs."""
        if not cluster.gpu_models:
            return cls()
        weights: dict[ResourceRequest, float] = {}
        for request, weight in members:
            if request.uses_gpu:
                weights[request] = weights.get(request, 0.0) + weight
        ranked = sorted(weights.items(), key=lambda item: (-item[1], _order(item[0])))[:_MOST_REQUESTS]
        prior = _prior(cluster)
        return cls((*ranked, *((request, _PRIOR_WEIGHT / len(prior)) for request in prior)), len(ranked))


def _order(request: ResourceRequest) -> tuple[object, ...]:
    return (request.gpu_count, request.gpu_milli, request.cpu_milli, request.memory_bytes, request.gpu_models)


def _prior(cluster: ClusterIndex) -> list[ResourceRequest]:
    kinds = {
        (
            model,
            node.allocatable.cpu_milli // node.allocatable.gpu_count,
            node.allocatable.memory_bytes // node.allocatable.gpu_count,
        )
        for node in cluster.nodes
        for model, count in node.allocatable.gpus.items()
        if count > 0
    }
    shares: dict[str, tuple[int, int]] = {}
    for model, cpu, memory in sorted(kinds):
        smallest = shares.get(model, (cpu, memory))
        shares[model] = (min(smallest[0], cpu), min(smallest[1], memory))
    return [
        ResourceRequest(size * cpu, size * memory, size, (model,))
        for model, (cpu, memory) in shares.items()
        for size in _PRIOR_SIZES
        if size <= cluster.largest[model]
    ]


class _Table:
    """The typical requests as columns, by GPU model."""

    def __init__(self, typical: WorkloadProfile, models: Sequence[str]) -> None:
        self.columns: dict[str, tuple[_Floats, _Floats, _Floats, _Floats, _Floats]] = {}
        for model in models:
            matching = [
                (r, w) for r, w in typical.requests if not r.gpu_models or accepted_models(r.gpu_models, (model,))
            ]
            requested = np.array(
                [(r.cpu_milli, r.memory_bytes, r.gpu_count, r.gpu_milli, w) for r, w in matching], dtype=np.float64
            ).reshape(len(matching), 5)
            cpu, memory, whole, part, weight = requested.T
            total = weight.sum()
            self.columns[model] = (np.maximum(cpu, 1), np.maximum(memory, 1), whole, part, weight / (total or 1.0))

    def usable(self, model: str, states: Sequence[_Amounts]) -> _Floats:
        """Thousandths of GPUs that will be used of each state (CPU, memory, whole devices, left of shared ones)."""
        cpu, memory, whole, part, weight = self.columns[model]
        if not len(weight):
            return np.zeros(len(states))
        most = max((len(state[3]) for state in states), default=0)
        left = np.array([(s[0], s[1], s[2], *s[3], *(0,) * (most - len(s[3]))) for s in states], dtype=np.float64)
        is_part = part > 0
        per_device = np.where(is_part, part, 1)
        fits = np.where(is_part, left[:, 2:3] * (WHOLE_GPU // per_device), left[:, 2:3] // np.maximum(whole, 1))
        if most and is_part.any():
            shared = np.zeros((len(left), int(is_part.sum())))
            for column in range(3, 3 + most):
                shared += left[:, column : column + 1] // part[is_part]
            fits[:, is_part] += shared
        fits = np.minimum(fits, np.minimum(left[:, 0:1] // cpu, left[:, 1:2] // memory))
        filled = np.maximum(fits, 0) * np.where(is_part, part, WHOLE_GPU * whole)
        order = np.argsort(filled, axis=1)
        # Probability that the best of all draws is not above the sorted value.
        below = weight[order].cumsum(axis=1) ** _DRAWS
        chance = np.diff(below, axis=1, prepend=0.0)
        usable: _Floats = (np.take_along_axis(filled, order, axis=1) * chance).sum(axis=1)
        return usable


class _Scores:
    """The losses of one request by state, as sortable integers, or ``_NEVER`` (no room), or ``_UNSEEN``."""

    __slots__ = ("few", "keys")

    def __init__(self, few: int) -> None:
        self.keys: _Ints = np.full(64, _UNSEEN, dtype=np.int64)
        self.few = few


class FreeColumns(Protocol):
    """What scoring reads of a capacity: free amounts by node, as lists for one node and as columns for all."""

    cluster: ClusterIndex
    cpu: list[int]
    memory: list[int]
    cpus: _Ints
    memories: _Ints
    shares: list[Mapping[str, tuple[int, ...]]]

    @property
    def gpus(self) -> FreeDevices: ...


class FreeDevices(Protocol):
    """Free whole devices: by node and model, and by model as a column."""

    whole: dict[str, _Ints]

    def __getitem__(self, number: int) -> Mapping[str, int]: ...


class FragmentationScores:
    """The states of all nodes of one capacity, and the node where a member does the least harm.

    Rows are pairs of a node with GPUs and one of its models.
    """

    def __init__(self, capacity: FreeColumns, typical: WorkloadProfile) -> None:
        self.capacity = capacity
        cluster = capacity.cluster
        self.table = _Table(typical, cluster.gpu_models)
        self.weights = {_request_key(request): weight for request, weight in typical.requests}
        self.rows = [(number, model) for number, models in enumerate(cluster.models_of) for model in models]
        self.rows_of: dict[int, list[int]] = {}
        for row, (number, _) in enumerate(self.rows):
            self.rows_of.setdefault(number, []).append(row)
        self.node_of: _Ints = np.array([number for number, _ in self.rows], dtype=np.int64)
        self.models = {model: n for n, model in enumerate(cluster.gpu_models)}
        self.model_of: _Ints = np.array([self.models[model] for _, model in self.rows], dtype=np.int64)
        self.numbers: dict[_State, int] = {}  # state -> its number
        self.states: list[_State] = []
        self.amounts: _Ints = np.zeros((64, 4), dtype=np.int64)  # CPU, memory, whole devices, most left of a shared one
        self.values: dict[int, float] = {}
        self.scores: dict[_RequestKey, _Scores] = {}
        self.flags: dict[int, tuple[NodePool, _Flags | None]] = {}
        self.by_models: dict[tuple[str, ...], _Flags | None] = {}
        self.state_of: _Ints = self._all_states()

    def copy(self, capacity: FreeColumns) -> FragmentationScores:
        """The same for a copy of the capacity."""
        clone = FragmentationScores.__new__(FragmentationScores)
        for name in ("table", "weights", "rows", "rows_of", "node_of", "models", "model_of", "flags", "by_models"):
            setattr(clone, name, getattr(self, name))
        clone.capacity = capacity
        clone.numbers = self.numbers.copy()
        clone.states = self.states.copy()
        clone.amounts = self.amounts.copy()
        clone.values = self.values.copy()
        clone.scores = {}
        clone.state_of = self.state_of.copy()
        return clone

    def changed(self, number: int) -> None:
        """The free amounts of a node have changed."""
        for row in self.rows_of.get(number, ()):
            self.state_of[row] = self._state(row)

    def _all_states(self) -> _Ints:
        """The state number of each row; states are numbered in the order of appearance. Equal rows without shared
        devices are found in bulk.
        """
        capacity, count = self.capacity, len(self.rows)
        whole = np.zeros(count, dtype=np.int64)
        for model, number in self.models.items():
            of_model = self.model_of == number
            whole[of_model] = np.maximum(capacity.gpus.whole[model][self.node_of[of_model]], 0)
        # Rows with shared devices equal no other row.
        shared_ids = np.zeros(count, dtype=np.int64)
        shared = [row for node, parts in enumerate(capacity.shares) if parts for row in self.rows_of.get(node, ())]
        shared_ids[shared] = 1 + np.arange(len(shared))
        columns = [self.model_of, capacity.cpus[self.node_of], capacity.memories[self.node_of], whole, shared_ids]
        _, firsts, alike = np.unique(np.stack(columns), axis=1, return_index=True, return_inverse=True)
        numbers = np.zeros(len(firsts), dtype=np.int64)
        for kind in np.argsort(firsts).tolist():
            numbers[kind] = self._state(int(firsts[kind]))
        state_numbers: _Ints = numbers[alike.reshape(-1)]
        return state_numbers

    def _state(self, row: int) -> int:
        number, model = self.rows[row]
        capacity = self.capacity
        whole = capacity.gpus[number].get(model, 0)
        shares = capacity.shares[number].get(model, ())
        state = (model, capacity.cpu[number], capacity.memory[number], max(0, whole), shares)
        state_number = self.numbers.get(state)
        if state_number is None:
            state_number = self.numbers[state] = len(self.states)
            self.states.append(state)
            if state_number == len(self.amounts):
                self.amounts = np.concatenate([self.amounts, np.zeros_like(self.amounts)])
            self.amounts[state_number] = (state[1], state[2], state[3], shares[-1] if shares else 0)
        return state_number

    def choose(
        self, request: ResourceRequest, models: Sequence[str], pool: NodePool, among: _Flags | None = None
    ) -> int | None:
        """The node of ``pool`` with the least loss for one member with ``request``; ``None`` if no node has room.

        Args:
            models: accepted models; empty for members without GPUs, for which nodes without GPUs are not considered.
            among: by node, whether it may be chosen; ``None``: all may.
        """
        if not self.rows or (request.uses_gpu and not models):
            return None
        scores = self._scores(request)
        allowed = self._allowed(pool, models)
        if among is not None:
            allowed = among[self.node_of] if allowed is None else allowed & among[self.node_of]
        keys = scores.keys[self.state_of]
        unseen = keys == _UNSEEN if allowed is None else (keys == _UNSEEN) & allowed
        if unseen.any():
            self._score_unseen(request, scores, self.state_of[unseen])
            keys = scores.keys[self.state_of]
        if allowed is not None:
            keys[~allowed] = _NEVER
        row = int(keys.argmin())
        return None if keys[row] >= _UNSEEN else self.rows[row][0]

    def _allowed(self, pool: NodePool, models: Sequence[str]) -> _Flags | None:
        pool_rows = self.flags.get(id(pool))
        if pool_rows is None or pool_rows[0] is not pool:
            in_pool = np.frombuffer(bytes(pool.flags), dtype=np.uint8)[self.node_of].astype(np.bool_)
            pool_rows = self.flags[id(pool)] = (pool, None if in_pool.all() else in_pool)
        model_names = tuple(models)
        if model_names not in self.by_models:
            is_any = not model_names or len(model_names) == len(self.models)
            numbers = [self.models[model] for model in model_names if model in self.models]
            self.by_models[model_names] = None if is_any else np.isin(self.model_of, numbers)
        among = self.by_models[model_names]
        if pool_rows[1] is None or among is None:
            return among if pool_rows[1] is None else pool_rows[1]
        return pool_rows[1] & among

    def _scores(self, request: ResourceRequest) -> _Scores:
        requested = _request_key(request)
        scores = self.scores.get(requested)
        if scores is None:
            scores = self.scores[requested] = _Scores(
                _FEW_STATES if self.weights.get(requested, 0) >= _OFTEN else _RARE_STATES
            )
        if len(scores.keys) < len(self.states):
            grown = np.full(2 * len(self.states), _UNSEEN, dtype=np.int64)
            grown[: len(scores.keys)] = scores.keys
            scores.keys = grown
        return scores

    def _score_unseen(self, request: ResourceRequest, scores: _Scores, unseen: _Ints) -> None:
        """Score states that are new to this request: all without room, and the tightest of the others."""
        marked = np.zeros(len(self.states), dtype=np.bool_)
        marked[unseen] = True
        fresh = np.flatnonzero(marked)
        cpu, memory, whole, part = self.amounts[fresh].T
        has_room = (cpu >= request.cpu_milli) & (memory >= request.memory_bytes) & (whole >= request.gpu_count)
        if request.gpu_milli:
            has_room &= (part >= request.gpu_milli) | (whole > 0)
        scores.keys[fresh[~has_room]] = _NEVER
        fresh = fresh[has_room]
        if len(fresh) > scores.few:
            tight = whole[has_room] * (1 << 40) + cpu[has_room]
            if request.gpu_milli:  # an open device is tighter than any hole
                tight[part[has_room] >= request.gpu_milli] -= 1 << 50
            fresh = fresh[np.argpartition(tight, scores.few)[: scores.few]]
        own_milli = WHOLE_GPU * request.gpu_count + request.gpu_milli
        by_model: dict[str, list[tuple[int, _Amounts]]] = {}
        for number in fresh.tolist():
            state = self.states[number]
            by_model.setdefault(state[0], []).append((number, _after(state, request)))
        for model, numbered in by_model.items():
            unknown = [number for number, _ in numbered if number not in self.values]
            requested = [self.states[number][1:] for number in unknown] + [after for _, after in numbered]
            usable = self.table.usable(model, requested).tolist()
            self.values.update(zip(unknown, usable, strict=False))
            for (number, after), value in zip(numbered, usable[len(unknown) :], strict=True):
                scores.keys[number] = _key(self.values[number] - value - own_milli, after)


def _request_key(request: ResourceRequest) -> _RequestKey:
    return (request.cpu_milli, request.memory_bytes, request.gpu_count, request.gpu_milli)


def _after(state: _State, request: ResourceRequest) -> _Amounts:
    """The amounts once the member is placed; it must fit."""
    _, cpu, memory, whole, shares = state
    if request.gpu_milli:
        shares, opened = after_part(shares, request.gpu_milli)
        whole -= opened
    return cpu - request.cpu_milli, memory - request.memory_bytes, whole - request.gpu_count, shares


def _key(loss: float, after: _Amounts) -> int:
    """Losses in tenths of a thousandth, then the GPUs left, then the CPU left (up to a million in a bucket)."""
    cpu, _, whole, shares = after
    left = min(WHOLE_GPU * whole + sum(shares), (1 << 17) - 1)
    return (round(loss * 10) << 38) + (left << 21) + min(cpu >> 3, (1 << 21) - 1)
