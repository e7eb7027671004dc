from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import select
from starlette.testclient import TestClient

from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Checkpoint, Event, Job
from core.ids import new_id
from core.settings import Settings


def kinds(sessions: SessionFactory, job_id: str) -> list[str]:
    with unit_of_work(sessions, read_only=True) as session:
        return list(session.execute(select(Event.kind).where(Event.job_id == job_id).order_by(Event.id)).scalars())


def post(client: TestClient, job_id: str, verb: str, **body: Any) -> Any:
    return client.post(f"/api/v1/jobs/{job_id}/{verb}", json=body)


def test_a_waiting_job_is_cancelled_at_once(
    client: TestClient, submit: Any, sessions: SessionFactory, wakeup: Any
) -> None:
    job_id = submit()
    wakeup.rings.clear()
    answer = post(client, job_id, "cancel", reason="wrong data")
    assert answer.status_code == 200
    job = answer.json()
    assert (job["state"], job["wanted"], job["wait_reason"], job["queue_position"]) == (
        "cancelled",
        "cancel",
        None,
        None,
    )
    assert job["finished_at"] is not None
    assert job["exit"]["kind"] == "cancelled"
    assert "wrong data" in job["exit"]["sentence"]
    assert kinds(sessions, job_id) == ["job.queued", "job.cancelled"]
    assert wakeup.rings == [("tick", "")]


def test_a_waiting_job_is_paused_and_resumed_at_the_queues_end(client: TestClient, submit: Any, clock: Any) -> None:
    job_id, other = submit(), submit(name="other")
    assert post(client, job_id, "pause").json()["state"] == "paused"
    clock.advance(10)
    job = post(client, job_id, "resume").json()
    assert (job["state"], job["wanted"], job["queue_position"]) == ("queued", "run", 2)
    assert client.get(f"/api/v1/jobs/{other}").json()["queue_position"] == 1


@pytest.mark.parametrize("verb", ["cancel", "pause"])
def test_a_running_job_keeps_its_state_until_the_control_loop_has_seen_the_wish(
    client: TestClient, submit: Any, start: Any, sessions: SessionFactory, wakeup: Any, verb: str
) -> None:
    job_id = submit()
    attempt_id = start(job_id)
    wakeup.rings.clear()
    job = post(client, job_id, verb).json()
    assert (job["state"], job["wanted"]) == ("running", verb)
    assert kinds(sessions, job_id)[-1] == f"job.{verb}_requested"
    assert wakeup.rings == [("reconcile", attempt_id)]


def test_asking_again_for_the_same_changes_nothing(
    client: TestClient, submit: Any, start: Any, sessions: SessionFactory
) -> None:
    job_id = submit()
    start(job_id)
    first, second = post(client, job_id, "cancel"), post(client, job_id, "cancel")
    assert second.status_code == 200
    assert first.json()["generation"] == second.json()["generation"]
    assert kinds(sessions, job_id).count("job.cancel_requested") == 1


def test_cancelling_what_is_cancelled_is_no_mistake(client: TestClient, submit: Any) -> None:
    job_id = submit()
    assert [post(client, job_id, "cancel").status_code for _ in range(2)] == [200, 200]


def test_a_pause_may_be_taken_back_before_it_happened(client: TestClient, submit: Any, start: Any) -> None:
    job_id = submit()
    start(job_id)
    post(client, job_id, "pause")
    job = post(client, job_id, "resume").json()
    assert (job["state"], job["wanted"]) == ("running", "run")


def test_a_cancel_is_not_taken_back(client: TestClient, submit: Any, start: Any) -> None:
    job_id = submit()
    start(job_id)
    post(client, job_id, "cancel")
    for verb in ("resume", "pause"):
        answer = post(client, job_id, verb)
        assert (answer.status_code, answer.json()["code"]) == (409, "illegal_transition")
    assert client.get(f"/api/v1/jobs/{job_id}").json()["wanted"] == "cancel"


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
def test_a_job_that_is_over_takes_no_verb_and_says_so_in_a_short_sentence(
    client: TestClient, submit: Any, set_job: Any, verb: str
) -> None:
    job_id = submit()
    set_job(job_id, state="succeeded")
    answer = post(client, job_id, verb)
    assert (answer.status_code, answer.json()["code"]) == (409, "illegal_transition")
    done = {"cancel": "cancelled", "pause": "paused", "resume": "resumed"}[verb]
    name = client.get(f"/api/v1/jobs/{job_id}").json()["name"]
    advice = "" if verb == "cancel" else "; clone it to run it again"
    assert answer.json()["detail"] == f"Job {name!r} has succeeded and cannot be {done}{advice}."


def test_verbs_of_many_at_once_leave_one_clear_history(
    client: TestClient, submit: Any, sessions: SessionFactory
) -> None:
    job_id = submit()
    with ThreadPoolExecutor(6) as pool:
        answers = list(
            pool.map(lambda number: post(client, job_id, ("pause", "resume", "cancel")[number % 3]), range(12))
        )
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert client.get(f"/api/v1/jobs/{job_id}").json()["state"] == "cancelled"
    assert kinds(sessions, job_id).count("job.cancelled") == 1


def test_a_live_job_is_not_deleted(client: TestClient, submit: Any, start: Any) -> None:
    job_id = submit()
    start(job_id)
    answer = client.delete(f"/api/v1/jobs/{job_id}")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


def test_a_deleted_job_is_found_no_more_and_its_rows_stay(
    client: TestClient, submit: Any, sessions: SessionFactory
) -> None:
    job_id = submit()
    post(client, job_id, "cancel")
    assert client.delete(f"/api/v1/jobs/{job_id}").status_code == 204
    assert client.get(f"/api/v1/jobs/{job_id}").status_code == 404
    assert client.get("/api/v1/jobs").json()["items"] == []
    assert kinds(sessions, job_id)[-1] == "job.deleted"


@pytest.mark.parametrize("files", [False, True])
def test_output_goes_only_when_queried(client: TestClient, submit: Any, settings: Settings, files: bool) -> None:
    job_id = submit()
    folder = settings.home / "output" / "default" / job_id
    folder.mkdir(parents=True)
    (folder / "model.pt").write_text("x")
    post(client, job_id, "cancel")
    assert client.delete(f"/api/v1/jobs/{job_id}", params={"files": files}).status_code == 204
    assert folder.exists() is not files


def test_a_folder_that_the_user_named_is_not_removed(client: TestClient, submit: Any, settings: Settings) -> None:
    job_id = submit(output="output/default/shared")
    (settings.home / "output" / "default" / "shared").mkdir(parents=True)
    post(client, job_id, "cancel")
    assert client.delete(f"/api/v1/jobs/{job_id}", params={"files": True}).status_code == 409
    assert client.get(f"/api/v1/jobs/{job_id}").status_code == 200


def test_a_clone_has_the_spec_with_the_changes_laid_over(client: TestClient, submit: Any) -> None:
    job_id = submit(env={"A": "1", "B": "2"}, priority=70)
    clone = post(client, job_id, "clone", changes={"name": "again", "env": {"A": None, "C": "3"}})
    assert clone.status_code == 201
    job = clone.json()
    assert (job["name"], job["cloned_from"], job["priority"], job["state"]) == ("again", job_id, 70, "queued")
    assert job["spec"]["env"] == {"B": "2", "C": "3"}


def test_a_clone_without_a_name_does_not_take_its_originals(client: TestClient, submit: Any) -> None:
    job_id = submit(name="resnet-50")
    second = post(client, job_id, "clone").json()
    assert second["name"] == "resnet-50-2"
    assert post(client, second["id"], "clone").json()["name"] == "resnet-50-3"
    submit(name="resnet-50-4")
    assert post(client, job_id, "clone").json()["name"] == "resnet-50-5"
    assert client.get("/api/v1/jobs/resnet-50").json()["id"] == job_id
    assert post(client, job_id, "clone", changes={"name": "resnet-50"}).json()["name"] == "resnet-50"
    long = post(client, submit(name="a" * 63), "clone").json()["name"]
    assert long == "a" * 56 + "-2"


def test_a_clone_writes_to_the_output_of_its_original_only_where_it_is_informed_so(
    client: TestClient, submit: Any
) -> None:
    job_id = submit(output="output/default/digits")
    assert client.get(f"/api/v1/jobs/{job_id}").json()["output"] == "output/default/digits"
    clone = post(client, job_id, "clone").json()
    assert clone["spec"].get("output") is None
    assert clone["output"] == f"output/default/{clone['id']}"
    shared = post(client, job_id, "clone", changes={"output": "output/default/digits"}).json()
    assert shared["output"] == "output/default/digits"


def test_a_clone_with_wrong_changes_is_refused_like_a_wrong_spec(client: TestClient, submit: Any) -> None:
    answer = post(client, submit(), "clone", changes={"priority": 1000})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_spec")


def test_a_clone_resumes_from_the_newest_checkpoint_of_the_original(
    client: TestClient, submit: Any, start: Any, sessions: SessionFactory, clock: Any, settings: Settings
) -> None:
    job_id = submit()
    assert post(client, job_id, "clone", resume=True).status_code == 422
    folder = settings.home / "output" / "default" / job_id / "checkpoints"
    for step in (100, 200):  # it told of one more, and has removed it since
        (folder / f"step-{step}").mkdir(parents=True)
    attempt_id = start(job_id)
    with unit_of_work(sessions) as session:
        for step in (100, 200, 300):
            session.add(
                Checkpoint(
                    id=new_id("c"),
                    job_id=job_id,
                    attempt_id=attempt_id,
                    path=f"checkpoints/step-{step}",
                    step=step,
                    metrics={},
                    created_at=clock.now,
                )
            )
    clone = post(client, job_id, "clone", resume=True).json()
    assert clone["spec"]["mounts"] == [
        {"volume": "output", "path": f"default/{job_id}", "at": "/data/resume", "read_only": True}
    ]
    with unit_of_work(sessions, read_only=True) as session:
        resume_from = session.execute(select(Job.resume_from).where(Job.id == clone["id"])).scalar_one()
    assert resume_from == "/data/resume/checkpoints/step-200"


def test_a_clone_resumes_from_a_checkpoint_that_only_lies_in_the_output(
    client: TestClient, submit: Any, sessions: SessionFactory, settings: Settings
) -> None:
    job_id = submit()
    folder = settings.home / "output" / "default" / job_id / "checkpoints"
    folder.mkdir(parents=True)
    for name in ("step-3.pt", "step-12.pt", "step-20.pt.tmp"):
        (folder / name).write_bytes(b"weights")
    clone = post(client, job_id, "clone", resume=True).json()
    with unit_of_work(sessions, read_only=True) as session:
        resume_from = session.execute(select(Job.resume_from).where(Job.id == clone["id"])).scalar_one()
    assert resume_from == "/data/resume/checkpoints/step-12.pt"


def test_a_viewer_changes_nothing(submit: Any, as_user: Callable[..., TestClient]) -> None:
    job_id = submit()
    viewer = as_user("vic", role="viewer")
    assert viewer.get(f"/api/v1/jobs/{job_id}").status_code == 200
    assert {post(viewer, job_id, verb).status_code for verb in ("cancel", "pause", "resume")} == {403}
    assert viewer.delete(f"/api/v1/jobs/{job_id}").status_code == 403


def test_who_may_not_know_of_a_job_is_informed_that_there_is_none(
    submit: Any, as_user: Callable[..., TestClient]
) -> None:
    job_id = submit()
    eve = as_user("eve", role=None)
    assert eve.get(f"/api/v1/jobs/{job_id}").status_code == 404
    assert eve.get("/api/v1/jobs/digits").status_code == 404
    assert post(eve, job_id, "cancel").status_code == 404
    assert eve.get("/api/v1/jobs").json()["items"] == []


def test_a_refused_move_comes_with_the_jobs_last_events(client: TestClient, submit: Any) -> None:
    job_id = submit()
    for _ in range(3):
        post(client, job_id, "pause", reason="lunch")
        post(client, job_id, "resume")
    post(client, job_id, "cancel", reason="wrong data")
    refused = post(client, job_id, "resume")
    problem = refused.json()
    assert (refused.status_code, problem["code"]) == (409, "illegal_transition")
    assert [event["kind"] for event in problem["history"]] == [
        "job.resumed",
        "job.paused",
        "job.resumed",
        "job.paused",
        "job.resumed",
        "job.cancelled",
    ][-5:]
    last = problem["history"][-1]
    assert (last["actor"], last["reason"]) == ("user:admin", "wrong data")
    assert last["at"].endswith("Z")
    assert "history" not in client.get("/api/v1/jobs/nothing").json()
