"""User ids of projects: their range, their numbers, and what happens where there are none."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from core import job_users
from core.db.engine import unit_of_work
from core.db.tables import Project
from core.domain.errors import ExecutorRefused
from core.job_users import FolderOwners, JobUsers, demand_uids, describe, find_job_users, refusal_of_users
from core.settings import BadSettings, Settings

USERS = JobUsers(300_000, 300_003, Path("/home/of/the/platform"))


@pytest.fixture
def possible(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """As if this process could start others as any user; returns the file of subordinate ids."""
    monkeypatch.setattr(job_users, "why_not", lambda *_: None)
    monkeypatch.setattr(job_users, "SUBORDINATE_IDS", tmp_path / "subuid")
    monkeypatch.setattr("pwd.getpwall", lambda: [SimpleNamespace(pw_name="ann", pw_uid=250_000)])
    return tmp_path / "subuid"


@pytest.fixture
def impossible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_users, "why_not", lambda *_: "it was not started as root")


def test_projects_get_numbers_once_and_for_ever(sessions: Any) -> None:
    with unit_of_work(sessions) as session:
        now = datetime.now(UTC)
        session.add_all([Project(id=f"p-{name}", name=name, created_at=now) for name in ("a", "b", "c", "d")])
    assert demand_uids(sessions, USERS, ["b", "no project"]) == {"b": 300_001}
    assert demand_uids(sessions, USERS, {"a", "b", "c"}) == {"a": 300_002, "b": 300_001, "c": 300_003}
    assert demand_uids(sessions, USERS, ["a"]) == {"a": 300_002}
    with pytest.raises(ExecutorRefused, match="TRAINMASTER_JOB_UIDS"):
        demand_uids(sessions, USERS, ["d"])


def test_owners_of_folders() -> None:
    owners = FolderOwners(USERS, 300_001, {"a": 300_001, "b": 300_002}, "output")
    assert owners.of("output", "a/job") == (300_001, 300_001)
    assert owners.of("output", "b/job") == (300_002, 300_002)
    assert owners.of("output", "elsewhere/job") == (300_001, 300_001)
    assert owners.of("data", "b/job") == (0, 300_000)


@pytest.mark.parametrize(
    ("uids", "subordinate", "word"),
    [
        ("240000-260000", "", "ann"),
        ("300000-365535", "ben:165536:65536\ncyn:331072:65536\n", "cyn"),
    ],
)
def test_a_range_in_use_is_refused(possible: Path, uids: str, subordinate: str, word: str) -> None:
    possible.write_text(subordinate)
    with pytest.raises(BadSettings, match=word):
        find_job_users(Settings(job_uids=uids))


def test_a_free_range_is_taken(possible: Path, tmp_path: Path) -> None:
    possible.write_text("ben:100000:65536\nnonsense\n")
    settings = Settings(job_uids="300000-365535", home=tmp_path, shared_trust=False)
    assert find_job_users(settings) == JobUsers(300_000, 365_535, tmp_path.resolve())
    assert refusal_of_users(settings) is None
    assert "300001 to 365535" in str(describe(settings))


def test_user_ids_can_be_turned_off(possible: Path) -> None:
    possible.write_text("")
    assert find_job_users(Settings(job_uids="off")) == "TRAINMASTER_JOB_UIDS is off"
    assert "TRAINMASTER_JOB_UIDS is off" in str(refusal_of_users(Settings(job_uids="off", shared_trust=False)))


@pytest.mark.parametrize("uids", ["5-9", "300000-200000", "a-b", "200000", "1000-70000"])
def test_what_is_no_range_is_refused(uids: str) -> None:
    with pytest.raises(ValueError, match="job_uids"):
        Settings(job_uids=uids)


@pytest.mark.usefixtures("impossible")
def test_one_user_where_all_jobs_run_as_one() -> None:
    refusal = str(refusal_of_users(Settings(shared_trust=False)))
    assert "not started as root" in refusal
    assert "docker" in refusal
    assert describe(Settings(shared_trust=False)) == refusal
    assert refusal_of_users(Settings(shared_trust=True)) is None
    assert "not started as root" in str(describe(Settings(shared_trust=True)))
    assert refusal_of_users(Settings(executor="docker", shared_trust=False)) is None


@pytest.mark.usefixtures("impossible")
def test_the_api_refuses_a_second_user(client: Any, app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"name": "second"}
    monkeypatch.setattr("api.users.refusal_of_users", lambda _: refusal_of_users(Settings(shared_trust=False)))
    refused = client.post("/api/v1/users", json=body)
    assert refused.status_code == 409
    assert "Start it as root" in refused.json()["detail"]
    monkeypatch.undo()
    assert client.post("/api/v1/users", json=body).status_code == 201
