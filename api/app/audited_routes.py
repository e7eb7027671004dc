"""Which routes leave no entry in the audit log and why, and which reads leave one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_REPORTS: Final = "reports of running replicas, several a second each: kept as metrics, events and checkpoints"
_TRIALS: Final = "ask-and-tell by programs, several a second: kept as the study's trials"
_TRACKING: Final = "values that training scripts log, several a second each: kept as runs and metrics"
_MODELS: Final = "requests to models, thousands a second: counted by /metrics"
_READS: Final = "reads only"

_MLFLOW: Final = "POST /mlflow/api/2.0/mlflow"
_VERTEX: Final = "POST /v1/projects/{project}/locations/{location}"
_BOARD: Final = f"{_VERTEX}/tensorboards/{{board}}/experiments"
_RUNS: Final = f"{_BOARD}/{{experiment}}/runs"

# Method and template -> why there is no entry.
EXCLUDED: Final[Mapping[str, str]] = {
    "POST /api/v1/runtime/report": _REPORTS,
    "POST /api/v1/runtime/metrics": _REPORTS,
    "POST /api/v1/studies/{study}/suggestions": _TRIALS,
    "POST /api/v1/studies/{study}/trials/{number}/heartbeat": _TRIALS,
    "POST /api/v1/studies/{study}/trials/{number}/complete": _TRIALS,
    "POST /api/v1/optuna/{method}": _TRIALS,
    "POST /api/v1/projects/{project}/endpoints/{endpoint}:predict": _MODELS,
    "POST /api/v1/projects/{project}/endpoints/{endpoint}:rawPredict": _MODELS,
    f"{_VERTEX}/endpoints/{{resource}}:predict": _MODELS,
    f"{_VERTEX}/endpoints/{{resource}}:rawPredict": _MODELS,
    "POST /api/v1/forecasts": _READS,
    "POST /tensorboard/{secret}/{path:path}": _READS,
    f"{_MLFLOW}/experiments/search": _READS,
    f"{_MLFLOW}/runs/search": _READS,
    f"{_MLFLOW}/logged-models/search": _READS,
    f"{_MLFLOW}/runs/log-metric": _TRACKING,
    f"{_MLFLOW}/runs/log-parameter": _TRACKING,
    f"{_MLFLOW}/runs/log-batch": _TRACKING,
    f"{_MLFLOW}/runs/log-inputs": _TRACKING,
    f"{_MLFLOW}/runs/set-tag": _TRACKING,
    f"{_BOARD}/{{resource}}:write": _TRACKING,
    f"{_BOARD}/{{resource}}:batchCreate": _TRACKING,
    f"{_RUNS}/{{resource}}:write": _TRACKING,
    f"{_RUNS}/{{run}}/timeSeries/{{resource}}:exportTensorboardTimeSeries": _READS,
}

# Reads that leave an entry: what leaves the platform whole.
DOWNLOADS: Final = frozenset(
    {
        "/api/v1/jobs/{job}/files/content",
        "/api/v1/jobs/{job}/checkpoints/content",
        "/api/v1/jobs/{job}/logs/{name}",
        "/api/v1/projects/{project}/models/{model}/versions/{version}/files/content",
        "/api/v1/projects/{project}/models/{model}/versions/{version}/archive",
        "/api/v1/audit/export",
        "/mlflow/api/2.0/mlflow-artifacts/artifacts/{path:path}",
        "/download/storage/v1/b/{bucket}/o/{name:path}",
        "/storage/v1/b/{bucket}/o/{name:path}",
        "/ray/api/packages/{protocol}/{name}",
        "/ray/{project}/api/packages/{protocol}/{name}",
    }
)

# Requests of which many make one upload; of those, and of a download's ranges, one a minute leaves an entry.
IN_PIECES: Final = frozenset(
    {
        "PUT /api/v1/archives/{digest}",
        "PUT /upload/storage/v1/b/{bucket}/o",
    }
)
