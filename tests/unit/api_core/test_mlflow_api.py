"""MLflow's protocol as its clients speak it, request by request; tests/frameworks has the real client."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from starlette.testclient import TestClient

from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Job, Volume

API = "/mlflow/api/2.0/mlflow"
FILES = "/mlflow/api/2.0/mlflow-artifacts/artifacts"


class Script:
    """A job's script, with the token and the run that its environment gives it."""

    def __init__(self, client: TestClient, job_id: str, attempt_id: str) -> None:
        self.client, self.job_id, self.run_id = client, job_id, attempt_id

    def post(self, path: str, answers: int = 200, /, *, by: str = "POST", **body: Any) -> Any:
        answer = self.client.request(by, f"{API}/{path}", json=body)
        assert answer.status_code == answers, answer.text
        return answer.json()

    def get(self, path: str, answers: int = 200, /, **query: Any) -> Any:
        answer = self.client.get(f"{API}/{path}", params=query)
        assert answer.status_code == answers, answer.text
        return answer.json()

    def run(self, run_id: str | None = None) -> Any:
        return self.get("runs/get", run_id=run_id or self.run_id)["run"]

    def metrics(self, run_id: str | None = None) -> dict[str, Any]:
        return {one["key"]: one["value"] for one in self.run(run_id)["data"]["metrics"]}


@pytest.fixture
def script(
    submit: Callable[..., str], start: Callable[..., str], reporter: Callable[[str], TestClient]
) -> Callable[..., Script]:
    def make(by: TestClient | None = None, **spec: Any) -> Script:
        job_id = submit(by, **spec)
        attempt_id = start(job_id)
        return Script(reporter(attempt_id), job_id, attempt_id)

    return make


@pytest.fixture
def output(sessions: SessionFactory, tmp_path: Path) -> Callable[[str], Path]:
    """The output folder of a job, made as the control loop makes it."""

    def folder(job_id: str) -> Path:
        with unit_of_work(sessions) as session:
            job = session.get_one(Job, job_id)
            root = session.execute(select(Volume.root).where(Volume.name == job.output_volume)).scalar_one()
            path = Path(str(root)) / job.output_path
        path.mkdir(parents=True, exist_ok=True)
        return path

    return folder


def pairs(of: list[dict[str, str]]) -> dict[str, str]:
    return {one["key"]: one["value"] for one in of}


# --- what is logged shows --------------------------------------------------------------------------------------------


def test_what_a_script_logs_is_in_its_run(script: Any, client: TestClient) -> None:
    job = script(name="digits")
    job.post("runs/log-metric", run_id=job.run_id, key="loss", value=0.5, timestamp=1_000, step=1)
    job.post("runs/log-metric", run_uuid=job.run_id, key="loss", value=0.25, timestamp="2000", step="2")
    job.post("runs/log-parameter", run_id=job.run_id, key="lr", value="0.1")
    job.post("runs/set-tag", run_id=job.run_id, key="team", value="vision")
    job.post(
        "runs/log-batch",
        run_id=job.run_id,
        metrics=[
            {"key": "acc", "value": "NaN", "timestamp": 1, "step": 0},
            {"key": "big", "value": "Infinity", "timestamp": 1},
        ],
        params=[{"key": "model", "value": "cnn"}],
        tags=[{"key": "mlflow.source.git.commit", "value": "abc"}],
    )
    run = job.run()
    assert job.metrics() == {"loss": 0.25, "acc": "NaN", "big": "Infinity"}
    assert pairs(run["data"]["params"]) == {"lr": "0.1", "model": "cnn"}
    tags = pairs(run["data"]["tags"])
    assert tags["team"] == "vision"
    assert tags["mlflow.runName"] == "digits"
    assert tags["trainmaster.job"] == job.job_id
    assert run["info"]["status"] == "RUNNING"
    history = job.get("metrics/get-history", run_id=job.run_id, metric_key="loss")["metrics"]
    assert [(one["step"], one["timestamp"], one["value"]) for one in history] == [(1, 1000, 0.5), (2, 2000, 0.25)]
    # The same are the job's own metrics, and a user reads them by MLflow too.
    assert client.get(f"{API}/runs/get", params={"run_id": job.run_id}).json()["run"] == run


def test_what_a_script_logs_and_prints_as_well_counts_once(script: Any) -> None:
    job = script(name="digits")

    def report(seq: int, printed: bool, **values: float) -> None:
        series = [{"name": name, "steps": [seq], "values": [value]} for name, value in values.items()]
        data = {"series": series, "is_printed": printed}
        item = {"seq": seq, "kind": "metrics", "at": "2026-01-01T00:00:00Z", "data": data}
        body = {"role": "worker", "index": 0, "generation": 1, "items": [item]}
        assert job.client.post("/api/v1/runtime/report", json=body).status_code == 200

    report(1, True, acc=0.6, lr=0.1)  # nothing has told of an acc yet
    job.post("runs/log-metric", run_id=job.run_id, key="acc", value=0.6123, timestamp=1_000, step=1)
    report(2, True, acc=0.7, lr=0.2)
    report(3, False, acc=0.8)  # by the library or a pattern
    history = job.get("metrics/get-history", run_id=job.run_id, metric_key="acc")["metrics"]
    assert [one["value"] for one in history] == [0.6, 0.6123, 0.8]
    assert job.metrics()["lr"] == 0.2


def test_history_comes_in_pages_and_for_several_runs(script: Any) -> None:
    job, other = script(), script()
    for which in (job, other):
        points = [{"key": "loss", "value": step / 10, "timestamp": step, "step": step} for step in range(5)]
        which.post("runs/log-batch", run_id=which.run_id, metrics=points)
    first = job.get("metrics/get-history", run_id=job.run_id, metric_key="loss", max_results=3)
    rest = job.get("metrics/get-history", run_id=job.run_id, metric_key="loss", page_token=first["next_page_token"])
    assert [one["step"] for one in first["metrics"] + rest["metrics"]] == [0, 1, 2, 3, 4]
    assert "next_page_token" not in rest
    assert job.get("metrics/get-history", run_id=job.run_id, metric_key="none") == {"metrics": []}


def test_users_read_one_metric_of_several_runs_at_once(script: Any, client: TestClient) -> None:
    jobs = [script(), script()]
    for job in jobs:
        job.post("runs/log-metric", run_id=job.run_id, key="loss", value=1.0, timestamp=1)
    for path in (f"{API}/metrics/get-history-bulk", "/mlflow/ajax-api/2.0/mlflow/metrics/get-history-bulk"):
        found = client.get(path, params={"run_id": [job.run_id for job in jobs], "metric_key": "loss"}).json()
        assert [one["run_id"] for one in found["metrics"]] == [job.run_id for job in jobs]


def test_each_replica_has_a_run_of_its_own_and_the_attempts_run_shows_all(script: Any) -> None:
    job = script(workers=2)
    job.post("runs/log-metric", run_id=job.run_id, key="loss", value=1.0, timestamp=1)
    second = f"{job.run_id}-worker-1"
    assert job.run(second)["data"]["metrics"] == []
    job.post(
        "runs/log-batch",
        run_id=second,
        metrics=[{"key": "loss", "value": 2.0, "timestamp": 1}, {"key": "only", "value": 3.0, "timestamp": 1}],
        params=[{"key": "rank", "value": "1"}],
    )
    assert job.metrics(second) == {"loss": 2.0, "only": 3.0}
    assert job.metrics() == {"loss": 1.0, "only": 3.0}
    assert pairs(job.run(second)["data"]["tags"])["mlflow.parentRunId"] == job.run_id
    job.get("runs/get", 404, run_id=f"{job.run_id}-worker-2")
    job.get("runs/get", 404, run_id=f"{job.run_id}-worker-0")
    found = job.post("runs/search", experiment_ids=[job.run()["info"]["experiment_id"]])["runs"]
    assert {run["info"]["run_id"] for run in found} == {job.run_id, second}


def test_a_script_makes_further_runs_which_are_the_jobs_too(script: Any) -> None:
    job = script()
    made = job.post(
        "runs/create", experiment_id="0", start_time=5_000, tags=[{"key": "mlflow.parentRunId", "value": job.run_id}]
    )["run"]["info"]
    assert made["status"] == "RUNNING"
    job.post("runs/log-metric", run_id=made["run_id"], key="loss", value=7.0, timestamp=1)
    job.post("runs/update", run_id=made["run_id"], status="FAILED", end_time=9_000, run_name="trial-1")
    info = job.run(made["run_id"])["info"]
    assert (info["status"], info["start_time"], info["end_time"], info["run_name"]) == (
        "FAILED",
        5_000,
        9_000,
        "trial-1",
    )
    assert job.metrics(made["run_id"]) == {"loss": 7.0}
    assert job.metrics() == {}
    job.post("runs/delete", run_id=made["run_id"])
    job.post("runs/log-metric", 403, run_id=made["run_id"], key="loss", value=1, timestamp=1)
    found = [
        job.post("runs/search", experiment_ids=[info["experiment_id"]], run_view_type=view)["runs"]
        for view in ("ACTIVE_ONLY", "DELETED_ONLY", 3)
    ]
    assert [len(runs) for runs in found] == [1, 1, 2]
    job.post("runs/restore", run_id=made["run_id"])
    job.post("runs/delete", 403, run_id=job.run_id)


def test_the_end_of_an_attempts_run_is_what_the_platform_saw(
    script: Any, end_attempt: Any, sessions: SessionFactory, clock: Any
) -> None:
    from core.db.tables import Attempt

    job = script()
    answer = job.post("runs/update", run_id=job.run_id, status="FINISHED", end_time=1, run_name="better")
    assert (answer["run_info"]["status"], answer["run_info"]["run_name"]) == ("RUNNING", "better")
    end_attempt(job.run_id)
    for kind, status in (("success", "FINISHED"), ("cancelled", "KILLED"), ("user_error", "FAILED")):
        with unit_of_work(sessions) as session:
            session.execute(update(Attempt).where(Attempt.id == job.run_id).values(end={"kind": kind, "sentence": ""}))
        assert job.run()["info"]["status"] == status
    # A script logs its last values while it ends; later ones are refused for good.
    job.post("runs/log-metric", run_id=job.run_id, key="loss", value=1, timestamp=1)
    clock.advance(61)
    refused = job.post("runs/log-metric", 403, run_id=job.run_id, key="loss", value=1, timestamp=1)
    assert refused["error_code"] == "PERMISSION_DENIED"


def test_parameters_never_change_and_tags_do(script: Any) -> None:
    job = script()
    for _ in range(2):
        job.post("runs/log-parameter", run_id=job.run_id, key="lr", value="0.1")
    refused = job.post("runs/log-parameter", 400, run_id=job.run_id, key="lr", value="0.2")
    assert refused["error_code"] == "INVALID_PARAMETER_VALUE"
    assert "Changing param values is not allowed" in refused["message"]
    job.post("runs/set-tag", run_id=job.run_id, key="a", value="1")
    job.post("runs/set-tag", run_id=job.run_id, key="a", value="2")
    assert pairs(job.run()["data"]["tags"])["a"] == "2"
    job.post("runs/delete-tag", run_id=job.run_id, key="a")
    assert "a" not in pairs(job.run()["data"]["tags"])
    assert job.post("runs/delete-tag", 404, run_id=job.run_id, key="a")["error_code"] == "RESOURCE_DOES_NOT_EXIST"


def test_what_a_run_read_and_made(script: Any) -> None:
    job = script()
    dataset = {"name": "digits", "digest": "abc", "source_type": "code", "source": "{}", "schema": "{}"}
    tags = [{"key": "mlflow.data.context", "value": "training"}]
    for _ in range(2):
        job.post("runs/log-inputs", run_id=job.run_id, datasets=[{"tags": tags, "dataset": dataset}])
        job.post("runs/outputs", run_id=job.run_id, models=[{"model_id": "m-1", "step": 3}])
    run = job.run()
    assert run["inputs"]["dataset_inputs"] == [{"tags": tags, "dataset": dataset}]
    assert run["outputs"]["model_outputs"] == [{"model_id": "m-1", "step": 3}]
    experiment = run["info"]["experiment_id"]
    query = {"experiment_ids": [experiment], "filter": "datasets.context = 'training' AND dataset.name LIKE 'dig%'"}
    assert len(job.post("runs/search", **query)["runs"]) == 1


# --- experiments and searching ---------------------------------------------------------------------------------------


def test_a_scripts_experiment_is_its_project_by_whatever_name(script: Any, client: TestClient) -> None:
    job = script()
    own = job.run()["info"]["experiment_id"]
    named = job.get("experiments/get-by-name", experiment_name="my nice experiment")["experiment"]
    assert (named["experiment_id"], named["name"]) == (own, "my nice experiment")
    assert job.get("experiments/get", experiment_id="0")["experiment"]["experiment_id"] == own
    assert job.post("experiments/create", name="another")["experiment_id"] == own
    assert client.get(f"{API}/experiments/get-by-name", params={"experiment_name": "default"}).status_code == 200
    missing = client.get(f"{API}/experiments/get-by-name", params={"experiment_name": "my nice experiment"})
    assert (missing.status_code, missing.json()["error_code"]) == (404, "RESOURCE_DOES_NOT_EXIST")
    for found in (
        client.post(f"{API}/experiments/search", json={"filter": "name = 'default'"}),
        client.get(f"{API}/experiments/search", params={"max_results": 5, "order_by": "creation_time DESC"}),
    ):
        assert [one["experiment_id"] for one in found.json()["experiments"]] == [own]


def test_users_search_runs_by_what_was_logged(script: Any, client: TestClient) -> None:
    jobs = [script(name=f"job-{number}") for number in range(4)]
    for number, job in enumerate(jobs):
        job.post("runs/log-metric", run_id=job.run_id, key="loss", value=number / 10, timestamp=1)
        job.post("runs/log-parameter", run_id=job.run_id, key="kind", value="even" if number % 2 == 0 else "odd")
    experiment = jobs[0].run()["info"]["experiment_id"]

    def search(**body: Any) -> list[str]:
        answer = client.post(f"{API}/runs/search", json={"experiment_ids": [experiment], **body})
        assert answer.status_code == 200, answer.text
        return [run["info"]["run_name"] for run in answer.json()["runs"]]

    assert search() == ["job-3", "job-2", "job-1", "job-0"]
    assert search(filter="metrics.loss > 0.05 AND params.kind = 'even'") == ["job-2"]
    assert search(
        filter="attributes.run_name LIKE 'job-%' AND tags.mlflow.user = 'admin'", order_by=["metrics.loss"]
    ) == ["job-0", "job-1", "job-2", "job-3"]
    assert search(order_by=["params.kind", "metrics.loss DESC"]) == ["job-2", "job-0", "job-3", "job-1"]
    assert search(experiment_ids=["project-of-others"]) == []
    first = client.post(f"{API}/runs/search", json={"experiment_ids": [experiment], "max_results": 3}).json()
    assert search(page_token=first["next_page_token"], max_results=3) == ["job-0"]
    refused = client.post(f"{API}/runs/search", json={"experiment_ids": [experiment], "filter": "metrics.loss <"})
    assert (refused.status_code, refused.json()["error_code"]) == (400, "INVALID_PARAMETER_VALUE")


# --- models ----------------------------------------------------------------------------------------------------------


def test_a_logged_model_has_files_tags_and_metrics(script: Any, output: Any, client: TestClient) -> None:
    job = script()
    output(job.job_id)
    made = job.post("logged-models", experiment_id="0", name="cnn", source_run_id=job.run_id, model_type="torch")
    model = made["model"]["info"]
    path = f"logged-models/{model['model_id']}"
    assert model["status"] == "LOGGED_MODEL_PENDING"
    place = model["artifact_uri"].removeprefix("mlflow-artifacts:/")
    assert job.client.put(f"{FILES}/{place}/MLmodel", content=b"flavors: {}").status_code == 200
    job.post(f"{path}/params", params=[{"key": "depth", "value": "3"}])
    job.post(f"{path}/tags", by="PATCH", tags=[{"key": "a/b", "value": "1"}])
    job.post(path, by="PATCH", model_id=model["model_id"], status="LOGGED_MODEL_READY")
    job.post("runs/log-metric", run_id=job.run_id, key="acc", value=0.9, timestamp=1, model_id=model["model_id"])
    seen = client.get(f"{API}/{path}").json()["model"]
    assert seen["info"]["status"] == "LOGGED_MODEL_READY"
    assert pairs(seen["info"]["tags"]) == {"a/b": "1"}
    assert pairs(seen["data"]["params"]) == {"depth": "3"}
    assert [(one["key"], one["value"]) for one in seen["data"]["metrics"]] == [("acc", 0.9)]
    assert job.client.delete(f"{API}/{path}/tags/a/b").status_code == 200
    query = {"experiment_ids": [model["experiment_id"]], "filter": "metrics.acc > 0.5 AND name = 'cnn'"}
    assert len(client.post(f"{API}/logged-models/search", json=query).json()["models"]) == 1
    query["filter"] = "name = 'other'"
    assert client.post(f"{API}/logged-models/search", json=query).json() == {"models": []}
    assert job.post(path, 400, by="PATCH", status="FINE")["error_code"] == "INVALID_PARAMETER_VALUE"


def test_a_script_registers_what_it_trained(script: Any, client: TestClient) -> None:
    job = script()
    model = job.post("logged-models", source_run_id=job.run_id)["model"]["info"]["model_id"]
    job.post("registered-models/create", name="digits")
    assert job.post("registered-models/create", 400, name="digits")["error_code"] == "RESOURCE_ALREADY_EXISTS"
    for number in (1, 2):
        made = job.post("model-versions/create", name="digits", source=f"models:/{model}", run_id=job.run_id)
        assert (made["model_version"]["version"], made["model_version"]["status"]) == (str(number), "READY")
    job.post("model-versions/create", 404, name="other", source="x")
    job.post("model-versions/create", 404, name="digits", source="models:/m-of-others")
    found = client.get(f"{API}/registered-models/get", params={"name": "digits"}).json()["registered_model"]
    assert found["latest_versions"][0]["version"] == "2"
    uri = client.get(f"{API}/model-versions/get-download-uri", params={"name": "digits", "version": "1"}).json()
    assert uri == {"artifact_uri": f"mlflow-artifacts:/models/{model}"}
    version = client.get(f"{API}/model-versions/get", params={"name": "digits", "version": "2"}).json()["model_version"]
    assert version["run_id"] == job.run_id
    names = client.get(f"{API}/registered-models/search", params={"filter": "name LIKE 'dig%'"}).json()
    assert [one["name"] for one in names["registered_models"]] == ["digits"]
    query = {"filter": f"name = 'digits' AND run_id = '{job.run_id}'", "order_by": "version_number DESC"}
    versions = client.get(f"{API}/model-versions/search", params=query).json()["model_versions"]
    assert [one["version"] for one in versions] == ["2", "1"]
    assert client.get(f"{API}/model-versions/get", params={"name": "digits", "version": "x"}).status_code == 400


def test_old_runs_are_found_by_what_the_database_can_choose_by(
    script: Any, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [script(name=f"job-{number}") for number in range(4)]
    for number, job in enumerate(jobs):
        job.post("runs/log-parameter", run_id=job.run_id, key="kind", value="even" if number % 2 == 0 else "odd")
    trial = jobs[0].post("runs/create", run_name="trial", start_time=1_000)["run"]["info"]["run_id"]
    jobs[0].post("runs/log-parameter", run_id=trial, key="kind", value="trial")
    experiment = jobs[0].run()["info"]["experiment_id"]
    started = [job.run()["info"]["start_time"] for job in jobs]
    monkeypatch.setattr("api.protocols.mlflow.search.SCANNED", 1)

    def search(text: str) -> list[str]:
        answer = client.post(f"{API}/runs/search", json={"experiment_ids": [experiment], "filter": text})
        assert answer.status_code == 200, answer.text
        return [run["info"]["run_name"] for run in answer.json()["runs"]]

    assert search("params.kind = 'odd'") == ["job-3"]
    assert search(f"params.kind = 'even' AND attributes.start_time < {started[1]}") == ["job-0"]
    assert search(f"attributes.start_time = {started[1]}") == ["job-1"]
    assert search(f"attributes.run_id IN ('{jobs[1].run_id}')") == ["job-1"]
    assert search("params.kind = 'trial' AND attributes.start_time <= 1000") == ["trial"]
    assert search("params.kind = 'odd' AND attributes.start_time > 1e300") == []
    assert search("params.`of \"two` = 'odd'") == []


# --- artifacts -------------------------------------------------------------------------------------------------------


def test_artifacts_go_below_the_jobs_output_and_come_back(script: Any, output: Any, client: TestClient) -> None:
    job = script()
    folder = output(job.job_id)
    base = job.run()["info"]["artifact_uri"].removeprefix("mlflow-artifacts:/")
    large = b"x" * (5 * 2**20)  # more than a usual body may have
    assert job.client.put(f"{FILES}/{base}/plots/a b.png", content=b"1").status_code == 200
    assert job.client.put(f"{FILES}/{base}/plots/a b.png", content=b"22").status_code == 200
    assert job.client.put(f"{FILES}/{base}/model.bin", content=large).status_code == 200
    assert (folder / "mlflow" / base / "plots" / "a b.png").read_bytes() == b"22"
    assert not list(folder.rglob("*.part"))
    listed = client.get(FILES, params={"path": base}).json()["files"]
    assert listed == [
        {"path": "model.bin", "is_dir": False, "file_size": len(large)},
        {"path": "plots", "is_dir": True},
    ]
    of_run = job.get("artifacts/list", run_id=job.run_id, path="plots")
    assert of_run["files"] == [{"path": "plots/a b.png", "is_dir": False, "file_size": 2}]
    assert client.get(f"{FILES}/{base}/model.bin").content == large
    part = client.get(f"{FILES}/{base}/model.bin", headers={"Range": "bytes=1-3"})
    assert (part.status_code, part.content) == (206, b"xxx")
    assert client.get(FILES, params={"path": f"{base}/model.bin"}).json() == {"files": []}
    assert client.get(f"{FILES}/{base}/none").json()["error_code"] == "RESOURCE_DOES_NOT_EXIST"


def test_no_artifact_leaves_the_output(script: Any, output: Any, tmp_path: Path, client: TestClient) -> None:
    job = script()
    folder = output(job.job_id) / "mlflow" / "runs" / job.run_id
    folder.mkdir(parents=True)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")
    (folder / "away").symlink_to(outside)
    (folder / "up").symlink_to("../../../../..")
    base = f"runs/{job.run_id}"
    for path in ("away/secret", "up/secret", "%2e%2e/%2e%2e/x", "..%2f..%2fx"):
        assert job.client.get(f"{FILES}/{base}/{path}").status_code in (400, 404), path
        assert job.client.put(f"{FILES}/{base}/{path}", content=b"z").status_code in (400, 404), path
    assert job.client.get(FILES, params={"path": f"{base}/../.."}).status_code == 400
    assert client.get(FILES, params={"path": base}).json() == {"files": []}
    assert (outside / "secret").read_text() == "s"
    assert list(outside.iterdir()) == [outside / "secret"]
    assert job.client.put(f"{FILES}/experiments/x/y", content=b"z").status_code == 404
    # A file in the place of the run's folder would keep all others out.
    refused = job.client.put(f"{FILES}/{base}/", content=b"z")
    assert refused.json()["error_code"] == "INVALID_PARAMETER_VALUE"


# --- who may, and what cannot be read --------------------------------------------------------------------------------


def test_an_attempt_sees_and_writes_its_own_job_alone(script: Any, as_user: Any, output: Any) -> None:
    job, other = script(), script()
    output(job.job_id)
    output(other.job_id)
    other.post("runs/log-metric", run_id=other.run_id, key="loss", value=1, timestamp=1)
    base = f"runs/{other.run_id}"
    assert other.client.put(f"{FILES}/{base}/f", content=b"z").status_code == 200
    job.get("runs/get", 404, run_id=other.run_id)
    job.post("runs/log-metric", 404, run_id=other.run_id, key="loss", value=1, timestamp=1)
    job.get("metrics/get-history", 404, run_id=other.run_id, metric_key="loss")
    assert job.client.get(f"{FILES}/{base}/f").status_code == 404
    assert job.client.put(f"{FILES}/{base}/f", content=b"y").status_code == 404
    found = job.post("runs/search", experiment_ids=[other.run()["info"]["experiment_id"]])["runs"]
    assert [run["info"]["run_id"] for run in found] == [job.run_id]
    model = other.post("logged-models", source_run_id=other.run_id)["model"]["info"]["model_id"]
    job.get(f"logged-models/{model}", 404)
    stranger = as_user("sam", role=None)
    assert stranger.get(f"{API}/runs/get", params={"run_id": job.run_id}).status_code == 404
    query = {"experiment_ids": [job.run()["info"]["experiment_id"]]}
    assert stranger.post(f"{API}/runs/search", json=query).json() == {"runs": []}


def test_errors_are_as_mlflows_clients_read_them(script: Any, stranger: TestClient, client: TestClient) -> None:
    job = script()
    for body, word in (
        ({"run_id": job.run_id, "key": "", "value": 1, "timestamp": 1}, "key"),
        ({"run_id": job.run_id, "key": "a\nb", "value": 1, "timestamp": 1}, "key"),
        ({"run_id": job.run_id, "key": "a", "value": "much", "timestamp": 1}, "value"),
        ({"run_id": job.run_id, "key": "a", "value": 1, "timestamp": -1}, "timestamp"),
        ({"run_id": job.run_id, "key": "a", "value": 1, "timestamp": 1, "step": 2**60}, "step"),
        ({"key": "a", "value": 1, "timestamp": 1}, "run_id"),
    ):
        refused = job.post("runs/log-metric", 400, **body)
        assert refused["error_code"] == "INVALID_PARAMETER_VALUE"
        assert word in refused["message"]
    refused = job.post("traces/search", 404)
    assert refused["error_code"] == "ENDPOINT_NOT_FOUND"
    assert refused["message"].startswith("This server keeps no traces;")
    broken = job.client.post(f"{API}/runs/log-metric", content=b"{", headers={"Content-Type": "application/json"})
    assert broken.json()["error_code"] == "INVALID_PARAMETER_VALUE"
    nobody = stranger.get(f"{API}/runs/get", params={"run_id": job.run_id})
    assert (nobody.status_code, nobody.json()["error_code"]) == (401, "UNAUTHENTICATED")
    user = client.post(f"{API}/runs/set-tag", json={"run_id": job.run_id, "key": "a", "value": "b"})
    assert (user.status_code, user.json()["error_code"]) == (403, "PERMISSION_DENIED")
    too_much = [{"key": f"p{number}", "value": "x" * 6_000} for number in range(100)]
    assert (
        job.post("runs/log-batch", 400, run_id=job.run_id, params=too_much)["error_code"] == "INVALID_PARAMETER_VALUE"
    )


def test_what_clients_before_mlflow_3_tell_of_a_model_is_retained_in_bounds(script: Any) -> None:
    job = script()
    for number in range(20):
        job.post(
            "runs/log-model", run_id=job.run_id, model_json=f'{{"run_id": "x", "n": {number}, "s": "{"y" * 900}"}}'
        )
    history = pairs(job.run()["data"]["tags"])["mlflow.log-model.history"]
    assert len(history) <= 8_000
    assert json.loads(history)[-1]["n"] == 19
