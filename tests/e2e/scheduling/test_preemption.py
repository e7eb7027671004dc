"""Jobs that give their places to others, on the whole embedded platform: with checkpoint and resume, by the clock."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stories import story_of

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e")]

# Counts to 200, and saves how far it came when it is asked to end: what a training does, without a framework.
COUNTER = """
import json, os, pathlib, signal, sys, time
here = pathlib.Path(os.environ["TRAINMASTER_OUTPUT_DIR"])
saved = here / "saved.json"
first = json.loads(saved.read_text()) if saved.exists() else 0
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
with (here / "steps").open("a") as steps:
    for step in range(first + 1, 201):
        print(step, os.environ["TRAINMASTER_ATTEMPT"], file=steps, flush=True)
        if asked:
            time.sleep(1)  # a checkpoint takes its time
            saved.write_text(json.dumps(step))
            sys.exit(143)
        time.sleep(0.05)
"""
SLEEPER = "import time; time.sleep(3600)"
EVERY_CPU = os.cpu_count() or 1


@pytest.fixture
def quick(platform: Any) -> Iterator[Any]:
    """Places are taken after two seconds."""
    platform.client.update_policy({"min_run_time": "2s", "grace": "20s"})
    yield platform
    for job in platform.client.list_jobs(state=["queued", "starting", "running", "paused"]):
        platform.client.cancel_job(job.id)
        platform.client.job(job.id).wait(timeout_s=60)
    platform.client.update_policy({"min_run_time": "5m", "grace": "30s"})


def submit(platform: Any, name: str, program: str, **spec: Any) -> Any:
    return platform.client.submit({"name": name, "command": [sys.executable, "-c", program], **spec})


def output_of(platform: Any, job: Any) -> Path:
    return Path(platform.home / "output" / job.detail().output.partition("/")[2])


def state_of(job: Any) -> str:
    return str(job.detail().state)


def test_a_job_is_stopped_for_one_of_larger_priority_saves_and_goes_on_where_it_was(
    quick: Any, eventually: Any
) -> None:
    low = submit(quick, "counter", COUNTER, cpu=EVERY_CPU, priority=10)
    eventually(lambda: state_of(low) == "running", within_s=60, what="the first one runs")
    urgent = submit(quick, "urgent", "print('done')", cpu=EVERY_CPU, priority=90)
    assert urgent.wait(timeout_s=90).state == "succeeded", story_of(urgent)
    detail = low.wait(timeout_s=90)

    assert detail.state == "succeeded", story_of(low)
    assert (detail.attempt_count, detail.restart_count) == (2, 0)
    steps = [line.split() for line in (output_of(quick, low) / "steps").read_text().splitlines()]
    assert [int(step) for step, _ in steps] == list(range(1, 201))  # none lost, none twice
    assert len({attempt for _, attempt in steps}) == 2
    reported = [event.reason for event in low.events() if event.kind == "attempt.stopping"]
    assert len(reported) == 1
    assert "urgent" in reported[0]


def test_what_is_guaranteed_to_a_project_is_given_back_to_it(quick: Any, eventually: Any) -> None:
    quick.client.create_project("owners")
    quick.client.update_quota("owners", guaranteed={"cpu": EVERY_CPU})
    borrower = submit(quick, "borrower", SLEEPER, cpu=EVERY_CPU)
    eventually(lambda: state_of(borrower) == "running", within_s=60, what="the borrower runs")
    owner = submit(quick, "owner", "print('mine')", cpu=EVERY_CPU, project="owners")
    assert owner.wait(timeout_s=90).state == "succeeded", story_of(owner)
    eventually(lambda: state_of(borrower) == "running", within_s=60, what="the borrower has its place again")
    quick.client.update_quota("owners", guaranteed={"cpu": None})


def test_an_elastic_job_gives_replicas_first_and_takes_them_back(quick: Any, eventually: Any) -> None:
    program = SLEEPER
    share = EVERY_CPU / 2
    elastic = submit(quick, "elastic", program, workers={"min": 1, "max": 2}, cpu=share, priority=10)

    def workers() -> int:
        attempts = sorted(elastic.attempts(), key=lambda one: one.number)
        return sum(replica.state == "running" for replica in attempts[-1].replicas) if attempts else 0

    eventually(lambda: workers() == 2, within_s=60, what="two workers")
    urgent = submit(quick, "urgent", "import time; time.sleep(3)", cpu=share, priority=90)
    assert urgent.wait(timeout_s=90).state == "succeeded", story_of(elastic)
    eventually(lambda: workers() == 2, within_s=60, what=f"two workers again: {story_of(elastic)}")
    assert elastic.detail().attempt_count == 1
    assert [event.kind for event in elastic.events()].count("attempt.shrinking") == 1


def test_booked_nodes_are_given_over_when_the_time_comes(quick: Any, eventually: Any) -> None:
    with_project = "guests"
    quick.client.create_project(with_project)
    tenant = submit(quick, "tenant", SLEEPER, cpu=EVERY_CPU)
    eventually(lambda: state_of(tenant) == "running", within_s=60, what="the tenant runs")
    (node,) = [one.name for one in quick.client.list_nodes()]
    now = datetime.now(UTC)
    booking = quick.client.create_reservation(
        "demo",
        project=with_project,
        nodes=[node],
        begins_at=now + timedelta(seconds=6),
        ends_at=now + timedelta(hours=1),
    )
    guest = submit(quick, "guest", "print('hello')", cpu=EVERY_CPU, project=with_project)
    try:
        assert guest.wait(timeout_s=90).state == "succeeded", story_of(tenant)
        assert state_of(tenant) == "queued"
        assert "demo" in json.dumps(tenant.detail().wait_reason.model_dump(mode="json"))
    finally:
        quick.client.delete_reservation(booking.id)
    eventually(lambda: state_of(tenant) == "running", within_s=60, what="the tenant has its place again")
