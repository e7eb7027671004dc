"""Batch predictions as Vertex AI's SDK asks for them."""

from __future__ import annotations

from typing import Any

import pytest
from starlette.testclient import TestClient

from core.db.engine import SessionFactory
from core.settings import Settings
from tests.unit.api_vertex.test_endpoints import House
from tests.unit.api_vertex.test_jobs import PARENT, error_of, ours


@pytest.fixture
def house(client: TestClient, sessions: SessionFactory, settings: Settings, clock: Any) -> House:
    folder = settings.home / "output/default/questions"
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_text("[1, 2]\n")
    (folder / "b.csv").write_text("x,y\n1,2\n")
    return House(client, sessions, settings, clock)


def batch(of: str, **more: Any) -> dict[str, Any]:
    return {
        "displayName": "My batch",
        "model": of,
        "labels": {"team": "x"},
        "inputConfig": {"instancesFormat": "jsonl", "gcsSource": {"uris": ["gs://default/questions/a.jsonl"]}},
        "outputConfig": {"predictionsFormat": "jsonl", "gcsDestination": {"outputUriPrefix": "gs://default/answers/"}},
        "dedicatedResources": {"machineSpec": {"machineType": "n1-standard-2"}, "maxReplicaCount": 10},
        **more,
    }


def test_a_batch_is_a_job_whose_output_is_where_it_says(
    client: TestClient, house: House, start: Any, set_job: Any
) -> None:
    of = house.upload()
    reply = client.post(
        f"{PARENT}/batchPredictionJobs", json=batch(of, manualBatchTuningParameters={"batchSize": 7})
    ).json()
    assert (reply["state"], reply["displayName"], reply["labels"]) == (
        "JOB_STATE_QUEUED",
        "My batch",
        {"team": "x"},
    )
    assert (reply["model"], reply["modelVersionId"]) == (of.partition("@")[0], "1")
    spec = ours(client, reply)
    args = spec["roles"]["worker"]["args"] or spec["args"]
    text = " ".join(args)
    assert "--framework sklearn --trust-code --batch --format jsonl --csv-rows array --batch-size 7" in text
    assert "--instances-file a.jsonl" in text
    assert spec["roles"]["worker"]["replicas"] == 1
    assert "outputInfo" not in reply
    job_id = reply["name"].rpartition("/")[2]
    start(job_id)
    set_job(job_id, state="succeeded")
    ended = client.get(f"/v1/{reply['name']}").json()
    folder = ended["outputInfo"]["gcsOutputDirectory"]
    assert folder.startswith("gs://default/answers/prediction-digits-")
    assert spec["output"] == folder.replace("gs://default", "output/default")
    assert [one["name"] for one in client.get(f"{PARENT}/batchPredictionJobs").json()["batchPredictionJobs"]] == [
        reply["name"]
    ]
    assert client.delete(f"/v1/{reply['name']}").status_code == 200


def test_a_batch_over_a_folder_fails_in_words_and_can_be_cancelled(
    client: TestClient, house: House, set_job: Any
) -> None:
    of = house.upload()
    source = {"instancesFormat": "csv", "gcsSource": {"uris": ["gs://default/questions/*"]}}
    body = batch(of, inputConfig=source, instanceConfig={"instanceType": "object"})
    reply = client.post(f"{PARENT}/batchPredictionJobs", json=body).json()
    text = " ".join(ours(client, reply)["args"] or ours(client, reply)["roles"]["worker"]["args"])
    assert "--format csv" in text
    assert "--instances-file" not in text
    assert "--csv-rows" not in text
    assert client.post(f"/v1/{reply['name']}:cancel", json={}).json() == {}
    assert client.get(f"/v1/{reply['name']}").json()["state"] in ("JOB_STATE_CANCELLING", "JOB_STATE_CANCELLED")
    failed = client.post(f"{PARENT}/batchPredictionJobs", json=batch(of)).json()
    exit_record = {"kind": "user_error", "sentence": "worker-0: model.joblib cannot be read."}
    set_job(failed["name"].rpartition("/")[2], state="failed", exit=exit_record)
    shown = client.get(f"/v1/{failed['name']}").json()
    assert (shown["state"], shown["error"]["message"]) == ("JOB_STATE_FAILED", exit_record["sentence"])


@pytest.mark.parametrize(
    ("reply", "code", "words"),
    [
        ({"model": "x"}, 400, "no name of a model"),
        ({"inputConfig": {"instancesFormat": "bigquery", "bigquerySource": {"inputUri": "bq://a"}}}, 501, "BigQuery"),
        (
            {"inputConfig": {"instancesFormat": "tf-record", "gcsSource": {"uris": ["gs://default/a"]}}},
            501,
            "tf-record",
        ),
        (
            {"inputConfig": {"instancesFormat": "jsonl", "gcsSource": {"uris": ["gs://default/a*.jsonl"]}}},
            501,
            "patterns",
        ),
        (
            {"inputConfig": {"instancesFormat": "jsonl", "gcsSource": {"uris": ["gs://a/b", "gs://a/c"]}}},
            400,
            "one file",
        ),
        ({"inputConfig": {"instancesFormat": "jsonl", "gcsSource": {"uris": ["gs://none/b"]}}}, 404, "bucket"),
        (
            {"inputConfig": {"instancesFormat": "jsonl", "gcsSource": {"uris": ["gs://default/none/x.jsonl"]}}},
            400,
            "input",
        ),
        (
            {"outputConfig": {"predictionsFormat": "csv", "gcsDestination": {"outputUriPrefix": "gs://default/a"}}},
            501,
            "csv",
        ),
        ({"outputConfig": {"predictionsFormat": "jsonl"}}, 400, "output_uri_prefix"),
        (
            {"inputConfig": {"gcsSource": {"uris": ["gs://default/a"]}}},
            400,
            "instances_format: Required field is not set",
        ),
        ({"modelParameters": {"a": 1}}, 501, "parameters of a model"),
        ({"generateExplanation": True}, 501, "explanations"),
        ({"modelMonitoringConfig": {"a": 1}}, 501, "monitoring"),
        ({"serviceAccount": "x"}, 501, "service accounts"),
        ({"instanceConfig": {"keyField": "id"}}, 501, "keys of instances"),
        ({"manualBatchTuningParameters": {"batchSize": -4}}, 400, "batch_size"),
    ],
)
def test_what_no_batch_can_be_is_refused_by_its_name(
    client: TestClient, house: House, reply: Any, code: int, words: str
) -> None:
    status = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND", 501: "UNIMPLEMENTED"}[code]
    answer = client.post(f"{PARENT}/batchPredictionJobs", json=batch(house.upload(), **reply))
    assert words in error_of(answer, code, status)
    assert client.get(f"{PARENT}/batchPredictionJobs").json() == {}


def test_a_container_of_ones_own_does_no_batches(client: TestClient, house: House, as_user: Any) -> None:
    of = house.upload({"imageUri": "registry.example/serve:1", "command": ["python3", "serve.py"]})
    answer = client.post(f"{PARENT}/batchPredictionJobs", json=batch(of))
    assert "container of one's own" in error_of(answer, 501, "UNIMPLEMENTED")
    viewer = as_user("viewer", role="viewer")
    error_of(viewer.post(f"{PARENT}/batchPredictionJobs", json=batch(of)), 403, "PERMISSION_DENIED")
