"""AutoML on the wire: a request becomes a study, whose best model is registered."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from trainmaster.spec.fields import NAME_PATTERN
from trainmaster.wire.base import WireModel, WireRequest
from trainmaster.wire.models import Alias, ModelName
from trainmaster.wire.studies import WAIT_FOR_NODES, StudyState, StudyWinner

AutomlKind = Literal["tabular", "images"]
AutomlTask = Literal["classification", "regression"]


class AutomlCreate(WireRequest):
    """What is learnt from which data. What is unstated is found out from the data, and told in ``notes``."""

    data: str = Field(
        min_length=1,
        max_length=1024,
        description="`volume/path` of a table (CSV, Parquet), of a folder of tables, of a folder with one folder of images for each "
        "class, or of a CSV file that names images beside it.",
        examples=["data/churn.csv"],
    )
    target: str | None = Field(
        default=None,
        min_length=1,
        max_length=500,
        description="The column to be predicted; of images in folders what their classes are called, which may be left out.",
    )
    project: str = Field(default="default", max_length=100)
    name: str | None = Field(
        default=None, pattern=NAME_PATTERN, description="The study's; unstated: `automl-` and the data's."
    )
    model: ModelName | None = Field(
        default=None, description="What the best is registered as; unstated: as the study is called."
    )
    aliases: list[Alias] = Field(default_factory=list, max_length=20, description="Set on the registered version.")
    kind: AutomlKind | None = None
    task: AutomlTask | None = Field(
        default=None, description="Unstated: by the target's values. Images are always classified."
    )
    metric: str | None = Field(
        default=None,
        description="What models are compared by: accuracy, balanced_accuracy, f1_macro, roc_auc, log_loss; or rmse, mae, r2.",
    )
    families: list[str] = Field(
        default_factory=list,
        max_length=20,
        description="Tables: baseline, linear, boosting, forest, neighbors. Images: baseline, cnn, transfer. Unstated: all.",
    )
    budget: str | float = Field(
        default="1h", description="Time of the search, such as `30m`; the final run comes after it."
    )
    trials: int = Field(default=60, ge=1, le=10_000, description="Models that are tried at most.")
    parallel: int = Field(default=1, ge=1, le=200, description="At once.")
    test_fraction: float = Field(
        default=0.2, ge=0.05, le=0.5, description="Of the rows or images, which no trial sees: the final test."
    )
    folds: int | None = Field(
        default=None,
        ge=1,
        le=20,
        description="Of tables: of the cross validation; 1: one part is held back. By the rows.",
    )
    image_size: int | None = Field(default=None, ge=8, le=512, description="Pixels of a side; unstated: by the images.")
    weights: str | None = Field(
        default=None,
        max_length=1024,
        description="`volume/path` of a backbone in TorchScript, (images, 3, side, side) to (images, features), for `transfer`.",
    )
    max_rows: int | None = Field(
        default=None,
        ge=20,
        le=50_000_000,
        description="Of more rows (unstated: 500,000) or images (20,000) a sample is drawn.",
    )
    keep: list[str] = Field(
        default_factory=list,
        max_length=1_000,
        description="Columns of a table that are used although they number its rows, or have a text of its own for nearly each.",
    )
    seed: int = Field(default=0, ge=0, lt=2**31)
    resources: dict[str, Any] = Field(default_factory=dict, description="Of one trial, as in a job spec.")
    image: str | None = Field(
        default=None, max_length=1024, description="One that has `trainmaster_automl`; unstated: the platform's."
    )
    dry_run: bool = Field(default=False, description="Look at the data, answer with the plan, create nothing.")
    wait_for_nodes: bool = Field(default=False, description=WAIT_FOR_NODES)


class AutomlRow(WireModel):
    """One line of the leaderboard. ``score``: of the validation; ``spread``: its standard deviation over the folds.

    ``is_whole``: it went to its own end; others were stopped early, and are not chosen.
    """

    rank: int
    trial: int
    family: str
    score: float
    spread: float | None = None
    seconds: float | None = None
    is_whole: bool = True
    parameters: dict[str, Any] = Field(default_factory=dict)
    job: str | None = None


class AutomlTest(WireModel):
    """Of the registered model on rows that no trial saw: ``low`` and ``high`` hold the score with 95 % (Wilson's score interval of
    ``accuracy``, else a bootstrap); none where the bootstrap has no width.

    ``baseline``: the score of the commonest class, or the mean, on the same rows. ``hint``: why the model is not surely better
    than that, or why there is no interval; empty where neither. ``metrics``: all of the task.
    """

    score: float
    low: float | None = None
    high: float | None = None
    rows: int
    baseline: float | None = None
    hint: str = ""
    metrics: dict[str, float] = Field(default_factory=dict)


class AutomlDetail(WireModel):
    """``id``: of its study; none of a plan. ``notes``: what was found out from the data. ``leaderboard``: the best first."""

    id: str | None = None
    name: str
    project: str
    state: StudyState | None = None
    reason: str = ""
    kind: AutomlKind
    task: AutomlTask
    metric: str
    goal: Literal["maximize", "minimize"]
    target: str | None = None
    data: str
    families: list[str]
    notes: list[str] = Field(default_factory=list)
    trials: dict[str, int] = Field(default_factory=dict)
    leaderboard: list[AutomlRow] = Field(default_factory=list)
    winner: StudyWinner | None = None
    test: AutomlTest | None = None
