"""Gangs of real pods share two nodes: preemption with checkpoint and resume, shrinking, guarantees, reservations,
limits, shares and backfill.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e import elastic_steps, planner_stories
from tests.e2e.planner_stories import PLACES, Stage
from tests.e2e.stories import story_of

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kubernetes,
    pytest.mark.xdist_group("kubernetes"),
    pytest.mark.timeout(420),
]

EXAMPLES = Path(__file__).parents[3] / "examples"
SLEEPER = ["python3", "-u", "-c", "import time; time.sleep(3600)"]
GREETER = ["python3", "-u", "-c", "print('hello')"]
# What a node of the cluster has: all of it leaves room for nobody else there.
GPUS = 4


@pytest.fixture(autouse=True)
def _quick(platform: Any, cluster: Any, two_nodes: list[str]) -> Iterator[None]:
    """Places are taken after three seconds, and nobody is left over from the test before."""
    cluster.ensure_ready(two_nodes)
    platform.client.update_policy({"min_run_time": "3s", "grace": "20s"})
    yield
    for job in platform.client.list_jobs(state=["queued", "starting", "running", "paused"]):
        platform.client.cancel_job(job.id)
        platform.client.job(job.id).wait(timeout_s=90)
    platform.client.update_policy({"min_run_time": "5m", "grace": "30s"})


@pytest.fixture
def stage(platform: Any, eventually: Any) -> Iterator[Stage]:
    stage = Stage(platform.client, eventually, gpus=2 * GPUS // PLACES, python="python3")
    yield stage
    stage.clear()


def run(platform: Any, name: str, command: list[str], **spec: Any) -> Any:
    return platform.client.submit({"name": name, "command": command, **spec})


def state_of(job: Any) -> str:
    return str(job.detail().state)


def test_a_gang_on_two_nodes_saves_gives_its_place_and_goes_on_where_it_was(platform: Any, eventually: Any) -> None:
    folder = EXAMPLES / "allreduce"
    spec = yaml.safe_load((folder / "job.yaml").read_text())
    command = ["python", "train.py", "--epochs", "20", "--step-seconds", "0.1", "--checkpoint-every", "100000"]
    low = platform.client.submit(
        {**spec, "processes_per_replica": 1, "gpus": GPUS, "priority": 10, "command": command}, code=folder
    )
    eventually(lambda: (low.detail().progress or {}).get("step", 0) >= 20, within_s=180, what="its first steps")
    urgent = run(platform, "urgent", GREETER, gpus=GPUS, priority=90)
    assert urgent.wait(timeout_s=120).state == "succeeded", story_of(low)
    detail = low.wait(timeout_s=240)

    assert detail.state == "succeeded", story_of(low)
    assert (detail.attempt_count, detail.restart_count) == (2, 0), story_of(low)
    result = json.loads(low.read_file("result.json"))
    assert result["resumed_at"] >= 20  # the checkpoint of its grace: it made no other
    assert result["accuracy"] >= 0.95
    stopped = [event.reason for event in low.events() if event.kind == "attempt.stopping"]
    assert len(stopped) == 1
    assert "urgent" in stopped[0]


def test_what_is_guaranteed_to_a_project_is_given_back_to_it(platform: Any, eventually: Any) -> None:
    platform.client.create_project("owners")
    platform.client.update_quota("owners", guaranteed={"gpus": GPUS})
    borrowers = [run(platform, f"borrower-{number}", SLEEPER, gpus=GPUS) for number in range(2)]
    eventually(lambda: {state_of(job) for job in borrowers} == {"running"}, within_s=120, what="both borrowers run")
    owner = run(platform, "owner", SLEEPER, gpus=GPUS, project="owners")
    eventually(lambda: state_of(owner) == "running", within_s=120, what="the owner runs")
    assert sorted(map(state_of, borrowers)) == ["queued", "running"]
    platform.client.cancel_job(owner.id)
    eventually(lambda: {state_of(job) for job in borrowers} == {"running"}, within_s=120, what="both run again")
    platform.client.update_quota("owners", guaranteed={"gpus": None})


def test_an_elastic_gang_gives_a_pod_first_and_takes_another_in(platform: Any, eventually: Any) -> None:
    folder = EXAMPLES / "elastic"
    spec = yaml.safe_load((folder / "job.yaml").read_text())
    more = {**elastic_steps.SPEC, "workers": {"min": 1, "max": 2}, "gpus": GPUS, "priority": 10}
    job = platform.client.submit({**spec, **more, "processes_per_replica": 1}, code=folder)
    steps = elastic_steps.Steps(platform.now.home / "output" / job.detail().output.partition("/")[2])
    eventually(lambda: steps.first(1, 2) and state_of(job) == "running", within_s=240, what="two workers train")
    urgent = run(platform, "urgent", GREETER, gpus=GPUS, priority=90)
    alone = eventually(lambda: steps.first(2, 1), within_s=120, what="one trains alone")
    assert urgent.wait(timeout_s=120).state == "succeeded", story_of(job)
    both = eventually(lambda: steps.first(3, 2), within_s=180, what="another one joins")
    detail = job.wait(timeout_s=300)

    assert detail.state == "succeeded", story_of(job)
    assert (detail.attempt_count, detail.restart_count) == (1, 0), story_of(job)
    assert alone["pid"] == both["pid"]  # the processes stay
    assert [step["step"] for step in steps.all()] == list(range(1, elastic_steps.STEPS + 1))


def test_reserved_nodes_are_given_over_when_the_time_comes(
    platform: Any, two_nodes: list[str], eventually: Any
) -> None:
    platform.client.create_project("guests")
    node = two_nodes[0]
    here = {"kubernetes.io/hostname": node}
    tenant = run(platform, "tenant", SLEEPER, gpus=1, node_selector=here)
    eventually(lambda: state_of(tenant) == "running", within_s=120, what="the tenant runs")
    now = datetime.now(UTC)
    reservation = platform.client.create_reservation(
        "demo",
        project="guests",
        nodes=[node],
        begins_at=now + timedelta(seconds=6),
        ends_at=now + timedelta(hours=1),
    )
    try:
        eventually(lambda: state_of(tenant) == "queued", within_s=90, what="the tenant has left")
        guest = run(platform, "guest", GREETER, gpus=1, node_selector=here, project="guests")
        assert guest.wait(timeout_s=120).state == "succeeded", story_of(tenant)
        assert state_of(tenant) == "queued"
    finally:
        platform.client.delete_reservation(reservation.id)
    eventually(lambda: state_of(tenant) == "running", within_s=120, what="the tenant has its place again")


def test_a_limit_holds_though_places_are_free(stage: Stage) -> None:
    planner_stories.a_limit_holds_though_places_are_free(stage)


def test_the_smaller_share_for_its_weight_comes_first(stage: Stage) -> None:
    planner_stories.the_smaller_share_for_its_weight_comes_first(stage)


def test_a_short_job_fills_the_hole_and_the_gang_starts_when_it_was_reported(stage: Stage) -> None:
    planner_stories.a_short_job_fills_the_hole_and_the_gang_starts_when_it_was_reported(stage, hole_s=20)
