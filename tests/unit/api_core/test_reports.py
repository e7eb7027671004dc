from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import select, update
from starlette.testclient import TestClient

from core.db.engine import SessionFactory, unit_of_work
from core.db.tables import Attempt, Checkpoint, Event, Replica

AT = "2026-11-21T07:00:00Z"


def item(seq: int, kind: str = "heartbeat", /, **data: Any) -> dict[str, Any]:
    return {"seq": seq, "at": AT, "kind": kind, "data": data}


def send(client: TestClient, *items: dict[str, Any], role: str = "worker", index: int = 0, generation: int = 1) -> Any:
    body = {"role": role, "index": index, "generation": generation, "items": list(items)}
    return client.post("/api/v1/runtime/report", json=body)


@pytest.fixture
def running(submit: Any, start: Any) -> tuple[str, str]:
    job_id = submit(workers=2)
    return job_id, start(job_id)


@pytest.fixture
def worker(running: tuple[str, str], reporter: Callable[[str], TestClient]) -> TestClient:
    return reporter(running[1])


def replica(sessions: SessionFactory, index: int = 0) -> Replica:
    with unit_of_work(sessions, read_only=True) as session:
        return session.execute(select(Replica).where(Replica.index == index)).scalar_one()


def events(sessions: SessionFactory) -> list[tuple[str, str, str]]:
    with unit_of_work(sessions, read_only=True) as session:
        rows = session.execute(select(Event.kind, Event.actor, Event.reason).order_by(Event.id)).all()
    return [(row.kind, row.actor, row.reason) for row in rows if row.kind != "job.queued"]


def test_a_report_proves_life_and_is_acknowledged(worker: TestClient, sessions: SessionFactory, clock: Any) -> None:
    clock.advance(5)
    answer = send(worker, item(1))
    assert (answer.status_code, answer.json()) == (200, {"acked": 1})
    assert replica(sessions).heartbeat_at == clock.now
    assert replica(sessions, 1).heartbeat_at is None


def test_a_time_that_utc_has_no_date_for_is_refused_alone(worker: TestClient, sessions: SessionFactory) -> None:
    odd = {**item(1, "progress", step=1), "at": "0001-01-01T00:00:00+14:00"}
    assert send(worker, odd, item(2, "progress", step=2)).json() == {"acked": 2}
    assert replica(sessions).progress["step"] == 2
    assert events(sessions)[-1][0] == "replica.report_refused"


def test_progress_is_merged_and_the_last_value_counts(worker: TestClient, sessions: SessionFactory) -> None:
    send(worker, item(1, "progress", step=1, steps=10, metrics={"loss": 2.0, "acc": 0.1}))
    send(worker, item(2, "progress", step=2, metrics={"loss": 1.5}), item(3, "progress", epoch=1))
    progress = replica(sessions).progress
    assert {name: progress[name] for name in ("step", "steps", "epoch", "metrics")} == {
        "step": 2,
        "steps": 10,
        "epoch": 1,
        "metrics": {"loss": 1.5, "acc": 0.1},
    }


def test_what_was_sent_twice_counts_once(worker: TestClient, sessions: SessionFactory) -> None:
    batch = [item(1, "event", kind="train.hello", reason="a"), item(2, "event", kind="train.hello", reason="b")]
    assert send(worker, *batch).json() == {"acked": 2}
    assert send(worker, *batch).json() == {"acked": 2}
    assert send(worker, *batch, item(3, "event", kind="train.hello", reason="c")).json() == {"acked": 3}
    assert [reason for _, _, reason in events(sessions)] == ["a", "b", "c"]


def test_the_same_batch_from_two_connections_at_once_counts_once(worker: TestClient, sessions: SessionFactory) -> None:
    batch = [item(seq, "event", kind="train.hello") for seq in range(1, 6)]
    with ThreadPoolExecutor(4) as pool:
        acks = [answer.json()["acked"] for answer in pool.map(lambda _: send(worker, *batch), range(8))]
    assert set(acks) == {5}
    assert len(events(sessions)) == 5


def test_items_out_of_order_are_taken_in_order(worker: TestClient, sessions: SessionFactory) -> None:
    send(worker, item(2, "progress", step=2), item(1, "progress", step=1))
    assert replica(sessions).progress["step"] == 2


def test_a_restarted_replica_counts_from_one_again(worker: TestClient, sessions: SessionFactory) -> None:
    send(worker, *(item(seq, "progress", step=seq) for seq in range(1, 4)))
    with unit_of_work(sessions) as session:
        session.execute(update(Replica).where(Replica.index == 0).values(generation=2))
    assert send(worker, item(1, "progress", step=50), generation=2).json() == {"acked": 1}
    assert replica(sessions).progress["step"] == 50


def test_what_an_earlier_start_left_in_its_spool_brings_checkpoints_only(
    worker: TestClient, sessions: SessionFactory
) -> None:
    with unit_of_work(sessions) as session:
        session.execute(update(Replica).where(Replica.index == 0).values(generation=2))
    send(worker, item(1, "progress", step=50), generation=2)
    late = send(worker, item(7, "progress", step=9), item(8, "checkpoint", path="checkpoints/9", step=9), generation=1)
    assert late.json() == {"acked": 8}
    assert replica(sessions).progress["step"] == 50
    with unit_of_work(sessions, read_only=True) as session:
        assert session.execute(select(Checkpoint.step)).scalars().all() == [9]


def test_a_checkpoint_is_retained_and_informed_of(worker: TestClient, sessions: SessionFactory) -> None:
    data = {"path": "checkpoints/step-100", "step": 100, "metrics": {"loss": 0.5}, "size_bytes": 1234}
    send(worker, item(1, "checkpoint", **data))
    with unit_of_work(sessions, read_only=True) as session:
        row = session.execute(select(Checkpoint)).scalar_one()
    assert (row.path, row.step, row.metrics, row.size_bytes) == ("checkpoints/step-100", 100, {"loss": 0.5}, 1234)
    assert events(sessions) == [("checkpoint.saved", "runtime:worker-0", "checkpoints/step-100 at step 100")]


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity", None])
def test_a_metric_that_is_no_number_any_more_loses_nothing_else(
    worker: TestClient, sessions: SessionFactory, word: str | None
) -> None:
    data = {"path": "checkpoints/step-100", "step": 100, "metrics": {"loss": word, "acc": 0.5}, "size_bytes": 1}
    send(worker, item(1, "checkpoint", **data))
    with unit_of_work(sessions, read_only=True) as session:
        assert session.execute(select(Checkpoint)).scalar_one().metrics == {"acc": 0.5}


def test_a_checkpoint_written_again_is_one_checkpoint(worker: TestClient, sessions: SessionFactory) -> None:
    send(worker, item(1, "checkpoint", path="last.pt", step=1), item(2, "checkpoint", path="./last.pt", step=2))
    with unit_of_work(sessions, read_only=True) as session:
        assert session.execute(select(Checkpoint.path, Checkpoint.step)).all() == [("last.pt", 2)]


@pytest.mark.parametrize(
    "bad",
    [
        item(1, "checkpoint"),
        item(1, "checkpoint", path="/etc/passwd"),
        item(1, "checkpoint", path="../../others"),
        item(1, "checkpoint", path="a", step="many"),
        item(1, "checkpoint", path="a", size_bytes=-1),
        item(1, "progress", step="x"),
        item(1, "progress", metrics=[1]),
        item(1, "progress", metrics={"loss": "low"}),
        item(1, "progress", metrics={f"m{n}": 1 for n in range(257)}),
        item(1, "progress", step=1e300),
    ],
)
def test_nonsense_is_reported_in_the_history_and_holds_nothing_up(
    worker: TestClient, sessions: SessionFactory, bad: dict[str, Any]
) -> None:
    answer = send(worker, bad, item(2, "progress", step=5))
    assert answer.json() == {"acked": 2}
    assert replica(sessions).progress["step"] == 5
    assert [kind for kind, _, _ in events(sessions)] == ["replica.report_refused"]


def test_a_loss_that_became_nothing_leaves_the_last_value(worker: TestClient, sessions: SessionFactory) -> None:
    send(worker, item(1, "progress", metrics={"loss": 1.0}), item(2, "progress", metrics={"loss": None}))
    assert replica(sessions).progress["metrics"] == {"loss": 1.0}


@pytest.mark.parametrize(
    "kind",
    ["job.succeeded", "replica.failed", "secret.set", "user.logged_in", "nonsense", "", None, 3, "a b.c", "train.a b"],
)
def test_a_script_cannot_speak_as_the_platform(worker: TestClient, sessions: SessionFactory, kind: Any) -> None:
    send(worker, item(1, "event", kind=kind, reason="done"))
    assert events(sessions) == [("train.note", "runtime:worker-0", "done")]


def test_a_script_has_a_noun_of_its_own_for_events(worker: TestClient, sessions: SessionFactory) -> None:
    send(worker, item(1, "event", kind="train.epoch_done", reason="epoch 3"))
    assert events(sessions) == [("train.epoch_done", "runtime:worker-0", "epoch 3")]


def test_a_flood_of_events_ends_with_one_that_says_so(
    worker: TestClient, sessions: SessionFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.reports.EVENT_LIMIT", 3)
    send(worker, *(item(seq, "event", kind="train.hello") for seq in range(1, 3)))
    send(worker, *(item(seq, "event", kind="train.hello") for seq in range(1, 6)), index=1)
    assert send(worker, item(3, "checkpoint", path="last.pt"), item(4, "progress", step=5)).json() == {"acked": 4}
    assert [kind for kind, _, _ in events(sessions)] == ["train.hello"] * 3 + ["train.events_dropped"]
    assert replica(sessions).progress["step"] == 5
    with unit_of_work(sessions, read_only=True) as session:
        assert session.execute(select(Checkpoint.path)).scalars().all() == ["last.pt"]


def test_a_time_without_offset_is_utc(worker: TestClient, sessions: SessionFactory) -> None:
    naive = {**item(1, "checkpoint", path="a"), "at": "2026-11-21T06:59:00"}
    assert send(worker, naive).status_code == 200


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"role": "chief"}, 404),
        ({"index": 7}, 404),
        ({"index": -1}, 422),
        ({"index": 2**40}, 422),
        ({"generation": 2**70}, 422),
        ({"items": [{"seq": 2**70, "at": AT, "kind": "heartbeat"}]}, 422),
        ({"items": [item(2**41)]}, 422),
        ({"items": [item(1)] * 1001}, 422),
        ({"items": [{"seq": 1, "at": AT, "kind": "dance"}]}, 422),
    ],
)
def test_a_report_that_fits_no_replica_is_refused(worker: TestClient, changes: dict[str, Any], status: int) -> None:
    body = {"role": "worker", "index": 0, "generation": 1, "items": [item(1)], **changes}
    assert worker.post("/api/v1/runtime/report", json=body).status_code == status


def test_an_attempts_token_opens_nothing_else_and_no_other_token_reports(
    worker: TestClient,
    client: TestClient,
    stranger: TestClient,
    reporter: Callable[[str], TestClient],
    running: tuple[str, str],
) -> None:
    assert worker.get("/api/v1/jobs").status_code == 401
    assert worker.get(f"/api/v1/jobs/{running[0]}").status_code == 401
    assert send(client, item(1)).status_code == 401
    assert send(stranger, item(1)).status_code == 401
    assert send(reporter("attempt-unknown"), item(1)).status_code == 404


def test_a_token_outlives_its_attempt_by_a_minute(
    worker: TestClient, running: tuple[str, str], end_attempt: Callable[[str], None], clock: Any
) -> None:
    end_attempt(running[1])
    clock.advance(59)
    assert send(worker, item(1, "checkpoint", path="last.pt")).json() == {"acked": 1}
    clock.advance(2)
    refused = send(worker, item(2))
    assert (refused.status_code, refused.json()["code"]) == (410, "attempt_ended")
    assert "has ended" in refused.json()["detail"]


def test_the_replicas_of_a_deleted_job_report_no_more(
    worker: TestClient, running: tuple[str, str], set_job: Callable[..., None], clock: Any
) -> None:
    set_job(running[0], deleted_at=clock.now)
    refused = send(worker, item(1))
    assert (refused.status_code, refused.json()["code"]) == (410, "attempt_ended")
    assert "was deleted" in refused.json()["detail"]


@pytest.mark.parametrize(
    ("state", "row_generation", "seconds", "status"),
    [
        ("running", 1, 3600, 200),
        ("lost", 1, 1, 410),
        ("failed", 1, 30, 200),  # what it still had to say when it ended
        ("failed", 1, 90, 410),
        ("running", 2, 30, 200),
        ("running", 2, 90, 410),  # another one has taken its place
    ],
)
def test_one_that_its_gang_goes_on_without_is_informed_to_end(
    worker: TestClient, sessions: SessionFactory, clock: Any, state: str, row_generation: int, seconds: int, status: int
) -> None:
    ended_at = None if state == "running" else clock.now
    with unit_of_work(sessions) as session:
        session.execute(
            update(Replica)
            .where(Replica.index == 0)
            .values(state=state, generation=row_generation, started_at=clock.now, ended_at=ended_at)
        )
    clock.advance(seconds)
    answer = send(worker, item(1))
    assert answer.status_code == status
    if status == 410:
        assert answer.json()["code"] == "attempt_ended"
    assert send(worker, item(1), index=1).status_code == 200


def test_steps_of_an_elastic_job_are_attributed_to_its_size(
    submit: Any, start: Any, reporter: Any, client: TestClient, sessions: SessionFactory
) -> None:
    job_id = submit(workers={"min": 2, "max": 4})
    attempt_id = start(job_id)
    worker = reporter(attempt_id)

    def report(seq: int, second: int, step: int, index: int = 0) -> None:
        at = f"2026-11-21T07:{second // 60:02}:{second % 60:02}Z"
        send(worker, {**item(seq, "progress", step=step, steps=10_000), "at": at}, index=index)

    report(1, 0, 0)
    report(2, 6, 10)  # compiles, connects, warms up
    report(3, 12, 100)
    report(4, 14, 120)
    report(5, 32, 300)
    report(1, 32, 9000, index=1)  # rank 1 takes the same steps
    (speed,) = client.get(f"/api/v1/jobs/{job_id}").json()["speeds"]
    assert speed == {"replicas": 2, "steps_per_s": 10.0, "measured_s": 20.0}

    with unit_of_work(sessions) as session:
        layout = session.execute(select(Attempt.layout).where(Attempt.id == attempt_id)).scalar_one()
        more = [*layout, {**layout[1], "index": 2}, {**layout[1], "index": 3}]
        session.execute(update(Attempt).where(Attempt.id == attempt_id).values(world=2, layout=more))
    report(6, 40, 305)  # the new world forms
    report(7, 55, 400)
    report(8, 75, 602)
    report(9, 80, 20)  # from an earlier checkpoint: no negative speed
    report(10, 90, 121)
    detail = client.get(f"/api/v1/jobs/{job_id}").json()
    assert [(speed["replicas"], round(speed["steps_per_s"], 1)) for speed in detail["speeds"]] == [(2, 10), (4, 10.1)]
    assert detail["growth_note"] == (
        "It does not grow beyond 2 workers: by the measured speeds the next one would add less than 10% of what each "
        "does."
    )


def test_a_job_of_fixed_size_stores_no_speeds(worker: TestClient, running: tuple[str, str], client: TestClient) -> None:
    for seq, second in enumerate((0, 12, 30, 59), start=1):
        send(worker, {**item(seq, "progress", step=10 * second), "at": f"2026-11-21T07:00:{second:02}Z"})
    assert client.get(f"/api/v1/jobs/{running[0]}").json()["speeds"] == []
