"""Jobs that are alike are taken together where none of them starts: the plan is the same as if each were
asked alone.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest

from core.domain.ids import JobId, NodeId
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import Account, NodeSnapshot, Plan, QueuedGang, Quota, Snapshot, plan
from scheduler.planning.queue import fair_queue as turns_module
from scheduler.planning.queue import ordering as order_module
from scheduler.planning.queue.job_classes import JobClass
from scheduler.planning.queue.ordering import JobQueue
from scheduler.planning.queue.shares import Shares
from tests.properties.planner_worlds import NOW
from tests.properties.preemption_worlds import any_policy


def one_by_one(snapshot: Snapshot) -> Plan:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobQueue, "refuse", lambda _self, _kind, _above_s=None: None)
        patch.setattr(turns_module, "merge_tied", lambda _projects, _waits: ())
        batches = JobQueue.batches

        def alone(self: JobQueue, shares: object, _waits: object) -> object:
            return batches(self, shares, lambda kind: kind.is_ineligible)  # type: ignore[arg-type]

        patch.setattr(JobQueue, "batches", alone)
        return plan(snapshot)


def crowded(seed: int) -> Snapshot:
    """Many alike that wait for a few GPUs: projects and users with equal shares, guarantees, limits, and some that
    starve.
    """
    chance = Random(seed)
    whole = Amounts(64, 64, {"h100": chance.randint(1, 8)})
    nodes = [NodeSnapshot(NodeId(f"n{number}"), {}, whole, whole) for number in range(chance.randint(1, 3))]
    names = ("red", "green", "blue", "grey", "pink")[: chance.randint(1, 5)]
    users = ("ann", "bob")[: chance.choice([1, 1, 2])]
    others = chance.choice([0.0, 0.1, 0.5])

    def account(name: str) -> Account:
        guaranteed = {"gpu_milli": 1000 * chance.randint(1, 4)} if chance.random() < 0.7 else {}
        limit = {"gpu_milli": 1000 * chance.randint(2, 6)} if chance.random() < 0.3 else {}
        of_users = {user: {"gpu_milli": 1000 * chance.randint(1, 2)} for user in users if chance.random() < 0.3}
        return Account(name, quota=Quota(limit, guaranteed, user_guaranteed=of_users if guaranteed else {}))

    def job(number: int) -> QueuedGang:
        members, gpus = chance.choice([(1, 2), (2, 1), (2, 2)]) if chance.random() < others else (1, 1)
        gang = Gang((GangRole("worker", members, ResourceRequest(1, 1, gpus)),))
        return QueuedGang(
            JobId(f"j{number:02}"),
            f"j{number}",
            chance.choice(names),
            chance.choice(users),
            90 if chance.random() < others else 50,
            NOW - timedelta(seconds=chance.randint(0, 1000 if chance.random() < 0.1 else 300)),
            gang,
            gang.shape(),
            max_run_time_s=50.0 if chance.random() < others else None,
        )

    return Snapshot(
        NOW,
        tuple(nodes),
        tuple(map(job, range(chance.choice([10, 40])))),
        accounts=tuple(map(account, names)),
        policy=replace(any_policy(chance), starvation_s=500.0, is_fair=chance.random() < 0.8, usage_weight=0.0),
    )


def test_a_plan_is_the_same_if_each_job_is_queried_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    together = 0
    monkeypatch.setattr(order_module, "LOOKAHEAD", 5)
    fill = turns_module.merge_tied

    def counted(*args: object) -> object:
        nonlocal together
        found = fill(*args)  # type: ignore[arg-type]
        together += bool(found)
        return found

    monkeypatch.setattr(turns_module, "merge_tied", counted)
    for seed in range(120):
        snapshot = crowded(seed)
        made, slow = plan(snapshot), one_by_one(snapshot)
        assert made == slow
        assert list(made.waits) == list(slow.waits)
    assert together > 10


def test_a_refusal_of_a_job_class_is_forgotten_when_its_project_starts_a_job() -> None:
    snapshot = crowded(0)
    shares = Shares(snapshot)
    queue = JobQueue(snapshot, shares, lambda _job: True)
    kind: JobClass = next(queue.walk())[0][2]
    queue.refuse(kind)
    assert queue.waits(kind)
    shares.add(kind.first.project, kind.first.user, {})
    assert not queue.waits(kind)
