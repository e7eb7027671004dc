"""Figures of a run: utilisation, waiting times, fairness.

Finish-time fairness says how much later a job ended than with an equal share of the cluster to itself: rho = (end -
arrival) / (time alone x contention), contention = max(1, jobs / GPUs). It is 1 for a job that ends when it would have
with an equal share; above 1 it was treated worse.

Defined by Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020. ``jobs`` is counted in two
ways, as Zheng et al. do in "Shockwave", NSDI 2023 (``get_finish_time_fairness`` of its artifact): *static*, all jobs
of the workload, the basis of its published figures; and as Themis means it, the average number of jobs present
meanwhile. The artifact calls a job unfairly treated above 1.05, since measured times are noisy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any, Final

from core.domain.sharing.gpus import WHOLE_GPU
from scheduler.simulator.outcome import JobHistory, SimulationOutcome

_POINTS = 200  # points of a curve
UNFAIR_ABOVE: Final = 1.05


@dataclass(frozen=True, slots=True)
class Spread:
    """Distribution of times, in seconds."""

    mean: float
    p50: float
    p99: float
    largest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        ordered = sorted(values) or [0.0]
        return cls(sum(ordered) / len(ordered), _at(ordered, 0.5), _at(ordered, 0.99), ordered[-1])

    def to_json(self) -> dict[str, float]:
        return {"mean_s": self.mean, "p50_s": self.p50, "p99_s": self.p99, "max_s": self.largest}


def _at(ordered: Sequence[float], share: float) -> float:
    """Nearest rank: https://en.wikipedia.org/wiki/Percentile#The_nearest-rank_method."""
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


@dataclass(frozen=True, slots=True)
class Fairness:
    """``unfair``: the fraction of jobs above 1.05; ``late``: of jobs above 1."""

    worst: float
    mean: float
    unfair: float
    late: float

    @classmethod
    def of(cls, rhos: Sequence[float]) -> Fairness:
        count = len(rhos) or 1
        return cls(
            worst=max(rhos, default=0.0),
            mean=sum(rhos) / count,
            unfair=sum(rho > UNFAIR_ABOVE for rho in rhos) / count,
            late=sum(rho > 1 for rho in rhos) / count,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Summary:
    """The figures of one run. ``utilisation``: GPUs held / GPUs present, from the start to the last end.

    ``completion``: from arrival to end (job completion time, JCT). ``idle_while_waiting``: GPUs free while jobs wait
    for room / GPUs present; ``fragmentation``: the fraction of these on partly used nodes. ``lost``: seconds of work
    repeated after preemptions / seconds of work. ``allocation``: (time, mean fraction of GPUs held until the next
    point); ``cpu_allocation``: the same for CPUs; ``queue``: (time, mean number of waiting jobs until the next
    point). ``decision_cpu``: CPU time of one plan, where measured.
    """

    jobs: int
    finished: int
    never_started: int
    waiting: Spread
    completion: Spread
    makespan_s: float
    gpu_utilisation: float
    cpu_utilisation: float
    idle_while_waiting: float
    fragmentation: float
    waiting_job_seconds: Mapping[str, float]
    plans: int
    preemptions: int
    lost: float
    fairness: Fairness
    static_fairness: Fairness
    allocation: tuple[tuple[float, float], ...]
    cpu_allocation: tuple[tuple[float, float], ...]
    queue: tuple[tuple[float, float], ...]
    decision_cpu: Spread | None = None

    def to_json(self) -> dict[str, Any]:
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            name: value.to_json() if isinstance(value, (Spread, Fairness)) else value for name, value in values.items()
        }


def summarise(outcome: SimulationOutcome, until_s: float | None = None) -> Summary:
    """The usual figures. Waiting times of jobs that never started are not included; their number is.

    Args:
        until_s: measure utilisation up to this time instead of the run's own end, so that runs of different lengths
            are comparable; not before the last end of a job.
    """
    jobs: list[JobHistory] = list(outcome.jobs.values())
    waits = [job.started_s - job.arrival.at_s for job in jobs if job.started_s is not None]
    completions = [job.ended_s - job.arrival.at_s for job in jobs if job.ended_s is not None]
    usage, end_s = outcome.usage, outcome.end_s if until_s is None else until_s
    first_s = min((job.arrival.at_s for job in jobs), default=0.0)
    last_s = max((job.ended_s for job in jobs if job.ended_s is not None), default=end_s)
    span_s = max(1e-9, end_s)
    work_s = sum(job.arrival.duration_s for job in jobs if job.ended_s is not None)
    return Summary(
        jobs=len(jobs),
        finished=len(completions),
        never_started=sum(job.started_s is None for job in jobs),
        waiting=Spread.of(waits),
        completion=Spread.of(completions),
        makespan_s=last_s - first_s,
        gpu_utilisation=usage.gpu_seconds / (usage.gpus * span_s) if usage.gpus else 0.0,
        cpu_utilisation=usage.cpu_seconds / (usage.cpu_milli * span_s) if usage.cpu_milli else 0.0,
        idle_while_waiting=usage.idle_gpu_seconds / (usage.gpus * span_s) if usage.gpus else 0.0,
        fragmentation=usage.broken_gpu_seconds / usage.idle_gpu_seconds if usage.idle_gpu_seconds else 0.0,
        waiting_job_seconds={code.value: seconds for code, seconds in sorted(usage.waiting_seconds.items())},
        plans=outcome.plans,
        preemptions=sum(job.preemptions for job in jobs),
        lost=sum(job.lost_s for job in jobs) / work_s if work_s else 0.0,
        fairness=Fairness.of(rhos(jobs, usage.gpus)),
        static_fairness=Fairness.of(static_rhos(jobs, usage.gpus)),
        # The run's own end is a step, too: what is held then is in no segment yet.
        allocation=_resampled(
            (*usage.allocation, (outcome.end_s, usage.used_gpu_milli)), end_s, usage.gpus * WHOLE_GPU
        ),
        cpu_allocation=_resampled(
            (*usage.cpu_allocation, (outcome.end_s, usage.used_cpu_milli)), end_s, usage.cpu_milli
        ),
        queue=_resampled((*usage.queue, (outcome.end_s, len(outcome.last_waits))), end_s, 1),
        decision_cpu=Spread.of(outcome.decision_cpu_s) if outcome.decision_cpu_s else None,
    )


def _resampled(steps: Sequence[tuple[float, int]], end_s: float, whole: int) -> tuple[tuple[float, float], ...]:
    """Means over equal intervals of the whole time, as fractions of ``whole``."""
    if not whole or end_s <= 0:
        return ()
    width_s = end_s / _POINTS
    sums = [0.0] * _POINTS
    for (from_s, count), (to_s, _) in pairwise((*steps, (end_s, 0))):
        first, last = int(from_s / width_s), min(_POINTS - 1, int(to_s / width_s))
        for number in range(first, last + 1):
            begins_s, ends_s = max(from_s, number * width_s), min(to_s, (number + 1) * width_s)
            sums[number] += count * max(0.0, ends_s - begins_s)
    return tuple((number * width_s, amount / (width_s * whole)) for number, amount in enumerate(sums))


def static_rhos(jobs: Iterable[JobHistory], gpus: int) -> list[float]:
    """Of finished jobs, with the contention of the whole workload."""
    jobs = list(jobs)
    contention = max(1.0, len(jobs) / gpus) if gpus else 1.0
    return [_stay_s(job) / (_alone_s(job) * contention) for job in jobs if _has_rho(job)]


def rhos(jobs: Iterable[JobHistory], gpus: int) -> list[float]:
    """Of finished jobs, with the contention that each of them met."""
    return [
        _stay_s(job) / (_alone_s(job) * max(1.0, job.concurrent_jobs / gpus if gpus else 1.0))
        for job in jobs
        if _has_rho(job)
    ]


def _has_rho(job: JobHistory) -> bool:
    return job.ended_s is not None and _alone_s(job) > 0


def _stay_s(job: JobHistory) -> float:
    return (job.ended_s or 0.0) - job.arrival.at_s


def _alone_s(job: JobHistory) -> float:
    limit_s = job.arrival.max_run_time_s
    return job.arrival.duration_s if limit_s is None else min(job.arrival.duration_s, limit_s)
