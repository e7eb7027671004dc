from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from trainmaster import Client
from trainmaster.client.flows import transfer
from trainmaster.errors import LocalFileProblem, NotFound, ServerFailure

CONTENT = "/jobs/mnist/files/content"
DIGEST = "sha256:" + "a" * 64


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "WINDOW_BYTES", 10)
    monkeypatch.setattr(transfer, "CHUNK_BYTES", 10)


class RangeFile:
    """A file on the server that is read by ranges, and may change or break."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.version = 1
        self.requested: list[str] = []
        self.breaks_at: set[int] = set()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        wanted = request.headers.get("Range")
        tag = {"ETag": f'"{self.version}"'}
        if wanted is None:
            return httpx.Response(200, content=self.content, headers=tag)
        self.requested.append(wanted)
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted)
        assert match is not None
        first, last = int(match[1]), min(int(match[2]), len(self.content) - 1)
        if first in self.breaks_at:
            self.breaks_at.discard(first)
            raise httpx.ReadError("reset")
        if first >= len(self.content):
            return httpx.Response(
                416, json={"code": "range_not_satisfiable", "status": 416, "detail": "Behind the end."}
            )
        span = {"Content-Range": f"bytes {first}-{last}/{len(self.content)}", **tag}
        return httpx.Response(206, content=self.content[first : last + 1], headers=span)


@pytest.fixture
def remote(server: Any) -> RangeFile:
    found = RangeFile(bytes(range(35)))
    server.on("GET", CONTENT, found)
    return found


def test_a_file_comes_window_by_window(client: Client, remote: RangeFile, tmp_path: Path) -> None:
    reported: list[tuple[int, int]] = []
    path = client.download_file(
        "mnist", "out/m.bin", tmp_path, progress=lambda done, total: reported.append((done, total))
    )
    assert path == tmp_path / "m.bin"
    assert path.read_bytes() == remote.content
    assert reported == [(10, 35), (20, 35), (30, 35), (35, 35)]


def test_a_broken_window_is_requested_again(client: Client, remote: RangeFile, tmp_path: Path) -> None:
    remote.breaks_at = {10, 30}
    assert client.download_file("mnist", "m.bin", tmp_path).read_bytes() == remote.content


def test_a_later_call_goes_on_where_a_broken_one_stopped(
    client: Client, remote: RangeFile, server: Any, tmp_path: Path
) -> None:
    def until_twenty(request: httpx.Request) -> httpx.Response:
        return httpx.Response(404) if "bytes=20-" in request.headers["Range"] else remote(request)

    server.on("GET", CONTENT, until_twenty)
    with pytest.raises(NotFound):
        client.download_file("mnist", "m.bin", tmp_path)
    (part,) = tmp_path.glob(".m.bin.*.part")
    assert part.stat().st_size == 20
    assert not (tmp_path / "m.bin").exists()

    remote.requested.clear()
    server.on("GET", CONTENT, remote)
    assert client.download_file("mnist", "m.bin", tmp_path).read_bytes() == remote.content
    assert remote.requested == ["bytes=0-9", "bytes=20-29", "bytes=30-39"]
    assert list(tmp_path.iterdir()) == [tmp_path / "m.bin"]


def test_parts_of_another_version_are_not_mixed_in(client: Client, remote: RangeFile, tmp_path: Path) -> None:
    (tmp_path / ".m.bin.000000000000.part").write_bytes(b"x" * 25)
    assert client.download_file("mnist", "m.bin", tmp_path).read_bytes() == remote.content
    assert list(tmp_path.iterdir()) == [tmp_path / "m.bin"]


def test_a_file_that_changes_once_is_copied_anew(
    client: Client, remote: RangeFile, server: Any, tmp_path: Path
) -> None:
    def changing(request: httpx.Request) -> httpx.Response:
        if "bytes=20-" in request.headers["Range"] and remote.version == 1:
            remote.version, remote.content = 2, b"y" * 40
        return remote(request)

    server.on("GET", CONTENT, changing)
    assert client.download_file("mnist", "m.bin", tmp_path).read_bytes() == b"y" * 40


def test_a_file_that_never_stands_still_is_reported(
    client: Client, remote: RangeFile, server: Any, tmp_path: Path
) -> None:
    def growing(request: httpx.Request) -> httpx.Response:
        remote.version += 1
        return remote(request)

    server.on("GET", CONTENT, growing)
    with pytest.raises(ServerFailure, match="changes during the download"):
        client.download_file("mnist", "m.bin", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_is_copied(client: Client, remote: RangeFile, tmp_path: Path) -> None:
    remote.content = b""
    assert client.download_file("mnist", "m.bin", tmp_path / "new" / "name").read_bytes() == b""


def test_an_old_file_stays_until_the_new_one_is_whole(client: Client, server: Any, tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_text("old")
    with pytest.raises(NotFound):
        client.download_file("mnist", "m.bin", tmp_path)
    assert (tmp_path / "m.bin").read_text() == "old"


def test_a_target_that_cannot_be_written_is_reported(client: Client, remote: RangeFile, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalFileProblem, match="cannot be written"):
        client.download_file("mnist", "m.bin", tmp_path / "file" / "m.bin")


class ArchiveStore:
    """The server's side of an upload."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.received = b""
        self.offsets: list[int] = []
        self.loses_answer_at: int | None = None

    def view(self) -> dict[str, Any]:
        done = len(self.received)
        return {"digest": DIGEST, "size_bytes": self.size, "received_bytes": done, "is_complete": done == self.size}

    def look(self, _request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, json=self.view())

    def append(self, request: httpx.Request) -> httpx.Response:
        offset = int(request.url.params["offset"])
        self.offsets.append(offset)
        if offset != len(self.received):
            return httpx.Response(409, json={"code": "conflict", "status": 409, "detail": "Elsewhere."})
        self.received += request.content
        if self.loses_answer_at == offset:
            self.loses_answer_at = None
            raise httpx.ReadError("reset")
        return self.look(request)


@pytest.fixture
def store(server: Any) -> ArchiveStore:
    found = ArchiveStore(35)
    server.on("POST", "/archives", found.look)
    server.on("PUT", f"/archives/{DIGEST}", found.append)
    server.on("GET", f"/archives/{DIGEST}", found.look)
    return found


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "code.tar.gz"
    path.write_bytes(bytes(range(35)))
    return path


def test_an_archive_goes_chunk_by_chunk(client: Client, store: ArchiveStore, archive: Path) -> None:
    reported: list[int] = []
    assert client.upload_archive(archive, digest=DIGEST, progress=lambda done, _: reported.append(done)).is_complete
    assert store.received == archive.read_bytes()
    assert reported == [0, 10, 20, 30, 35]


def test_a_known_archive_is_not_sent(client: Client, store: ArchiveStore, archive: Path) -> None:
    store.received = archive.read_bytes()
    client.upload_archive(archive, digest=DIGEST)
    assert store.offsets == []


def test_a_chunk_whose_answer_was_lost_is_not_sent_twice(client: Client, store: ArchiveStore, archive: Path) -> None:
    store.loses_answer_at = 10
    client.upload_archive(archive, digest=DIGEST)
    assert store.received == archive.read_bytes()
    assert store.offsets == [0, 10, 10, 20, 30]


def test_an_archive_that_is_gone_is_reported(client: Client, store: ArchiveStore, tmp_path: Path) -> None:
    with pytest.raises(LocalFileProblem, match="cannot be read"):
        client.upload_archive(tmp_path / "absent", digest=DIGEST)


def test_a_folder_that_the_spec_check_refuses_is_not_packed(
    client: Client, server: Any, problem: Any, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("")
    server.on("POST", "/jobs", problem(422, "invalid_spec", "The spec has a mistake."))
    with pytest.raises(Exception, match="The spec has a mistake"):
        client.run(tmp_path, "python train.py", gpus=1)
    assert [request.url.path for request in server.requests] == ["/api/v1/jobs"]
    assert server.bodies("POST", "/jobs")[0]["dry_run"] is True
