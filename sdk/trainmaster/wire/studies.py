"""API models of studies and their trials."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from trainmaster.studies.model import MAX_PARALLEL, MAX_TRIALS, StudySpec
from trainmaster.wire.base import Finite, WireModel, WireRequest
from trainmaster.wire.jobs import WaitReasonView

StudyState = Literal["running", "paused", "stopping", "succeeded", "failed", "cancelled"]
TrialState = Literal["running", "succeeded", "stopped", "failed", "cancelled"]
WAIT_FOR_NODES: Final = (
    "Create it even if no present node could ever run one of its trials, since such nodes will be added."
)
TERMINAL_STUDY_STATES: Final[frozenset[str]] = frozenset({"succeeded", "failed", "cancelled"})


class TrialView(WireModel):
    """A trial. ``result``: final value of each metric. ``job``: its job's ID; none for an external trial.

    For external trials, which a program runs itself: ``client``: the program's name; ``heard_at``: its last heartbeat.
    """

    number: int
    state: TrialState
    parameters: dict[str, Any]
    result: dict[str, float] | None = None
    parent: int | None = Field(default=None, description="The trial whose checkpoint it resumes from.")
    reason: str = ""
    job: str | None = None
    job_state: str | None = None
    gpu_hours: float = 0.0
    client: str | None = None
    heard_at: datetime | None = None
    created_at: datetime
    ended_at: datetime | None = None


class StudyView(WireModel):
    """A study as shown in lists. ``trials``: their number by state. ``best``: by the first metric.

    ``front_size``: with several metrics, the number of trials on the Pareto front.
    """

    id: str
    name: str
    project: str
    user: str
    state: StudyState
    reason: str = ""
    note: str = ""
    metrics: list[str] = Field(default_factory=list)
    algorithm: str = "auto"
    algorithm_chosen: str | None = Field(
        default=None,
        description="The algorithm chosen for `auto`; `auto` itself means TPE and GP alternately. None before the "
        "first round, and if the spec names an algorithm.",
    )
    algorithm_reason: str = Field(default="", description="Reason for the choice.")
    trials: dict[str, int] = Field(default_factory=dict)
    waiting: int = Field(default=0, description="Number of running trials whose jobs wait in the queue.")
    budget_trials: int | None = None
    parallel: int = 1
    best: TrialView | None = None
    front_size: int | None = None
    cloned_from: str | None = Field(default=None, description="ID of the study that it was cloned from.")
    created_at: datetime
    finished_at: datetime | None = None


class StudyWinner(WireModel):
    """Registration of the best trial: the output of ``job`` as ``version`` of ``model``; none if deleted since."""

    trial: int
    job: str | None = None
    job_state: str | None = None
    model: str | None = None
    version: int | None = None
    version_state: str | None = None
    reason: str = Field(default="", description="Why the version waits, has failed, or did not get its aliases.")


class StudyDetail(StudyView):
    """``best_so_far``: [trial, value] for each improvement of the first metric. ``gpu_hours``: of ended trials.

    ``winner``: after the study's end, if its spec has one and a trial succeeded. ``namesakes``: IDs of up to ten other
    active studies with the same name in the project, newest first; the name refers to the newest study.
    ``wait_reason``: of the first of the ``waiting`` trials.
    """

    spec: StudySpec
    seed: int
    gpu_hours: float = 0.0
    best_so_far: list[tuple[int, float]] = Field(default_factory=list)
    winner: StudyWinner | None = None
    namesakes: list[str] = Field(default_factory=list)
    wait_reason: WaitReasonView | None = None


class StudyBest(WireModel):
    """``trials``: the best trial or, with several metrics, the Pareto front.

    ``regret``: [trial, distance of the best value so far from the best of all], of the first metric, never negative.
    """

    metrics: list[str]
    trials: list[TrialView]
    best_so_far: list[tuple[int, float]]
    regret: list[tuple[int, float]] = Field(default_factory=list)


class ParameterImportance(WireModel):
    """``importance``: fraction of the metric's variance explained by the parameter, from 0 to 1; the sum is 1.
    ``None``: unknown, since fewer than ten trials have the parameter. ``trials``: number of trials with the parameter.
    """

    name: str
    importance: float | None
    trials: int


class StudyImportance(WireModel):
    """Parameters by importance. ``trials``: number of results used; ``reason``: why the importance is unknown."""

    metric: str | None = Field(default=None, description="None: of all metrics together.")
    trials: int
    parameters: list[ParameterImportance] = Field(default_factory=list)
    reason: str = ""


class PredictedBest(WireModel):
    """Predicted best value after ``more`` further results: median ``likely``, 80 % interval ``low`` to ``high``."""

    more: int
    low: float
    likely: float
    high: float


class StudyPrediction(WireModel):
    """Extrapolation of the best value of the first metric.

    ``chance``: probability that any of the largest number of further trials is better than ``best``. Backtest:
    ``checked``: number of earlier points in time at which the prediction was repeated; ``held``: how often the interval
    covered the actual value. ``reason``: why there is no prediction; the other fields are empty then.
    """

    metric: str
    trials: int
    best: float | None = None
    points: list[PredictedBest] = Field(default_factory=list)
    chance: float | None = None
    checked: int = 0
    held: int = 0
    reason: str = ""


class TrialColumns(WireModel):
    """Trials as columns of the same length, by number. ``null``: a trial has no such value.

    ``until``: value for ``since`` of the next request, which then returns only changed and running trials.
    """

    number: list[int]
    state: list[TrialState]
    job: list[str | None]
    reason: list[str]
    created_at: list[datetime]
    ended_at: list[datetime | None]
    parameters: dict[str, list[Any]]
    metrics: dict[str, list[float | None]]
    until: datetime


class TrialCurve(WireModel):
    """A trial's reports of the study's first metric by step, downsampled."""

    number: int
    state: TrialState
    job: str | None = None
    steps: list[int]
    values: list[float]


class StudyCurves(WireModel):
    """Learning curves of the best, the newest and the running trials. ``total``: number of trials with a curve."""

    metric: str
    curves: list[TrialCurve]
    total: int


class StudyCreate(WireRequest):
    """``spec`` as users write it, or ``spec_text`` as YAML."""

    spec: dict[str, Any] | None = None
    spec_text: str | None = Field(default=None, max_length=1_048_576)
    dry_run: bool = False
    wait_for_nodes: bool = Field(default=False, description=WAIT_FOR_NODES)


class StudyClone(WireRequest):
    """``changes``: JSON merge patch for the original's spec (RFC 7396). ``warm_start``: learn from its trials."""

    changes: dict[str, Finite] = Field(default_factory=dict)
    warm_start: bool = False
    dry_run: bool = False
    wait_for_nodes: bool = Field(default=False, description=WAIT_FOR_NODES)


class StudyExtend(WireRequest):
    """Additions to the budget; ``parallel`` replaces the number of concurrent trials."""

    trials: int | None = Field(default=None, ge=1, le=MAX_TRIALS)
    max_time: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Seconds; an ended study continues for so long from now.",
    )
    gpu_hours: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    failed_trials: int | None = Field(default=None, ge=1, le=MAX_TRIALS)
    parallel: int | None = Field(default=None, ge=1, le=MAX_PARALLEL)


class SuggestRequest(WireRequest):
    count: int = Field(default=1, ge=1, le=16)
    client: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        description="Name of the program; a later request under this name first returns its running trials.",
    )


class Suggestions(WireModel):
    """Trials to run: new ones, and running ones of the same ``client``. If empty, see ``reason`` and ``is_over``."""

    trials: list[TrialView]
    reason: str = Field(default="", description="Why there are no trials.")
    is_over: bool = Field(
        default=False,
        description="Whether the study has ended or its budget is spent. If false without trials: ask again later.",
    )


class TrialComplete(WireRequest):
    """``result``: the value of every metric; without it the trial failed for ``reason``."""

    result: dict[str, Annotated[float, Field(allow_inf_nan=False)]] | None = None
    reason: str = Field(default="", max_length=1000)
