"""Packages of Ray's client: a zip of a folder becomes a code archive of ours."""

from __future__ import annotations

import io
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from api.protocols.ray.packages import repack
from core.domain.errors import InvalidRequest
from core.settings import Settings
from tests.unit.api_ray.conftest import API, zipped

PATH = f"{API}/packages/gcs/_ray_pkg_0123456789abcdef.zip"


def repacked(data: bytes, **more: int) -> bytes:
    stored = io.BytesIO()
    repack(io.BytesIO(data), stored, **more)
    return stored.getvalue()


def test_files_and_execute_bits_are_preserved() -> None:
    data = zipped({"b/run.sh": "true", "a.py": "x = 1", "empty/": ""}, **{"b/run.sh": 0o100755, "empty/": 0o40755})
    with tarfile.open(fileobj=io.BytesIO(repacked(data))) as tar:
        found = {member.name: (member.mode, member.isdir()) for member in tar}
        assert found == {"a.py": (0o644, False), "b/run.sh": (0o755, False), "empty": (0o755, True)}
        stream = tar.extractfile("a.py")
        assert stream is not None
        assert stream.read() == b"x = 1"


def test_the_same_files_are_the_same_archive() -> None:
    first = zipped({"a.py": "1", "b.py": "2"})
    second = zipped({"b.py": "2", "a.py": "1"})
    assert first != second
    assert repacked(first) == repacked(second)


def _link() -> bytes:
    return zipped({"link": "/etc/passwd"}, link=0o120777)


def _damaged() -> bytes:
    data = zipped({"a.py": "import os\n" * 50})
    at = data.index(b"a.py") + len("a.py") + 5
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def _lying() -> bytes:
    """A file that is longer than it says to be."""
    data = bytearray(zipped({"a.py": "x" * 5000}))
    at = data.index(b"PK\x01\x02")
    data[at + 24 : at + 28] = (10).to_bytes(4, "little")
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is no zip file"),
        (b"not a zip", "is no zip file"),
        (zipped({"a.py": "x"})[:-30], "is no zip file"),
        (zipped({"../a.py": "x"}), "is no path in a folder"),
        (zipped({"/etc/passwd": "x"}), "is no path in a folder"),
        (zipped({"a/../../b": "x"}), "is no path in a folder"),
        (zipped({"a\\b": "x"}), "is no path in a folder"),
        (zipped({"a" * 300: "x"}), "is no path in a folder"),
        (_link(), "holds the link 'link'"),
        (_damaged(), "'a.py' cannot be read"),
        (_lying(), "'a.py' cannot be read"),
    ],
)
def test_what_is_no_package(data: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        repacked(data)


def test_what_unpacks_to_too_much_is_not_read() -> None:
    with pytest.raises(InvalidRequest, match="unpacks to more than 1 MiB"):
        repacked(zipped({"zeros": b"\0" * (2**20 + 1)}), unpacked_limit=2**20)


def test_too_many_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.protocols.ray.packages.FILE_LIMIT", 2)
    with pytest.raises(InvalidRequest, match="more than 2 files"):
        repacked(zipped({"a": "", "b": "", "c": ""}))


def test_uploads_are_bounded(client: TestClient, settings: Settings) -> None:
    object.__setattr__(settings, "archive_limit_bytes", 1000)
    stored = io.BytesIO()
    with zipfile.ZipFile(stored, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("data", b"x" * 2000)
    reply = client.put(PATH, content=stored.getvalue())
    streamed = client.put(PATH, content=iter([stored.getvalue()]))
    for answer in (reply, streamed):
        assert answer.status_code == 413
        assert answer.text.startswith("The package is larger than 1,000 bytes; leave files out with `excludes`")
    assert client.get(PATH).status_code == 404


def test_a_package_may_be_sent_twice(client: TestClient, settings: Settings) -> None:
    for _ in range(2):
        assert client.put(PATH, content=zipped({"a.py": "x"})).status_code == 200
    assert client.get(PATH).status_code == 200
    # Archives that nobody used for long are swept: then the client has to send it again.
    for archive in Path(settings.archive_dir).glob("??/*.tar.gz"):
        archive.unlink()
    assert client.get(PATH).status_code == 404
    assert client.put(PATH, content=zipped({"a.py": "x"})).status_code == 200
    assert client.get(PATH).status_code == 200


def test_bad_packages_are_refused(client: TestClient) -> None:
    answer = client.put(PATH, content=b"nothing")
    assert answer.status_code == 400
    assert answer.text.startswith("The package is no zip file")
    for path, message in (
        ("gcs/a.whl", "Wheels (py_modules) are not served"),
        ("s3/a.zip", "A package is named gcs/<name>.zip"),
        ("gcs/.hidden.zip", "A package is named"),
        ("gcs/a.tar", "A package is named"),
    ):
        for method in ("GET", "PUT"):
            answer = client.request(method, f"{API}/packages/{path}")
            assert answer.status_code == 400
            assert message in answer.text


def test_the_same_package_comes_from_many_at_once(client: TestClient) -> None:
    data = zipped({"a.py": "x = 1"})

    def put(number: int) -> list[int]:
        names = [f"{API}/packages/gcs/_ray_pkg_{place:016x}.zip" for place in range(4)]
        return [client.put(name, content=data).status_code for name in names]

    with ThreadPoolExecutor(4) as pool:
        answers = [code for codes in pool.map(put, range(4)) for code in codes]
    assert set(answers) == {200}
