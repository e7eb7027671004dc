"""Retention over the API: policies are set and previewed, and jobs are pinned."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import update

from core.db.engine import unit_of_work
from core.db.tables import Job

SPEC = {"name": "digits", "command": "train"}
KINDS = ["outputs", "logs", "metrics", "events", "code", "jobs"]


def end(sessions, client, clock, spec=SPEC) -> str:
    job = client.post("/api/v1/jobs", json={"spec": spec}).json()["id"]
    with unit_of_work(sessions) as session:
        session.execute(update(Job).where(Job.id == job).values(state="succeeded", finished_at=clock.now))
    return job


def test_a_policy_is_set_by_parts_and_its_mistakes_are_named(client):
    at = "/api/v1/projects/default/retention"
    assert client.get(at).json() == {"project": "default", "keep": dict.fromkeys(KINDS)}
    changed = client.patch(at, json={"keep": {"outputs": "30d", "metrics": 7200}}).json()["keep"]
    assert (changed["outputs"], changed["metrics"], changed["jobs"]) == (30 * 86_400, 7200, None)
    changed = client.patch(at, json={"keep": {"metrics": None}}).json()["keep"]
    assert (changed["outputs"], changed["metrics"]) == (30 * 86_400, None)
    refused = client.patch(at, json={"keep": {"images": "1d", "logs": "5m", "code": "soon"}})
    assert refused.status_code == 422
    assert {error["path"] for error in refused.json()["errors"]} == {"keep.images", "keep.logs", "keep.code"}
    events = client.get("/api/v1/events").json()["items"]
    assert [event["kind"] for event in events].count("project.retention_set") == 2


def test_a_preview_shows_what_would_go_and_what_it_frees(client, sessions, clock, settings):
    job = end(sessions, client, clock)
    own = settings.home / "output" / client.get(f"/api/v1/jobs/{job}").json()["output"].partition("/")[2]
    for path, size in (("a.pt", 100_000), (f".trainmaster/logs/{job}/1/worker-0.log", 50_000)):
        (own / path).parent.mkdir(parents=True, exist_ok=True)
        (own / path).write_bytes(b"a" * size)
    clock.advance(timedelta(days=31).total_seconds())
    at = "/api/v1/projects/default/retention/preview"
    assert client.post(at, json={"keep": {}}).json()["lines"] == []
    lines = client.post(at, json={"keep": {"outputs": "30d", "logs": "30d", "metrics": "30d", "jobs": "90d"}}).json()
    found = {line["kind"]: line for line in lines["lines"]}
    assert {kind: line["jobs"] for kind, line in found.items()} == {"outputs": 1, "logs": 1, "metrics": 1, "jobs": 0}
    assert 100_000 <= found["outputs"]["bytes"] < 150_000 > found["logs"]["bytes"] >= 50_000
    assert found["metrics"]["bytes"] == 0
    assert (own / "a.pt").exists()
    assert client.get("/api/v1/projects/default/retention").json()["keep"]["outputs"] is None

    pinned = client.put(f"/api/v1/jobs/{job}/pin").json()
    assert pinned["pinned_by"] == "admin"
    assert client.put(f"/api/v1/jobs/{job}/pin").json()["generation"] == pinned["generation"]  # once
    lines = client.post(at, json={"keep": {"outputs": "30d"}}).json()["lines"]
    assert [line["jobs"] for line in lines] == [0]
    assert client.delete(f"/api/v1/jobs/{job}/pin").json()["pinned_by"] is None
    kinds = [event["kind"] for event in client.get(f"/api/v1/jobs/{job}/events").json()["items"]]
    assert (kinds.count("job.pinned"), kinds.count("job.unpinned")) == (1, 1)
