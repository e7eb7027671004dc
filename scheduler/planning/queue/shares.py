"""Amounts that projects and users hold of the cluster, and their fair shares.

A share is dominant (Ghodsi et al., "Dominant Resource Fairness", NSDI 2011): of CPU, memory and each GPU model, the
largest fraction held. Past usage counts next to present usage, and both are divided by the weight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from copy import copy
from typing import Final

from core.domain.sharing.gpus import accepted_models, accepts
from core.domain.sharing.resources import Gang, ResourceRequest
from scheduler.planning.model import Account, RunningGang, Snapshot

JOBS: Final = "jobs"
CPU: Final = "cpu_milli"
MEMORY: Final = "memory_bytes"
GPUS: Final = "gpu_milli"

# The settings reject a weight of zero; should one get here, its project comes last.
_LEAST_WEIGHT: Final = 1e-9


def model_key(model: str) -> str:
    """The key of a GPU model in quotas and held amounts."""
    return f"{GPUS}/{model}"


def amount_in(amounts: Mapping[str, int], key: str) -> int:
    """The amount of ``key``. A quota may name a model loosely: ``gpu_milli/h100`` counts all H100 models."""
    head, slash, wish = key.partition("/")
    if not slash:
        return amounts.get(key, 0)
    return sum(
        amount
        for name, amount in amounts.items()
        if (model := name.removeprefix(f"{head}/")) != name and accepts(wish, model)
    )


def gpu_milli(request: ResourceRequest) -> int:
    """Thousandths of GPUs that one replica takes."""
    return 1000 * request.gpu_count + request.gpu_milli


def gpus_of(gang: Gang) -> float:
    """GPUs of a gang, fractions included; 1 for a gang without GPUs, whose GPU-seconds are its seconds."""
    return sum(role.replicas * gpu_milli(role.request) for role in gang.roles) / 1000 or 1.0


def total_amounts(parts: Iterable[tuple[ResourceRequest, str | None, int]]) -> dict[str, int]:
    """Amounts of one job from (request of one replica, its GPU model, replicas), by quota keys."""
    occupied = {JOBS: 1, CPU: 0, MEMORY: 0, GPUS: 0}
    for request, model, members in parts:
        occupied[CPU] += members * request.cpu_milli
        occupied[MEMORY] += members * request.memory_bytes
        devices = members * gpu_milli(request)
        if devices:
            occupied[GPUS] += devices
            if model is not None:
                key = model_key(model)
                occupied[key] = occupied.get(key, 0) + devices
    return occupied


class Shares:
    """Held amounts and shares; updated by :meth:`add` while a plan is built.

    Attributes:
        totals: by resource, the amounts of the whole cluster, unschedulable nodes included.
        occupied_by_project: project -> amounts held; ``occupied_by_user``: (project, user) -> the same.
        changes: project -> how often its amounts have changed.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.policy = snapshot.policy
        self.accounts: dict[str, Account] = {account.project: account for account in snapshot.accounts}
        self.totals: Counter[str] = Counter()
        self._models_on = {
            node.id: tuple(sorted({*node.allocatable.gpus, *node.allocatable.shares})) for node in snapshot.nodes
        }
        for node in snapshot.nodes:
            self.totals[CPU] += node.allocatable.cpu_milli
            self.totals[MEMORY] += node.allocatable.memory_bytes
            for model, count in node.allocatable.gpus.items():
                self.totals[model_key(model)] += 1000 * count
            for model, left in node.allocatable.shares.items():
                self.totals[model_key(model)] += 1000 * len(left)
        self.models = tuple(sorted(key.partition("/")[2] for key in self.totals if "/" in key))
        self.occupied_by_project: dict[str, dict[str, int]] = {}
        self.occupied_by_user: dict[tuple[str, str], dict[str, int]] = {}
        self.changes: dict[str, int] = {}
        self._likely: dict[str, dict[str, int]] = {}
        self._steps: dict[str, float] = {}
        self._reserved: dict[str | tuple[str, str], dict[str, int]] = {}
        # Keyed by the identity of the gang, which lives as long as the snapshot, and the models of its replicas.
        self._of_running: dict[tuple[int, tuple[str | None, ...]], dict[str, int]] = {}
        self._members_without_gpus: dict[int, int] = {}
        together: dict[tuple[str, str, int], tuple[dict[str, int], int]] = {}  # equal amounts of one user, counted
        for gang in snapshot.running:
            amounts = self.running_amounts(gang)
            key = (gang.project, gang.user, id(amounts))
            _, count = together.get(key, (amounts, 0))
            together[key] = (amounts, count + 1)
        for (project, user, _), (amounts, count) in together.items():
            self.add(project, user, amounts, count)

    def running_amounts(self, gang: RunningGang) -> dict[str, int]:
        """Amounts that a running gang holds, with its recorded GPU models, or likely models where none are recorded."""
        recorded = gang.gpu_models
        # Thousands of equal complete gangs on equal models hold equal amounts.
        is_whole = len(recorded) == len(gang.nodes) == gang.gang.size and gang.gang.elastic is None
        # A replica without a recorded model has no GPUs, or depends on the models of its node.
        key = (id(gang.gang), recorded) if is_whole and recorded.count(None) == self._without_gpus(gang.gang) else None
        amounts = None if key is None else self._of_running.get(key)
        if amounts is None:
            amounts = self._count(gang)
            if gang.is_part:
                del amounts[JOBS]  # the job itself runs on and is counted there
            if key is not None:
                self._of_running[key] = amounts
        return amounts

    def _without_gpus(self, gang: Gang) -> int:
        """How many members have no GPUs."""
        members = self._members_without_gpus.get(id(gang))
        if members is None:
            members = sum(role.replicas for role in gang.roles if not gpu_milli(role.request))
            self._members_without_gpus[id(gang)] = members
        return members

    def _count(self, gang: RunningGang) -> dict[str, int]:
        requests = {role.role: role.request for role in gang.gang.roles}
        recorded = gang.gpu_models
        parts: Counter[tuple[str, str | None]] = Counter()
        for position, (role, node) in enumerate(gang.nodes):
            request = requests.get(role)
            if request is None:
                continue
            model = recorded[position] if position < len(recorded) else None
            if model is None and gpu_milli(request):
                models = self._models_on.get(node, ())
                model = next(iter(accepted_models(request.gpu_models, models) or models), None)
            parts[role, model] += 1
        return total_amounts((requests[role], model, members) for (role, model), members in parts.items())

    def add(self, project: str, user: str, amounts: Mapping[str, int], sign: int = 1) -> None:
        """Add amounts ``sign`` times; ``sign=-1`` subtracts."""
        self.hold(project, user, amounts, amounts, sign)

    def hold(
        self, project: str, user: str, of_project: Mapping[str, int], of_user: Mapping[str, int], sign: int = 1
    ) -> None:
        """The same with different amounts for the project and the user."""
        self.changes[project] = self.changes.get(project, 0) + 1
        for occupied, amounts in (
            (self.occupied_by_project.setdefault(project, {}), of_project),
            (self.occupied_by_user.setdefault((project, user), {}), of_user),
        ):
            for key, amount in amounts.items():
                occupied[key] = occupied.get(key, 0) + sign * amount

    def count_reserved(self, project: str, user: str, amounts: Mapping[str, int]) -> None:
        """Count reserved amounts in both shares until :meth:`forget_reserved`; quotas do not see them."""
        self.changes[project] = self.changes.get(project, 0) + 1
        for holder in (project, (project, user)):
            reserved = self._reserved.setdefault(holder, {})
            for key, amount in amounts.items():
                reserved[key] = reserved.get(key, 0) + amount

    def forget_reserved(self) -> None:
        self._reserved = {}

    def _with_reserved(self, occupied: Mapping[str, int], holder: str | tuple[str, str]) -> Mapping[str, int]:
        reserved = self._reserved.get(holder)
        return (
            occupied
            if reserved is None
            else {k: occupied.get(k, 0) + reserved.get(k, 0) for k in {**occupied, **reserved}}
        )

    def weight_of(self, project: str) -> float:
        account = self.accounts.get(project)
        return 1.0 if account is None else max(account.weight, _LEAST_WEIGHT)

    def weight_of_user(self, project: str, user: str) -> float:
        account = self.accounts.get(project)
        return 1.0 if account is None else max(account.user_weights.get(user, 1.0), _LEAST_WEIGHT)

    def project_share(self, project: str, less: Mapping[str, int] | None = None) -> float:
        """The project's share by weight, past usage included. ``less``: as if it did not hold these amounts."""
        account = self.accounts.get(project)
        present_share, _ = self.dominant_share(
            self._with_reserved(self.occupied_by_project.get(project, {}), project), less
        )
        return self._mixed(present_share, account.usage if account is not None else 0.0) / self.weight_of(project)

    def user_share(self, project: str, user: str, less: Mapping[str, int] | None = None) -> float:
        """The same for one user within the project."""
        account = self.accounts.get(project)
        holder = (project, user)
        present_share, _ = self.dominant_share(self._with_reserved(self.occupied_by_user.get(holder, {}), holder), less)
        past = account.user_usage.get(user, 0.0) if account is not None else 0.0
        return self._mixed(present_share, past) / self.weight_of_user(project, user)

    def _mixed(self, present: float, past: float) -> float:
        part = self.policy.usage_weight
        return (1 - part) * present + part * past

    def increment_of(self, gang: Gang, shape: str) -> float:
        """How much the start of a gang raises a share of weight 1, if its dominant resource is that of the share."""
        increment = self._steps.get(shape)
        if increment is None:
            increment = self._steps[shape] = self._mixed(self.dominant_share(self.likely_amounts(gang, shape))[0], 0.0)
        return increment

    def dominant_share(self, occupied: Mapping[str, int], less: Mapping[str, int] | None = None) -> tuple[float, str]:
        """The largest fraction held of any resource (0 to 1), and its key."""
        totals = self.totals
        largest, dominant_key = 0.0, CPU
        for key, amount in occupied.items():
            total = totals.get(key)
            if not total:
                continue  # only counted, such as jobs
            part = (amount - less.get(key, 0) if less else amount) / total
            if part > largest:
                largest, dominant_key = part, key
        return largest, dominant_key

    def likely_amounts(self, gang: Gang, shape: str) -> dict[str, int]:
        """Amounts that an unplaced gang would hold: of several accepted models the most plentiful."""
        amounts = self._likely.get(shape)
        if amounts is None:
            parts = [(role.request, self._plentiful(role.request), role.replicas) for role in gang.roles]
            amounts = self._likely[shape] = total_amounts(parts)
        return amounts

    def has_guarantee(self, project: str) -> bool:
        """Whether the project has any guarantee."""
        account = self.accounts.get(project)
        return account is not None and bool(account.quota.guaranteed)

    def copy(self) -> Shares:
        """An independent copy."""
        clone = copy(self)
        clone.occupied_by_project = {project: occupied.copy() for project, occupied in self.occupied_by_project.items()}
        clone.occupied_by_user = {holder: occupied.copy() for holder, occupied in self.occupied_by_user.items()}
        clone.changes = self.changes.copy()
        clone.forget_reserved()
        return clone

    def _plentiful(self, request: ResourceRequest) -> str | None:
        if not gpu_milli(request):
            return None
        models = accepted_models(request.gpu_models, self.models) if request.gpu_models else self.models
        return max(models, key=lambda model: (self.totals[model_key(model)], model), default=None)
