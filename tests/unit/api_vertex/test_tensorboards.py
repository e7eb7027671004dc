"""TensorBoards as Vertex AI's SDK and its uploader speak to them, request by request."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.testclient import TestClient

from api.protocols.vertex.records import service
from api.protocols.vertex.tensorboards import routes
from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import MetricStream, VertexRecord
from tests.unit.api_vertex.test_jobs import PARENT, error_of

HOME = PARENT.removeprefix("/v1/")


def made(client: TestClient, path: str, **body: Any) -> Any:
    answer = client.post(f"{PARENT}/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


@pytest.fixture
def board(client: TestClient) -> str:
    """The path of a TensorBoard with the experiment ``e`` and its run ``r``."""
    reply = made(client, "tensorboards", displayName="Board", isDefault=True, labels={"team": "x"})
    assert reply["response"]["@type"] == "type.googleapis.com/google.cloud.aiplatform.v1.Tensorboard"
    path: str = reply["response"]["name"].removeprefix(f"{HOME}/")
    made(client, f"{path}/experiments?tensorboardExperimentId=e", displayName="e")
    made(client, f"{path}/experiments/e/runs?tensorboardRunId=r", displayName="r")
    return path


def series(client: TestClient, board: str, name: str, kind: Any = 1, run: str = "r") -> str:
    """The whole name of a new time series."""
    reply = made(
        client, f"{board}/experiments/e/runs/{run}/timeSeries", displayName=name, valueType=kind, pluginName="scalars"
    )
    return str(reply["name"])


def point(step: int, value: Any, second: int = 0) -> dict[str, Any]:
    # As proto3 JSON has it: what is zero is left out, int64 is text.
    return {
        "wallTime": f"2026-11-21T07:00:{second:02}.123456789Z",
        **({"step": str(step)} if step else {}),
        "scalar": {"value": value} if value else {},
    }


def data(name: str, *values: Any, kind: Any = 1) -> dict[str, Any]:
    return {"tensorboardTimeSeriesId": name.rpartition("/")[2], "valueType": kind, "values": list(values)}


def read(client: TestClient, board: str, *names: str) -> list[list[tuple[str, Any]]]:
    query = "&".join(f"timeSeries={name}" for name in names)
    answer = client.get(f"{PARENT}/{board}:batchRead?{query}")
    assert answer.status_code == 200, answer.text
    return [
        [(one["step"], one["scalar"]["value"]) for one in each.get("values", [])]
        for each in answer.json()["timeSeriesData"]
    ]


def test_the_default_board_is_made_once(client: TestClient, board: str) -> None:
    found = client.get(f"{PARENT}/tensorboards?filter=is_default=true").json()["tensorboards"]
    assert [(one["name"], one["isDefault"], one["labels"]) for one in found] == [
        (f"{HOME}/{board}", True, {"team": "x"})
    ]
    # The uploader begins with no TensorBoard that has no place for blobs.
    assert found[0]["blobStoragePathPrefix"] == "default"
    again = made(client, "tensorboards", displayName="Another", isDefault=True)
    assert again["response"]["name"] == f"{HOME}/{board}"
    other = made(client, "tensorboards", displayName="Other")["response"]
    listed = client.get(f"{PARENT}/tensorboards", params={"filter": 'display_name="Other" AND is_default=false'}).json()
    assert [one["name"] for one in listed["tensorboards"]] == [other["name"]]
    changed = client.patch(
        f"/v1/{other['name']}?updateMask=displayName", json={"displayName": "New", "description": "no"}
    )
    assert (changed.json()["done"], changed.json()["response"]["displayName"]) == (True, "New")
    assert "description" not in client.get(f"/v1/{other['name']}").json()


def test_a_new_default_board_takes_that_from_the_old_one(client: TestClient, board: str) -> None:
    other = made(client, "tensorboards", displayName="Other")["response"]["name"]
    # Not said by the mask: nothing changes.
    client.patch(f"/v1/{other}?updateMask=displayName", json={"displayName": "New", "isDefault": True})
    reply = client.patch(f"/v1/{other}?updateMask=displayName,isDefault", json={"displayName": "N", "isDefault": True})
    assert reply.json()["response"]["isDefault"] is True
    found = client.get(f"{PARENT}/tensorboards?filter=is_default=true").json()["tensorboards"]
    assert [(one["name"], one["displayName"]) for one in found] == [(other, "N")]
    before = client.get(f"{PARENT}/{board}").json()
    assert (before.get("isDefault", False), before["displayName"], before["labels"]) == (False, "Board", {"team": "x"})
    assert made(client, "tensorboards", isDefault=True)["response"]["name"] == other


def test_what_is_written_is_read_by_step(client: TestClient, board: str) -> None:
    loss, acc = series(client, board, "loss"), series(client, board, "acc")
    written = [data(loss, point(2, 0.5, 2), point(0, 0, 0), point(1, "NaN", 1)), data(acc, point(7, "-Infinity"))]
    assert made(client, f"{board}/experiments/e/runs/r:write", timeSeriesData=written) == {}
    assert read(client, board, acc, loss) == [[("7", "-Infinity")], [("0", 0.0), ("1", "NaN"), ("2", 0.5)]]
    listed = client.get(f"{PARENT}/{board}/experiments/e/runs/r/timeSeries").json()["tensorboardTimeSeries"]
    assert [(one["displayName"], one["valueType"], one["metadata"]["maxStep"]) for one in listed] == [
        ("loss", "SCALAR", "1"),
        ("acc", "SCALAR", "7"),
    ]
    one = client.get(f"/v1/{loss}:read?maxDataPoints=2").json()["timeSeriesData"]
    assert [value["step"] for value in one["values"]] == ["1", "2"]
    assert one["values"][0]["wallTime"] == "2026-11-21T07:00:01.123000Z"


def test_the_last_time_that_is_taken_is_read(client: TestClient, board: str) -> None:
    loss = series(client, board, "loss")
    values = [
        {**point(step, 1), "wallTime": wall}
        for step, wall in enumerate(("1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z"))
    ]
    made(client, f"{board}/experiments/e/runs/r:write", timeSeriesData=[data(loss, *values)])
    assert read(client, board, loss) == [[("0", 1.0), ("1", 1.0)]]


def test_of_many_values_some_are_read_and_all_are_exported(client: TestClient, board: str) -> None:
    loss = series(client, board, "loss")
    for start in (0, 2_500):
        values = [point(step, step + 1) for step in range(start, start + 2_500)]
        made(client, f"{board}/experiments/e/runs/r:write", timeSeriesData=[data(loss, *values)])
    (some,) = read(client, board, loss)
    assert (len(some), some[0], some[-1]) == (1_000, ("0", 1.0), ("4999", 5_000.0))
    every = client.get(f"/v1/{loss}:read?maxDataPoints=-1").json()["timeSeriesData"]["values"]
    assert [one["step"] for one in every] == [str(step) for step in range(5_000)]
    token, steps = "", []
    while True:
        body = {"pageSize": 2_000, "pageToken": token}
        answer = client.post(f"/v1/{loss}:exportTensorboardTimeSeries", json=body).json()
        steps += [int(one["step"]) for one in answer["timeSeriesDataPoints"]]
        token = answer.get("nextPageToken", "")
        if not token:
            break
    assert steps == list(range(5_000))


def test_one_answer_holds_only_so_much(client: TestClient, board: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "VALUE_LIMIT", 40)
    monkeypatch.setattr(routes, "SCALAR_LIMIT", 30)
    monkeypatch.setattr(routes, "TENSOR_LIMIT_BYTES", 1_000)
    loss, acc, third = (series(client, board, name) for name in ("loss", "acc", "third"))
    values = [point(step, step + 1) for step in range(100)]
    written = [data(name, *values) for name in (loss, acc, third)]
    made(client, f"{board}/experiments/e/runs/r:write", timeSeriesData=written)
    for requested in ("-1", "1000000000", "41"):
        answer = client.get(f"/v1/{loss}:read?maxDataPoints={requested}").json()["timeSeriesData"]["values"]
        assert (len(answer), answer[0]["step"], answer[-1]["step"]) == (40, "0", "99")
    assert "maxDataPoints" in error_of(client.get(f"/v1/{loss}:read?maxDataPoints=-2"), 400, "INVALID_ARGUMENT")
    assert [len(one) for one in read(client, board, loss, acc, third)] == [10, 10, 10]
    # Of tensors, the last ones of each; with one of each already too large it is told.
    weights, bias = series(client, board, "weights", 2), series(client, board, "bias", 2)
    for name, size in ((weights, 200), (bias, 200)):
        tensors = [{"step": str(n), "tensor": {"value": base64.b64encode(b"x" * size).decode()}} for n in range(5)]
        made(client, f"{board}/experiments/e/runs/r:write", timeSeriesData=[data(name, *tensors, kind=2)])
    query = f"{PARENT}/{board}:batchRead?timeSeries={weights}&timeSeries={bias}"
    reply = client.get(query).json()["timeSeriesData"]
    assert [[value.get("step") for value in one["values"]] for one in reply] == [["3", "4"]] * 2
    monkeypatch.setattr(routes, "TENSOR_LIMIT_BYTES", 399)
    assert "ask for fewer time series" in error_of(client.get(query), 400, "INVALID_ARGUMENT")


def test_the_uploader_makes_and_writes_in_batches(client: TestClient, board: str) -> None:
    experiment = f"{HOME}/{board}/experiments/e"
    runs = [
        {"parent": experiment, "tensorboardRun": {"displayName": f"run {n}"}, "tensorboardRunId": f"run-{n}"}
        for n in (1, 2)
    ]
    reply = made(client, f"{board}/experiments/e/runs:batchCreate", requests=runs)
    assert [one["name"].rpartition("/")[2] for one in reply["tensorboardRuns"]] == ["run-1", "run-2"]
    requests = [
        {
            "parent": f"{experiment}/runs/run-1",
            "tensorboardTimeSeries": {"displayName": "w", "valueType": 2, "pluginName": "histograms"},
        },
        {"parent": f"{experiment}/runs/run-2", "tensorboardTimeSeries": {"displayName": "loss", "valueType": "SCALAR"}},
    ]
    histogram, loss = made(client, f"{board}/experiments/e:batchCreate", requests=requests)["tensorboardTimeSeries"]
    tensor = {
        "wallTime": "2026-11-21T07:00:00Z",
        "step": "3",
        "tensor": {"value": base64.b64encode(b"\x08\x02x").decode(), "versionNumber": 1},
    }
    written = [
        {"tensorboardRun": f"{experiment}/runs/run-1", "timeSeriesData": [data(histogram["name"], tensor, kind=2)]},
        {"tensorboardRun": f"{experiment}/runs/run-2", "timeSeriesData": [data(loss["name"], point(1, 0.5))]},
    ]
    assert made(client, f"{board}/experiments/e:write", writeRunDataRequests=written) == {}
    answer = client.get(f"{PARENT}/{board}:batchRead?timeSeries={histogram['name']}&timeSeries={loss['name']}").json()
    first, second = answer["timeSeriesData"]
    assert (first["valueType"], first["values"]) == ("TENSOR", [{**tensor, "wallTime": "2026-11-21T07:00:00.000000Z"}])
    assert second["values"][0]["scalar"] == {"value": 0.5}
    # All or none.
    half = [*runs[:1], {"parent": experiment, "tensorboardRun": {}, "tensorboardRunId": "new"}]
    taken = client.post(f"{PARENT}/{board}/experiments/e/runs:batchCreate", json={"requests": half[::-1]})
    error_of(taken, 409, "ALREADY_EXISTS")
    error_of(client.get(f"{PARENT}/{board}/experiments/e/runs/new"), 404, "NOT_FOUND")


def test_a_deleted_board_takes_all_of_it_along(client: TestClient, board: str, sessions: SessionFactory) -> None:
    loss = series(client, board, "loss")
    made(client, f"{board}/experiments/e/runs/r:write", timeSeriesData=[data(loss, point(1, 1))])
    made(client, f"{board}/experiments?tensorboardExperimentId=e2")
    assert client.delete(f"{PARENT}/{board}/experiments/e/runs/r").json()["done"] is True
    error_of(client.get(f"/v1/{loss}"), 404, "NOT_FOUND")
    made(client, f"{board}/experiments/e/runs?tensorboardRunId=r")
    again = series(client, board, "loss")
    assert read(client, board, again) == [[]]  # nothing of the run that had this name
    assert client.get(f"{PARENT}/{board}/experiments/e2").status_code == 200
    assert client.delete(f"{PARENT}/{board}").json()["done"] is True
    with unit_of_work(sessions, read_only=True) as session:
        assert session.query(VertexRecord).count() == session.query(MetricStream).count() == 0


@pytest.mark.parametrize(("deleted", "other"), [("Exp", "exp"), ("a_b", "axb"), ("a_b", "a_B"), ("x.y", "x_y")])
def test_a_name_that_is_almost_the_deleted_ones_keeps_what_is_below_it(
    client: TestClient, board: str, deleted: str, other: str
) -> None:
    for name in (deleted, other):
        made(client, f"{board}/experiments?tensorboardExperimentId={name}")
        made(client, f"{board}/experiments/{name}/runs?tensorboardRunId=r")
        made(client, f"{board}/experiments/{name}/runs/r/timeSeries?tensorboardTimeSeriesId=t", valueType=1)
    assert client.delete(f"{PARENT}/{board}/experiments/{deleted}").json()["done"] is True
    error_of(client.get(f"{PARENT}/{board}/experiments/{deleted}/runs/r"), 404, "NOT_FOUND")
    assert client.get(f"{PARENT}/{board}/experiments/{other}/runs/r").status_code == 200
    assert client.get(f"{PARENT}/{board}/experiments/{other}/runs/r/timeSeries/t").status_code == 200


def test_replicas_that_make_the_same_time_series_log_to_one(client: TestClient, board: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        names = set(pool.map(lambda _: series(client, board, "loss"), range(4)))
    assert len(names) == 1
    batch = {"parent": f"{HOME}/{board}/experiments/e/runs/r"}
    wanted = {"tensorboardTimeSeries": {"displayName": "loss", "valueType": 1}, **batch}
    answer = client.post(f"{PARENT}/{board}/experiments/e:batchCreate", json={"requests": [wanted]}).json()
    assert {one["name"] for one in answer["tensorboardTimeSeries"]} == names
    other = client.post(
        f"{PARENT}/{board}/experiments/e/runs/r/timeSeries", json={"displayName": "loss", "valueType": 2}
    )
    assert "'loss' of type SCALAR already" in error_of(other, 409, "ALREADY_EXISTS")
    # Of another run it is another one, and so is one without a name.
    made(client, f"{board}/experiments/e/runs?tensorboardRunId=r2", displayName="r2")
    assert series(client, board, "loss", run="r2") not in names
    assert series(client, board, "") != series(client, board, "")


def test_a_time_series_that_its_client_names_is_never_another_one(client: TestClient, board: str) -> None:
    path = f"{board}/experiments/e/runs/r/timeSeries"
    loss = {"displayName": "loss", "valueType": 1}
    first = made(client, f"{path}?tensorboardTimeSeriesId=a", **loss)["name"]
    run = f"{HOME}/{board}/experiments/e/runs/r"
    for name in ("b", "a"):
        again = client.post(f"{PARENT}/{path}?tensorboardTimeSeriesId={name}", json=loss)
        assert f"'loss' of type SCALAR already: {first}." in error_of(again, 409, "ALREADY_EXISTS")
        requests = [{"parent": run, "tensorboardTimeSeriesId": name, "tensorboardTimeSeries": loss}]
        again = client.post(f"{PARENT}/{board}/experiments/e:batchCreate", json={"requests": requests})
        error_of(again, 409, "ALREADY_EXISTS")
    error_of(client.get(f"{PARENT}/{path}/b"), 404, "NOT_FOUND")
    assert series(client, board, "loss") == first


def test_a_batch_of_time_series_locks_its_runs_in_one_order(
    client: TestClient, board: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("r1", "r2"):
        made(client, f"{board}/experiments/e/runs?tensorboardRunId={name}", displayName=name)
    locked: list[str] = []
    find = service.find

    def noted(room: Any, kind: Any, path: str, *, locks: bool = False) -> VertexRecord:
        if locks:
            locked.append(path.rpartition("/")[2])
        return find(room, kind, path, locks=locks)

    monkeypatch.setattr(service, "find", noted)
    requests = [
        {
            "parent": f"{HOME}/{board}/experiments/e/runs/{run}",
            "tensorboardTimeSeries": {"displayName": "l", "valueType": 1},
        }
        for run in ("r2", "r", "r1")
    ]
    reply = made(client, f"{board}/experiments/e:batchCreate", requests=requests)["tensorboardTimeSeries"]
    assert list(dict.fromkeys(locked)) == ["r", "r1", "r2"]
    assert [one["name"].split("/")[-3] for one in reply] == ["r2", "r", "r1"]


def test_blobs_are_named_by_their_ids(client: TestClient, board: str) -> None:
    """The uploader puts what they hold into the bucket that the TensorBoard names: graphs and images."""
    graph = series(client, board, "graph", 3)
    points = [{"step": str(step), "blobs": {"values": [{"id": f"{step}-{n}"} for n in range(step)]}} for step in (0, 2)]
    points[0]["blobs"] = {}  # as proto3 writes a sequence of none
    made(client, f"{board}/experiments/e/runs/r:write", timeSeriesData=[data(graph, *points, kind=3)])
    (reply,) = client.get(f"{PARENT}/{board}:batchRead?timeSeries={graph}").json()["timeSeriesData"]
    assert [(one["step"], one["blobs"]["values"]) for one in reply["values"]] == [
        ("0", []),
        ("2", [{"id": "2-0"}, {"id": "2-1"}]),
    ]


def test_invalid_points_are_refused(client: TestClient, board: str) -> None:
    loss, blob = series(client, board, "loss"), series(client, board, "graph", 3)
    write = f"{PARENT}/{board}/experiments/e/runs/r:write"

    def refused(one: Any, code: int = 400, status: str = "INVALID_ARGUMENT") -> str:
        return error_of(client.post(write, json={"timeSeriesData": [data(loss, point(9, 9)), one]}), code, status)

    assert "is not found" in refused(data("none", point(1, 1)), 404, "NOT_FOUND")
    assert "is of type SCALAR" in refused(data(loss, point(1, 1), kind=2))
    assert "has a scalar in each value" in refused(data(loss, {"step": "1", "tensor": {"value": "AA=="}}))
    assert "is no time" in refused(data(loss, {**point(1, 1), "wallTime": "2026-01-01 00:00:00"}))
    # In UTC these are the years 10000 and 0, which no time that is answered can be.
    for wall in ("9999-12-31T23:59:59-01:00", "1969-12-31T23:59:59Z", "0001-01-01T00:00:00+01:00"):
        assert "from 1970 to 9999" in refused(data(loss, {**point(1, 1), "wallTime": wall}))
    assert "a number" in refused(data(loss, {"scalar": {"value": "much"}}))
    assert "a whole number" in refused(data(loss, {**point(1, 1), "step": "1.5"}))
    assert "time_series_data[1].values[0]" in refused(data(loss, {"scalar": {"value": []}}))
    held = {"blobs": {"values": [{"data": "AA=="}]}}
    assert "in the TensorBoard's bucket" in refused(data(blob, held, kind=3), 501, "UNIMPLEMENTED")
    assert "has blobs in each value" in refused(data(blob, {"tensor": {"value": "AA=="}}, kind=3))
    assert read(client, board, loss) == [[]]  # nothing of a request that was refused
    nothing = client.post(f"{PARENT}/{board}/experiments/e/runs/r/timeSeries", json={"displayName": "x"})
    assert "value_type: Required" in error_of(nothing, 400, "INVALID_ARGUMENT")
    unknown = client.post(f"{PARENT}/{board}/experiments/e/runs/r/timeSeries", json={"valueType": 7})
    assert "one of VALUE_TYPE_UNSPECIFIED, SCALAR" in error_of(unknown, 400, "INVALID_ARGUMENT")
    elsewhere = client.get(f"{PARENT}/{board}:batchRead?timeSeries={loss.replace('default', 'theirs')}")
    assert "is not found in" in error_of(elsewhere, 404, "NOT_FOUND")
    usage = client.get(f"{PARENT}/{board}:readUsage")
    assert "tensorboards:readUsage is not served" in error_of(usage, 501, "UNIMPLEMENTED")
    above = client.post(f"{PARENT}/{board}/experiments/none/runs?tensorboardRunId=r", json={})
    assert "experiments/none is not found" in error_of(above, 404, "NOT_FOUND")


def test_a_jobs_script_writes_and_its_job_shows_it(
    client: TestClient, board: str, submit: Any, start: Any, reporter: Any
) -> None:
    job_id = submit(name="digits")
    script = reporter(start(job_id))
    loss = series(script, board, "loss")
    made(script, f"{board}/experiments/e/runs/r:write", timeSeriesData=[data(loss, point(1, 0.5), point(2, 0.25))])
    found = client.get(f"/api/v1/jobs/{job_id}/metrics").json()["items"]
    assert [(one["name"], one["role"], one["count"], one["last_step"], one["last_value"]) for one in found] == [
        ("e-r/loss", "worker", 2, 2, 0.25)
    ]
    assert read(script, board, loss) == [[("1", 0.5), ("2", 0.25)]]
