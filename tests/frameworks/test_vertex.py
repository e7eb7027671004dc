"""Google's own SDK for Vertex AI, the newest one and the last one of its first major version, with jobs really run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks import conftest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("frameworks"),
    pytest.mark.timeout(600),  # it looks at jobs every five seconds, and the machine may do much else
]

PYTHON_X_Y = f"python{sys.version_info.major}.{sys.version_info.minor}"
SCRIPTS = conftest.SCRIPTS / "vertex"


def run(
    python: str,
    script: str,
    *arguments: str,
    env: dict[str, str],
    task: str | None = "vertex_task.py",
    within_s: float = 480,
) -> Any:
    """What a client's program says that it saw. ``task``: what it trains with, its last argument."""
    command = [python, str(SCRIPTS / script), *arguments, *([str(SCRIPTS / task)] if task else [])]
    env = {**os.environ, "PYTHONWARNINGS": "ignore", **env}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=within_s, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    assert lines, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return json.loads(lines[0].removeprefix("SEEN "))


# What the SDK raises for the same status over either of its transports.
NAMES = {
    "rest": {403: "Forbidden", 400: "BadRequest", 429: "TooManyRequests", 501: "MethodNotImplemented"},
    "grpc": {403: "PermissionDenied", 400: "InvalidArgument", 429: "ResourceExhausted", 501: "MethodNotImplemented"},
}


@pytest.fixture(params=["rest", "grpc"])
def over(request: pytest.FixtureRequest, platform: Any) -> Any:
    """(transport, what ``api_endpoint`` is, the environment): REST, or gRPC through a bridge behind TLS."""
    bridge_to = request.getfixturevalue("bridge_to") if request.param == "grpc" else None
    return request.param, *reach(request.param, platform.url, bridge_to)


def reach(transport: str, url: str, bridge_to: Any) -> tuple[str, dict[str, str]]:
    """(what ``api_endpoint`` is, the environment) of a client of the platform at ``url``."""
    env = {"API_ENDPOINT_OVERRIDE": url}  # with STORAGE_EMULATOR_HOST the SDK would upload without a token
    if transport == "rest":
        return url, env
    bridge = bridge_to(url)
    return bridge.address, {**env, **bridge.env}


@pytest.mark.parametrize("version", ["vertex", "vertex1"])
def test_the_unmodified_sdk_trains_here(platform: Any, python_of: Any, over: Any, version: str) -> None:
    transport, endpoint, env = over
    seen = run(python_of(version), "vertex_client.py", endpoint, platform.token, env=env)
    assert seen["states"] == ["JOB_STATE_SUCCEEDED", "JOB_STATE_SUCCEEDED", "PIPELINE_STATE_SUCCEEDED"]
    assert seen["custom"] == "from X"
    assert seen["local"].pop("model_dir").endswith("/model/")
    assert seen["local"] == {
        "epochs": 3,
        "pools": {"workerpool0": 1},
        "type": None,
        "world": ["0", "1"],
        "region": "us-central1",
        "six": "six",
    }
    assert [one["type"] for one in seen["pipe"]] == ["chief", "worker"]
    assert [one["world"] for one in seen["pipe"]] == [["0", "2"], ["1", "2"]]
    assert [one["epochs"] for one in seen["pipe"]] == [1, 1]
    assert seen["pipe"][0]["pools"] == {"workerpool0": 1, "workerpool1": 1}
    assert seen["model"] == ["A model", "1", ["default"], True]
    assert (seen["models"], seen["versions"], seen["models_left"]) == (["A model"], [["default", "prod"]], [])
    assert (seen["listed"], seen["cancelled"], seen["deleted"]) == (["sleeper"], "JOB_STATE_CANCELLED", 404)
    assert "no data" in seen["failed"]
    assert "code: 4\n" in seen["late"]
    assert seen["refused"][0] == NAMES[transport][501]
    assert "service accounts are not served" in seen["refused"][1]
    assert (seen["large"], seen["objects"], seen["gone"]) == (True, ["large/object.bin", "large/whole.bin"], True)
    assert "training" in seen["pipelines"]
    assert seen["pipelines_left"].count("training") == seen["pipelines"].count("training") - 1
    assert seen["wrong_token"][0] == NAMES[transport][403]
    assert "not known here" in seen["wrong_token"][1]


@pytest.mark.parametrize("version", ["vertex", "vertex1"])
def test_the_environment_alone_points_a_script_here(platform: Any, python_of: Any, version: str) -> None:
    printed = json.loads(platform.cli("vertex-env", "--location", "europe-west4", "--json").stdout)
    seen = run(python_of(version), "vertex_plain.py", env=printed)
    assert (seen["state"], seen["transport"]) == ("JOB_STATE_SUCCEEDED", "rest")
    assert seen["output"].startswith("gs://default/aiplatform-custom-job-")
    pages = (f"jobs/{seen['name']}", f"jobs/{seen['name']}", "jobs/t", "studies/h")
    assert seen["links"] == [f"{platform.url}/{page}" for page in pages]
    assert (seen["told"]["epochs"], seen["told"]["region"]) == (2, "europe-west4")


@pytest.mark.parametrize("version", ["vertex", "vertex1"])
def test_the_environment_alone_makes_grpc_its_way(platform: Any, python_of: Any, bridge_to: Any, version: str) -> None:
    bridge = bridge_to(platform.url)
    options = ("--location", "europe-west4", "--grpc", bridge.address, "--grpc-ca", bridge.ca, "--json")
    printed = json.loads(platform.cli("vertex-env", *options).stdout)
    # No way around the bridge: the script says which transport it came over.
    seen = run(python_of(version), "vertex_plain.py", env=printed)
    assert (seen["state"], seen["transport"]) == ("JOB_STATE_SUCCEEDED", "grpc")
    assert (seen["told"]["epochs"], seen["told"]["region"]) == (2, "europe-west4")


@pytest.mark.parametrize("version", ["vertex", "vertex1"])
def test_the_unmodified_sdk_and_hypertune_search_here(platform: Any, python_of: Any, over: Any, version: str) -> None:
    transport, endpoint, env = over
    reader = platform.client.create_token(f"{version}-{transport}", scopes=["read"]).token
    arguments = (endpoint, platform.token, reader)
    seen = run(python_of(version), "vertex_tunes.py", *arguments, env=env, task="vertex_trial.py")
    assert (seen["state"], seen["labels"], seen["job"]) == ("JOB_STATE_SUCCEEDED", {"team": "x"}, "JOB_STATE_SUCCEEDED")
    assert [(trial["id"], trial["state"]) for trial in seen["trials"]] == [(str(n), "SUCCEEDED") for n in (1, 2, 3, 4)]
    for trial in seen["trials"]:
        point = {one["parameter_id"]: one["value"] for one in trial["parameters"]}
        assert ("momentum" in point) == (point["optimizer"] == "sgd")
        assert (0.0001 <= point["learning_rate"] <= 0.1, point["batch_size"] in (16, 32)) == (True, True)
        (metric,) = trial["final_measurement"]["metrics"]
        # The best one counts: the last is half of it.
        assert (metric["metric_id"], metric["value"]) == ("accuracy", max(0.1, point["units"] / 100))
        assert trial["start_time"] < trial["end_time"]
    best = seen["best"]
    assert best["units"] == max(
        one["value"] for t in seen["trials"] for one in t["parameters"] if one["parameter_id"] == "units"
    )
    assert (seen["told"]["trial"], seen["told"]["units"], seen["told"]["tag"]) == (
        best["id"],
        best["units"],
        "accuracy",
    )
    assert (seen["listed"], seen["cancelled"], seen["deleted"]) == (["sleeper"], ["JOB_STATE_CANCELLED", True], 404)
    assert "never reported the metric" in seen["silent"]
    assert "with `loss`" in seen["silent"]
    assert seen["bad_enum"][0] == NAMES[transport][400]
    assert "learning_rate is DOUBLE" in seen["bad_enum"][1]
    assert seen["no_rights"][0] == NAMES[transport][403]
    assert "write" in seen["no_rights"][1]
    assert seen["unserved"][0] == NAMES[transport][501]
    assert "trial_job_spec.service_account: service accounts are not served" in seen["unserved"][1]
    assert seen["no_place"][0] == NAMES[transport][429]
    assert "V100" in seen["no_place"][1]
    assert "study_spec.parameters[0]: has scale log and min 0" in seen["bad_range"][1]


@pytest.mark.parametrize("version", ["vertex", "vertex1"])
def test_the_unmodified_sdk_logs_to_experiments_and_reads_them_back(
    platform: Any, python_of: Any, over: Any, version: str
) -> None:
    transport, endpoint, env = over
    own = f"{version}-{transport}"
    seen = run(python_of(version), "vertex_tracks.py", endpoint, platform.token, own, env=env, task=None)
    name = f"tracked-{own}"
    run1 = {"param.lr": 0.1, "param.opt": "sgd", "metric.accuracy": 0.75, "metric.f1": 0.5}
    assert seen["frame"] == [
        {"run_name": "run1", "state": "COMPLETE", **run1, "time_series_metric.loss": 0.25},
        {
            "run_name": "run2",
            "state": "FAILED",
            **dict.fromkeys(run1),
            "param.lr": 0.2,
            "time_series_metric.loss": None,
        },
    ]
    assert seen["series"] == [[1, 1.0, 0.0], [2, 0.5, 0.0], [3, pytest.approx(1 / 3), 0.0], [4, 0.25, None]]
    assert seen["run1"] == [
        "COMPLETE",
        {"lr": 0.1, "epochs": 3.0, "opt": "sgd"},
        {"accuracy": 0.75, "f1": 0.5},
    ]
    assert (seen["runs"], seen["experiments"], seen["default"]) == (["run1", "run2"], [name], [True, True])
    assert "already exists" in seen["again"]
    assert (seen["executions"], seen["artifacts"]) == ([["train", "COMPLETE"]], ["", "digits", "model"])
    assert (seen["inputs"], seen["outputs"], seen["scored"]) == (["digits"], ["model"], ["model"])
    assert (seen["boards"], seen["board"]) == ([f"board {own}"], ["It has a description.", {"team": "x"}])
    assert (seen["acc"], seen["tb"]) == ([[0, "0.0"], [1, "nan"], [2, "0.5"]], [["exp"], ["r"]])
    assert (seen["board_gone"], seen["left"], seen["experiments_left"]) == (404, ["run2", "run3"], [])
    assert "backing tensorboard" in seen["no_board"]
    assert seen["bad_filter"][0] == NAMES[transport][400]
    assert "there is no field 'shape'" in seen["bad_filter"][1]
    assert seen["wrong_token"] == NAMES[transport][403]


@pytest.mark.parametrize("version", ["vertex", "vertex1"])
def test_an_untouched_script_in_a_job_logs_to_the_jobs_run_and_uses_buckets(
    platform: Any, python_of: Any, version: str
) -> None:
    folder = platform.home / "data" / f"runs-{version}"
    folder.mkdir(exist_ok=True)
    (folder / "in.txt").write_text("from a bucket")
    (folder / "spare").write_text("")
    seen = run(python_of(version), "vertex_runs.py", platform.url, platform.token, version, env={}, task=None)
    named, unnamed, own = seen["jobs"]
    assert seen["states"] == ["JOB_STATE_SUCCEEDED"] * 3
    assert sorted(seen["frame"]) == sorted(
        [["named", "COMPLETE", 0.5, 0.875, 0.5], [unnamed, "COMPLETE", 0.5, 0.875, 0.5]]
    )
    assert seen["inside"] == ["COMPLETE", {"accuracy": 0.25}]
    board, experiments = seen["board"]
    assert experiments == [own]
    reported = json.loads(platform.client.job(own).read_file("told.json"))
    assert reported["AIP_TENSORBOARD_RESOURCE_NAME"] == board
    assert reported["AIP_TENSORBOARD_API_URI"] == platform.url
    assert reported["AIP_TENSORBOARD_LOG_DIR"].endswith("/logs/")
    # By `storage.Client()` as it is: gs://data is named in the script, and so it is the job's.
    assert (reported["read"], (folder / "out.txt").read_text()) == ("from a bucket", "FROM A BUCKET")
    names = [f"runs-{version}/{name}" for name in ("in.txt", "out.txt", "spare")]
    assert (reported["listed"], reported["left"]) == (names, names[:2])
    assert reported["refused"][0] == 501
    assert "metadata: metadata of one's own is not served" in reported["refused"][1]
    # What the script logged shows with the job.
    names = {one.name for one in platform.client.list_metrics(named)}
    assert {f"runs-{version}-named/accuracy", f"runs-{version}-named/loss"} <= names


# Each version once and each transport once: the uploader is the same in both.
@pytest.mark.parametrize(("version", "transport"), [("vertex", "rest"), ("vertex1", "grpc")])
def test_the_unmodified_sdk_uploads_event_files(
    platform: Any, python_of: Any, request: pytest.FixtureRequest, tmp_path: Path, version: str, transport: str
) -> None:
    # TensorFlow and TensorBoard lie in environments of their own; the SDK's packages come first.
    sites = [
        str(Path(python_of(name)).parents[1] / "lib" / PYTHON_X_Y / "site-packages") for name in ("tf", "tensorboard")
    ]
    options: tuple[str, ...] = ()
    if transport == "grpc":
        bridge = request.getfixturevalue("bridge_to")(platform.url)
        options = ("--grpc", bridge.address, "--grpc-ca", bridge.ca)
    env = json.loads(platform.cli("vertex-env", "--json", *options).stdout)
    arguments = (f"uploads-{version}", str(tmp_path / "logs"), *sites)
    seen = run(python_of(version), "vertex_uploads.py", *arguments, env={**env, "TF_CPP_MIN_LOG_LEVEL": "2"}, task=None)
    assert (seen["run"], seen["transport"]) == ("train", transport)
    assert seen["loss"] == [[0, 1.0], [1, 0.5], [2, pytest.approx(1 / 3)]]
    assert seen["weights"] == [[0, True], [1, True], [2, True]]
    # A graph, and an image with its width and height: told by their names, and kept in the project's bucket.
    assert (seen["blobs"], seen["files"]) == ([1, 3], 4)
