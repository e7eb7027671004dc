"""Studies and their trials on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final, Literal

from pydantic import Field

from trainmaster.studies.model import MAX_PARALLEL, MAX_TRIALS, StudySpec
from trainmaster.wire.base import WireModel, WireRequest

StudyState = Literal["running", "paused", "stopping", "succeeded", "failed", "cancelled"]
TrialState = Literal["running", "succeeded", "stopped", "failed", "cancelled"]
TERMINAL_STUDY_STATES: Final[frozenset[str]] = frozenset({"succeeded", "failed", "cancelled"})


class TrialView(WireModel):
    """``result``: the final value of each metric. ``job``: its id; none where a program tries the point by itself."""

    number: int
    state: TrialState
    parameters: dict[str, Any]
    result: dict[str, float] | None = None
    reason: str = ""
    job: str | None = None
    job_state: str | None = None
    gpu_hours: float = 0.0
    created_at: datetime
    ended_at: datetime | None = None


class StudyView(WireModel):
    """A study as lists show it. ``trials``: how many are in each state. ``best``: by the first metric."""

    id: str
    name: str
    project: str
    user: str
    state: StudyState
    reason: str = ""
    note: str = ""
    metrics: list[str] = Field(default_factory=list)
    algorithm: str = "auto"
    trials: dict[str, int] = Field(default_factory=dict)
    budget_trials: int | None = None
    parallel: int = 1
    best: TrialView | None = None
    created_at: datetime
    finished_at: datetime | None = None


class StudyDetail(StudyView):
    """``best_so_far``: [trial, value] each time that the first metric became better. ``gpu_hours``: of trials that ended."""

    spec: StudySpec
    seed: int
    gpu_hours: float = 0.0
    best_so_far: list[tuple[int, float]] = Field(default_factory=list)


class StudyBest(WireModel):
    """``trials``: the best one or, with several metrics, those that no other one betters in all (the Pareto front)."""

    metrics: list[str]
    trials: list[TrialView]
    best_so_far: list[tuple[int, float]]


class StudyCreate(WireRequest):
    """``spec`` as the user wrote it, or ``spec_text`` as YAML."""

    spec: dict[str, Any] | None = None
    spec_text: str | None = Field(default=None, max_length=1_048_576)
    dry_run: bool = False


class StudyExtend(WireRequest):
    """What is added to the budget; ``parallel`` replaces the number of trials at once."""

    trials: int | None = Field(default=None, ge=1, le=MAX_TRIALS)
    max_time: float | None = Field(default=None, gt=0, description="Seconds.")
    gpu_hours: float | None = Field(default=None, gt=0)
    failed_trials: int | None = Field(default=None, ge=1, le=MAX_TRIALS)
    parallel: int | None = Field(default=None, ge=1, le=MAX_PARALLEL)


class SuggestRequest(WireRequest):
    count: int = Field(default=1, ge=1, le=16)


class Suggestions(WireModel):
    """New trials to be tried. Empty: none is left, or the study has as many at once as it may."""

    trials: list[TrialView]
    reason: str = ""


class TrialComplete(WireRequest):
    """``result``: the value of every metric; without it the trial has failed, for ``reason``."""

    result: dict[str, float] | None = None
    reason: str = Field(default="", max_length=1000)
