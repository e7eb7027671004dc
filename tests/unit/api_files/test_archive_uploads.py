from __future__ import annotations

import gzip
import hashlib
import os
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import update

from api.archives import archive_store
from core.db.engine import unit_of_work
from core.db.tables import Archive, Study
from core.storage.archives import gc_archives

DATA = gzip.compress(os.urandom(50_000), mtime=0)
DIGEST = "sha256:" + hashlib.sha256(DATA).hexdigest()


def start(house: Any, who: str = "member", *, size: int = len(DATA), digest: str = DIGEST) -> Any:
    return house.call(who, "POST", "/archives", params={"digest": digest, "size": size})


def put(house: Any, offset: int, data: bytes, who: str = "member") -> Any:
    return house.call(who, "PUT", f"/archives/{DIGEST}", params={"offset": offset}, content=data)


def upload(house: Any) -> None:
    start(house)
    assert put(house, 0, DATA).json()["is_complete"]


def test_an_archive_is_sent_in_chunks_and_known_afterwards(house: Any) -> None:
    begun = start(house)
    assert (begun.status_code, begun.json()["received_bytes"], begun.json()["is_complete"]) == (201, 0, False)
    assert put(house, 0, DATA[:20_000]).json()["received_bytes"] == 20_000
    assert house.call("member", "GET", f"/archives/{DIGEST}").json()["received_bytes"] == 20_000
    assert start(house).json()["received_bytes"] == 20_000
    done = put(house, 20_000, DATA[20_000:]).json()
    assert done == {"digest": DIGEST, "size_bytes": len(DATA), "received_bytes": len(DATA), "is_complete": True}
    again = start(house, "stranger")
    assert (again.status_code, again.json()["is_complete"]) == (200, True)
    with unit_of_work(house.sessions, read_only=True) as session:
        row = session.get(Archive, DIGEST)
        assert row is not None
        assert row.is_complete


def test_the_wrong_offset_is_a_conflict_that_tells_the_right_one(house: Any) -> None:
    start(house)
    put(house, 0, DATA[:100])
    answer = put(house, 50, DATA[50:])
    assert answer.status_code == 409
    assert answer.json()["field"] == "offset"
    assert "offset 100" in answer.json()["detail"]


def test_bytes_of_another_content_are_refused_and_dropped(house: Any) -> None:
    start(house)
    answer = put(house, 0, DATA[:-1] + bytes([DATA[-1] ^ 1]))
    assert answer.status_code == 422
    assert answer.json()["field"] == "digest"
    assert house.call("member", "GET", f"/archives/{DIGEST}").status_code == 404


@pytest.mark.parametrize(("size", "status"), [(0, 422), (2**20 + 1, 413), (2**70, 422)])
def test_a_size_that_cannot_be_taken_is_reported_before_a_byte_is_sent(house: Any, size: int, status: int) -> None:
    assert start(house, size=size).status_code == status


@pytest.mark.parametrize("digest", ["sha256:abc", "../../x", "sha256:" + "G" * 64, "md5:" + "0" * 64])
def test_a_digest_is_a_digest(house: Any, digest: str) -> None:
    assert start(house, digest=digest).status_code == 422


def test_sending_without_announcing_is_informed_what_to_do(house: Any) -> None:
    answer = put(house, 0, DATA)
    assert answer.status_code == 404
    assert "POST /api/v1/archives" in answer.json()["detail"]


def test_an_archive_whose_file_was_lost_is_uploaded_again(house: Any) -> None:
    upload(house)
    archive_store(house.app.state.context).path_of(DIGEST).unlink()
    assert start(house).json()["is_complete"] is False
    with unit_of_work(house.sessions, read_only=True) as session:
        assert session.get_one(Archive, DIGEST).is_complete is False
    assert put(house, 0, DATA).json()["is_complete"]


def test_the_sweep_drops_what_nobody_needs_and_keeps_what_a_job_names(house: Any) -> None:
    upload(house)
    store = archive_store(house.app.state.context)
    with unit_of_work(house.sessions) as session:
        house.add_job(session, "job-code", code=DIGEST, state="failed")

    def gc(days: int) -> int:
        return gc_archives(house.sessions, store, now=house.now + timedelta(days=days))

    assert gc(100) == 0
    with unit_of_work(house.sessions) as session:
        job = session.get(_job(), "job-code")
        assert job is not None
        job.deleted_at = house.now
    assert gc(10) == 0
    assert gc(100) == 1
    assert not store.has(DIGEST)
    assert start(house).json()["is_complete"] is False


def test_the_sweep_keeps_what_a_study_begins_its_trials_with(house: Any) -> None:
    upload(house)
    store = archive_store(house.app.state.context)
    spec = {
        "name": "search",
        "project": "vision",
        "template": {"command": "train", "code": DIGEST},
        "metric": "score",
        "goal": "maximize",
        "parameters": {"x": {"type": "float", "min": 0, "max": 1}},
        "budget": {"trials": 1},
    }
    made = house.call("member", "POST", "/studies", json={"spec": spec})
    assert made.status_code == 201, made.text
    later = house.now + timedelta(days=100)
    assert gc_archives(house.sessions, store, now=later) == 0
    with unit_of_work(house.sessions) as session:
        session.execute(update(Study).values(deleted_at=house.now))
    assert gc_archives(house.sessions, store, now=later) == 1


def _job() -> Any:
    from core.db.tables import Job

    return Job
