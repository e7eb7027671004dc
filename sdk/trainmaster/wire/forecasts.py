"""What would become of a job, when those that wait are expected to start, and why a job waited, on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from trainmaster.wire.base import WireModel, WireRequest
from trainmaster.wire.jobs import WaitReasonView
from trainmaster.wire.numbers import Finite


class ClusterChange(WireRequest):
    """Another cluster to think of: ``more_nodes`` nodes of the kind of ``like``, and without those of ``without``."""

    more_nodes: int = Field(default=0, ge=0, le=10_000)
    like: str | None = None
    without: list[str] = Field(default_factory=list, max_length=1000)


class ForecastRequest(WireRequest):
    """``spec`` as the user wrote it, shorthands included, ``spec_text`` as YAML, or ``job``: one that waits.

    ``changes`` is laid over it, key by key (JSON merge patch, RFC 7396). ``cluster``: were there other nodes.
    """

    spec: dict[str, Any] | None = None
    spec_text: str | None = Field(default=None, max_length=1_048_576)
    job: str | None = Field(default=None, max_length=100)
    changes: dict[str, Finite] = Field(default_factory=dict)
    cluster: ClusterChange | None = None


class PlaceView(WireModel):
    """So many replicas of one role on one node."""

    role: str
    node: str
    replicas: int
    gpu_model: str | None = None


class ExpectedStartView(WireModel):
    """When a job is expected to start, from how long those that run and wait before it are expected to run.

    ``code``: `now`; `expected`; `not_known`, where ends are needed that nobody can tell; `later`, behind so many others that
    it was not worked out; `never`. Moments that nobody knows are `null`: with a ``likely_at`` and no ``late_at`` it may be
    any time later. ``nodes``: where, if all goes as is likely.
    """

    code: Literal["now", "expected", "not_known", "later", "never"]
    sentence: str
    early_at: datetime | None = None
    likely_at: datetime | None = None
    late_at: datetime | None = None
    nodes: list[str] = Field(default_factory=list)


class OptionView(WireModel):
    """A change, and when the job would start with it.

    ``field``: of the roles in ``roles`` (`replicas`, or `gpus`, `gpu_type`, `cpu`, `memory` of their resources), or of the spec
    itself where ``roles`` is empty. ``value``: what to write there; `null`: leave it out. ``start``: `null` if that is now.
    """

    code: str
    sentence: str
    roles: list[str] = Field(default_factory=list)
    field: str
    value: int | float | str | None = None
    start: ExpectedStartView | None = None


class VictimView(WireModel):
    """A job that would be stopped, and go on later, to make room."""

    job_id: str
    code: str
    sentence: str


class ForecastView(WireModel):
    """Either ``places``, where the next plan would start it, or ``wait_reason``, when it is expected to start, what would
    start instead (``options``) and what would start sooner (``later``).

    A look, no promise: the cluster may be another one a moment later. ``queue_position``: 1 is next; `null`: it has none, as
    it can never run here.
    """

    places: list[PlaceView] = Field(default_factory=list)
    wait_reason: WaitReasonView | None = None
    queue_position: int | None = None
    start: ExpectedStartView | None = None
    options: list[OptionView] = Field(default_factory=list)
    later: list[OptionView] = Field(default_factory=list)
    victims: list[VictimView] = Field(default_factory=list)

    @property
    def would_start(self) -> bool:
        return self.wait_reason is None


class NextStartView(WireModel):
    """A job that waits, and when and where it is expected to start."""

    job_id: str
    name: str
    project: str
    user: str
    priority: int
    queue_position: int
    gpu_count: float = 0
    run_s: float | None = None  # how long it is expected to run then
    start: ExpectedStartView


class OutlookView(WireModel):
    """The first jobs of the queue in its order, and when each is expected to start. ``waiting``: how many there are in all."""

    at: datetime
    waiting: int
    starts: list[NextStartView] = Field(default_factory=list)


class ExplanationView(WireModel):
    """Why a job waited, or was started, at a moment: the planner run again on what it saw then.

    ``at``: when that plan was made. ``verdict``: `waits`, `starts`, `stops` (it had to make room), `runs`, or `absent`: it was not
    in the queue. ``is_same``: whether the plan that was made then did the same with the job for the same reason; ``then``: if not,
    what it said. Plans are repeatable: it was another version of the planner.
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
    order: str = ""  # of a job that waits: how many come before it, and why


class SimulationRequest(WireRequest):
    """What to try on the jobs of the last ``days`` days: another policy, more nodes.

    ``policy``: the fields of the platform's policy that are another; ``more_nodes`` of the kind of node ``like``.
    """

    policy: dict[str, Finite] = Field(default_factory=dict)
    cluster: ClusterChange | None = None
    days: float = Field(default=30, gt=0, le=366)


class SimulationReportView(WireModel):
    """How the jobs would have fared. Times in seconds; ``gpu_allocation``, ``cpu_allocation``: share of the GPUs and CPUs that was
    given out from the first job's arrival to the last end, of whichever of the two sides ended later; ``fragmentation``: of the
    GPUs that were free while jobs waited, the share on partly used nodes. `null`: there is no such figure, as no job started
    (`wait_…`) or was done, not all were done (`makespan_s`), or there are no GPUs or CPUs.
    ``…_over_time``: seconds since the first job came, and the share that was in use, or how many jobs waited, from then on.
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
    """The same jobs run through the planner twice: ``before`` with the cluster and policy as they are now, ``after`` with the
    changes. So ``before`` is simulated, too: the nodes and settings were others when the jobs ran.
    """

    since: datetime
    until: datetime
    jobs: int
    before: SimulationReportView
    after: SimulationReportView
    sentences: list[str] = Field(default_factory=list)


class SimulationStatusView(WireModel):
    """``state``: `waiting` for a scheduler, `running` since ``began_at``, or `done`, with its ``result``. ``sentence``: what is going on."""

    id: str
    state: Literal["waiting", "running", "done"]
    sentence: str = ""
    began_at: datetime | None = None
    result: SimulationView | None = None
