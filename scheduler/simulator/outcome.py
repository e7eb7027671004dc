"""The outcome of a simulation: what became of each job, and how the cluster was used over time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from core.domain.ids import JobId
from core.domain.sharing.gpus import WHOLE_GPU
from core.domain.sharing.resources import ResourceRequest
from scheduler.planning import NodeSnapshot, Reason, WaitReasonCode
from scheduler.simulator.cluster import SimulatedCluster, SimulatedRun
from scheduler.simulator.reading.arrival import Arrival
from scheduler.simulator.reading.scenario import Scenario

_WAITS_FOR_ROOM = (
    WaitReasonCode.NO_ROOM,
    WaitReasonCode.RESERVED,
    WaitReasonCode.TOPOLOGY,
    WaitReasonCode.GPU_HEADROOM,
)


class ClusterUsage:
    """Integrals over time, updated from event to event."""

    def __init__(self, nodes: Iterable[NodeSnapshot]) -> None:
        nodes = tuple(nodes)
        self.gpus = sum(node.allocatable.gpu_count for node in nodes)
        self.cpu_milli = sum(node.allocatable.cpu_milli for node in nodes)
        self.used_gpu_milli = 0
        self.used_cpu_milli = 0
        self.gpu_seconds = 0.0
        self.cpu_seconds = 0.0  # in thousandths of a CPU
        self.waiting_seconds: dict[WaitReasonCode, float] = {}
        # While a job waits for room: free GPUs, and those of them on partly used nodes.
        self.idle_gpu_seconds = 0.0
        self.broken_gpu_seconds = 0.0
        self._idle = (0.0, 0.0)
        self._waiting: Counter[WaitReasonCode] = Counter()
        # Thousandths of GPUs held, and number of waiting jobs, from each time on; the newest last.
        self.allocation: list[tuple[float, int]] = [(0.0, 0)]
        self.cpu_allocation: list[tuple[float, int]] = [(0.0, 0)]
        self.queue: list[tuple[float, int]] = [(0.0, 0)]
        self._now_s = 0.0

    def advance(self, to_s: float, *, waiting: int) -> None:
        """``waiting``: number of waiting jobs until then."""
        past_s = to_s - self._now_s
        if past_s > 0 and self.allocation[-1][1] != self.used_gpu_milli:
            self.allocation.append((self._now_s, self.used_gpu_milli))
        if past_s > 0 and self.cpu_allocation[-1][1] != self.used_cpu_milli:
            self.cpu_allocation.append((self._now_s, self.used_cpu_milli))
        if past_s > 0 and self.queue[-1][1] != waiting:
            self.queue.append((self._now_s, waiting))
        self._now_s = to_s
        self.gpu_seconds += past_s * self.used_gpu_milli / WHOLE_GPU
        self.cpu_seconds += past_s * self.used_cpu_milli
        self.idle_gpu_seconds += past_s * self._idle[0]
        self.broken_gpu_seconds += past_s * self._idle[1]
        for code, jobs in self._waiting.items():
            self.waiting_seconds[code] = self.waiting_seconds.get(code, 0.0) + past_s * jobs

    def start(self, running: SimulatedRun) -> None:
        self._hold_all(running, 1)

    def end(self, running: SimulatedRun) -> None:
        self._hold_all(running, -1)

    def _hold_all(self, running: SimulatedRun, sign: int) -> None:
        requests = {role.role: role.request for role in running.job.gang.roles}
        for placement in running.placements:
            self.hold(requests[placement.role], sign)

    def hold(self, request: ResourceRequest, replicas: int) -> None:
        """A gang holds so many more replicas; negative where it has shrunk."""
        self.used_gpu_milli += replicas * (WHOLE_GPU * request.gpu_count + request.gpu_milli)
        self.used_cpu_milli += replicas * request.cpu_milli

    def wait(self, codes: Mapping[str, WaitReasonCode], world: SimulatedCluster) -> None:
        """Why jobs wait from now on, and what is free meanwhile."""
        self._waiting = Counter(codes.values())
        idle = broken = 0.0
        if any(code in _WAITS_FOR_ROOM for code in codes.values()):
            for node in world.nodes.values():
                free = node.free.gpu_count + sum(map(sum, node.free.shares.values())) / WHOLE_GPU
                idle += free
                broken += free if free < node.allocatable.gpu_count else 0.0
        self._idle = (idle, broken)


@dataclass(slots=True)
class JobHistory:
    """What became of one job. Times in seconds from the start; ``None``: not yet.

    ``started_s``, ``nodes`` and ``gpu_models``: of its first start. ``concurrent_jobs``: average number of jobs
    present, itself included, from its arrival to its end.
    """

    arrival: Arrival
    started_s: float | None = None
    ended_s: float | None = None
    nodes: tuple[str, ...] = ()  # one per replica, in rank order
    gpu_models: tuple[str | None, ...] = ()
    reasons: list[tuple[float, Reason]] = field(default_factory=list)  # each change, and when
    preemptions: int = 0
    lost_s: float = 0.0  # repeated work, and restart costs
    concurrent_jobs: float = 1.0

    def reason_at(self, at_s: float) -> Reason | None:
        """Why it waited at that moment, after the plan made then."""
        if self.started_s is not None and self.started_s <= at_s:
            return None
        past = [reason for since_s, reason in self.reasons if since_s <= at_s]
        return past[-1] if past else None


@dataclass(slots=True)
class SimulationOutcome:
    """Input of reports and expectations.

    ``decision_cpu_s``: of each plan, if a clock was given. ``last_waits``: wait reasons of the last plan.
    """

    scenario: Scenario
    jobs: dict[str, JobHistory]
    usage: ClusterUsage
    end_s: float = 0.0
    plans: int = 0
    decision_cpu_s: list[float] = field(default_factory=list)
    last_waits: Mapping[JobId, Reason] = field(default_factory=dict)

    @property
    def last_end_s(self) -> float:
        """When the last finished job ended; 0 if none did."""
        return max((job.ended_s for job in self.jobs.values() if job.ended_s is not None), default=0.0)
