"""Where the code of two jobs differs: from archives as users send them, and from such as nobody should."""

from __future__ import annotations

import gzip
import hashlib
import io
import struct
import tarfile
from collections.abc import Mapping
from typing import Any

import pytest

from api.archives import archive_store
from core.db.engine import unit_of_work
from core.db.tables import Job
from core.storage import code_listing


def tar_of(files: Mapping[str, bytes], *, links: Mapping[str, str] = {}) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for name, target in links.items():
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)
    return made.getvalue()


def give(house: Any, job: str, archive: bytes) -> None:
    """``job`` was submitted with these bytes as its code."""
    digest = "sha256:" + hashlib.sha256(archive).hexdigest()
    path = archive_store(house.app.state.context).path_of(digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(archive)
    with unit_of_work(house.sessions) as session:
        row = session.get(Job, job) or house.add_job(session, job)
        row.spec = {**row.spec, "code": digest}


def difference(house: Any, before: bytes, after: bytes) -> Any:
    give(house, "job-1", gzip.compress(before))
    give(house, "job-2", gzip.compress(after))
    return house.call("viewer", "GET", "/jobs/job-1/code/diff", params={"other": "job-2"})


def test_files_that_differ_come_with_their_texts(house: Any) -> None:
    same = {"data/same.txt": b"same\n"}
    answer = difference(
        house,
        tar_of({**same, "./train.py": b"lr = 1\n", "old.py": b"gone\n", "model.bin": b"\0\1"}, links={"run": "a.sh"}),
        tar_of(
            {**same, "train.py": b"lr = 2\n", "new.py": "größer\n".encode(), "model.bin": b"\0\2"},
            links={"run": "b.sh"},
        ),
    ).json()
    assert (answer["same_count"], answer["differ_count"]) == (1, 5)
    found = {item["path"]: item for item in answer["items"]}
    assert list(found) == ["model.bin", "new.py", "old.py", "run", "train.py"]
    assert (found["train.py"]["text_before"], found["train.py"]["text_after"]) == ("lr = 1\n", "lr = 2\n")
    assert (found["new.py"]["change"], found["new.py"]["text_after"]) == ("added", "größer\n")
    assert (found["old.py"]["change"], found["old.py"]["size_before"]) == ("removed", 5)
    assert (found["model.bin"]["text_after"], found["model.bin"]["note"]) == (None, "It is not text.")
    assert found["run"]["text_after"] == "a link to b.sh\n"


def test_a_job_without_code_has_no_files_and_equal_code_no_difference(house: Any) -> None:
    give(house, "job-2", gzip.compress(tar_of({"train.py": b"x\n"})))
    (item,) = house.call("viewer", "GET", "/jobs/job-1/code/diff", params={"other": "job-2"}).json()["items"]
    assert (item["path"], item["change"]) == ("train.py", "added")
    assert house.call("viewer", "GET", "/jobs/job-2/code/diff", params={"other": "job-2"}).json()["differ_count"] == 0


def test_the_code_of_a_job_that_one_may_not_see_is_not_compared(house: Any) -> None:
    with unit_of_work(house.sessions) as session:
        house.add_job(session, "job-theirs", project="other")
    answer = house.call("viewer", "GET", "/jobs/job-1/code/diff", params={"other": "job-theirs"})
    assert answer.status_code == 404


def test_a_large_text_is_named_and_not_sent(house: Any) -> None:
    answer = difference(house, tar_of({"a.txt": b"x"}), tar_of({"a.txt": b"y" * (code_listing.TEXT_LIMIT + 1)})).json()
    assert answer["items"][0]["text_before"] is None
    assert "larger than" in answer["items"][0]["note"]


def header(name: str, size: int, kind: bytes = b"0") -> bytes:
    """One block of a tar file whose size is whatever it claims, negative too."""
    member = tarfile.TarInfo(name)
    member.type = kind
    block = bytearray(member.tobuf(tarfile.USTAR_FORMAT)[:512])
    block[124:136] = struct.pack(">B3xq", 0x80, size) if size >= 0 else b"\xff" * 4 + struct.pack(">q", size)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


HOSTILE = {
    "not gzip": b"\x1f\x8bnothing of that kind",
    "cut short": gzip.compress(tar_of({"a": b"x" * 100_000}))[:-20],
    "ends inside of a file": gzip.compress(header("a", 10**9) + b"x" * 512),
    "leads back": gzip.compress(header("a", -(2**20)) + tar_of({"b": b"x"})),
    "a header of a gigabyte": gzip.compress(header("a", 2**30, tarfile.XHDTYPE) + b"\0" * 2**20),
    "headers without end": gzip.compress(
        (header("g", 512, tarfile.XGLTYPE) + b"13 aaaa=bbbb\n".ljust(512, b"\0")) * 3000
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_archives_get_a_sentence(house: Any, kind: str) -> None:
    give(house, "job-2", HOSTILE[kind])
    answer = house.call("viewer", "GET", "/jobs/job-1/code/diff", params={"other": "job-2"})
    assert answer.status_code == 422, answer.text
    assert "code archive" in answer.json()["detail"]


def test_a_bomb_ends_at_the_limit_and_so_do_many_files(house: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_listing, "UNPACKED_LIMIT", 2**20)
    answer = difference(house, tar_of({}), tar_of({"zeros": bytes(2**21)}))
    assert (answer.status_code, "too large" in answer.json()["detail"]) == (422, True)
    monkeypatch.setattr(code_listing, "FILE_LIMIT", 3)
    answer = difference(house, tar_of({}), tar_of({str(n): b"" for n in range(4)}))
    assert (answer.status_code, "more than 3 files" in answer.json()["detail"]) == (422, True)


def test_an_archive_that_was_swept_away_is_not_found(house: Any) -> None:
    give(house, "job-2", gzip.compress(tar_of({"a": b"x"})))
    for archive in house.settings.archive_dir.rglob("*.tar.gz"):
        archive.unlink()
    assert house.call("viewer", "GET", "/jobs/job-1/code/diff", params={"other": "job-2"}).status_code == 404
