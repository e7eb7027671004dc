"""Studies and their trials on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from trainmaster.studies.model import MAX_PARALLEL, MAX_TRIALS, StudySpec
from trainmaster.wire.base import WireModel, WireRequest
from trainmaster.wire.numbers import Finite

StudyState = Literal["running", "paused", "stopping", "succeeded", "failed", "cancelled"]
TrialState = Literal["running", "succeeded", "stopped", "failed", "cancelled"]
WAIT_FOR_NODES: Final = (
    "Create it also where no node that there is could ever hold one of its trials: such nodes are to come."
)
TERMINAL_STUDY_STATES: Final[frozenset[str]] = frozenset({"succeeded", "failed", "cancelled"})


class TrialView(WireModel):
    """``result``: the final value of each metric. ``job``: its id; none where a program tries the point by itself.

    ``client``: what that program calls itself; ``heard_at``: its last sign of life after it was given the trial.
    """

    number: int
    state: TrialState
    parameters: dict[str, Any]
    result: dict[str, float] | None = None
    parent: int | None = Field(default=None, description="The trial whose checkpoint it goes on from.")
    reason: str = ""
    job: str | None = None
    job_state: str | None = None
    gpu_hours: float = 0.0
    client: str | None = None
    heard_at: datetime | None = None
    created_at: datetime
    ended_at: datetime | None = None


class StudyView(WireModel):
    """A study as lists show it. ``trials``: how many are in each state. ``best``: by the first metric.

    ``front_size``: of several metrics, how many trials no other one betters in all of them.
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
        description="What `auto` is for this study, of which `auto` itself is TPE and GP in turns; "
        "none until its first round, and where none is chosen.",
    )
    algorithm_reason: str = Field(default="", description="Why, in a sentence.")
    trials: dict[str, int] = Field(default_factory=dict)
    waiting: int = Field(default=0, description="How many of the running trials have a job that waits in the queue.")
    budget_trials: int | None = None
    parallel: int = 1
    best: TrialView | None = None
    front_size: int | None = None
    cloned_from: str | None = Field(default=None, description="The id of the study whose spec it was made from.")
    created_at: datetime
    finished_at: datetime | None = None


class StudyWinner(WireModel):
    """What became of the best trial. ``job``: whose output is registered as ``version`` of ``model``; deleted since, they are none."""

    trial: int
    job: str | None = None
    job_state: str | None = None
    model: str | None = None
    version: int | None = None
    version_state: str | None = None
    reason: str = Field(default="", description="Why the version waits, has failed, or did not get its aliases.")


class StudyDetail(StudyView):
    """``best_so_far``: [trial, value] each time that the first metric became better. ``gpu_hours``: of trials that ended.

    ``winner``: once the study is over, if its spec asks for one and a trial succeeded. ``namesakes``: ids of others of its
    name in its project that have not ended, the newest first, ten at most; the name means the newest of all.
    """

    spec: StudySpec
    seed: int
    gpu_hours: float = 0.0
    best_so_far: list[tuple[int, float]] = Field(default_factory=list)
    winner: StudyWinner | None = None
    namesakes: list[str] = Field(default_factory=list)


class StudyBest(WireModel):
    """``trials``: the best one or, with several metrics, those that no other one betters in all (the Pareto front).

    ``regret``: [trial, how far the best up to it is from the best of all], of the first metric, never below zero.
    """

    metrics: list[str]
    trials: list[TrialView]
    best_so_far: list[tuple[int, float]]
    regret: list[tuple[int, float]] = Field(default_factory=list)


class ParameterImportance(WireModel):
    """``importance``: its part of what makes trials good, from 0 to 1; all parts are 1 together. ``None``: not known, since
    fewer than ten trials have the parameter. ``trials``: those that have it, which the figure comes from.
    """

    name: str
    importance: float | None
    trials: int


class StudyImportance(WireModel):
    """The most important parameter first. ``trials``: results that it was computed from; ``reason``: why it is not known."""

    metric: str | None = Field(default=None, description="None: being good in all of several metrics at once.")
    trials: int
    parameters: list[ParameterImportance] = Field(default_factory=list)
    reason: str = ""


class PredictedBest(WireModel):
    """The best after ``more`` more trials with a result: with 80 % between ``low`` and ``high``, as likely above ``likely`` as below."""

    more: int
    low: float
    likely: float
    high: float


class StudyPrediction(WireModel):
    """What more trials would bring, by the first metric: an extrapolation, nothing that is known.

    ``chance``: that any of the most trials asked for is better than ``best``. ``checked``: at so many earlier moments the
    same was asked; ``held``: so often the interval held what came. ``reason``: why it is not known; then nothing else is told.
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
    """Trials in columns, by number: the places of all lists belong together. ``null``: a trial has no such value.

    ``until``: give it back as ``since``, and only what has changed is told, with all trials that run.
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
    """What a trial reported of the study's first metric, by its own steps; thinned."""

    number: int
    state: TrialState
    job: str | None = None
    steps: list[int]
    values: list[float]


class StudyCurves(WireModel):
    """``total``: trials that have one; those shown are the best, the newest, and those that run."""

    metric: str
    curves: list[TrialCurve]
    total: int


class StudyCreate(WireRequest):
    """``spec`` as the user wrote it, or ``spec_text`` as YAML."""

    spec: dict[str, Any] | None = None
    spec_text: str | None = Field(default=None, max_length=1_048_576)
    dry_run: bool = False
    wait_for_nodes: bool = Field(default=False, description=WAIT_FOR_NODES)


class StudyClone(WireRequest):
    """``changes``: laid over the original's spec as RFC 7396 says (null removes). ``warm_start``: learn from its trials."""

    changes: dict[str, Finite] = Field(default_factory=dict)
    warm_start: bool = False
    dry_run: bool = False
    wait_for_nodes: bool = Field(default=False, description=WAIT_FOR_NODES)


class StudyExtend(WireRequest):
    """What is added to the budget; ``parallel`` replaces the number of trials at once."""

    trials: int | None = Field(default=None, ge=1, le=MAX_TRIALS)
    max_time: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Seconds; a study that has ended goes on for so long from now.",
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
        description="A name of the program's own: asked again under it, it first gets those of its trials that run still.",
    )


class Suggestions(WireModel):
    """Trials to be tried: new ones, and those that the same ``client`` has still. Empty: see ``reason`` and ``is_over``."""

    trials: list[TrialView]
    reason: str = Field(default="", description="Why there is none.")
    is_over: bool = Field(
        default=False,
        description="No more will come: the study has ended, or its budget is spent. False beside no trials: ask again later.",
    )


class TrialComplete(WireRequest):
    """``result``: the value of every metric; without it the trial has failed, for ``reason``."""

    result: dict[str, Annotated[float, Field(allow_inf_nan=False)]] | None = None
    reason: str = Field(default="", max_length=1000)
