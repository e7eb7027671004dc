"""Many deletions in one request, as google-cloud-storage and gcsfs send them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from core.settings import Settings
from tests.unit.api_vertex.one_database import database_url  # noqa: F401 (a fixture)
from tests.unit.api_vertex.test_storage import API, error_of

PLACE = "/batch/storage/v1"


@pytest.fixture
def data(settings: Settings, client: TestClient) -> Path:
    folder = settings.home / "data"
    for name in ("a", "b c", "d/e", "kept"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"x")
    return folder


def send(client: TestClient, *requests: str, end: str = "\r\n") -> Any:
    body = "".join(
        f"--==1=={end}Content-Type: application/http{end}MIME-Version: 1.0{end}Content-ID: <x+{at}>{end}{end}{one}{end}"
        for at, one in enumerate(requests)
    )
    return client.post(
        PLACE,
        content=f"{end}{body}{end}--==1==--".encode(),
        headers={"content-type": 'multipart/mixed; boundary="==1=="'},
    )


def reply(answer: Any) -> list[tuple[int, str]]:
    """The status and the body of each part, in their order."""
    assert answer.status_code == 200, answer.text
    boundary = answer.headers["content-type"].split("=", 1)[1]  # as gcsfs finds it
    parts = answer.text.split(f"--{boundary}")[1:-1]
    found = []
    for at, part in enumerate(parts):
        assert f"Content-ID: <response-x+{at}>" in part
        match = re.search(r"HTTP/1\.1 (\d+) [A-Z].*?\r\n\r\n(.*)\r\n", part, re.DOTALL)
        assert match is not None
        found.append((int(match[1]), match[2]))
    return found


def test_each_part_is_answered_by_itself(client: TestClient, data: Path) -> None:
    answer = send(
        client,
        "DELETE http://testserver/storage/v1/b/data/o/a?prettyPrint=false HTTP/1.1\r\naccept-encoding: gzip\r\n\r\n",
        "DELETE /storage/v1/b/data/o/b%20c HTTP/1.1\r\n",
        f"DELETE {API}/data/o/gone HTTP/1.1\r\n\r\n",
        f"DELETE {API}/data/o/kept?ifGenerationMatch=1 HTTP/1.1\r\n\r\n",
        f"DELETE {API}/data/o/kept?userProject=p HTTP/1.1\r\n\r\n",
        f"DELETE {API}/data/o/kept?generation=x HTTP/1.1\r\n\r\n",
        f"DELETE {API}/data/o/kept HTTP/1.1\r\nAuthorization: Bearer x\r\n\r\n",
        f"PATCH {API}/data/o/kept HTTP/1.1\r\n\r\n{{}}",
        "nonsense",
    )
    parts = reply(answer)
    assert [status for status, _ in parts] == [204, 204, 404, 412, 501, 400, 501, 501, 501]
    assert parts[0][1] == ""
    assert '"No such object: data/gone"' in parts[2][1]
    assert "PATCH /storage/v1/b/data/o/kept in a batch is not served" in parts[7][1]
    assert sorted(path.name for path in data.rglob("*") if path.is_file()) == ["e", "kept"]
    # As gcsfs writes them: bare line breaks, slashes as they are.
    assert reply(send(client, f"DELETE {API}/data/o/d/e HTTP/1.1\naccept: x", end="\n")) == [(204, "")]
    assert not (data / "d" / "e").exists()


def test_a_batch_has_the_rights_of_who_sends_it_and_is_one(client: TestClient, data: Path, as_user: Any) -> None:
    one = f"DELETE {API}/data/o/kept HTTP/1.1\r\n\r\n"
    assert [status for status, _ in reply(send(as_user("viewer", role="viewer"), one))] == [403]
    error_of(send(as_user("reader", scopes=("read",)), one), 403)
    assert (data / "kept").exists()
    assert "multipart/mixed" in error_of(client.post(PLACE, json={}), 400)
    assert "at most 1,000" in error_of(send(client, *[one] * 1001), 400)
    large = client.post(PLACE, content=b"x" * (4 * 2**20 + 1), headers={"content-type": "multipart/mixed; boundary=x"})
    error_of(large, 413)
    assert (data / "kept").exists()
