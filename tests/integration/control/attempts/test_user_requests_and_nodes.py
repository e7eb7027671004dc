"""Users' wishes, nodes that come and go, and control planes that follow one another."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from sqlalchemy import select, update

from core.db.engine import unit_of_work
from core.db.tables import (
    Attempt,
    Job,
    Lease,
    Node,
    NodeFailure,
    Replica,
    WaitReason,
)
from core.domain.ids import AttemptId
from core.domain.sharing.resources import Amounts
from executors.base import Gpu, NodeInfo, ReplicaKey
from executors.fake import Script
from scheduler.control.attempts.reconcile_result import ReconcileOutcome
from scheduler.control.maintenance.nodes import sync_nodes
from scheduler.control.maintenance.resync import due_attempts, find_drifted

GPUS = tuple(Gpu(str(number), "a100", 2**30) for number in range(2))


def test_cancel_and_pause_reach_what_runs(plane):
    plane.engine.script("worker", Script(run_for=None))
    cancelled, paused = plane.submit("cancelled"), plane.submit("paused")
    plane.settle()
    plane.want(cancelled, "cancel")
    plane.want(paused, "pause")
    plane.settle()
    assert (plane.state(cancelled), plane.state(paused)) == ("cancelled", "paused")
    assert not plane.engine.live()


def test_a_user_request_between_two_states_is_not_forgotten(plane):
    job = plane.submit()
    plane.want(job, "cancel")
    plane.settle()
    assert plane.state(job) == "cancelled"
    assert not plane.engine.starts


def test_a_lost_node_gives_its_jobs_to_others_after_its_grace_without_counting(plane):
    plane.engine.script("worker", Script(run_for=None))
    job = plane.submit()
    plane.settle()
    sync_nodes(plane.control)
    plane.engine._nodes["node-1"] = NodeInfo("node-1", {}, Amounts(8_000, 64 * 2**30))
    node = plane.engine._nodes["node-0"]
    plane.engine._nodes["node-0"] = NodeInfo(
        "node-0", {}, node.allocatable, GPUS, is_ready=False, condition="No answer."
    )
    sync_nodes(plane.control)
    plane.advance(59)
    assert plane.one(Attempt, job_id=job).number == 1
    plane.advance(2)
    first, second = plane.all(Attempt, job_id=job)
    assert first.end["kind"] == "platform"
    assert not first.counts_as_restart
    assert plane.one(Replica, attempt_id=second.id).node == "node-1"


def test_a_node_that_is_cordoned_in_the_engine_is_drained_and_its_upgrade_is_no_loss(plane):
    plane.engine.script("worker", Script(run_for=None))
    job = plane.submit()
    plane.settle()
    node = plane.engine._nodes["node-0"]
    cordoned = replace(node, is_draining=True, condition="It is cordoned in the cluster.")
    plane.engine._nodes["node-0"] = cordoned
    assert sync_nodes(plane.control) > 0
    plane.settle()
    stop = plane.one(Attempt, job_id=job).stop
    assert (stop["cause"], stop["code"]) == ("preempt", "drain")
    plane.advance(31)
    waiting = plane.one(Job, id=job)
    assert (waiting.state, waiting.restart_count) == ("queued", 0)
    plane.engine._nodes["node-0"] = node
    sync_nodes(plane.control)
    plane.settle()
    assert plane.state(job) == "running"

    # The machine goes away while it is cordoned, before the gang could leave.
    plane.engine._nodes["node-0"] = replace(cordoned, is_ready=False)
    sync_nodes(plane.control)
    plane.advance(120)
    assert [row.error for row in plane.all(NodeFailure)] == []


def test_nodes_come_and_go_and_a_cordon_stays(plane):
    with unit_of_work(plane.sessions) as session:
        session.execute(update(Node).values(is_cordoned=True, cordon_reason="repair"))
    assert sync_nodes(plane.control) == 0
    job = plane.submit()
    plane.settle()
    assert plane.state(job) == "queued"
    plane.engine._nodes.clear()
    assert sync_nodes(plane.control) == 1
    node = plane.one(Node)
    assert (node.is_ready, node.is_cordoned, node.cordon_reason) == (False, True, "repair")


def test_another_executor_takes_over_the_nodes_and_the_others_are_gone(plane):
    with unit_of_work(plane.sessions) as session:
        session.execute(update(Node).values(executor="process", is_cordoned=True))
        session.add(
            Node(
                name="laptop",
                executor="process",
                labels={},
                allocatable={},
                gpus=[],
                is_ready=True,
                seen_at=plane.engine.now,
            )
        )
    sync_nodes(plane.control)
    same, other = plane.one(Node, name="node-0"), plane.one(Node, name="laptop")
    assert (same.executor, same.is_ready, same.is_cordoned) == ("fake", True, True)
    assert (other.is_ready, other.condition) == (False, "The executor does not list it any more.")


def test_an_admins_label_outlives_the_looks_at_nodes_and_lets_a_selector_match(plane):
    job = plane.submit(node_selector={"pool": "fast"})
    plane.settle()
    assert plane.state(job) == "queued"
    with unit_of_work(plane.sessions) as session:
        session.execute(update(Node).values(admin_labels={"pool": "fast"}))
    node = plane.engine._nodes["node-0"]
    plane.engine._nodes["node-0"] = NodeInfo("node-0", {"pool": "slow"}, node.allocatable, GPUS)
    assert sync_nodes(plane.control) == 1
    assert plane.one(Node).admin_labels == {"pool": "fast"}
    plane.settle()
    assert plane.state(job) == "running"


def test_a_family_gets_the_ids_of_the_model_that_was_chosen(plane):
    gpus = (Gpu("0", "Tesla T4", 2**30), Gpu("7", "NVIDIA A100-SXM4-80GB", 2**30))
    whole = Amounts(8_000, 64 * 2**30, {"Tesla T4": 1, "NVIDIA A100-SXM4-80GB": 1})
    plane.engine._nodes["node-0"] = NodeInfo("node-0", {}, whole, gpus)
    sync_nodes(plane.control)
    assert plane.one(Node).allocatable["gpus"] == {"t4": 1, "a100-sxm4-80gb": 1}
    job = plane.submit(gpus=1, gpu_type="A100")
    plane.settle()
    replica = plane.one(Replica, job_id=job)
    assert (replica.gpus, replica.gpu_model) == (["7"], "a100-sxm4-80gb")


def test_a_killed_control_plane_is_followed_by_one_that_adopts(plane):
    plane.engine.script("worker", Script(run_for=timedelta(seconds=5)))
    job = plane.submit()
    plane.settle()
    plane.start()
    plane.advance(6)
    assert plane.state(job) == "succeeded"
    assert len(plane.engine.starts) == 1


def test_another_processs_attempt_is_left_alone(plane):
    job = plane.submit()
    plane.ticker.tick()
    attempt = AttemptId(plane.one(Attempt, job_id=job).id)
    with unit_of_work(plane.sessions) as session:
        expires = plane.engine.now + timedelta(seconds=15)
        session.add(Lease(name=f"attempt:{attempt}", holder="other", token=7, expires_at=expires))
    assert plane.reconciler.reconcile(attempt).outcome is ReconcileOutcome.BUSY
    assert not plane.engine.starts


def test_the_resync_wakes_up_forgotten_attempts(plane):
    plane.engine.script("worker", Script(run_for=None))
    job = plane.submit()
    plane.ticker.tick()
    attempt = plane.one(Attempt, job_id=job).id

    def due():
        with unit_of_work(plane.sessions) as session:
            return due_attempts(session, plane.engine.now)

    assert due() == [attempt]
    plane.settle()
    assert due() == []
    plane.engine.advance(timedelta(seconds=6))
    assert due() == [attempt]


def test_beat_leaves_what_runs_well_alone_for_longer_where_the_executor_tells_of_changes(plane):
    plane.engine.script("worker", Script(run_for=None))
    job = plane.submit()
    plane.settle()
    attempt = plane.one(Attempt, job_id=job).id

    def due_after(seconds):
        with unit_of_work(plane.sessions, read_only=True) as session:
            now = plane.engine.now + timedelta(seconds=seconds)
            return due_attempts(session, now, steady=timedelta(minutes=5))

    assert due_after(60) == []
    assert due_after(301) == [attempt]
    with unit_of_work(plane.sessions) as session:
        session.execute(update(Node).values(is_ready=False))
    assert due_after(60) == [attempt], "its node will count as lost by time alone"


def test_a_ready_node_with_a_condition_takes_no_new_work_and_keeps_what_runs(plane):
    with unit_of_work(plane.sessions) as session:
        session.execute(update(Node).values(condition="It is cordoned in the cluster."))
    job = plane.submit()
    plane.ticker.tick()
    with unit_of_work(plane.sessions, read_only=True) as session:
        assert session.get(Job, job).state == "queued"
        reasons = session.scalars(select(WaitReason.sentence)).all()
    assert "take no new work" in reasons[0]
    assert "takes no new work (It is cordoned in the cluster)" in reasons[0]


def test_the_drift_check_finds_only_drifted_attempts(plane):
    plane.engine.script("worker", Script(run_for=None))
    well, broken = plane.submit("well"), plane.submit("broken")
    plane.settle()

    def glanced():
        plane.engine.advance(timedelta(seconds=6))  # one process in five seconds
        return find_drifted(plane.control, every=timedelta(seconds=5))

    assert glanced() == []
    attempt = AttemptId(plane.one(Attempt, job_id=broken).id)
    plane.engine.lose(ReplicaKey(broken, attempt, "worker", 0))
    assert glanced() == [attempt]
    assert find_drifted(plane.control, every=timedelta(seconds=5)) == [], "somebody has just glanced"
    plane.reconciler.reconcile(attempt)
    plane.settle()
    assert plane.state(well) == "running"


def test_the_drift_check_finds_an_expired_run_time(plane):
    plane.engine.script("worker", Script(run_for=None))
    job = plane.submit(max_run_time="1m")
    plane.settle()
    attempt = AttemptId(plane.one(Attempt, job_id=job).id)
    plane.engine.advance(timedelta(seconds=70))
    assert find_drifted(plane.control, every=timedelta(seconds=5)) == []
    plane.engine.advance(timedelta(seconds=10))
    assert find_drifted(plane.control, every=timedelta(seconds=5)) == [attempt]
