"""Decayed usage of projects and users for fair shares, computed as in production."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from core.domain.ids import JobId
from core.domain.sharing.policy import Policy
from scheduler.planning import NodeSnapshot
from scheduler.planning.model import Account
from scheduler.simulator.cluster import SimulatedRun
from scheduler.simulator.reading.arrival import Arrival


@dataclass(slots=True)
class _Usage:
    project: float = 0.0
    users: dict[str, float] = field(default_factory=dict)


class UsageHistory:
    """Means of dominant shares with exponential decay by half-life.

    With a single user, or if past usage has no weight, nothing is recorded: it would change nothing.
    """

    def __init__(
        self, policy: Policy, accounts: Iterable[Account], nodes: Iterable[NodeSnapshot], arrivals: Iterable[Arrival]
    ) -> None:
        self._given = {account.project: account for account in accounts}
        nodes = tuple(nodes)
        self._gpus = sum(node.allocatable.gpu_count for node in nodes)
        self._cpu_milli = sum(node.allocatable.cpu_milli for node in nodes) or 1
        self._half_life_s = policy.usage_half_life_s
        owners = {(arrival.project, arrival.user) for arrival in arrivals}
        self._counts = policy.is_fair and policy.usage_weight > 0 and len(owners) > 1
        self._usage: dict[str, _Usage] = {
            account.project: _Usage(account.usage, dict(account.user_usage)) for account in self._given.values()
        }
        for project, user in owners if self._counts else ():
            self._usage.setdefault(project, _Usage()).users.setdefault(user, 0.0)
        self._now_s = 0.0

    def advance(self, to_s: float, running: Mapping[JobId, SimulatedRun]) -> None:
        """``running``: what ran from the last call to ``to_s``."""
        past_s = to_s - self._now_s
        self._now_s = to_s
        if not self._counts or past_s <= 0:
            return
        decay = 0.5 ** (past_s / self._half_life_s)
        for usage in self._usage.values():
            usage.project *= decay
            for user in usage.users:
                usage.users[user] *= decay
        for run in running.values():
            share = (1 - decay) * self._share(run)
            usage = self._usage.setdefault(run.job.project, _Usage())
            usage.project += share
            usage.users[run.job.user] = usage.users.get(run.job.user, 0.0) + share

    def accounts(self) -> tuple[Account, ...]:
        if not self._counts:
            return tuple(self._given.values())
        return tuple(
            replace(self._given.get(project, Account(project)), usage=usage.project, user_usage=dict(usage.users))
            for project, usage in sorted(self._usage.items())
        )

    def _share(self, running: SimulatedRun) -> float:
        requests = {role.role: role.request for role in running.job.gang.roles}
        own_requests = [requests[placement.role] for placement in running.placements]
        gpus = sum(request.gpu_count + request.gpu_milli / 1000 for request in own_requests)
        cpu = sum(request.cpu_milli for request in own_requests) / self._cpu_milli
        return max(gpus / self._gpus if self._gpus else 0.0, cpu)
