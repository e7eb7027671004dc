"""Nodes that take no new work since jobs end there for reasons of the machine, over a real database and the fake
engine.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy import select, update

from core.db.engine import unit_of_work
from core.db.repositories.planning import StoredPolicy, write_policy
from core.db.tables import Attempt, Event, Job, Node, NodeFailure, Replica, WaitReason
from core.domain.sharing.resources import Amounts
from executors.base import NodeInfo
from executors.fake import Script
from scheduler.control.maintenance.nodes import sync_nodes
from scheduler.control.planning.quarantine_updates import QuarantineSchedule, delete_old_failures, update_quarantines

ECC = Script(exit_code=1, log_tail="RuntimeError: CUDA error: uncorrectable ECC error encountered")
EIO = Script(exit_code=1, log_tail="OSError: [Errno 5] Input/output error")
OWN = Script(exit_code=1, log_tail="ValueError: the loss is nan")
FOREVER = Script(run_for=timedelta(hours=90))


@pytest.fixture
def fleet(plane):
    """Four equal nodes; what runs on node-0 ends as ``broken`` says, all else goes on."""
    for number in range(4):
        name = f"node-{number}"
        plane.engine._nodes[name] = NodeInfo(name, {}, Amounts(8_000, 64 * 2**30))
    sync_nodes(plane.control)
    plane.broken = {"node-0": ECC}
    plane.engine.script_for = lambda order: plane.broken.get(order.node, FOREVER)
    return plane


def shut(plane) -> dict[str, str]:
    return {node.name: node.quarantine["error"] for node in plane.all(Node) if node.quarantined_at is not None}


def on(plane, job: str) -> list[str]:
    return [replica.node for replica in plane.all(Replica, job_id=job)]


def described(plane, kind: str) -> list[str]:
    with unit_of_work(plane.sessions) as session:
        return list(session.scalars(select(Event.reason).where(Event.kind == kind).order_by(Event.id)))


def reasons(plane) -> list[str]:
    own = [job.wait_reason["sentence"] for job in plane.all(Job, state="queued") if job.wait_reason]
    return own + [reason.sentence for reason in plane.all(WaitReason)]


def only(name: str = "node-0"):
    return {"node_selector": {"host": name}}


def pin(plane) -> None:
    """Each node can be asked for by its name."""
    with unit_of_work(plane.sessions) as session:
        for node in session.scalars(select(Node)):
            node.admin_labels = {"host": node.name}


def test_a_certain_fault_quarantines_at_once_and_the_job_goes_on_elsewhere(fleet):
    job = fleet.submit("a", cpu=8, max_restarts=3)
    fleet.settle()
    assert on(fleet, job) == ["node-0"]
    fleet.advance(11)
    fleet.advance(30)
    assert shut(fleet) == {"node-0": "uncorrectable ECC error in job a"}
    assert on(fleet, job)[1:] == ["node-1"]
    assert fleet.state(job) == "running"
    (reason,) = described(fleet, "node.quarantined")
    assert reason.startswith("Node node-0 is quarantined until ")
    assert "trainmaster nodes release node-0" in reason


def test_running_jobs_go_on_and_waiting_jobs_show_the_end_of_the_quarantine(fleet):
    pin(fleet)
    fleet.engine.script("worker", ECC, FOREVER, index=0)
    bad, good = fleet.submit("bad", cpu=4, max_restarts=0, **only()), fleet.submit("good", cpu=4, **only())
    fleet.settle()
    fleet.advance(11)
    assert shut(fleet)
    assert (fleet.state(bad), fleet.state(good)) == ("failed", "running")
    waits = fleet.submit("waits", cpu=4, **only())
    fleet.settle()
    reason = reasons(fleet)[0]
    assert "node-0 is quarantined since " in reason
    assert "(uncorrectable ECC error)" in reason  # whoever waits may not know of the job
    assert "`trainmaster nodes release node-0` opens it" in reason
    until = fleet.one(Node, name="node-0").quarantined_until
    fleet.advance(3600)
    assert shut(fleet)
    # A look before that is for a job that waited much longer than others usually do.
    recheck_at = fleet.ticker.tick().recheck_at
    assert recheck_at is not None
    assert recheck_at <= until
    fleet.advance((until - fleet.engine.now).total_seconds() + 1)
    assert not shut(fleet)
    assert fleet.state(waits) == "running"
    assert described(fleet, "node.released") == ["Node node-0 takes work again: its time is over."]


def test_a_job_that_waits_for_other_nodes_also_shows_the_quarantined_one(fleet):
    fleet.submit("a", cpu=8, max_restarts=0)
    fleet.settle()
    fleet.advance(11)
    for name in "bcd":
        fleet.submit(name, cpu=8)
    fleet.settle()
    fleet.submit("e", cpu=8)
    fleet.settle()
    assert any(". Besides, node-0 is quarantined since " in reason for reason in reasons(fleet))


def test_three_suspicious_ends_of_different_jobs_quarantine_and_a_users_own_never_do(fleet):
    pin(fleet)
    fleet.broken = {"node-0": OWN}
    for number in range(5):
        fleet.submit(f"own-{number}", cpu=1, max_restarts=0, **only())
    fleet.settle()
    fleet.advance(11)
    assert not fleet.all(NodeFailure)
    fleet.broken = {"node-0": EIO}
    for number in range(3):
        assert not shut(fleet)
        fleet.submit(f"io-{number}", cpu=1, max_restarts=0, **only())
        fleet.settle()
        fleet.advance(11)
    assert shut(fleet)["node-0"].startswith(
        "3 jobs in a row ended for suspected faults of the machine: job io-0 (input/output"
    )


def test_an_xid_is_certain_only_of_a_replica_with_a_gpu(plane):
    plane.engine.script("worker", Script(exit_code=1, log_tail="NVRM: Xid (PCI:0000:3b:00): 79, fallen off the bus"))
    plane.submit("a", cpu=1, max_restarts=0)
    plane.submit("b", cpu=1, gpus=1, max_restarts=0)
    plane.settle()
    plane.advance(11)
    assert {one.job_id: one.is_certain for one in plane.all(NodeFailure)} == {"job-a": False, "job-b": True}


def test_a_job_that_fails_everywhere_leaves_all_nodes_open(fleet):
    fleet.broken = {f"node-{number}": ECC for number in range(4)}
    fleet.submit("a", cpu=8, max_restarts=5)
    fleet.settle()
    for _ in range(40):
        fleet.advance(30)
    assert fleet.state("job-a") == "failed"
    assert len(set(on(fleet, "job-a"))) > 1
    assert not shut(fleet)
    (first,) = described(fleet, "node.released")
    assert "failed so on " in first
    assert fleet.one(Node, name="node-0").quarantine_count == 0


def test_killed_between_the_end_and_the_quarantine_the_next_control_plane_decides_the_same(fleet):
    fleet.submit("a", cpu=8, max_restarts=3)
    fleet.settle()
    fleet.engine.advance(timedelta(seconds=11))
    attempt = fleet.one(Attempt, job_id="job-a")
    fleet.reconciler.reconcile(attempt.id)  # the end is written, and then it dies
    assert len(fleet.all(NodeFailure)) == 1
    assert not shut(fleet)
    fleet.start()
    fleet.advance(30)
    assert set(shut(fleet)) == {"node-0"}
    fleet.start()
    fleet.advance(30)
    assert len(described(fleet, "node.quarantined")) == 1
    assert on(fleet, "job-a") == ["node-0", "node-1"]


def broken_once(fleet) -> None:
    fleet.submit("a", cpu=8, max_restarts=3)
    fleet.settle()
    fleet.engine.advance(timedelta(seconds=11))
    fleet.reconciler.reconcile(fleet.one(Attempt, job_id="job-a").id)


def test_a_decision_that_could_not_be_written_is_made_by_the_next_tick(fleet, monkeypatch):
    broken_once(fleet)

    def fail(session, now):
        update_quarantines(session, now)
        raise OSError("the database went away")

    with monkeypatch.context() as patched:
        patched.setattr("scheduler.control.planning.quarantine_updates.update_quarantines", fail)
        with pytest.raises(OSError, match="went away"):
            fleet.ticker.tick()
    assert not shut(fleet)
    fleet.ticker.tick()
    assert set(shut(fleet)) == {"node-0"}


def test_it_is_due_for_each_failure_whatever_its_id_and_at_least_once_a_minute(fleet):
    broken_once(fleet)
    schedule, now = QuarantineSchedule(), fleet.engine.now

    def is_due(seconds: float = 0) -> bool:
        with unit_of_work(fleet.sessions) as session:
            due = schedule.is_due(session, now + timedelta(seconds=seconds))
        schedule.note_done()
        return due

    assert is_due()
    assert not is_due(59)
    assert is_due(60)
    with unit_of_work(fleet.sessions) as session:
        session.execute(update(NodeFailure).values(at=now + timedelta(seconds=1)))  # another one with the same id
    assert is_due(61)
    with unit_of_work(fleet.sessions) as session:
        one = session.scalars(select(NodeFailure)).one()
        session.add(
            NodeFailure(
                id=one.id - 1, node="node-1", job_id="job-a", attempt_id=one.attempt_id, replica="worker-0",
                at=now - timedelta(seconds=1), error=one.error, is_certain=True, is_loss=False,
            )
        )  # fmt: skip
    assert is_due(62)
    assert not is_due(63)


def test_two_that_decide_at_once_write_it_once(fleet):
    fleet.submit("a", cpu=8, max_restarts=0)
    fleet.settle()
    fleet.engine.advance(timedelta(seconds=11))
    fleet.reconciler.reconcile(fleet.one(Attempt, job_id="job-a").id)
    now = fleet.engine.now
    with unit_of_work(fleet.sessions) as session:
        assert update_quarantines(session, now) == ["node-0"]
    with unit_of_work(fleet.sessions) as session:
        assert update_quarantines(session, now) == []
    assert len(described(fleet, "node.quarantined")) == 1


def test_a_lost_node_is_suspected_once_for_all_that_ran_there(fleet):
    pin(fleet)
    fleet.broken = {}
    for number in range(4):
        fleet.submit(f"job-{number}", cpu=1, **only())
    fleet.settle()
    node = fleet.engine._nodes["node-0"]
    fleet.engine._nodes["node-0"] = NodeInfo("node-0", {}, node.allocatable, is_ready=False, condition="No answer.")
    sync_nodes(fleet.control)
    fleet.advance(61)
    assert {one.error for one in fleet.all(NodeFailure)} == {"the node was lost"}
    fleet.engine._nodes["node-0"] = node
    sync_nodes(fleet.control)
    fleet.settle()
    assert not shut(fleet)


def test_the_only_node_is_suspected_in_words_and_stays_open(plane):
    plane.engine.script("worker", ECC)
    plane.submit("a", cpu=1, max_restarts=0)
    plane.settle()
    plane.advance(11)
    node = plane.one(Node)
    assert node.quarantined_at is None
    assert "it is the last node of its kind that takes work" in node.suspicion["sentence"]
    assert described(plane, "node.suspected") == [node.suspicion["sentence"]]
    plane.advance(3700)
    assert plane.one(Node).suspicion is None


def test_it_survives_restarts_and_another_look_at_the_nodes_and_an_elapsed_suspect_waits_for_its_turn(fleet):
    fleet.broken = {"node-0": ECC, "node-1": ECC}
    for name in "ab":
        fleet.submit(name, cpu=8, max_restarts=0)
    fleet.settle()
    fleet.advance(11)
    assert set(shut(fleet)) == {"node-0"}
    assert fleet.one(Node, name="node-1").suspicion is not None
    fleet.start()
    assert set(shut(fleet)) == {"node-0"}
    # An administrator lets the first one go: the second gets its place.
    with unit_of_work(fleet.sessions) as session:
        session.execute(
            update(Node)
            .where(Node.name == "node-0")
            .values(quarantine=None, quarantined_at=None, quarantined_until=None, trusted_since=fleet.engine.now)
        )
    fleet.settle()
    assert set(shut(fleet)) == {"node-1"}


def test_a_suspicion_is_reported_once_and_has_the_newest_causes(plane):
    plane.engine.script("worker", EIO)
    for number in range(4):
        plane.submit(f"io-{number}", cpu=1, max_restarts=0)
    plane.settle()
    plane.advance(11)
    (first,) = described(plane, "node.suspected")
    for number in range(4, 6):
        plane.submit(f"io-{number}", cpu=1, max_restarts=0)
        plane.settle()
        plane.advance(11)
    assert len(plane.one(Node).suspicion["causes"]) == 6
    assert described(plane, "node.suspected") == [first]


def test_the_last_that_is_left_is_let_out_and_goes_back_when_another_takes_work(fleet):
    broken_once(fleet)
    fleet.settle()
    first = fleet.one(Node, name="node-0")
    assert first.quarantined_until is not None
    cordon = update(Node).where(Node.name != "node-0")
    with unit_of_work(fleet.sessions) as session:
        session.execute(cordon.values(is_cordoned=True))
    fleet.advance(61)
    node = fleet.one(Node, name="node-0")
    assert not shut(fleet)
    assert "it is the last node of its kind that takes work" in node.suspicion["sentence"]
    (has_event,) = described(fleet, "node.released")
    assert "no other node of its kind does" in has_event
    fleet.advance(2 * 3600)  # longer than the window
    assert fleet.one(Node, name="node-0").suspicion == node.suspicion
    with unit_of_work(fleet.sessions) as session:
        session.execute(cordon.values(is_cordoned=False))
    fleet.advance(6)
    again = fleet.one(Node, name="node-0")
    assert again.quarantine == first.quarantine
    assert again.quarantine_count == first.quarantine_count == 1


def test_policy_switches_it_off_and_old_failures_are_forgotten(fleet):
    with unit_of_work(fleet.sessions) as session:
        seen = StoredPolicy(None, {})  # type: ignore[arg-type]
        write_policy(session, {"quarantines": False}, previous=seen, by="ann", now=fleet.engine.now)
    fleet.submit("a", cpu=8, max_restarts=0)
    fleet.settle()
    fleet.advance(11)
    assert fleet.all(NodeFailure)
    assert not shut(fleet)
    with unit_of_work(fleet.sessions) as session:
        assert delete_old_failures(session, fleet.engine.now) == 0
        assert delete_old_failures(session, fleet.engine.now + timedelta(days=9)) == 1
