"""Every list comes in pages, and takes no parameter that it does not know; HEAD tells what GET would."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from core.db.engine import unit_of_work
from core.db.repositories.metrics.writes import NewMetricObject, StreamKey, add_metrics
from core.db.tables import Checkpoint, Membership, Node, NotificationChannel, Secret, Token, User, Webhook

FILLED = {
    "{job}": "job-1",
    "{number}": "1",
    "{project}": "vision",
    "{study}": "sweep",
    "{model}": "digits",
    "{version}": "1",
    "{endpoint}": "sums",
    "{webhook}": "webhook-1",
    "{channel}": "channel-1",
    "{account}": "ci",
}
LISTS = (
    "/jobs/job-1/attempts/1/replicas",
    "/jobs/job-1/logs",
    "/jobs/job-1/checkpoints",
    "/nodes",
    "/volumes",
    "/projects",
    "/projects/vision/members",
    "/projects/vision/secrets",
    "/projects/vision/models",
    "/projects/vision/models/digits/history",
    "/users",
    "/tokens?all_users=true",
)


@pytest.fixture
def full(house: Any) -> Any:
    """A house with at least three of everything."""
    with unit_of_work(house.sessions) as session:
        house.add_user(session, "ci@vision")
        session.get_one(User, "user-ci@vision").service_project_id = "project-vision"
        session.add(Membership(project_id="project-vision", user_id="user-ci@vision", role="member"))
        session.add(
            Webhook(
                id="webhook-1",
                project_id="project-vision",
                url="https://example.com/hook",
                event_types=["job.*"],
                ciphertext=b"x",
                created_by="user-root",
                created_at=house.now,
                updated_at=house.now,
            )
        )
        session.add(
            NotificationChannel(
                id="channel-1",
                project_id="project-vision",
                ciphertext=b"x",
                shown="ntfy",
                event_types=["job.*"],
                created_at=house.now,
            )
        )
        for n in range(3):
            at = house.now + timedelta(seconds=n // 2)  # some are equally old
            session.add(
                Node(
                    name=f"n{n}",
                    executor="fake",
                    labels={},
                    allocatable={"cpu_milli": 1000, "memory_bytes": 2**30},
                    gpus=[],
                    is_ready=True,
                    seen_at=at,
                )
            )
            session.add(Secret(project_id="project-vision", name=f"KEY_{n}", ciphertext=b"x", updated_at=at))
            house.add_project(session, f"more-{n}")
            session.add(
                Token(
                    id=f"t{n}", user_id=house.users["viewer"], name="x", digest=f"d{n}", scopes=["read"], created_at=at
                )
            )
            for step in (7, None):
                path = f"checkpoints/{n}-{step}"
                (house.output / "vision/job-1" / path).mkdir(parents=True)
                session.add(
                    Checkpoint(
                        id=f"c{n}-{step}", job_id="job-1", attempt_id="attempt-1", path=path, step=step, created_at=at
                    )
                )
        image = NewMetricObject("picture", "image", 1, 1, "image/png", b"x")
        add_metrics(session, StreamKey("job-1", 1, "worker", 0), {}, objects=[image], now=house.now)
    study = {
        "name": "sweep",
        "project": "vision",
        "parameters": {"x": {"type": "float", "min": 0, "max": 1}},
        "metric": "loss",
        "goal": "minimize",
        "budget": {"trials": 3},
    }
    assert house.call("root", "POST", "/studies", json={"spec": study}).status_code == 201
    assert house.call("root", "POST", "/projects/vision/endpoints", json={"name": "sums"}).status_code == 201
    for model in ("digits", "letters", "words"):
        waits = {"job": "job-1", "when_done": True}
        answer = house.call("root", "POST", f"/projects/vision/models/{model}/versions", json=waits)
        assert answer.status_code == 201, answer.text
    for attempt, name in ((1, "worker-0"), (1, "worker-10"), (1, "worker-2"), (2, "chief-0"), (2, "worker-0")):
        house.log("job-1", attempt, name, "line\n")
    return house


def put_checkpoint(house: Any) -> str:
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    path = house.output / "vision/job-1/checkpoints/w.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
    return "checkpoints/w.safetensors"


def items_of(house: Any, path: str, **query: Any) -> list[Any]:
    """All pages, one after the other."""
    found: list[Any] = []
    while True:
        page = house.call("root", "GET", path, params=query).json()
        found += page["items"]
        if page["next_cursor"] is None:
            return found
        query["cursor"] = page["next_cursor"]
        assert len(found) < 1_000


@pytest.mark.parametrize("path", LISTS)
def test_pages_of_any_size_make_up_the_list_in_its_order(full: Any, path: str) -> None:
    path, _, more = path.partition("?")
    query = dict([more.split("=")]) if more else {}
    whole = items_of(full, path, **query)
    assert len(whole) >= 2
    for limit in (1, 2, len(whole)):
        assert items_of(full, path, limit=limit, **query) == whole
    names = [item.get("name") for item in whole]
    if None not in names and path not in ("/tokens", "/jobs/job-1/logs"):
        assert names == sorted(names)


def test_no_answer_is_a_bare_list_and_every_page_is_strict(full: Any) -> None:
    document = full.app.openapi()
    pages = []
    for path, methods in document["paths"].items():
        operation = methods.get("get")
        if operation is None:
            continue
        content = operation["responses"]["200"].get("content", {})
        schema = content.get("application/json", {}).get("schema", {})
        assert schema.get("type") != "array", f"{path} answers with a bare list: give it pages"
        if "/Page_" not in schema.get("$ref", ""):
            continue
        pages.append(path)
        assert {"limit", "cursor"} <= {parameter["name"] for parameter in operation["parameters"]}, path
        at = path.removeprefix("/api/v1")
        for part, value in FILLED.items():
            at = at.replace(part, value)
        more = {"path": put_checkpoint(full)} if at.endswith("/statistics") else {}
        more = {"name": "picture"} if at.endswith("/objects") else more
        assert full.call("root", "GET", at, params=more).status_code == 200, at
        for wrong in ({"nonsense": "1"}, {"limit": "0"}):
            refused = full.call("root", "GET", at, params={**more, **wrong})
            assert (refused.status_code, refused.json()["field"]) == (422, next(iter(wrong))), at
        if not at.endswith("/files"):  # whose cursors are names
            for cursor in ("nonsense", "WyJ4AFwiXQ", "WyJhXHUwMDAwIl0"):
                refused = full.call("root", "GET", at, params={**more, "cursor": cursor})
                assert (refused.status_code, refused.json()["field"]) == (422, "cursor"), at
    assert len(pages) >= 16


def test_members_of_a_launch_are_listed_and_reported_one_by_one(full: Any) -> None:
    (first, *_) = items_of(full, "/jobs/job-1/attempts/1/replicas")
    attempt = full.call("root", "GET", "/jobs/job-1/attempts/1").json()
    assert attempt["replicas"][0] == first
    name = f"{first['role']}-{first['index']}"
    assert full.call("root", "GET", f"/jobs/job-1/attempts/1/replicas/{name}").json() == first
    for wrong in ("1/replicas/ps-7", "1/replicas/x", "1/replicas/worker-99999999", "9/replicas", f"9/replicas/{name}"):
        answer = full.call("root", "GET", f"/jobs/job-1/attempts/{wrong}")
        assert answer.status_code == 404, wrong


@pytest.mark.parametrize("path", ["/jobs", "/jobs/job-1", "/nodes", "/spec/schema", "/health", "/jobs/none"])
def test_head_tells_the_headers_of_get_without_the_body(full: Any, path: str) -> None:
    get, head = full.call("root", "GET", path), full.call("root", "HEAD", path)
    assert (head.status_code, head.content) == (get.status_code, b"")
    changing = {"x-request-id", "date", *(("content-length", "etag") if path == "/jobs/none" else ())}
    assert {k: v for k, v in head.headers.items() if k not in changing} == {
        k: v for k, v in get.headers.items() if k not in changing
    }


def test_head_of_files_gives_their_size_and_of_streams_is_refused(full: Any) -> None:
    log = full.call("root", "HEAD", "/jobs/job-1/logs/worker-0")
    assert (log.status_code, log.headers["content-length"], log.content) == (200, "5", b"")
    assert full.call("root", "HEAD", "/jobs/job-1/events").status_code == 200
    stream = full.call("root", "HEAD", "/jobs/job-1/events?follow=true")
    assert (stream.status_code, stream.headers["allow"]) == (405, "GET")
    assert full.call("root", "HEAD", "/jobs/job-1/cancel").status_code == 405
    assert full.call("anonymous", "HEAD", "/jobs").status_code == 401


def test_a_rank_that_no_process_has_is_refused(full: Any) -> None:
    with unit_of_work(full.sessions) as session:
        full.add_job(session, "job-t", command="torchrun train.py", processes_per_replica=4)
        full.add_job(session, "job-p", processes_per_replica=4)
    for job, rank, sentence in (("job-t", 2, "the job has 2 ranks"), ("job-p", 8, "the job has 8 ranks")):
        refused = full.call("viewer", "GET", f"/jobs/{job}/logs/stream", params={"rank": rank})
        assert refused.status_code == 422
        assert sentence in refused.json()["detail"]
        assert full.call("viewer", "GET", f"/jobs/{job}/logs/stream", params={"rank": rank - 1}).status_code == 200
