"""Users of one project: who may take whose place, for a guarantee or a share, and what they read."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from core.domain.ids import JobId, NodeId
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import (
    Account,
    NodeSnapshot,
    Plan,
    Policy,
    PreemptCode,
    QueuedGang,
    QueueOrder,
    Quota,
    RunningGang,
    Snapshot,
    plan,
)

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
RECLAIMS = Policy(order=QueueOrder.FIFO, usage_weight=0.0, min_run_time_s=0.0)
BY_SHARE = replace(RECLAIMS, preempts_shares=True)
OF_ANN = (Account("vision", quota=Quota(user_guaranteed={"ann": {"gpu_milli": 4000}})),)


def gang(gpus: int) -> Gang:
    return Gang((GangRole("worker", 1, ResourceRequest(1, 1, gpus)),))


def waits(name: str, gpus: int, user: str, priority: int = 50, project: str = "vision") -> QueuedGang:
    wanted = gang(gpus)
    return QueuedGang(JobId(name), name, project, user, priority, NOW, wanted, wanted.shape())


def runs(name: str, gpus: int, user: str, priority: int = 50, project: str = "vision", on: str = "n0") -> RunningGang:
    at = NOW - timedelta(hours=1)
    nodes = (("worker", NodeId(on)),)
    return RunningGang(JobId(name), name, project, priority, gang(gpus), nodes, user=user, queued_at=at, started_at=at)


def planned(running: list[RunningGang], job: QueuedGang, policy: Policy = RECLAIMS, accounts=(), model="h100") -> Plan:
    left = 8 - sum(one.gang.gpu_count for one in running if one.nodes[0][1] == "n0")
    nodes = [NodeSnapshot(NodeId("n0"), {}, Amounts(99, 99, {"h100": 8}), Amounts(90, 90, {"h100": left}))]
    if any(one.nodes[0][1] == "n1" for one in running):
        nodes.append(NodeSnapshot(NodeId("n1"), {}, Amounts(99, 99, {"a100": 2}), Amounts(90, 90, {"a100": 0})))
    return plan(Snapshot(NOW, tuple(nodes), (job,), tuple(running), accounts=accounts, policy=policy))


def stopped(made: Plan) -> list[tuple[str, PreemptCode]]:
    return [(preempt.job_id, preempt.code) for preempt in made.preempts]


def test_a_user_gets_back_what_is_guaranteed_from_users_of_the_project_who_have_more_than_theirs() -> None:
    full = [runs("b1", 4, "bob"), runs("b2", 4, "bob")]
    made = planned(full, waits("mine", 4, "ann"), accounts=OF_ANN)
    assert [code for _, code in stopped(made)] == [PreemptCode.GUARANTEE]
    assert "user bob used more than what is guaranteed inside project vision, and user ann gets back" in (
        made.preempts[0].sentence
    )
    # Beyond the guarantee, without one, from a larger priority, from another project, or if nothing is given back:
    # nobody.
    assert stopped(planned(full, waits("mine", 5, "ann"), accounts=OF_ANN)) == []
    assert stopped(planned(full, waits("mine", 4, "cat"), accounts=OF_ANN)) == []
    assert stopped(planned(full, waits("mine", 4, "ann"))) == []
    urgent = [replace(one, priority=90) for one in full]
    assert stopped(planned(urgent, waits("mine", 4, "ann"), accounts=OF_ANN)) == []
    theirs = [replace(one, project="nlp") for one in full]
    assert stopped(planned(theirs, waits("mine", 4, "ann"), accounts=OF_ANN)) == []
    off = replace(RECLAIMS, reclaims=False)
    assert stopped(planned(full, waits("mine", 4, "ann"), off, OF_ANN)) == []


def test_what_is_guaranteed_to_a_user_is_taken_by_a_larger_priority_of_the_project_only() -> None:
    full = [runs("a", 4, "ann"), runs("b", 4, "bob", 90)]
    slices = replace(BY_SHARE, time_slice_s=60.0)
    assert stopped(planned(full, waits("c", 4, "cat"), slices, OF_ANN)) == []
    assert stopped(planned(full, waits("c", 4, "cat", 60), slices, OF_ANN)) == [("a", PreemptCode.PRIORITY)]


def test_a_user_with_a_far_smaller_share_of_the_project_takes_the_place_of_one_with_a_larger_one() -> None:
    full = [runs("b1", 4, "bob"), runs("b2", 4, "bob")]
    made = planned(full, waits("mine", 2, "ann"), BY_SHARE)
    assert [code for _, code in stopped(made)] == [PreemptCode.FAIR_SHARE]
    assert "user bob had more than a fair share of project vision and user ann less" in made.preempts[0].sentence
    assert stopped(planned(full, waits("mine", 2, "bob"), BY_SHARE)) == []
    assert stopped(planned(full, waits("mine", 2, "ann"))) == []
    assert stopped(planned(full, waits("mine", 2, "ann", 40), BY_SHARE)) == []
    # With the job ann would have as much as bob has: nobody gains.
    even = [runs("b", 4, "bob"), runs("c", 4, "cat", 90)]
    assert stopped(planned(even, waits("mine", 4, "ann"), BY_SHARE)) == []
    # By weights, too.
    heavy = (Account("vision", user_weights={"bob": 4.0}),)
    assert stopped(planned(full, waits("mine", 4, "ann"), BY_SHARE, heavy)) == []


def test_beside_another_project_no_users_exchange_makes_the_share_of_theirs_larger() -> None:
    full = [runs("b1", 2, "bob"), runs("b2", 2, "bob"), runs("b3", 2, "bob"), runs("n", 2, "eve", 90, "nlp")]
    assert stopped(planned(full, waits("mine", 3, "ann"), BY_SHARE)) == []
    assert [code for _, code in stopped(planned(full, waits("mine", 2, "ann"), BY_SHARE))] == [PreemptCode.FAIR_SHARE]


def test_shares_are_compared_with_the_gpus_that_would_be_taken_of_which_there_may_be_few() -> None:
    # The two A100s are all that there are: with them nlp would have a larger share than vision has, and so on in a
    # circle.
    running = [runs("o", 8, "eve", 90, "other"), runs("v", 2, "ann", 50, "vision", "n1")]
    job = waits("mine", 2, "bob", project="nlp")
    accounts = (Account("vision", weight=2.0),)
    assert stopped(planned(running, job, BY_SHARE, accounts)) == []


def test_no_equal_user_gets_a_replica_of_what_is_guaranteed_to_another_one_of_the_project() -> None:
    # Six of her eight are more than four: two are anybody's of the project, and not one more but for a larger priority.
    wide = Gang((GangRole("worker", 1, ResourceRequest(1, 1, 1), 8),))
    at = NOW - timedelta(hours=1)
    places = tuple(("worker", NodeId("n0")) for _ in range(6))
    elastic = RunningGang(JobId("wide"), "wide", "vision", 50, wide, places, user="ann", queued_at=at, started_at=at)
    nodes = (NodeSnapshot(NodeId("n0"), {}, Amounts(99, 99, {"h100": 8}), Amounts(90, 90, {"h100": 2})),)

    def given(job: QueuedGang, accounts=OF_ANN) -> list[int]:
        made = plan(Snapshot(NOW, nodes, (job,), (elastic,), accounts=accounts, policy=RECLAIMS))
        assert made.preempts == ()
        return [len(shrink.indices) for shrink in made.shrinks]

    assert given(waits("his", 4, "bob")) == [2]
    assert given(waits("his", 5, "bob")) == []
    assert given(waits("his", 5, "bob", 60)) == [3]
    assert given(waits("hers", 5, "ann")) == [3]
    assert given(waits("his", 5, "bob"), ()) == [3]
