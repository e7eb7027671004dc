from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

CONTENT = "/jobs/job-1/files/content"


@pytest.fixture
def folder(house: Any) -> Path:
    path: Path = house.output / "vision" / "job-1"
    path.mkdir(parents=True)
    (path / "model.bin").write_bytes(bytes(range(256)) * 4000)
    (path / "sub").mkdir()
    (path / "sub" / "notes.txt").write_text("grüße")
    return path


def test_a_folder_is_listed_page_by_page(house: Any, folder: Path) -> None:
    for number in range(5):
        (folder / f"f{number}").touch()
    names: list[str] = []
    cursor = ""
    while True:
        page = house.call("viewer", "GET", "/jobs/job-1/files", params={"limit": 3, "cursor": cursor}).json()
        names += [entry["path"] for entry in page["items"]]
        cursor = page["next_cursor"]
        if not cursor:
            break
    assert names == ["f0", "f1", "f2", "f3", "f4", "model.bin", "sub"]
    entry = house.call("viewer", "GET", "/jobs/job-1/files", params={"path": "sub"}).json()["items"][0]
    assert (entry["path"], entry["is_dir"], entry["size_bytes"]) == ("sub/notes.txt", False, 7)


def test_a_job_that_has_not_started_has_an_empty_folder(house: Any) -> None:
    assert house.call("viewer", "GET", "/jobs/job-1/files").json() == {"items": [], "next_cursor": None}
    answer = house.call("viewer", "GET", "/jobs/job-1/files", params={"path": "nothing"})
    assert answer.status_code == 404


def test_a_link_is_reported_as_one(house: Any, folder: Path) -> None:
    (folder / "loop").symlink_to(".")
    (folder / "real").mkdir()
    listed = house.call("member", "GET", "/jobs/job-1/files").json()["items"]
    reported = {entry["path"]: (entry["is_dir"], entry["is_link"]) for entry in listed}
    assert reported["loop"] == (True, True)
    assert reported["real"] == (True, False)


def test_links_that_leave_the_output_are_neither_listed_nor_read(house: Any, folder: Path) -> None:
    (house.output / "secret").write_text("of another job")
    (folder / "out").symlink_to("../../secret")
    (folder / "abs").symlink_to("/etc")
    (folder / "in").symlink_to("sub/notes.txt")
    listed = [e["path"] for e in house.call("viewer", "GET", "/jobs/job-1/files").json()["items"]]
    assert listed == ["in", "model.bin", "sub"]
    for path in ("out", "abs/passwd", "../../secret", "/etc/passwd", "sub/../../../secret"):
        answer = house.call("viewer", "GET", CONTENT, params={"path": path})
        assert answer.status_code in (404, 422), path
        assert "of another job" not in answer.text
    assert house.call("viewer", "GET", CONTENT, params={"path": "in"}).text == "grüße"


@pytest.mark.parametrize(
    ("header", "status", "first", "last"),
    [
        ("bytes=0-0", 206, 0, 0),
        ("bytes=10-19", 206, 10, 19),
        ("bytes=1023990-", 206, 1023990, 1023999),
        ("bytes=-5", 206, 1023995, 1023999),
        ("bytes=1000000-9999999", 206, 1000000, 1023999),
        ("bytes=0-1,5-6", 200, 0, 1023999),
        ("lines=1-2", 200, 0, 1023999),
        ("bytes=5-1", 200, 0, 1023999),
    ],
)
def test_a_range_gives_exactly_these_bytes(
    house: Any, folder: Path, header: str, status: int, first: int, last: int
) -> None:
    answer = house.call("viewer", "GET", CONTENT, params={"path": "model.bin"}, headers={"Range": header})
    assert answer.status_code == status
    assert answer.content == (folder / "model.bin").read_bytes()[first : last + 1]
    assert answer.headers["content-length"] == str(last - first + 1)
    if status == 206:
        assert answer.headers["content-range"] == f"bytes {first}-{last}/1024000"


@pytest.mark.parametrize("header", ["bytes=1024000-", "bytes=9999999-99999999", "bytes=-0"])
def test_a_range_behind_the_end_is_a_problem_with_the_size(house: Any, folder: Path, header: str) -> None:
    answer = house.call("viewer", "GET", CONTENT, params={"path": "model.bin"}, headers={"Range": header})
    assert answer.status_code == 416
    assert answer.json()["code"] == "range_not_satisfiable"
    assert "1024000" in answer.json()["detail"]
    assert answer.headers["content-range"] == "bytes */1024000"


def test_a_known_file_is_not_sent_again_and_a_changed_one_breaks_the_range(house: Any, folder: Path) -> None:
    first = house.call("viewer", "HEAD", CONTENT, params={"path": "model.bin"})
    assert (first.status_code, first.content, first.headers["content-length"]) == (200, b"", "1024000")
    tag = first.headers["etag"]
    again = house.call("viewer", "GET", CONTENT, params={"path": "model.bin"}, headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    ranged = {"Range": "bytes=0-9", "If-Range": tag}
    assert house.call("viewer", "GET", CONTENT, params={"path": "model.bin"}, headers=ranged).status_code == 206
    (folder / "model.bin").write_bytes(b"new")
    whole = house.call("viewer", "GET", CONTENT, params={"path": "model.bin"}, headers=ranged)
    assert (whole.status_code, whole.content) == (200, b"new")


def test_a_page_of_a_job_cannot_act_as_a_page_of_the_platform(house: Any, folder: Path) -> None:
    name = 'evil"\r\nSet-Cookie: x=1;.html'
    (folder / name).write_text("<script>")
    answer = house.call("viewer", "GET", CONTENT, params={"path": name})
    assert answer.status_code == 200
    assert answer.headers["content-disposition"].startswith("attachment;")
    assert "set-cookie" not in answer.headers
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in answer.headers["content-security-policy"]


def test_an_unreadable_thing_is_reported_in_one_sentence(house: Any, folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    for path in ("pipe", "sub", ""):
        answer = house.call("viewer", "GET", CONTENT, params={"path": path})
        assert answer.status_code == 422
        assert "not a file" in answer.json()["detail"]


def test_no_descriptor_stays_open(house: Any, folder: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for header in ({}, {"Range": "bytes=0-1"}, {"Range": "bytes=99999999-"}, {"If-None-Match": "*"}):
        for _ in range(5):
            house.call("viewer", "GET", CONTENT, params={"path": "model.bin"}, headers=header)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 2  # a database connection may have been made


def test_a_download_is_whole_also_when_pressed_answers_are_taken(house: Any, folder: Path) -> None:
    answer = house.call("viewer", "GET", CONTENT, params={"path": "sub/notes.txt"}, headers={"Accept-Encoding": "gzip"})
    assert answer.headers["content-length"] == "7"
    assert "content-encoding" not in answer.headers
    big = house.call("viewer", "GET", CONTENT, params={"path": "model.bin"}, headers={"Accept-Encoding": "gzip"})
    digest = hashlib.sha256((folder / "model.bin").read_bytes()).hexdigest()
    assert hashlib.sha256(big.content).hexdigest() == digest
