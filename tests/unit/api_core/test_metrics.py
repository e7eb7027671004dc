"""Metrics over HTTP: taken once, shown in any window, followed; and whatever a hostile script sends."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import MetricStream, Replica
from core.domain.studies.metric_sources import KEY

AT = "2026-11-21T07:00:00Z"
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 20).decode()


@pytest.fixture
def job(submit: Any) -> str:
    job_id: str = submit(workers=2)
    return job_id


@pytest.fixture
def worker(job: str, start: Any, reporter: Callable[[str], TestClient]) -> TestClient:
    return reporter(start(job))


def series(name: str, first: int = 0, count: int = 3, **more: Any) -> dict[str, Any]:
    steps = list(range(first, first + count))
    return {"name": name, "steps": steps, "values": [step / 2 for step in steps], **more}


def send(worker: TestClient, *reported: dict[str, Any], index: int = 0, **more: Any) -> dict[str, Any]:
    body = {"role": "worker", "index": index, "series": list(reported), **more}
    answer = worker.post("/api/v1/runtime/metrics", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def chart(client: TestClient, job: str, **params: Any) -> list[dict[str, Any]]:
    answer = client.get(f"/api/v1/jobs/{job}/metrics/chart", params=params)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["series"]
    return found


def test_a_batch_of_many_series_is_listed_with_its_newest_points(
    client: TestClient, job: str, worker: TestClient
) -> None:
    assert send(worker, series("loss", times_s=[1.5, 2.5, 3.5]), series("lr"))["points"] == 6
    send(worker, series("system/cpu_percent"), index=1)
    listed = client.get(f"/api/v1/jobs/{job}/metrics").json()["items"]
    assert [(one["index"], one["name"], one["count"]) for one in listed] == [
        (0, "loss", 3),
        (0, "lr", 3),
        (1, "system/cpu_percent", 3),
    ]
    loss = listed[0]
    assert (loss["last_step"], loss["last_time_s"], loss["last_value"], loss["high"]) == (2, 3.5, 1.0, 1.0)
    without = client.get(f"/api/v1/jobs/{job}/metrics", params={"system": False}).json()["items"]
    assert [one["name"] for one in without] == ["loss", "lr"]


def test_a_list_goes_on_where_its_page_ended(client: TestClient, job: str, worker: TestClient) -> None:
    send(worker, *(series(f"m{number:02}") for number in range(7)))
    names, cursor = [], None
    while True:
        page = client.get(f"/api/v1/jobs/{job}/metrics", params={"limit": 3} | ({"cursor": cursor} if cursor else {}))
        names += [one["name"] for one in page.json()["items"]]
        cursor = page.json()["next_cursor"]
        if cursor is None:
            break
    assert names == [f"m{number:02}" for number in range(7)]


def test_few_points_are_shown_as_they_are_and_many_as_buckets_that_keep_peaks(
    client: TestClient, job: str, worker: TestClient
) -> None:
    long = series("loss", count=30_000)
    long["values"][12_345] = 1e6
    send(worker, long)
    (one,) = chart(client, job, name="loss", buckets=100)
    assert one["points"] is None
    buckets = one["buckets"]
    assert len({len(column) for column in buckets.values()}) == 1
    assert sum(buckets["counts"]) == 30_000
    assert max(buckets["highs"]) == 1e6
    (near,) = chart(client, job, name="loss", **{"from": 12_344, "to": 12_346})
    assert near["points"]["values"] == [6172.0, 1e6, 6173.0]


def test_what_json_has_no_number_for_is_taken_and_shown_as_text(
    client: TestClient, job: str, worker: TestClient
) -> None:
    reported = {"name": "loss", "steps": [0, 1, 2, 3], "values": ["NaN", "Infinity", "-Infinity", 1]}
    assert send(worker, reported)["faults"] == []
    (one,) = chart(client, job)
    assert one["points"]["values"] == ["NaN", "Infinity", "-Infinity", 1.0]
    # Of many points a bucket says how many were no number.
    send(worker, {"name": "loss", "steps": list(range(4, 1000)), "values": ["NaN"] * 996})
    (one,) = chart(client, job, buckets=10)
    assert sum(one["buckets"]["not_finite"]) == 999
    assert one["buckets"]["highs"][-1] is None


def test_the_same_batch_again_counts_once(client: TestClient, job: str, worker: TestClient) -> None:
    for _ in range(3):
        send(worker, series("loss"), writer="lib-7", batch=4)
    assert chart(client, job)[0]["count"] == 3


def test_a_compressed_batch_is_read_and_a_bomb_is_refused(client: TestClient, job: str, worker: TestClient) -> None:
    def post(data: bytes) -> Any:
        return worker.post(
            "/api/v1/runtime/metrics",
            content=data,
            headers={"Content-Encoding": "gzip", "Content-Type": "application/json"},
        )

    body = json.dumps({"role": "worker", "index": 0, "series": [series("loss", count=1000)]}).encode()
    assert post(gzip.compress(body)).json()["points"] == 1000
    bomb = post(gzip.compress(b" " * (64 * 2**20)))
    assert (bomb.status_code, bomb.json()["code"]) == (413, "payload_too_large")
    assert post(b"no gzip").status_code == 422
    assert post(gzip.compress(body)[:-20]).status_code == 422


@pytest.mark.parametrize(
    ("reported", "word"),
    [
        ({"name": "a", "steps": [1, 2], "values": [1]}, "differ in length"),
        ({"name": "a", "steps": [2**60], "values": [1]}, "2^53"),
        ({"name": "a", "steps": [1], "values": [1], "times_s": [-5]}, "since 1970"),
        ({"name": "a", "steps": [1], "values": [1], "times_s": ["NaN"]}, "since 1970"),
        ({"name": "a\nb", "steps": [1], "values": [1]}, "cannot be shown"),
        ({"name": "", "steps": [1], "values": [1]}, "characters"),
        ({"name": "x" * 500, "steps": [1], "values": [1]}, "characters"),
    ],
)
def test_a_series_that_cannot_be_used_is_reported_and_the_others_are_taken(
    worker: TestClient, reported: dict[str, Any], word: str
) -> None:
    answer = send(worker, reported, series("good"))
    assert answer["points"] == 3
    assert word in answer["faults"][0]


@pytest.mark.parametrize(
    "reported",
    [{"name": "a", "steps": ["x"], "values": [1]}, {"name": "a", "steps": [1], "values": ["x"]}, {"name": 7}, 5],
)
def test_what_is_no_series_is_refused_by_the_field(worker: TestClient, reported: Any) -> None:
    answer = worker.post("/api/v1/runtime/metrics", json={"role": "worker", "index": 0, "series": [reported]})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")


def test_objects_are_shown_as_what_they_are_and_never_run(client: TestClient, job: str, worker: TestClient) -> None:
    objects = [
        {"name": "weights", "kind": "histogram", "step": 1, "data": {"edges": [0, 1, 2], "counts": [3, 4]}},
        {"name": "said", "kind": "text", "step": 1, "data": "<script>alert(1)</script>"},
        {"name": "seen", "kind": "image", "step": 1, "data": PNG},
        {"name": "svg", "kind": "image", "step": 1, "data": base64.b64encode(b"<svg onload=alert(1)>").decode()},
        {"name": "odd", "kind": "histogram", "step": 1, "data": {"edges": [1, 0], "counts": [3]}},
        {"name": "nan", "kind": "histogram", "step": 1, "data": {"edges": [0, "NaN"], "counts": [3]}},
        {"name": "no", "kind": "image", "step": 1, "data": {"a": 1}},
    ]
    answer = send(worker, objects=objects)
    assert answer["objects"] == 3
    assert len(answer["faults"]) == 4
    root = f"/api/v1/jobs/{job}/metrics"
    (histogram,) = client.get(f"{root}/objects", params={"name": "weights"}).json()["items"]
    assert histogram["data"] == {"edges": [0, 1, 2], "counts": [3, 4]}
    (text,) = client.get(f"{root}/objects", params={"name": "said"}).json()["items"]
    assert text["data"] == "<script>alert(1)</script>"
    (image,) = client.get(f"{root}/objects", params={"name": "seen"}).json()["items"]
    shown = client.get(image["url"])
    assert (shown.status_code, shown.headers["content-type"]) == (200, "image/png")
    assert shown.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in shown.headers["content-security-policy"]
    assert client.get(f"{root}/objects", params={"name": "svg"}).status_code == 404


def test_an_image_of_another_job_is_not_there(client: TestClient, job: str, worker: TestClient, submit: Any) -> None:
    send(worker, objects=[{"name": "seen", "kind": "image", "step": 1, "data": PNG}])
    (image,) = client.get(f"/api/v1/jobs/{job}/metrics/objects", params={"name": "seen"}).json()["items"]
    other = submit(name="other")
    assert client.get(f"/api/v1/jobs/{other}/metrics/images/{image['id']}").status_code == 404


def test_several_jobs_are_laid_over_each_other(
    client: TestClient, job: str, worker: TestClient, submit: Any, start: Any, reporter: Any
) -> None:
    other = submit(name="other")
    send(worker, series("loss"), series("lr"))
    send(reporter(start(other)), series("loss", count=5))
    answer = client.get("/api/v1/metrics/chart", params={"job": [job, other], "name": "loss"}).json()
    assert {(one["job"], one["count"]) for one in answer["series"]} == {(job, 3), (other, 5)}
    assert client.get("/api/v1/metrics/chart", params={"job": [job, "nothing"]}).status_code == 404


@pytest.mark.parametrize(
    "params", [{"from": 5, "to": 1}, {"from": 1e300}, {"from": "nan"}, {"buckets": 0}, {"by": "x"}, {"role": "A B"}]
)
def test_a_window_that_makes_no_sense_is_refused(client: TestClient, job: str, params: Any) -> None:
    assert client.get(f"/api/v1/jobs/{job}/metrics/chart", params=params).status_code == 422


def report(worker: TestClient, *items: tuple[str, dict[str, Any]], generation: int = 1, first: int = 1) -> Any:
    reported = [
        {"seq": first + number, "at": AT, "kind": kind, "data": data} for number, (kind, data) in enumerate(items)
    ]
    body = {"role": "worker", "index": 0, "generation": generation, "items": reported}
    return worker.post("/api/v1/runtime/report", json=body)


def test_progress_and_items_of_metrics_become_series(client: TestClient, job: str, worker: TestClient) -> None:
    items: list[tuple[str, dict[str, Any]]] = [
        ("progress", {"step": 1, "metrics": {"loss": 2.0}}),
        ("progress", {"step": 2, "metrics": {"loss": "NaN"}}),
        ("metrics", {"series": [series("accuracy")]}),
    ]
    assert report(worker, *items).json() == {"acked": 3}
    assert report(worker, *items).json() == {"acked": 3}  # the answer was lost
    found = {one["name"]: one["points"] for one in chart(client, job)}
    assert (found["loss"]["steps"], found["loss"]["values"]) == ([1, 2], [2.0, "NaN"])
    assert found["accuracy"]["steps"] == [0, 1, 2]


def test_source_counts_are_stored_beside_the_progress_and_not_shown(
    client: TestClient, job: str, worker: TestClient, sessions: SessionFactory
) -> None:
    log = {"names": ["loss"], "name_count": 1, "values": 3, "lines": 7, "more": "x" * 1000}
    data: list[dict[str, Any]] = [{"step": 2, "steps": 4}, {"metric_sources": {"log": log}}, {"metric_sources": 7}]
    reported = [("progress", one) for one in data]
    assert report(worker, *reported).json() == {"acked": 3}
    shown = client.get(f"/api/v1/jobs/{job}").json()["progress"]
    assert shown["fraction"] == 0.5
    assert not any(name.startswith("_") for name in shown)
    with unit_of_work(sessions, read_only=True) as session:
        retained = [progress[KEY] for progress in session.scalars(select(Replica.progress)) if KEY in progress]
    assert retained == [{"log": {"names": ["loss"], "name_count": 1, "values": 3, "lines": 7}}]


def test_a_job_that_ended_without_metrics_has_suggestions(
    client: TestClient, job: str, worker: TestClient, set_job: Any
) -> None:
    def suggestions() -> list[dict[str, str]]:
        answer = client.get(f"/api/v1/jobs/{job}/metrics/suggestions")
        assert answer.status_code == 200, answer.text
        found: list[dict[str, str]] = answer.json()["suggestions"]
        return found

    good = {"line": "loss 0.5", "pattern": "loss {loss}"}
    bad: list[Any] = [{"line": 7, "pattern": "x"}, "x"]
    for data in (
        7,
        [*bad, {**good, "more": 1}],
    ):
        report(worker, ("progress", {"metric_suggestions": data}), first=1 if data == 7 else 2)
    send(worker, series("system/cpu_percent"))
    assert suggestions() == []  # it may still report metrics
    assert not any(name.startswith("_") for name in client.get(f"/api/v1/jobs/{job}").json()["progress"])
    set_job(job, state="succeeded")
    assert suggestions() == [good]
    send(worker, series("loss"))
    assert suggestions() == []


def test_nonsense_in_an_item_of_metrics_is_reported_in_the_history_once(
    client: TestClient, job: str, worker: TestClient
) -> None:
    for number in range(3):
        bad = ("metrics", {"series": [{"name": "a\nb", "steps": [1], "values": [1]}]})
        assert report(worker, bad, ("metrics", {"series": "x"}), first=1 + 2 * number).status_code == 200
    reported = [
        event["reason"]
        for event in client.get(f"/api/v1/jobs/{job}/events").json()["items"]
        if event["kind"] == "replica.report_refused"
    ]
    assert len(reported) == 1


def events_of(text: str) -> list[tuple[str, str, Any]]:
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line and not line.startswith(":"))
        if "event" in fields:
            found.append((fields["event"], fields.get("id", ""), json.loads(fields["data"])))
    return found


def test_a_stream_tells_what_came_after_the_chart_and_resumes_at_any_event(
    client: TestClient, job: str, worker: TestClient, set_job: Any
) -> None:
    send(worker, series("loss", count=10))
    cursor = client.get(f"/api/v1/jobs/{job}/metrics/chart").json()["cursor"]
    send(worker, series("loss", first=10, count=2), series("late", count=1))
    set_job(job, state="succeeded")
    url = f"/api/v1/jobs/{job}/metrics/stream"
    reported = events_of(client.get(url, params={"after": cursor}).text)
    assert [kind for kind, *_ in reported] == ["points", "points", "end"]
    assert {data["name"]: data["points"]["steps"] for kind, _, data in reported if kind == "points"} == {
        "loss": [10, 11],
        "late": [0],
    }
    again = events_of(client.get(url, headers={"Last-Event-ID": reported[0][1]}).text)
    assert [data.get("name") for _, _, data in again] == [reported[1][2]["name"], None]
    assert events_of(client.get(url).text) == [("end", "", {})]  # from now on: nothing any more
    assert client.get(url, headers={"Last-Event-ID": "x;y"}).status_code == 422


def test_resources_say_which_gpus_idle_and_which_rank_is_far_from_the_others(
    client: TestClient, submit: Any, start: Any, reporter: Any, sessions: SessionFactory
) -> None:
    job = submit(name="gpus", workers=3)
    worker = reporter(start(job))
    for index, percent in enumerate((95.0, 2.0, 93.0)):
        times = [1000.0 + 5 * number for number in range(20)]
        reported = [
            {"name": name, "steps": list(range(20)), "values": [value] * 20, "times_s": times}
            for name, value in (
                ("system/gpu.0/utilisation_percent", percent),
                ("system/gpu.0/memory_bytes", 2e9),
                ("system/gpu.0/xid", 79.0 if index == 2 else 0.0),
                ("system/cpu_percent", 150.0),
                ("system/memory_bytes", 1e9),
            )
        ]
        send(worker, *reported, index=index)
    summary = client.get(f"/api/v1/jobs/{job}/resources").json()
    assert [one["gpus"][0]["is_idle"] for one in summary["replicas"]] == [False, True, False]
    assert summary["replicas"][0]["cpu_percent"] == 150.0
    assert len(summary["notes"]) == 3
    assert "worker-2: GPU 0 reported Xid 79" in summary["notes"][1]
    assert "worker-1: its GPU idles" in summary["notes"][0]
    assert "worker-1 works at 2 %" in summary["notes"][2]
    assert client.get(f"/api/v1/jobs/{submit(name='new')}/resources").json()["replicas"] == []
    with unit_of_work(sessions) as session:
        streams = session.scalars(select(MetricStream).order_by(MetricStream.index))
        assert [(stream.gpu_samples, stream.idle_gpu_samples) for stream in streams] == [(20, 0), (20, 20), (20, 0)]


def test_metrics_of_an_ended_attempt_are_closed(submit: Any, start: Any, reporter: Any, end_attempt: Any) -> None:
    attempt = start(submit(name="done"))
    end_attempt(attempt)
    answer = reporter(attempt).post("/api/v1/runtime/metrics", json={"role": "worker", "index": 0, "series": []})
    assert (answer.status_code, answer.json()["code"]) == (410, "attempt_ended")


def test_a_job_tells_when_it_will_be_done_and_how_sure_that_is(
    client: TestClient, job: str, worker: TestClient
) -> None:
    for number in range(1, 7):
        at = f"2026-11-21T07:00:{10 * number - 1:02}Z"
        body = {"seq": number, "at": at, "kind": "progress", "data": {"step": 10 * number, "steps": 100}}
        worker.post("/api/v1/runtime/report", json={"role": "worker", "index": 0, "items": [body]})
    progress = client.get(f"/api/v1/jobs/{job}").json()["progress"]
    assert progress["fraction"] == 0.6
    assert progress["steps_per_s"] == 1.0
    assert progress["remaining_s"] == 40.0
    assert progress["remaining_s_low"] <= 40.0 <= progress["remaining_s_high"]
    assert progress["done_at"].startswith("2026-11-21T07:01:39")
    assert not any(name.startswith("_") for name in progress)
