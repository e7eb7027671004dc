"""API models of AutoML: a request becomes a study, whose best model is registered."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from trainmaster.spec.fields import DISPLAY_NAME_PATTERN
from trainmaster.wire.base import WireModel, WireRequest
from trainmaster.wire.models import Alias, ModelName
from trainmaster.wire.studies import WAIT_FOR_NODES, StudyState, StudyWinner

AutomlKind = Literal["tabular", "images"]
AutomlTask = Literal["classification", "regression"]


class AutomlCreate(WireRequest):
    """An AutoML request. Unset fields are inferred from the data, with explanations in ``notes``."""

    data: str = Field(
        min_length=1,
        max_length=1024,
        description="`volume/path` of a table (CSV, Parquet), a folder of tables, a folder with a folder of images per "
        "class, or a CSV file that names image files in its folder.",
        examples=["data/churn.csv"],
    )
    target: str | None = Field(
        default=None,
        min_length=1,
        max_length=500,
        description="The column to predict; for images in folders, an optional name of the class.",
    )
    project: str = Field(default="default", max_length=100)
    name: str | None = Field(
        default=None,
        pattern=DISPLAY_NAME_PATTERN,
        description="Name of the study; default: `automl-` and the name of the data.",
    )
    model: ModelName | None = Field(
        default=None, description="Name of the registered model; default: the study's name."
    )
    aliases: list[Alias] = Field(default_factory=list, max_length=20, description="Set on the registered version.")
    kind: AutomlKind | None = None
    task: AutomlTask | None = Field(
        default=None, description="Default: by the target's values. Images are always classified."
    )
    metric: str | None = Field(
        default=None,
        description="Metric for the comparison of models: accuracy, balanced_accuracy, f1_macro, roc_auc, log_loss; or "
        "rmse, mae, r2.",
    )
    families: list[str] = Field(
        default_factory=list,
        max_length=20,
        description="Model families for tables: baseline, linear, boosting, forest, neighbors; for images: baseline, "
        "cnn, transfer. Default: all.",
    )
    budget: str | float = Field(default="1h", description="Time of the search, such as `30m`, without the final run.")
    trials: int = Field(default=60, ge=1, le=10_000, description="Maximum number of models to try.")
    parallel: int = Field(default=1, ge=1, le=200, description="Number of concurrent trials.")
    test_fraction: float = Field(
        default=0.2, ge=0.05, le=0.5, description="Fraction of the rows or images held out for the final test."
    )
    folds: int | None = Field(
        default=None,
        ge=1,
        le=20,
        description="Folds of the cross-validation, for tables; 1: a single validation split. Default: by the number "
        "of rows.",
    )
    image_size: int | None = Field(
        default=None, ge=8, le=512, description="Side length in pixels; default: by the images."
    )
    weights: str | None = Field(
        default=None,
        max_length=1024,
        description="`volume/path` of a TorchScript backbone for `transfer`: (images, 3, side, side) to (images, "
        "features).",
    )
    max_rows: int | None = Field(
        default=None,
        ge=20,
        le=50_000_000,
        description="Larger data are sampled down to so many rows (default: 500,000) or images (20,000).",
    )
    keep: list[str] = Field(
        default_factory=list,
        max_length=1_000,
        description="Columns to use even if profiling finds them uninformative, such as row numbers or unique texts.",
    )
    seed: int = Field(default=0, ge=0, lt=2**31)
    resources: dict[str, Any] = Field(default_factory=dict, description="Resources of a trial, as in a job spec.")
    image: str | None = Field(
        default=None, max_length=1024, description="Image with `trainmaster_automl`; default: the platform's."
    )
    dry_run: bool = Field(default=False, description="Profile the data and return the plan; create nothing.")
    wait_for_nodes: bool = Field(default=False, description=WAIT_FOR_NODES)


class AutomlRow(WireModel):
    """One row of the leaderboard. ``score``: validation score; ``spread``: its standard deviation over the folds.

    ``is_whole``: whether training was completed; trials that were stopped early cannot win.
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
    """Test of the registered model on held-out rows, with a 95 % confidence interval from ``low`` to ``high``.

    The interval is Wilson's score interval for ``accuracy``, otherwise a bootstrap; none if the bootstrap has no width.
    ``baseline``: score of the most frequent class, or of the mean, on the same rows. ``hint``: why the model may not be
    better than the baseline, or why there is no interval; otherwise empty. ``metrics``: all metrics of the task.
    """

    score: float
    low: float | None = None
    high: float | None = None
    rows: int
    baseline: float | None = None
    hint: str = ""
    metrics: dict[str, float] = Field(default_factory=dict)


class AutomlDetail(WireModel):
    """An AutoML study. ``id``: of its study; none for a plan. ``notes``: findings about the data. Best model first."""

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
