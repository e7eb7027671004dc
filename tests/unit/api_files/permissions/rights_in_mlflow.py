"""MLflow's routes in the table of who may do what."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy.orm import Session

from core.db.tables import MlflowModel, MlflowModelVersion, MlflowRegisteredModel, MlflowRun
from tests.unit.api_files.permissions.rights import ANY_RUN_READER, OPEN, PEOPLE, RUN_READER, RUN_WRITER, Case, case

_API, _FILES = "/mlflow/api/2.0/mlflow", "/mlflow/api/2.0/mlflow-artifacts/artifacts"
_OF_RUN = {"run_id": "attempt-1"}
_METRIC = {**_OF_RUN, "key": "loss", "value": 1, "timestamp": 1}
_MODEL = f"{_API}/logged-models/m-1"
MLFLOW: dict[str, Case] = {
    f"GET {_API}/experiments/get-by-name": case(RUN_READER, params={"experiment_name": "vision"}),
    f"GET {_API}/experiments/get": case(RUN_READER, params={"experiment_id": "project-vision"}),
    f"POST {_API}/experiments/create": case(RUN_WRITER, json={"name": "x"}),
    f"POST {_API}/experiments/search": case(ANY_RUN_READER, json={}),
    f"GET {_API}/experiments/search": case(ANY_RUN_READER),
    f"POST {_API}/experiments/set-experiment-tag": case({**RUN_WRITER, "attempt": 403}, json={}),
    f"POST {_API}/runs/create": case(RUN_WRITER, json={}),
    f"GET {_API}/runs/get": case(RUN_READER, params=_OF_RUN),
    f"POST {_API}/runs/update": case(RUN_WRITER, json=_OF_RUN),
    f"POST {_API}/runs/delete": case(RUN_WRITER, json={"run_id": "run-1"}),
    f"POST {_API}/runs/restore": case(RUN_WRITER, json={"run_id": "run-1"}),
    f"POST {_API}/runs/search": case(ANY_RUN_READER, json={"experiment_ids": ["project-vision"]}),
    f"POST {_API}/runs/log-metric": case(RUN_WRITER, json=_METRIC),
    f"POST {_API}/runs/log-parameter": case(RUN_WRITER, json={**_OF_RUN, "key": "a", "value": "b"}),
    f"POST {_API}/runs/set-tag": case(RUN_WRITER, json={**_OF_RUN, "key": "a", "value": "b"}),
    f"POST {_API}/runs/log-batch": case(RUN_WRITER, json=_OF_RUN),
    f"POST {_API}/runs/delete-tag": case(RUN_WRITER, json={"run_id": "run-1", "key": "a"}),
    f"POST {_API}/runs/log-inputs": case(RUN_WRITER, json=_OF_RUN),
    f"POST {_API}/runs/outputs": case(RUN_WRITER, json=_OF_RUN),
    f"POST {_API}/runs/log-model": case(RUN_WRITER, json={**_OF_RUN, "model_json": "{}"}),
    f"GET {_API}/metrics/get-history": case(RUN_READER, params={**_OF_RUN, "metric_key": "loss"}),
    **{
        f"GET {path}/metrics/get-history-bulk": case(RUN_READER, params={**_OF_RUN, "metric_key": "loss"})
        for path in (_API, "/mlflow/ajax-api/2.0/mlflow")
    },
    f"POST {_API}/logged-models": case(RUN_WRITER, json={}),
    f"POST {_API}/logged-models/search": case(ANY_RUN_READER, json={"experiment_ids": ["project-vision"]}),
    f"GET {_API}/logged-models/{{model_id}}": case(RUN_READER, _MODEL),
    f"PATCH {_API}/logged-models/{{model_id}}": case(RUN_WRITER, _MODEL, json={"status": 2}),
    f"POST {_API}/logged-models/{{model_id}}/params": case(RUN_WRITER, f"{_MODEL}/params", json={}),
    f"PATCH {_API}/logged-models/{{model_id}}/tags": case(RUN_WRITER, f"{_MODEL}/tags", json={}),
    f"DELETE {_API}/logged-models/{{model_id}}/tags/{{key:path}}": case(RUN_WRITER, f"{_MODEL}/tags/a"),
    f"POST {_API}/registered-models/create": case(RUN_WRITER, json={"name": "new"}),
    f"GET {_API}/registered-models/get": case(RUN_READER, params={"name": "known"}),
    f"GET {_API}/registered-models/search": case(ANY_RUN_READER),
    f"POST {_API}/model-versions/create": case(RUN_WRITER, json={"name": "known", "source": "models:/m-1"}),
    f"GET {_API}/model-versions/get": case(RUN_READER, params={"name": "known", "version": "1"}),
    f"GET {_API}/model-versions/get-download-uri": case(RUN_READER, params={"name": "known", "version": "1"}),
    f"GET {_API}/model-versions/search": case(ANY_RUN_READER),
    f"GET {_API}/artifacts/list": case(RUN_READER, params=_OF_RUN),
    "GET /mlflow/": case(OPEN),  # to the platform's own page
    f"GET {_FILES}": case(RUN_READER, params={"path": "runs/attempt-1"}),
    f"GET {_FILES}/{{path:path}}": case(RUN_READER, f"{_FILES}/runs/attempt-1/plot.png"),
    f"PUT {_FILES}/{{path:path}}": case(RUN_WRITER, f"{_FILES}/runs/attempt-1/new.png", content=b"x"),
    **{
        f"{method} /mlflow/{{rest:path}}": case(dict.fromkeys(PEOPLE, 404), "/mlflow/api/2.0/mlflow/traces")
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE")
    },
}


def furnish_mlflow(session: Session, now: datetime) -> None:
    """A run that job-1 made, with a tag; a model of it with one too; and a version that is registered."""
    of_job = {"project_id": "project-vision", "job_id": "job-1"}
    session.add(
        MlflowRun(
            id="run-1", attempt_id="attempt-1", replica="", name="r", status="RUNNING", tags={"a": "b"}, params={},
            inputs={}, outputs=[], started_at=now, **of_job,
        )
    )  # fmt: skip
    session.add(
        MlflowModel(
            id="m-1", run_id="run-1", name="m", kind="", status="LOGGED_MODEL_PENDING", tags={"a": "b"}, params={},
            metrics=[], created_at=now, updated_at=now, **of_job,
        )
    )  # fmt: skip
    session.add(MlflowRegisteredModel(project_id="project-vision", name="known", created_at=now, updated_at=now))
    session.flush()
    session.add(
        MlflowModelVersion(
            name="known", version=1, run_id="run-1", model_id="m-1", source="models:/m-1", created_at=now,
            updated_at=now, **of_job,
        )
    )  # fmt: skip
