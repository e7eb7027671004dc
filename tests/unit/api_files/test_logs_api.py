from __future__ import annotations

import json
from typing import Any

import pytest
from trainmaster.spec import parse_spec
from trainmaster.wire.jobs import LogLine

from api.logs.service import ranks_of
from core.db.engine import unit_of_work


def stamped(second: float, text: str) -> str:
    return f"2026-11-21T07:00:{second:09.6f}Z {text}\n"


def events(text: str) -> list[tuple[str, str | None, Any]]:
    """(event, id, data) of a stream."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line and not line.startswith(":"))
        if "event" in fields:
            found.append((fields["event"], fields.get("id"), json.loads(fields["data"])))
    return found


def lines(text: str) -> list[str]:
    return [data["text"] for kind, _, data in events(text) if kind == "line"]


@pytest.fixture
def written(house: Any) -> Any:
    house.log("job-1", 1, "worker-0", stamped(1, "old"))
    house.log("job-1", 2, "worker-0", stamped(2, "a") + stamped(4, "c"))
    house.log("job-1", 2, "worker-1", stamped(3, "b") + stamped(5, "d"))
    return house


def stream(house: Any, who: str = "viewer", *, headers: dict[str, str] | None = None, **query: Any) -> Any:
    return house.call(who, "GET", "/jobs/job-1/logs/stream", params=query, headers=headers or {})


def test_sources_of_all_attempts_are_listed(written: Any) -> None:
    found = written.call("viewer", "GET", "/jobs/job-1/logs").json()["items"]
    assert [(s["attempt"], s["name"]) for s in found] == [(1, "worker-0"), (2, "worker-0"), (2, "worker-1")]
    assert found[0]["size_bytes"] == len(stamped(1, "old"))


def test_the_newest_attempt_is_streamed_in_order_of_time_and_ends(written: Any) -> None:
    answer = stream(written)
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    reported = events(answer.text)
    assert [kind for kind, _, _ in reported] == ["state", "line", "line", "line", "line", "end"]
    assert lines(answer.text) == ["a", "b", "c", "d"]
    assert reported[-1][2]["state"] == "running"
    first = LogLine.model_validate(reported[1][2])
    assert (first.attempt, first.role, first.index, first.rank, first.local_rank) == (2, "worker", 0, 0, None)
    assert first.at is not None
    assert first.at.second == 2


def test_lines_in_batches_are_the_same_and_go_on_from_the_same_places(written: Any) -> None:
    one_by_one = [(place, data) for kind, place, data in events(stream(written).text) if kind == "line"]
    reported = events(stream(written, batch=True).text)
    assert [kind for kind, _, _ in reported] == ["state", "lines", "end"]
    assert reported[1][2] == [data for _, data in one_by_one]
    assert reported[1][1] == one_by_one[-1][0]
    rest = events(stream(written, batch=True, headers={"Last-Event-ID": str(one_by_one[1][0])}).text)
    assert [data["text"] for data in rest[1][2]] == ["c", "d"]


def test_a_line_tells_its_rank_once_and_what_looks_like_one_stays(house: Any) -> None:
    with unit_of_work(house.sessions) as session:
        house.add_job(session, "job-2", processes_per_replica=2)
    house.log("job-2", 1, "worker-1", stamped(1, "trainmaster: says the runtime"))
    house.log(
        "job-2", 1, "worker-1", stamped(2, "[rank 3] [rank 9] my own words") + stamped(3, "[rank 7] no rank here")
    )
    house.log("job-1", 1, "worker-1", stamped(1, "[rank 5] my own words"))

    def reported(job: str, **query: Any) -> list[tuple[Any, Any, str]]:
        text = house.call("viewer", "GET", f"/jobs/{job}/logs/stream", params=query).text
        return [(d["rank"], d["local_rank"], d["text"]) for kind, _, d in events(text) if kind == "line"]

    assert reported("job-2") == [
        (None, None, "trainmaster: says the runtime"),
        (3, 1, "[rank 9] my own words"),
        (None, None, "[rank 7] no rank here"),
    ]
    assert reported("job-2", search="^.rank 9. my") == [(3, 1, "[rank 9] my own words")]
    assert reported("job-1") == [(1, None, "[rank 5] my own words")]
    assert reported("job-1", rank=1) == reported("job-1")
    assert reported("job-1", rank=5) == []


def test_the_stream_tells_of_an_end_what_everybody_may_know(house: Any) -> None:
    end = {"kind": "user_error", "sentence": "It failed.", "exit_code": 3, "role": "worker", "index": 0}
    with unit_of_work(house.sessions) as session:
        job = house.add_job(session, "job-3", state="failed")
        job.exit = {**end, "signature": "abc", "has_progressed": False, "streak": 2}
    reported = events(house.call("viewer", "GET", "/jobs/job-3/logs/stream").text)
    assert [kind for kind, _, _ in reported] == ["state", "end"]
    for _, _, data in reported:
        assert data == {"state": "failed", "attempt_count": 1, "exit": end}


def test_an_attempt_can_be_named(written: Any) -> None:
    assert lines(stream(written, attempt=1).text) == ["old"]
    assert lines(stream(written, attempt=7).text) == []


def test_a_broken_stream_goes_on_after_the_last_id(written: Any) -> None:
    reported = [(event_id, data["text"]) for kind, event_id, data in events(stream(written).text) if kind == "line"]
    for number, (event_id, _) in enumerate(reported):
        assert event_id is not None
        rest = lines(stream(written, headers={"Last-Event-ID": event_id}).text)
        assert rest == [text for _, text in reported[number + 1 :]]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"role": "worker", "index": 1}, ["b", "d"]),
        ({"rank": 0}, ["a", "c"]),
        ({"search": "[ad]"}, ["a", "d"]),
        ({"tail_lines": 1}, ["c", "d"]),
        ({"tail_lines": 0}, []),
        ({"role": "ps"}, []),
    ],
)
def test_lines_are_chosen(written: Any, query: dict[str, Any], found: list[str]) -> None:
    assert lines(stream(written, **query).text) == found


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"search": "("}, "search"),
        ({"search": "x" * 1001}, "search"),
        ({"attempt": 0}, "attempt"),
        ({"role": "../x"}, "role"),
        ({"tail_lines": -1}, "tail_lines"),
    ],
)
def test_mistakes_are_reported_before_the_stream_begins(written: Any, query: dict[str, Any], field: str) -> None:
    answer = stream(written, **query)
    assert answer.status_code == 422
    assert answer.json()["field"] == field


@pytest.mark.parametrize(
    "cursor", ["x", "1;worker-0", "1;../x=3", "1;worker-0=-1", "99999999999999999999", "1;" + "a" * 99 + "=1"]
)
def test_a_foreign_id_is_refused(written: Any, cursor: str) -> None:
    assert stream(written, headers={"Last-Event-ID": cursor}).status_code == 422


def test_one_file_is_read_by_ranges_and_from_its_end(written: Any) -> None:
    path = "/jobs/job-1/logs/worker-0"
    whole = stamped(2, "a") + stamped(4, "c")
    answer = written.call("viewer", "GET", path)
    assert (answer.text, answer.headers["x-next-offset"], answer.headers["x-attempt"]) == (whole, str(len(whole)), "2")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert written.call("viewer", "GET", path, params={"tail_lines": 1}).text == stamped(4, "c")
    assert written.call("viewer", "GET", path, params={"attempt": 1}).text == stamped(1, "old")
    part = written.call("viewer", "GET", path, params={"offset": 10, "limit_bytes": 5})
    assert (part.text, part.headers["x-next-offset"]) == (whole[10:15], "15")
    ranged = written.call("viewer", "GET", path, headers={"Range": "bytes=5-9"})
    assert (ranged.status_code, ranged.text) == (206, whole[5:10])
    assert written.call("viewer", "GET", path, params={"offset": 10**9}).text == ""


@pytest.mark.parametrize(
    ("name", "status"), [("worker-9", 404), ("..%2F..%2Fsecret", 404), ("stream-x", 404), ("worker", 404)]
)
def test_a_log_that_is_not_there_is_not_found(written: Any, name: str, status: int) -> None:
    assert written.call("viewer", "GET", f"/jobs/job-1/logs/{name}").status_code == status


def test_a_job_without_output_on_a_volume_that_is_away_says_so(written: Any) -> None:
    written.output.rename(written.output.parent / "away")
    answer = written.call("viewer", "GET", "/jobs/job-1/logs")
    assert answer.status_code == 503
    assert "Volume output is not there now" in answer.json()["detail"]


def test_ranks_are_those_that_the_processes_are_reported() -> None:
    spec = parse_spec(
        {
            "name": "x",
            "command": "true",
            "roles": {
                "ps": {"replicas": 1},
                "worker": {"replicas": 2, "processes_per_replica": 2},
                "chief": {"replicas": 1},
            },
        }
    )
    assert ranks_of(spec) == {("chief", 0): (0, 1), ("worker", 0): (1, 2), ("worker", 1): (3, 2)}
