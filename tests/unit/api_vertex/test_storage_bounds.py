"""Uploads to buckets that are too large, or find no room: refused before anything is written, and nothing is left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from api.protocols.gcs import upload_limits
from api.protocols.gcs.buckets import Bucket
from api.protocols.gcs.upload_limits import UploadLimit, UploadMeter
from core.domain.errors import InsufficientStorage, PayloadTooLarge
from core.settings import Settings
from core.storage import volumes
from core.storage.tree import Tree
from tests.unit.api_vertex.one_database import database_url  # noqa: F401 (a fixture)
from tests.unit.api_vertex.test_storage import UPLOAD, begin, error_of, multipart

LIMIT = 1000


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return settings.model_copy(update={"object_limit_bytes": LIMIT})


@pytest.fixture
def data(settings: Settings, client: TestClient) -> Path:
    return settings.home / "data"


class Disk:
    """What the volume says that it has free."""

    def __init__(self) -> None:
        self.free = 2**40
        self.requested = 0

    def __call__(self, fd: int) -> Any:
        self.requested += 1
        return SimpleNamespace(f_bavail=self.free, f_blocks=self.free, f_frsize=1, f_files=0)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    found = Disk()
    monkeypatch.setattr(volumes, "os", SimpleNamespace(fstatvfs=found))
    return found


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_what_is_too_large_is_refused_by_its_announced_length(client: TestClient, data: Path) -> None:
    """Not a byte of these bodies is there to be read: each length is told in a header alone."""
    says = {"content-length": str(LIMIT + 1)}
    for answer in (
        client.post(f"{UPLOAD}/data/o?uploadType=media&name=x", content=iter(()), headers=says),
        client.post(
            f"{UPLOAD}/data/o?uploadType=resumable",
            json={"name": "x"},
            headers={"x-upload-content-length": str(LIMIT + 1)},
        ),
        client.put(begin(client, "x"), headers={"content-range": f"bytes 0-9/{LIMIT + 1}"}, content=b"0123456789"),
        client.put(begin(client, "x"), headers={"content-range": f"bytes 0-{LIMIT}/*"}, content=b"x" * (LIMIT + 1)),
    ):
        message = error_of(answer, 413)
        assert "1,000 bytes" in message
        assert "TRAINMASTER_OBJECT_LIMIT_BYTES" in message
        assert answer.json()["error"]["errors"][0]["reason"] == "uploadTooLarge"
    assert "TRAINMASTER_OBJECT_LIMIT_BYTES" in error_of(multipart(client, "x", b"x" * 2 * LIMIT), 413)
    assert files(data) == []  # sessions that cannot end have no drafts either
    assert "no number of bytes" in error_of(
        client.post(
            f"{UPLOAD}/data/o?uploadType=resumable", json={"name": "x"}, headers={"x-upload-content-length": "-5"}
        ),
        400,
    )


def test_a_body_without_a_length_is_stopped_where_it_is_too_large(client: TestClient, data: Path) -> None:
    (data / "kept").write_bytes(b"old")

    def body(size: int) -> Iterator[bytes]:
        yield from (b"x" * 100 for _ in range(size // 100))

    for size, status in ((LIMIT + 100, 413), (LIMIT, 200)):
        places = [f"{UPLOAD}/data/o?uploadType=media&name=kept", begin(client, "more")]
        methods = ["POST", "PUT"]
        for method, place in zip(methods, places, strict=True):
            answer = client.request(method, place, content=body(size))
            assert answer.status_code == status, answer.text
        expected = b"old" if status == 413 else b"x" * LIMIT
        assert (data / "kept").read_bytes() == expected
    assert files(data) == ["kept", "more"]
    assert multipart(client, "whole", b"y" * LIMIT).status_code == 200
    assert multipart(client, "beyond", b"y" * (LIMIT + 1)).status_code == 413
    assert files(data) == ["kept", "more", "whole"]


def test_a_session_keeps_to_the_length_that_began_it(client: TestClient, data: Path) -> None:
    def session() -> str:
        reply = {"x-upload-content-length": "10"}
        begun = client.post(f"{UPLOAD}/data/o?uploadType=resumable", json={"name": "x"}, headers=reply)
        place: str = begun.headers["location"]
        return place

    assert client.put(session(), content=b"0123456789").status_code == 200
    assert "earlier had 10" in error_of(
        client.put(session(), content=b"01234", headers={"content-range": "bytes 0-4/5"}), 400
    )
    place = session()
    assert "more were received" in error_of(client.put(place, content=b"0123456789ab"), 400)
    assert client.put(place, content=b"01234").status_code == 308
    assert client.put(place, content=b"56789", headers={"content-range": "bytes 5-9/*"}).status_code == 200
    assert (data / "x").read_bytes() == b"0123456789"


def test_a_full_volume_says_so_before_it_is_written_to(client: TestClient, data: Path, disk: Disk) -> None:
    place = begin(client, "x")
    assert client.put(place, content=b"01234", headers={"content-range": "bytes 0-4/10"}).status_code == 308
    disk.free = volumes.RESERVE_BYTES + 5
    for answer in (
        client.post(f"{UPLOAD}/data/o?uploadType=media&name=x", content=b"x" * 10),
        client.post(
            f"{UPLOAD}/data/o?uploadType=resumable", json={"name": "x"}, headers={"x-upload-content-length": "10"}
        ),
        multipart(client, "x", b"x" * 900),
    ):
        message = error_of(answer, 507)
        assert "Bucket data has no room" in message
        assert "ask an admin" in message
    assert client.put(place, content=b"56789", headers={"content-range": "bytes 5-9/10"}).status_code == 200
    assert files(data) == ["x"]
    place = begin(client, "y")
    disk.free = 0
    error_of(client.put(place, content=b"0123456789"), 507)
    assert files(data) == ["x"]  # what had come of it takes no room any more


def test_room_is_looked_for_again_while_much_comes(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload_limits, "STEP_BYTES", 100)
    bucket = Bucket("data", "data", "", Tree(tmp_path), is_read_only=False)
    meter = UploadMeter(bucket, UploadLimit(1000, "too large"))
    meter.announce(None)
    for _ in range(9):
        meter.count(50)
    assert disk.requested == 5
    disk.free = 10
    with pytest.raises(InsufficientStorage, match="Bucket data has no room"):
        meter.count(50)
    disk.free = 2**40
    with pytest.raises(PayloadTooLarge, match="too large"):
        meter.count(501)
    meter.announce(1000, there_bytes=900)
    meter.count(100)
    with pytest.raises(PayloadTooLarge):
        meter.count(1)


def test_a_disk_that_is_full_all_the_same_leaves_nothing(
    client: TestClient, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is free may be gone when it is written to; then the file system says so."""
    from api.protocols.gcs import upload_sessions

    def full(fd: int, view: bytes) -> None:
        os.write(fd, view[:1])
        raise OSError(28, "No space left on device")

    place = begin(client, "y")
    monkeypatch.setattr(upload_sessions, "write_all", full)
    assert "is full" in error_of(multipart(client, "x", b"0123456789"), 507)
    assert "is full" in error_of(client.put(place, content=b"0123456789"), 507)
    assert files(data) == []
