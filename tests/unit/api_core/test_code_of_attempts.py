from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import pytest
from starlette.testclient import TestClient

from core.settings import Settings
from core.storage.archives import ArchiveStore

PATH = "/api/v1/runtime/code"
BYTES = b"\x1f\x8b" + bytes(range(256)) * 100
DIGEST = "sha256:" + hashlib.sha256(BYTES).hexdigest()


@pytest.fixture
def uploaded(client: TestClient) -> str:
    assert client.post(f"/api/v1/archives?digest={DIGEST}&size={len(BYTES)}").status_code == 201
    assert client.put(f"/api/v1/archives/{DIGEST}?offset=0", content=BYTES).json()["is_complete"]
    return DIGEST


@pytest.fixture
def attempt(uploaded: str, submit: Any, start: Any) -> tuple[str, str]:
    job_id = submit(code=uploaded)
    return job_id, start(job_id)


def test_an_attempt_gets_its_jobs_archive_whole_or_from_where_it_stopped(
    attempt: tuple[str, str], reporter: Callable[[str], TestClient]
) -> None:
    replica = reporter(attempt[1])
    whole = replica.get(PATH)
    assert (whole.status_code, whole.content, whole.headers["content-type"]) == (200, BYTES, "application/gzip")
    rest = replica.get(PATH, headers={"Range": "bytes=1000-", "If-Range": whole.headers["etag"]})
    assert (rest.status_code, rest.content) == (206, BYTES[1000:])


def test_a_job_without_code_has_none_to_give(submit: Any, start: Any, reporter: Callable[[str], TestClient]) -> None:
    answer = reporter(start(submit())).get(PATH)
    assert (answer.status_code, answer.json()["detail"]) == (404, "The job was submitted without code.")


def test_an_ended_attempt_gets_no_code(
    attempt: tuple[str, str], end_attempt: Callable[[str], None], reporter: Callable[[str], TestClient]
) -> None:
    end_attempt(attempt[1])
    answer = reporter(attempt[1]).get(PATH)
    assert (answer.status_code, answer.json()["code"]) == (410, "attempt_ended")


def test_a_lost_archive_says_what_to_do(
    attempt: tuple[str, str], settings: Settings, reporter: Callable[[str], TestClient]
) -> None:
    ArchiveStore(settings.archive_dir, limit_bytes=0).path_of(DIGEST).unlink()
    answer = reporter(attempt[1]).get(PATH)
    assert answer.status_code == 404
    assert "submit the job again" in answer.json()["detail"]


def test_a_users_token_is_no_attempts(attempt: tuple[str, str], client: TestClient) -> None:
    assert client.get(PATH).status_code == 401
