"""Finish-time fairness: how much later a job ended than with an equal share of the cluster to itself.

rho = (end - arrival) / (time alone x contention), contention = max(1, jobs / GPUs). It is 1 for a job that ends when
it would have with an equal share; above 1 it was treated worse.

Defined by Mahajan et al., "Themis: Fair and Efficient GPU Cluster Scheduling", NSDI 2020. ``jobs`` is counted in two
ways, as Zheng et al. do in "Shockwave", NSDI 2023 (``get_finish_time_fairness`` of its artifact): *static*, all jobs
of the workload, the basis of its published figures; and as Themis means it, the average number of jobs present
meanwhile. The artifact calls a job unfairly treated above 1.05, since measured times are noisy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from scheduler.simulator.outcome import JobHistory

UNFAIR_ABOVE: Final = 1.05


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
        return {"worst": self.worst, "mean": self.mean, "unfair": self.unfair, "late": self.late}


def static_rhos(jobs: Iterable[JobHistory], gpus: int) -> list[float]:
    """Of finished jobs, with the contention of the whole workload."""
    jobs = list(jobs)
    contention = max(1.0, len(jobs) / gpus) if gpus else 1.0
    return [_stay_s(job) / (_alone_s(job) * contention) for job in jobs if _has_rho(job)]


def rhos(jobs: Iterable[JobHistory], gpus: int) -> list[float]:
    """Of finished jobs, with the contention that each of them met."""
    return [
        _stay_s(job) / (_alone_s(job) * max(1.0, job.jobs_meanwhile / gpus if gpus else 1.0))
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
