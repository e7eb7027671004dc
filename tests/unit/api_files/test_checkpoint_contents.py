"""The inside of checkpoints over HTTP: lists, figures, differences, keeping, deleting, downloading, going on from
one.
"""

from __future__ import annotations

import io
import json
import os
import struct
import tarfile
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import select

from core.db.engine import unit_of_work
from core.db.repositories.metrics.writes import StreamKey, add_metrics
from core.db.tables import Attempt, Checkpoint, Job
from core.domain.metrics import Points

INSIDE = "/jobs/job-1/checkpoints"


def safetensors(tensors: Mapping[str, Sequence[Sequence[float]]]) -> bytes:
    header, data = {}, b""
    for name, rows in tensors.items():
        flat = [value for row in rows for value in row]
        packed = struct.pack(f"<{len(flat)}f", *flat)
        offsets = [len(data), len(data) + len(packed)]
        header[name] = {"dtype": "F32", "shape": [len(rows), len(rows[0])], "data_offsets": offsets}
        data += packed
    reported = json.dumps(header).encode()
    return struct.pack("<Q", len(reported)) + reported + data


@pytest.fixture
def put(house: Any) -> Any:
    """``put("checkpoints/a.safetensors", {"w": [[1, 2]]})`` writes a file into the job's output; bytes as they are."""

    def write(path: str, content: Any) -> str:
        target = house.output / "vision/job-1" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else safetensors(content))
        return path

    return write


def get(house: Any, part: str = "", **params: Any) -> Any:
    answer = house.call("viewer", "GET", f"{INSIDE}{part}", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_what_lands_is_listed_complete_or_not(house: Any, put: Any) -> None:
    put("checkpoints/step-1.safetensors", {"w": [[1.0]]})
    put("checkpoints/step-2.safetensors", safetensors({"w": [[1.0, 2.0]]})[:-3])
    put("checkpoints/.step-00000003.a1.partial/state.pt", b"x")
    put("checkpoints/step-4/.complete", b"")
    put("checkpoints/ckpt-5.data-00000-of-00001", b"x")
    put("checkpoints/step-6.npz.tmp", b"x")
    put("runs/checkpoint-7/trainer_state.json", b"{}")
    put("best.ckpt", b"\x80\x02}q\x00.")
    assert [item["path"] for item in get(house)["items"]] == [
        "checkpoints/step-4",
        "checkpoints/step-1.safetensors",
        "best.ckpt",
    ]
    every = {item["path"]: item for item in get(house, incomplete=True)["items"]}
    problems = {path: item["problem"] for path, item in every.items() if not item["is_complete"]}
    assert set(problems) == {
        "checkpoints/step-2.safetensors",
        "checkpoints/.step-00000003.a1.partial",
        "checkpoints/ckpt-5",
        "checkpoints/step-6.npz.tmp",
    }
    assert "cut short" in problems["checkpoints/step-2.safetensors"]
    assert ".index, which comes last" in problems["checkpoints/ckpt-5"]
    assert {path: item["step"] for path, item in every.items()}["checkpoints/.step-00000003.a1.partial"] == 3


def test_of_more_than_can_be_listed_the_newest_are(house: Any, put: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("core.inspection.discovery.ENTRY_LIMIT", 3)
    for step in (5, 1, 4, 2, 3):
        put(f"checkpoints/step-{step}.pt", b"x")
        os.utime(house.output / f"vision/job-1/checkpoints/step-{step}.pt", (step, step))
    assert [item["step"] for item in get(house)["items"]] == [5, 4, 3]


def test_metrics_at_its_step_are_those_that_the_job_reported_then(house: Any, put: Any) -> None:
    put("checkpoints/step-20.pt", b"x")
    put("checkpoints/step-30.pt", b"x")
    with unit_of_work(house.sessions) as session:
        points = Points([10, 20, 30], [1, 2, 3], [0.5, 0.25, float("nan")])
        add_metrics(session, StreamKey("job-1", 1, "worker", 0), {"loss": points, "system/cpu": points}, now=house.now)
    assert {item["step"]: item["metrics"] for item in get(house)["items"]} == {20: {"loss": 0.25}, 30: {}}


def test_tensors_in_pages_with_what_tells_of_all_of_them(house: Any, put: Any) -> None:
    path = put("checkpoints/a.safetensors", {"enc.w": [[1, 2]], "enc.b": [[3]], "optimizer.m": [[0, 0]]})
    page = get(house, "/tensors", path=path, limit=2)
    assert (page["format"], page["tensor_count"], page["weight_count"]) == ("safetensors", 3, 3)
    assert (page["weight_bytes"], page["optimizer_bytes"]) == (12, 8)
    assert [(item["name"], item["shape"], item["kind"], item["layer"]) for item in page["items"]] == [
        ("enc.w", [1, 2], "weight", "enc"),
        ("enc.b", [1, 1], "weight", "enc"),
    ]
    rest = get(house, "/tensors", path=path, limit=2, cursor=page["next_cursor"])
    assert ([item["name"] for item in rest["items"]], rest["next_cursor"]) == (["optimizer.m"], None)
    assert [item["name"] for item in get(house, "/tensors", path=path, search="ENC")["items"]] == ["enc.w", "enc.b"]
    assert [item["name"] for item in get(house, "/tensors", path=path, kind="optimizer")["items"]] == ["optimizer.m"]


def test_what_was_refused_is_not_looked_into_again_until_it_changes(
    house: Any, put: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put("checkpoints/a.safetensors", struct.pack("<Q", 2) + b"[]")
    looks = []
    inspectors = house.app.state.checkpoint_inspector.inspectors
    contents = inspectors.contents
    monkeypatch.setattr(inspectors, "contents", lambda *what, **more: looks.append(what) or contents(*what, **more))
    answers = [house.call("viewer", "GET", f"{INSIDE}/tensors", params={"path": path}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [answers[0].status_code] * 3
    assert {answer.json()["code"] for answer in answers} == {"checkpoint_unreadable"}
    assert {answer.json()["detail"] for answer in answers} == {answers[0].json()["detail"]}
    assert len(looks) == 1
    put(path, {"w": [[1, 2]]})
    assert get(house, "/tensors", path=path)["tensor_count"] == 1
    assert len(looks) == 2


def test_figures_are_retained_until_the_file_changes(house: Any, put: Any) -> None:
    path = put("checkpoints/a.safetensors", {"w": [[1, -3]], "bad": [[float("nan"), float("inf")]]})
    first = {item["name"]: item for item in get(house, "/statistics", path=path)["items"]}
    assert (first["w"]["minimum"], first["w"]["maximum"], first["w"]["mean"]) == (-3, 1, -1)
    assert first["w"]["norm"] == pytest.approx(10**0.5)
    assert sum(first["w"]["histogram"]["counts"]) == 2
    assert (first["bad"]["nan_count"], first["bad"]["infinite_count"], first["bad"]["mean"]) == (1, 1, None)
    retained = list((house.settings.home / "inspection").iterdir())
    assert len(retained) == 1
    assert get(house, "/statistics", path=path, tensor="w")["items"] == [first["w"]]
    put(path, {"w": [[5, 5]]})
    assert get(house, "/statistics", path=path)["items"][0]["mean"] == 5


def test_a_difference_tells_what_came_went_and_moved(house: Any, put: Any) -> None:
    before = put("checkpoints/a.safetensors", {"l.w": [[3, 4]], "l.same": [[1]], "gone": [[1]], "s": [[1, 2]]})
    after = put("checkpoints/b.safetensors", {"l.w": [[6, 8]], "l.same": [[1]], "new": [[1]], "s": [[1], [2]]})
    page = get(house, "/diff", path=before, other=after)
    found = {item["name"]: item for item in page["items"]}
    assert {name: item["change"] for name, item in found.items()} == {
        "gone": "removed",
        "s": "reshaped",
        "new": "added",
        "l.w": "moved",
        "l.same": "same",
    }
    assert (page["removed_count"], page["added_count"], page["reshaped_count"], page["common_count"]) == (1, 1, 1, 2)
    assert (found["l.w"]["relative_norm"], found["l.w"]["cosine"]) == (pytest.approx(1.0), pytest.approx(1.0))
    assert (found["s"]["shape_before"], found["s"]["shape_after"]) == ([1, 2], [2, 1])
    (layer,) = page["layers"]
    assert (layer["layer"], layer["tensor_count"]) == ("l", 2)
    assert layer["relative_norm"] == pytest.approx(5 / 26**0.5)
    again = [get(house, "/diff", path=before, other=after, limit=1)]
    while again[-1]["next_cursor"]:
        again.append(get(house, "/diff", path=before, other=after, limit=1, cursor=again[-1]["next_cursor"]))
    assert [item for one in again for item in one["items"]] == page["items"]
    assert again[-1]["layers"] == page["layers"]


def test_a_difference_with_another_job_needs_the_right_to_see_that(house: Any, put: Any) -> None:
    path = put("checkpoints/a.safetensors", {"w": [[1]]})
    answer = house.call("viewer", "GET", f"{INSIDE}/diff", params={"path": path, "other": path, "other_job": "job-x"})
    assert answer.status_code == 404


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        ("checkpoints/a.safetensors", b"\xff" * 64, 422),
        ("checkpoints/a.pt", b"PK\x03\x04 half of it", 422),
        ("checkpoints/none.pt", None, 404),
        ("../job-2/a.pt", None, 422),
        ("checkpoints", None, 404),
    ],
)
def test_what_cannot_be_looked_into_is_reported_in_a_sentence(
    house: Any, put: Any, path: str, content: bytes | None, status: int
) -> None:
    if content is not None:
        put(path, content)
    for part in ("/tensors", "/statistics"):
        answer = house.call("viewer", "GET", INSIDE + part, params={"path": path})
        assert answer.status_code == status, answer.text
        assert answer.json()["detail"].endswith(".")


def test_a_link_out_of_the_output_is_not_there(house: Any, put: Any) -> None:
    put("checkpoints/x.pt", b"\x80\x02}q\x00.")
    (house.output / "vision/job-1/checkpoints/a.pt").symlink_to("/etc/passwd")
    for part in ("/tensors", "/content"):
        assert house.call("viewer", "GET", INSIDE + part, params={"path": "checkpoints/a.pt"}).status_code == 404


def test_a_folder_comes_as_a_tar_and_a_file_as_it_is(house: Any, put: Any) -> None:
    put("checkpoints/step-1/state.pt", b"abc")
    put("checkpoints/step-1/deep/more.bin", b"d" * 600)
    put("checkpoints/step-1/.complete", b"")
    path = put("checkpoints/a.pt", b"0123456789")
    answer = house.call("viewer", "GET", f"{INSIDE}/content", params={"path": "checkpoints/step-1"})
    assert int(answer.headers["content-length"]) == len(answer.content)
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
        assert sorted(tar.getnames()) == ["step-1/.complete", "step-1/deep/more.bin", "step-1/state.pt"]
        member = tar.extractfile("step-1/deep/more.bin")
        assert member is not None
        assert member.read() == b"d" * 600
    part = house.call("viewer", "GET", f"{INSIDE}/content", params={"path": path}, headers={"Range": "bytes=2-4"})
    assert (part.status_code, part.content) == (206, b"234")


def test_who_is_retained_or_in_use_is_not_deleted(house: Any, put: Any) -> None:
    path = put("checkpoints/a.pt", b"x")
    used = put("checkpoints/b.pt", b"x")
    with unit_of_work(house.sessions) as session:
        job = session.get(Job, "job-1")
        session.execute(
            select(Attempt).where(Attempt.job_id == job.id)
        ).scalars().first().resume_from = f"/data/output/{used}"
        session.add(
            Checkpoint(id="c1", job_id="job-1", attempt_id="attempt-1", path=path, step=1, created_at=house.now)
        )
    assert house.call("member", "PUT", f"{INSIDE}/kept", params={"path": path}).status_code == 204
    marks = {item["path"]: (item["is_pinned"], item["is_in_use"]) for item in get(house)["items"]}
    assert marks == {path: (True, False), used: (False, True)}
    for one, word in ((path, "is pinned"), (used, "in use")):
        refused = house.call("member", "DELETE", INSIDE, params={"path": one})
        assert refused.status_code == 409
        assert word in refused.json()["detail"]
    assert house.call("member", "DELETE", f"{INSIDE}/kept", params={"path": path}).status_code == 204
    assert house.call("member", "DELETE", INSIDE, params={"path": path}).status_code == 204
    assert [item["path"] for item in get(house)["items"]] == [used]


def test_a_folder_that_is_retained_carries_a_mark_for_who_removes_old_ones(house: Any, put: Any) -> None:
    put("checkpoints/step-1/.complete", b"")
    mark = house.output / "vision/job-1/checkpoints/step-1/.kept"
    where = {"path": "checkpoints/step-1"}
    assert house.call("member", "PUT", f"{INSIDE}/kept", params=where).status_code == 204
    assert mark.exists()
    assert house.call("member", "DELETE", f"{INSIDE}/kept", params=where).status_code == 204
    assert not mark.exists()


def test_a_retention_must_say_something(house: Any) -> None:
    assert get(house, "/retention")["last"] is None
    for body, field in (({}, "last"), ({"best": 1}, "metric"), ({"metric": "loss", "last": 1}, "metric")):
        refused = house.call("member", "PUT", f"{INSIDE}/retention", json=body)
        assert (refused.status_code, refused.json()["field"]) == (422, field)
    body = {"last": 2, "best": 1, "metric": "loss", "every": 100}
    assert house.call("member", "PUT", f"{INSIDE}/retention", json=body).status_code == 200
    reported = get(house, "/retention")
    assert (reported["last"], reported["best"], reported["metric"], reported["every"], reported["user"]) == (
        2,
        1,
        "loss",
        100,
        "member",
    )
    assert house.call("member", "DELETE", f"{INSIDE}/retention").status_code == 204
    assert get(house, "/retention")["last"] is None


def test_a_running_job_is_stopped_to_go_on_from_the_one_that_was_chosen(house: Any, put: Any) -> None:
    path = put("checkpoints/step-1.pt", b"x")
    answer = house.call("member", "POST", "/jobs/job-1/resume", json={"checkpoint": path})
    assert answer.status_code == 200, answer.text
    with unit_of_work(house.sessions) as session:
        job = session.get(Job, "job-1")
        stops = session.scalars(select(Attempt.stop).where(Attempt.job_id == "job-1", Attempt.ended_at.is_(None))).all()
        assert (job.desired_state, job.resume_choice["path"]) == ("run", path)
        assert [stop["cause"] for stop in stops] == ["pause"]
    for wrong, status in (("checkpoints/none.pt", 404), ("../x.pt", 422)):
        assert house.call("member", "POST", "/jobs/job-1/resume", json={"checkpoint": wrong}).status_code == status


def test_a_job_that_has_ended_is_not_resumed_but_forked(house: Any, put: Any) -> None:
    path = put("checkpoints/step-1.pt", b"x")
    with unit_of_work(house.sessions) as session:
        session.get(Job, "job-1").state = "failed"
    refused = house.call("member", "POST", "/jobs/job-1/resume", json={"checkpoint": path})
    assert refused.status_code == 409
    assert "clone it" in refused.json()["detail"]
    made = house.call("member", "POST", "/jobs/job-1/clone", json={"checkpoint": path})
    assert made.status_code == 201, made.text
    with unit_of_work(house.sessions) as session:
        assert session.get(Job, made.json()["id"]).resume_from == f"/data/resume/{path}"
    marks = {item["path"]: item["is_in_use"] for item in get(house)["items"]}
    assert marks[path]


def test_one_that_is_not_complete_is_no_place_to_go_on_from(house: Any, put: Any) -> None:
    put("checkpoints/step-2.safetensors", safetensors({"w": [[1.0, 2.0]]})[:-3])
    refused = house.call("member", "POST", "/jobs/job-1/resume", json={"checkpoint": "checkpoints/step-2.safetensors"})
    assert refused.status_code == 409
    assert "not complete" in refused.json()["detail"]


def test_an_older_file_with_the_same_name_is_another_state(house: Any, put: Any) -> None:
    path = put("checkpoints/a.safetensors", {"w": [[1.0]]})
    assert get(house, "/statistics", path=path)["items"][0]["mean"] == 1
    put(path, {"w": [[2.0]]})
    os.utime(house.output / "vision/job-1" / path, (1, 1))
    house.now += timedelta(seconds=1)
    assert get(house, "/statistics", path=path)["items"][0]["mean"] == 2
