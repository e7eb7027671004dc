"""API models of start forecasts, explanations of scheduling decisions, and simulations."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from pydantic import Field

from trainmaster.wire.base import Finite, WireModel, WireRequest
from trainmaster.wire.jobs import WaitReasonView


class ClusterChange(WireRequest):
    """A hypothetical cluster: with ``more_nodes`` more nodes like node ``like``, and without the nodes ``without``."""

    more_nodes: int = Field(default=0, ge=0, le=10_000)
    like: str | None = None
    without: list[str] = Field(default_factory=list, max_length=1000)


class ForecastRequest(WireRequest):
    """Forecast for ``spec`` (shorthands allowed), ``spec_text`` (YAML), or ``job``, a waiting job.

    ``changes``: JSON merge patch for the spec (RFC 7396). ``cluster``: hypothetical changes of the nodes.
    """

    spec: dict[str, Any] | None = None
    spec_text: str | None = Field(default=None, max_length=1_048_576)
    job: str | None = Field(default=None, max_length=100)
    changes: dict[str, Finite] = Field(default_factory=dict)
    cluster: ClusterChange | None = None


class PlaceView(WireModel):
    """Placement of a role's replicas on one node."""

    role: str
    node: str
    replicas: int
    gpu_model: str | None = None


class ExpectedStartView(WireModel):
    """Forecast of a job's start, from the expected durations of the running jobs and the jobs ahead in the queue.

    ``code``: `now`; `expected`; `not_known`: it depends on jobs of unknown duration; `later`: too far back in the queue
    to be computed; `never`. Unknown times are `null`: with ``likely_at`` but no ``late_at``, there is no upper bound.
    ``nodes``: the nodes in the likely case. The interval from ``early_at`` to ``late_at`` is calibrated on the
    platform's own history: nine in ten contain the real start.
    """

    code: Literal["now", "expected", "not_known", "later", "never"]
    sentence: str
    early_at: datetime | None = None
    likely_at: datetime | None = None
    late_at: datetime | None = None
    nodes: list[str] = Field(default_factory=list)


class OptionView(WireModel):
    """A change of the spec, and when the job would start with it.

    ``field``: of the roles in ``roles`` (`replicas`, or `gpus`, `gpu_type`, `cpu`, `memory` of their resources), or of
    the spec if ``roles`` is empty. ``value``: the new value; `null`: remove the field. ``start``: `null` if it is now.
    """

    code: str
    sentence: str
    roles: list[str] = Field(default_factory=list)
    field: str
    value: int | float | str | None = None
    start: ExpectedStartView | None = None


class VictimView(WireModel):
    """A job that would be preempted."""

    job_id: str
    code: str
    sentence: str


class CostForecast(WireModel):
    """What a job will cost at the present prices. ``per_hour``: on the nodes of the forecast, or the highest on any
    node that it may get.

    ``basis``: of ``expected``: `learnt` from finished jobs or the job's own progress; else it is `null`, and there is
    ``at_most``, by its ``max_run_time`` (`limit`), or the cost of an hour alone (`unknown`).
    """

    sentence: str
    currency: str
    per_hour: Decimal
    basis: Literal["learnt", "limit", "unknown"]
    expected: Decimal | None = None
    at_most: Decimal | None = None
    run_s: float | None = None


class ForecastView(WireModel):
    """Either ``places``, where the next plan would start the job, or ``wait_reason`` with the expected start.

    ``options``: changes with which it would start now; ``later``: changes with which it would start sooner. The
    forecast is no guarantee: the cluster may change. ``queue_position``: 1 is next; `null`: it can never run here.
    """

    places: list[PlaceView] = Field(default_factory=list)
    wait_reason: WaitReasonView | None = None
    queue_position: int | None = None
    start: ExpectedStartView | None = None
    options: list[OptionView] = Field(default_factory=list)
    later: list[OptionView] = Field(default_factory=list)
    victims: list[VictimView] = Field(default_factory=list)
    cost: CostForecast | None = Field(default=None, description="`null`: the platform has no prices.")

    @property
    def would_start(self) -> bool:
        return self.wait_reason is None


class ExplanationView(WireModel):
    """Why a job waited or started at a time, by replaying the scheduling decision.

    ``at``: time of the decision. ``verdict``: `waits`, `starts`, `stops` (preempted), `runs`, or `absent` (not in the
    queue). ``is_same``: whether the replay gives the original result and reason; otherwise ``then``: the original
    reason. Planning is deterministic, so a difference means another version of the planner.
    """

    job_id: str
    at: datetime
    verdict: Literal["waits", "starts", "stops", "runs", "absent"]
    sentence: str
    wait_reason: WaitReasonView | None = None
    queue_position: int | None = None
    places: list[PlaceView] = Field(default_factory=list)
    waiting: int = 0
    running: int = 0
    nodes: int = 0
    is_same: bool = True
    then: str = ""
    order: str = ""  # for a waiting job: how many jobs precede it, and why


class SimulationRequest(WireRequest):
    """Simulation of the last ``days`` days' jobs with another policy or other nodes. ``policy``: changed settings."""

    policy: dict[str, Finite] = Field(default_factory=dict)
    cluster: ClusterChange | None = None
    days: float = Field(default=30, gt=0, le=366)


class SimulationReportView(WireModel):
    """Result of a simulation; times in seconds (jct: job completion time).

    ``gpu_allocation``, ``cpu_allocation``: allocated fraction of the GPUs and CPUs from the first submission to the
    later end of the two simulations. ``fragmentation``: of the GPUs that were free while jobs waited, the fraction on
    partly used nodes. `null`: undefined, since no job started (`wait_…`) or finished, not all finished (`makespan_s`),
    or there are no GPUs or CPUs. ``…_over_time``: steps of [seconds since the first submission, allocated fraction or
    waiting jobs].
    """

    jobs: int
    finished: int
    wait_mean_s: float | None
    wait_p50_s: float | None
    wait_p99_s: float | None
    jct_mean_s: float | None
    jct_p50_s: float | None
    jct_p99_s: float | None
    makespan_s: float | None
    gpu_allocation: float | None
    cpu_allocation: float | None = None
    fragmentation: float = 0
    preemptions: int = 0
    worst_fairness: float | None = None  # the largest finish-time fairness: above 1 is later than with an equal share
    gpus_over_time: list[list[float]] = Field(default_factory=list)
    cpus_over_time: list[list[float]] = Field(default_factory=list)
    waiting_over_time: list[list[float]] = Field(default_factory=list)


class SimulationView(WireModel):
    """Two simulations of the same jobs: ``before`` with the present cluster and policy, ``after`` with the changes.

    ``before`` is simulated, too, since nodes and settings were different when the jobs ran.
    """

    since: datetime
    until: datetime
    jobs: int
    before: SimulationReportView
    after: SimulationReportView
    sentences: list[str] = Field(default_factory=list)


class SimulationStatusView(WireModel):
    """``state``: `waiting` for a scheduler, `running` since ``began_at``, or `done` with a ``result``."""

    id: str
    state: Literal["waiting", "running", "done"]
    sentence: str = ""
    began_at: datetime | None = None
    result: SimulationView | None = None
