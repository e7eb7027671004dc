"""Endpoints in the control loop, with the fake engine: what is deployed becomes jobs, step by step, whatever is
killed.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy import select, update
from trainmaster.wire.serving import ServingSpec

from core.db.engine import unit_of_work
from core.db.repositories.serving import targets_of
from core.db.tables import Deployment, DeploymentRevision, Endpoint, Event, Job, ServingReplica, User
from executors.base import ReplicaOrder
from executors.fake import ProcessKilled, Script
from scheduler.control import fence
from scheduler.control.planning.snapshot import SnapshotCache, load_snapshot
from scheduler.control.serving.endpoint_loop import EndpointLoop
from scheduler.control.serving.probe import ProbeResult

SERVER = ("python", "serve.py")


class Lab:
    """A plane with one endpoint. ``sick``: versions whose health route answers 503; ``dying``: whose command fails."""

    def __init__(self, plane: Any) -> None:
        self.plane = plane
        self.sick: set[str] = set()
        self.dying: set[str] = set()
        self.orders: dict[str, ReplicaOrder] = {}  # by address
        self.requested: list[str] = []  # addresses
        self.fewest_ready = 99
        plane.engine.script_for = self._scripted
        self.timers: list[datetime] = []
        self.last_wakeup = ""  # the key of the last alarm
        self.endpoint_loop = self._new_keeper()

    def _new_keeper(self) -> EndpointLoop:
        return EndpointLoop(self.plane.control, SERVER, self._probe, set_timer=self._set_timer)

    def _set_timer(self, _topic: str, key: str, at: datetime) -> None:
        self.last_wakeup = key
        self.timers.append(at)

    def _scripted(self, order: ReplicaOrder) -> Script:
        self.orders[f"{order.node}:{order.env['AIP_HTTP_PORT']}"] = order
        if order.env["VERSION"] in self.dying:
            return Script(run_for=timedelta(seconds=1), exit_code=1)
        return Script(run_for=None)

    def _probe(self, address: str, route: str) -> ProbeResult:
        assert route == "/health"
        self.requested.append(address)
        is_ready = self.orders[address].env["VERSION"] not in self.sick
        return ProbeResult(
            is_ready, "ready" if is_ready else "its health route /health answers 503: the model is being read"
        )

    def create(self, *, replicas: int = 2, **spec: Any) -> None:
        now = self.plane.engine.now
        with unit_of_work(self.plane.sessions) as session:
            session.add(
                Endpoint(
                    id="endpoint-1",
                    project_id="project-1",
                    user_id="user-1",
                    name="digits",
                    created_at=now,
                    updated_at=now,
                )
            )
            session.flush()
            session.add(
                Deployment(
                    id="deployment-1",
                    endpoint_id="endpoint-1",
                    name="default",
                    state="active",
                    replicas=replicas,
                    traffic=100,
                    target_revision=1,
                    created_at=now,
                    updated_at=now,
                )
            )
            session.flush()
        self.revise(1, **spec)

    def revise(self, number: int, **spec: Any) -> None:
        whole = ServingSpec(model="output/default/m", env={"VERSION": f"v{number}"}, resources={"cpu": "1"}, **spec)
        with unit_of_work(self.plane.sessions) as session:
            session.add(
                DeploymentRevision(
                    deployment_id="deployment-1",
                    number=number,
                    spec=whole.model_dump(mode="json"),
                    user_id="user-1",
                    created_at=self.plane.engine.now,
                )
            )
        self.set(target_revision=number)

    def set(self, **values: Any) -> None:
        with unit_of_work(self.plane.sessions) as session:
            session.execute(update(Deployment).values(**values, generation=Deployment.generation + 1))

    def restart(self) -> None:
        self.plane.start()
        self.endpoint_loop = self._new_keeper()

    def turn(self, seconds: float = 1.0) -> None:
        self.endpoint_loop.reconcile("endpoint-1")
        self.plane.settle()
        self.plane.advance(seconds)
        self.fewest_ready = min(self.fewest_ready, len(self.targets))

    def until(self, ready: list[int], turns: int = 60) -> None:
        """Until exactly these revisions are ready and nothing else runs."""
        for _ in range(turns):
            self.turn()
            if sorted(one.revision for one in self.targets) == ready and len(self.live_jobs) == len(ready):
                return
        raise AssertionError([(r.revision, r.state, r.message) for r in self.replicas])

    @property
    def targets(self) -> list[Any]:
        with unit_of_work(self.plane.sessions) as session:
            return targets_of(session, "endpoint-1")

    @property
    def live_jobs(self) -> list[str]:
        with unit_of_work(self.plane.sessions) as session:
            ended = ("succeeded", "failed", "cancelled")
            return list(session.scalars(select(Job.id).where(Job.state.not_in(ended)).order_by(Job.id)))

    @property
    def replicas(self) -> list[ServingReplica]:
        return sorted(self.plane.all(ServingReplica), key=lambda one: (one.created_at, one.id))

    @property
    def deployment(self) -> Deployment:
        found: Deployment = self.plane.one(Deployment)
        return found

    @property
    def story(self) -> list[str]:
        with unit_of_work(self.plane.sessions) as session:
            query = select(Event.kind).where(Event.job_id.is_(None)).order_by(Event.id)
            return [
                kind for kind in session.scalars(query) if kind.startswith(("deployment.", "endpoint.", "serving_"))
            ]


@pytest.fixture
def lab(plane: Any) -> Lab:
    return Lab(plane)


def test_replicas_get_requests_when_their_health_route_answers(lab: Lab) -> None:
    lab.create()
    lab.sick = {"v1"}
    for _ in range(3):
        lab.turn()
    assert [(one.state, one.message) for one in lab.replicas] == [
        ("starting", "its health route /health answers 503: the model is being read")
    ] * 2
    assert lab.targets == []
    lab.sick = set()
    lab.until([1, 1])
    assert {one.address for one in lab.targets} <= set(lab.orders)
    assert (lab.deployment.stable_revision, lab.story) == (1, ["deployment.rolled_out"])
    job = lab.plane.one(Job, id=lab.replicas[0].job_id)
    assert (job.max_run_time_s, job.spec["contract"], job.spec["labels"]["endpoint"]) == (None, "serving", "digits")
    order = next(iter(lab.orders.values()))
    assert order.command == SERVER
    assert order.env["AIP_PREDICT_ROUTE"] == "/predict"
    assert order.env["AIP_STORAGE_URI"] == "/data/data"


def test_an_update_replaces_one_at_a_time_and_never_has_fewer_ready(lab: Lab) -> None:
    lab.create(replicas=3)
    lab.until([1, 1, 1])
    lab.fewest_ready = 99
    lab.revise(2)
    most = 0
    for _ in range(60):
        lab.turn()
        most = max(most, sum(one.state in ("starting", "ready") for one in lab.replicas))
        if lab.deployment.stable_revision == 2 and len(lab.live_jobs) == 3:
            break
    assert sorted(one.revision for one in lab.targets) == [2, 2, 2]
    assert (lab.fewest_ready, most) == (3, 4)


def test_a_revision_that_dies_is_rolled_back_with_its_reason(lab: Lab) -> None:
    lab.create()
    lab.until([1, 1])
    lab.fewest_ready = 99
    lab.dying = {"v2"}
    lab.revise(2)
    for _ in range(40):
        lab.turn()
        if lab.deployment.target_revision == 1:
            break
    lab.until([1, 1])
    assert lab.fewest_ready == 2
    (failed,) = [one for one in lab.plane.all(DeploymentRevision) if one.number == 2]
    assert failed.failures == 3
    assert failed.failure_reason.startswith(
        "Revision 2 never got ready, so revision 1 serves on: 3 of its replicas failed"
    )
    assert "failed with exit code 1" in failed.failure_reason
    assert lab.story[-1] == "deployment.rolled_back"
    assert sum(one.revision == 2 for one in lab.replicas) == 3


def test_a_revision_that_is_never_ready_in_time_is_rolled_back(lab: Lab) -> None:
    lab.create()
    lab.until([1, 1])
    lab.sick = {"v2"}
    lab.revise(2, ready_timeout_s=10)
    for _ in range(80):
        lab.turn()
    assert (lab.deployment.target_revision, lab.deployment.stable_revision) == (1, 1)
    lab.until([1, 1])
    (failed,) = [one for one in lab.plane.all(DeploymentRevision) if one.number == 2]
    assert "not ready within 10 s: its health route /health answers 503" in failed.failure_reason


def test_a_first_revision_that_dies_fails_and_leaves_nothing_running(lab: Lab) -> None:
    lab.dying = {"v1"}
    lab.create(replicas=1)
    for _ in range(40):
        lab.turn()
    assert (lab.deployment.state, lab.live_jobs, len(lab.replicas)) == ("failed", [], 3)
    lab.revise(2)
    lab.set(state="active")
    lab.until([2])


def test_a_replica_that_dies_is_replaced_at_once_and_then_ever_more_slowly(lab: Lab) -> None:
    lab.create(replicas=1)
    lab.until([1])
    lab.plane.advance(120)
    lab.dying = {"v1"}
    job = lab.live_jobs[0]
    lab.plane.want(job, "cancel")  # somebody ended its job by hand: that is no failure of the model's
    for _ in range(30):
        lab.turn()
    revision = lab.plane.one(DeploymentRevision)
    assert revision.failures >= 3
    assert lab.deployment.state == "active"  # it has served: it is tried for ever
    starts = [one.created_at for one in lab.replicas]
    apart = [(later - earlier).total_seconds() for earlier, later in pairwise(starts[1:])]
    assert apart == sorted(apart)
    assert apart[-1] > 2 * apart[0]


def test_an_endpoint_outlives_the_user_who_deployed_and_says_in_whose_name_it_runs(lab: Lab) -> None:
    lab.create(replicas=1)
    lab.until([1])
    with unit_of_work(lab.plane.sessions) as session:
        session.execute(update(User).where(User.id == "user-1").values(disabled_at=lab.plane.engine.now))
    (before,) = lab.live_jobs
    lab.set(replicas=2)
    lab.until([1, 1])
    (begun,) = [job for job in lab.live_jobs if job != before]
    with unit_of_work(lab.plane.sessions) as session:
        first, reported = (
            session.scalars(select(Event.reason).where(Event.job_id == job).order_by(Event.id)).first() or ""
            for job in (before, begun)
        )
    assert "disabled" not in first
    assert "user ann, who is disabled: deploy it again" in reported


def test_a_ready_replica_that_falls_ill_gets_no_more_requests_and_comes_back(lab: Lab) -> None:
    lab.create(replicas=1)
    lab.until([1])
    lab.sick = {"v1"}
    lab.turn()
    assert len(lab.targets) == 1  # one answer that is owed is none
    for _ in range(3):
        lab.turn()
    assert lab.targets == []
    assert "serving_replica.unready" in lab.story
    lab.sick = set()
    lab.turn()
    assert len(lab.targets) == 1
    assert len(lab.replicas) == 1


def test_the_next_probe_is_when_a_replica_may_be_ready_and_ready_ones_are_not_probed_more_often(
    lab: Lab,
) -> None:
    lab.create(replicas=1)
    lab.until([1])
    (ready,) = [one.address for one in lab.targets]
    lab.sick = {"v2"}
    lab.revise(2)
    lab.turn()
    lab.requested.clear()
    for _ in range(4):
        lab.timers.clear()
        lab.turn(0.2)
        (at,) = lab.timers
        assert timedelta(0) < at - lab.plane.engine.now + timedelta(seconds=0.2) < timedelta(seconds=0.3)
    assert len(lab.requested) - lab.requested.count(ready) >= 4
    assert lab.requested.count(ready) <= 2
    lab.sick = set()
    lab.until([2])
    lab.timers.clear()
    lab.turn()
    assert lab.timers == []  # all is well


def test_timer_wakeups_probe_no_ready_replica_in_any_process(lab: Lab) -> None:
    lab.create(replicas=1)
    lab.until([1])
    (ready,) = [one.address for one in lab.targets]
    lab.sick = {"v2"}
    lab.revise(2)
    lab.turn()
    lab.sick = {"v1", "v2"}  # the ready one reloads, for less than two seconds
    lab.requested.clear()
    for _ in range(2):
        for _ in range(2):
            lab.restart()  # another process, which knows nothing of the times of the first one
            for _ in range(2):
                lab.endpoint_loop.reconcile(lab.last_wakeup)
                lab.plane.advance(0.25)
        lab.turn(0.0)
    assert lab.requested.count(ready) == 2
    assert len(lab.requested) >= 2 + 8  # the one that starts, each time
    assert [one.revision for one in lab.targets] == [1]


def test_a_replica_drains_before_its_job_is_ended(lab: Lab) -> None:
    lab.create(replicas=2, drain_s=5)
    lab.until([1, 1])
    lab.set(replicas=1)
    lab.turn()
    assert len(lab.targets) == 1
    assert len(lab.live_jobs) == 2
    lab.turn(5)
    lab.until([1])


def test_scaling_to_nothing_and_back(lab: Lab) -> None:
    lab.create(replicas=2)
    lab.until([1, 1])
    lab.set(replicas=0)
    lab.until([])
    lab.set(replicas=3)
    lab.until([1, 1, 1])


def test_replicas_have_names_of_their_own_and_no_end_is_expected_of_them(lab: Lab) -> None:
    """However long those ran that were ended: neither of them nor of other jobs that tells anything."""
    lab.create(replicas=6)
    for replicas in (0, 6, 0, 40):
        for _ in range(3):
            lab.turn(30)
        lab.set(replicas=replicas)
    for _ in range(5):
        lab.turn(30)
    with unit_of_work(lab.plane.sessions, read_only=True) as session:
        seen = load_snapshot(session, SnapshotCache(), lab.plane.engine.now).snapshot
    assert seen.running
    assert seen.queued
    assert [one.estimate for one in seen.running if one.estimate] == []
    assert [one.estimate for one in seen.queued if one.estimate] == []
    assert all(one.is_endless for one in seen.running)
    names = {*(one.name for one in seen.running), *(one.name for one in seen.queued)}
    assert len(names) == 40
    assert all(name.startswith("digits-default-") for name in names)


def test_undeploying_ends_all_and_a_deleted_endpoint_is_gone(lab: Lab) -> None:
    lab.create()
    lab.until([1, 1])
    lab.set(state="undeploying")
    with unit_of_work(lab.plane.sessions) as session:
        session.execute(update(Endpoint).values(deleting_at=lab.plane.engine.now))
    for _ in range(20):
        lab.turn()
    assert (lab.live_jobs, lab.deployment.state) == ([], "ended")
    assert lab.plane.one(Endpoint).deleted_at is not None
    assert lab.story[-2:] == ["deployment.ended", "endpoint.deleted"]


def test_what_is_undeployed_or_cancelled_is_not_queried(lab: Lab) -> None:
    lab.create(replicas=2)
    lab.until([1, 1])
    lab.plane.want(lab.live_jobs[0], "cancel")
    lab.requested.clear()
    lab.endpoint_loop.reconcile("endpoint-1")
    assert len(set(lab.requested)) == 1
    lab.set(state="undeploying")
    lab.requested.clear()
    lab.endpoint_loop.reconcile("endpoint-1")
    assert lab.requested == []


def test_a_preempted_replica_is_no_target_until_it_runs_again(lab: Lab) -> None:
    lab.create(replicas=1)
    lab.until([1])
    with unit_of_work(lab.plane.sessions) as session:
        session.execute(update(Job).values(state="queued"))
    lab.endpoint_loop.reconcile("endpoint-1")
    assert lab.targets == []
    assert [one.state for one in lab.replicas] == ["starting"]


@pytest.mark.parametrize("place", [1, 2, 4, 5, 7, 9])
def test_a_kill_between_any_two_steps_loses_and_doubles_nothing(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, place: int
) -> None:
    """The process dies at the ``place``-th transaction of a rolling update, just before or after its commit."""
    lab.create()
    lab.until([1, 1])
    lab.fewest_ready = 99
    lab.revise(2)
    real, count = fence.fenced, [0]

    def dying(control: Any, lease: Any) -> Any:
        count[0] += 1
        if count[0] == place:
            if place % 2:
                raise ProcessKilled("before")
            with real(control, lease):
                raise ProcessKilled("in the middle")
        return real(control, lease)

    for _ in range(60):
        with monkeypatch.context() as patch:
            patch.setattr(fence, "fenced", dying)
            try:
                lab.endpoint_loop.reconcile("endpoint-1")
            except ProcessKilled:
                lab.plane.engine.advance(timedelta(seconds=20))  # until its lease is over
                patch.undo()
                lab.restart()
        lab.plane.settle()
        lab.plane.advance(1.0)
        lab.fewest_ready = min(lab.fewest_ready, len(lab.targets))
        if lab.deployment.stable_revision == 2 and len(lab.live_jobs) == 2:
            break
    assert sorted(one.revision for one in lab.targets) == [2, 2]
    assert lab.fewest_ready == 2
    assert sum(one.revision == 2 for one in lab.replicas) == 2
    assert len({one.job_id for one in lab.replicas}) == len(lab.replicas) == len(lab.plane.all(Job))
    assert not lab.plane.engine.violations


def test_the_traffic_moves_when_a_second_deployed_model_is_ready(lab: Lab) -> None:
    lab.create(replicas=1)
    lab.until([1])
    now = lab.plane.engine.now
    with unit_of_work(lab.plane.sessions) as session:
        session.add(
            Deployment(
                id="deployment-2",
                endpoint_id="endpoint-1",
                name="second",
                state="active",
                replicas=1,
                traffic=0,
                target_revision=1,
                split_when_ready={"second": 90, "default": 10, "gone": 0},
                created_at=now,
                updated_at=now,
            )
        )
        session.flush()
        spec = ServingSpec(model="output/default/m", env={"VERSION": "v2"}, resources={"cpu": "1"})
        session.add(
            DeploymentRevision(
                deployment_id="deployment-2",
                number=1,
                spec=spec.model_dump(mode="json"),
                user_id="user-1",
                created_at=now,
            )
        )
    lab.sick.add("v2")
    for _ in range(5):
        lab.turn()
    assert _traffic(lab) == {"default": 100, "second": 0}
    lab.sick.clear()
    lab.until([1, 1])
    assert _traffic(lab) == {"default": 10, "second": 90}
    lab.set(traffic=50)
    lab.turn()
    assert _traffic(lab) == {"default": 50, "second": 50}  # it was said once


def _traffic(lab: Lab) -> dict[str, int]:
    with unit_of_work(lab.plane.sessions) as session:
        return {one.name: one.traffic for one in session.scalars(select(Deployment))}
