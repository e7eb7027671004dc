"""Whom a plan stops or makes smaller, for whom, and what both are told."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from core.domain.ids import JobId, NodeId
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import (
    Account,
    Booking,
    Defragment,
    Estimate,
    NodeSnapshot,
    Plan,
    Policy,
    PreemptCode,
    QueuedGang,
    QueueOrder,
    Quota,
    RunningGang,
    Snapshot,
    WaitReasonCode,
    plan,
)
from scheduler.planning.fixpoint import apply_plan
from scheduler.planning.preemption import preemption

NOW = datetime(2026, 11, 21, 14, 0, tzinfo=UTC)
WHOLE = Amounts(64_000, 64 << 30, {"h100": 8})


def gang(gpus: int, members: int = 1, most: int | None = None) -> Gang:
    return Gang((GangRole("worker", members, ResourceRequest(1000, 1 << 30, gpus), most),))


def waits(
    name: str, wanted: Gang, priority: int = 50, project: str = "p", room_since: datetime | None = None
) -> QueuedGang:
    return QueuedGang(
        JobId(name), name, project, "u", priority, NOW, wanted, wanted.shape(), room_since=room_since
    )  # fmt: skip


def runs(
    name: str,
    held: Gang,
    *on: str,
    priority: int = 50,
    project: str = "p",
    ran_s: float = 3600.0,
    lost_gpu_s: float = 0.0,
) -> RunningGang:
    return RunningGang(
        job_id=JobId(name),
        name=name,
        project=project,
        priority=priority,
        gang=held,
        nodes=tuple(("worker", NodeId(node)) for node in on),
        gpu_models=("h100",) * len(on),
        user="u",
        started_at=NOW - timedelta(seconds=ran_s),
        lost_gpu_s=lost_gpu_s,
    )


def planned(nodes: int, running: list[RunningGang], queued: list[QueuedGang], **more: object) -> Plan:
    return plan(snapshot(nodes, running, queued, **more))


def snapshot(nodes: int, running: list[RunningGang], queued: list[QueuedGang], **more: object) -> Snapshot:
    used: dict[str, int] = {}
    for job in running:
        for role, node in job.nodes:
            request = next(one.request for one in job.gang.roles if one.role == role)
            used[node] = used.get(node, 0) + request.gpu_count
    views = tuple(
        NodeSnapshot(NodeId(f"n{n}"), {}, WHOLE, replace(WHOLE, gpus={"h100": 8 - used.get(f"n{n}", 0)}))
        for n in range(nodes)
    )
    return Snapshot(NOW, views, tuple(queued), tuple(running), **more)  # type: ignore[arg-type]


def test_the_cheapest_victim_is_stopped_and_both_jobs_have_messages() -> None:
    made = planned(
        2,
        [runs("dear", gang(8), "n0", lost_gpu_s=9000.0), runs("cheap", gang(8), "n1")],
        [waits("urgent", gang(4), 90)],
    )
    (preemption,) = made.preempts
    assert (preemption.job_id, preemption.for_job, preemption.code) == ("cheap", "urgent", PreemptCode.PRIORITY)
    assert preemption.sentence == (
        "stopped for job urgent of larger priority (90 against 50); when there is room it resumes from its last "
        "complete checkpoint, or starts over if it has none"
    )
    reason = made.waits[JobId("urgent")]
    assert reason.code is WaitReasonCode.PREEMPTING
    assert reason.sentence == "job cheap (8 GPUs on n1) is being stopped for it, so that it starts at about 14:00 UTC"
    assert reason.numbers["stopping"] == ["cheap"]


def test_several_small_ones_go_only_if_that_is_cheaper_than_one_large_one() -> None:
    small = [runs(f"s{n}", gang(2), "n0", lost_gpu_s=100.0) for n in range(4)]
    large = runs("large", gang(8), "n1", lost_gpu_s=1000.0)
    made = planned(2, [*small, large], [waits("urgent", gang(4), 90)])
    assert len(made.preempts) == 2
    assert {preemption.job_id for preemption in made.preempts} < {"s0", "s1", "s2", "s3"}


def test_no_preemption_before_the_minimum_run_time_nor_for_an_equal_job_nor_without_effect() -> None:
    short = [runs("short", gang(8), "n0", ran_s=299.0)]
    assert planned(1, short, [waits("urgent", gang(4), 90)]).preempts == ()
    assert planned(1, [runs("equal", gang(8), "n0")], [waits("q", gang(4))]).preempts == ()
    unwilling = [replace(runs("a", gang(4), "n0"), is_preemptible=False), runs("b", gang(4), "n0")]
    assert planned(1, unwilling, [waits("urgent", gang(8), 90)]).preempts == ()


def test_a_gang_of_several_nodes_clears_the_cheapest_nodes() -> None:
    running = [runs(f"r{n}", gang(8), f"n{n}", lost_gpu_s=1000.0 * (n % 3)) for n in range(6)]
    made = planned(6, running, [waits("urgent", gang(8, 2), 90)])
    assert {preemption.job_id for preemption in made.preempts} == {"r0", "r3"}


def test_room_freed_for_a_nominated_job_is_held_until_it_starts() -> None:
    stopping = replace(
        runs("r", gang(8), "n0"),
        is_stopping=True,
        stopping_for=JobId("urgent"),
        expected_end=NOW + timedelta(minutes=20),
    )
    first = waits("urgent", gang(8), 90, room_since=NOW)
    made = planned(1, [stopping], [first, waits("other", gang(4), 90)])
    assert (made.starts, made.preempts) == ((), ())
    assert "so that it starts at about 14:20 UTC" in made.waits[JobId("urgent")].sentence
    # Gone: it starts, though another one of its priority comes before it by its id.
    made = planned(1, [], [first, waits("another", gang(4), 90)])
    assert [start.job_id for start in made.starts] == ["urgent"]
    # Withdrawn: whoever else waits.
    made = planned(1, [], [waits("another", gang(4), 90)])
    assert [start.job_id for start in made.starts] == ["another"]


def test_a_guarantee_is_reclaimed_whatever_the_priority_and_never_preempted() -> None:
    accounts = (Account("owner", quota=Quota(guaranteed={"gpu_milli": 4000})), Account("guest"))
    borrows = runs("guest", gang(8), "n0", priority=90, project="guest")
    made = planned(1, [borrows], [waits("mine", gang(4), 10, "owner")], accounts=accounts)
    assert [(p.job_id, p.code) for p in made.preempts] == [("guest", PreemptCode.GUARANTEE)]
    assert "gets back what is guaranteed to it" in made.preempts[0].sentence
    within = [runs("mine", gang(4), "n0", priority=10, project="owner")]
    assert planned(1, within, [waits("theirs", gang(8), 90, "guest")], accounts=accounts).preempts == ()


def model_key(name: str, model: str, gpus: int, project: str, priority: int = 50) -> QueuedGang:
    wanted = Gang((GangRole("worker", 1, ResourceRequest(1000, 1 << 30, gpus, (model,))),))
    return waits(name, wanted, priority, project)


def with_models(h100: dict[str, int], a100: dict[str, int], job: QueuedGang, guaranteed: dict[str, int]) -> Plan:
    """Sixteen GPUs of each model, all taken by gangs of two and by fillers. ``h100``, ``a100``: project -> GPUs that
    it has there.
    """
    nodes, running = [], []
    for model, held in (("h100", h100), ("a100", a100)):
        whole = Amounts(64_000, 64 << 30, {model: 16})
        nodes.append(NodeSnapshot(NodeId(model), {}, whole, replace(whole, gpus={model: 16 - sum(held.values())})))
        for project, gpus in held.items():
            for at in range(gpus // 2):
                gang_of = runs(f"{project}-{model}-{at}", gang(2), model, project=project)
                running.append(replace(gang_of, gpu_models=(model,)))
    accounts = (Account("owner", quota=Quota(guaranteed=guaranteed)), Account("guest"))
    return plan(Snapshot(NOW, tuple(nodes), (job,), tuple(running), accounts=accounts))


def test_what_is_guaranteed_of_a_model_stays_so_whatever_is_borrowed_of_another() -> None:
    both = {"gpu_milli": 16_000, "gpu_milli/h100": 12_000}

    def gone(h100: dict[str, int], a100: dict[str, int], job: QueuedGang) -> int:
        return len(with_models(h100, a100, job, both).preempts)

    # Twelve H100s and four more of whatever model are its own, and what it has beside that is borrowed.
    urgent = model_key("urgent", "h100", 4, "guest", 90)
    assert gone({"owner": 12, "guest": 4}, {"owner": 16}, model_key("urgent", "h100", 6, "guest", 90)) == 0
    assert gone({"owner": 16}, {"owner": 16}, urgent) == 2
    assert gone({"owner": 16}, {}, model_key("urgent", "h100", 6, "guest", 90)) == 0
    assert gone({"owner": 12}, {"owner": 16}, model_key("urgent", "a100", 12, "guest", 90)) == 6
    assert gone({"owner": 12}, {"owner": 16}, model_key("urgent", "a100", 14, "guest", 90)) == 0
    assert gone({}, {"owner": 16}, model_key("urgent", "a100", 2, "guest", 90)) == 0
    # It gets its H100s back though it has sixteen A100s, and of all others what is left of the sixteen.
    assert gone({"guest": 16}, {"owner": 16}, model_key("mine", "h100", 12, "owner", 10)) == 6
    assert gone({"guest": 16}, {"owner": 16}, model_key("mine", "h100", 14, "owner", 10)) == 0
    assert gone({"owner": 16}, {"guest": 16}, model_key("mine", "a100", 4, "owner", 10)) == 2
    assert gone({"owner": 16}, {"guest": 16}, model_key("mine", "a100", 6, "owner", 10)) == 0
    # No wish: it may get a model of which it has enough already, and is judged by all that its project has.
    assert gone({"guest": 16}, {"owner": 16}, waits("mine", gang(2), 10, "owner")) == 0


def test_guarantees_of_models_do_not_exceed_that_of_all_gpus() -> None:
    more = {"gpu_milli": 16_000, "gpu_milli/h100": 12_000, "gpu_milli/a100": 12_000}
    urgent = model_key("urgent", "a100", 8, "guest", 90)
    assert len(with_models({"owner": 12, "guest": 4}, {"owner": 12, "guest": 4}, urgent, more).preempts) == 4
    assert len(with_models({"owner": 8, "guest": 8}, {"owner": 8, "guest": 8}, urgent, more).preempts) == 4
    mine = model_key("mine", "a100", 4, "owner", 10)
    assert len(with_models({"owner": 12}, {"guest": 16}, mine, more).preempts) == 2
    assert not with_models({"owner": 14}, {"guest": 16}, model_key("mine", "a100", 6, "owner", 10), more).preempts


def test_an_elastic_gang_keeps_what_is_guaranteed_of_its_model() -> None:
    whole = {model: Amounts(64_000, 64 << 30, {model: 8}) for model in ("h100", "a100")}
    nodes = tuple(NodeSnapshot(NodeId(m), {}, amounts, replace(amounts, gpus={m: 0})) for m, amounts in whole.items())
    wide = runs("wide", gang(1, 1, 8), *["h100"] * 8, project="owner")
    other = replace(runs("other", gang(8), "a100", project="owner"), gpu_models=("a100",))
    quota = Quota(guaranteed={"gpu_milli": 8000, "gpu_milli/h100": 6000})
    for gpus, replicas in ((2, [2]), (3, [])):
        job = model_key("urgent", "h100", gpus, "guest", 50)
        made = plan(Snapshot(NOW, nodes, (job,), (wide, other), accounts=(Account("owner", quota=quota),)))
        assert [len(shrink.indices) for shrink in made.shrinks] == replicas


def test_elastic_replicas_go_before_anybody_is_stopped() -> None:
    elastic = runs("elastic", gang(1, 2, 6), *["n0"] * 6)
    other = runs("other", gang(2), "n0", priority=10)
    made = planned(1, [elastic, other], [waits("q", gang(2))])
    assert made.preempts == ()
    (shrink,) = made.shrinks
    assert (shrink.job_id, len(shrink.indices), shrink.for_job) == ("elastic", 2, "q")
    assert shrink.sentence == "gave 2 of its 6 workers back for job q, which waits; runs on with 4"


def test_an_elastic_gang_keeps_as_many_replicas_as_it_needs() -> None:
    elastic = runs("elastic", gang(1, 5, 8), *["n0"] * 8)
    made = planned(1, [elastic], [waits("q", gang(4))])
    assert (made.preempts, made.shrinks) == ((), ())


def test_replicas_that_are_guaranteed_to_their_project_are_given_to_no_other() -> None:
    elastic = runs("elastic", gang(1, 2, 8), *["n0"] * 8, project="a")
    owner = Account("a", quota=Quota(guaranteed={"gpu_milli": 8000}))
    assert planned(1, [elastic], [waits("q", gang(4), 90, "b")], accounts=(owner,)).shrinks == ()
    assert planned(1, [elastic], [waits("q", gang(4), 90, "a")], accounts=(owner,)).shrinks != ()


def test_turns_are_taken_by_levels() -> None:
    policy = Policy(order=QueueOrder.ATTAINED_SERVICE, time_slice_s=600.0, levels_gpu_s=(3600.0,))
    old = replace(runs("old", gang(8), "n0"), attained_gpu_s=8 * 3600.0)
    made = planned(1, [old], [waits("new", gang(8))], policy=policy)
    assert [preemption.code for preemption in made.preempts] == [PreemptCode.TIME_SLICE]
    young = replace(runs("young", gang(8), "n0", ran_s=400.0), attained_gpu_s=3200.0)
    assert planned(1, [young], [waits("new", gang(8))], policy=policy).preempts == ()


def test_by_age_an_older_job_that_waits_takes_the_place_of_a_younger_one_and_never_the_other_way_round() -> None:
    policy = Policy(order=QueueOrder.FIFO, time_slice_s=600.0)
    for waited_h, expected in ((5, [PreemptCode.TIME_SLICE]), (1, [])):
        runs_on = replace(runs("on", gang(8), "n0", ran_s=7200.0), queued_at=NOW - timedelta(hours=2))
        job = replace(waits("q", gang(8)), queued_at=NOW - timedelta(hours=waited_h))
        assert [preemption.code for preemption in planned(1, [runs_on], [job], policy=policy).preempts] == expected


NO_TURNS = Policy(time_slice_s=None)
ROTATES = Policy(order=QueueOrder.FIFO, time_slice_s=None, rotation_s=1800.0)


def turn(its: QueuedGang, v: RunningGang, policy: Policy = ROTATES) -> list[str]:
    """What ``v`` is told for whom it is stopped for ``its``; empty: it stays."""
    made = planned(1, [v], [its], policy=policy)
    assert all(preemption.code is PreemptCode.TIME_SLICE for preemption in made.preempts)
    return [preemption.sentence for preemption in made.preempts]


@pytest.mark.parametrize("policy", [ROTATES, *(replace(ROTATES, order=order) for order in QueueOrder)])
def test_equal_jobs_take_turns_where_rotation_is_set(policy: Policy) -> None:
    long, q = runs("v", gang(8), "n0", ran_s=1800.0), waits("q", gang(8))
    (sentence,) = turn(q, long, policy)
    assert "its turn of 30 min is over and job q of the same priority has had fewer (0 against 1)" in sentence
    assert turn(q, long, replace(policy, rotation_s=None, time_slice_s=1800.0)) == []
    assert turn(q, runs("v", gang(8), "n0", ran_s=1790.0), policy) == []  # its turn is not over
    assert turn(q, long, replace(policy, min_run_time_s=3600.0)) == []
    # In its earlier attempts it had a turn of its own: as many.
    assert turn(replace(q, earlier_s=2000.0), long, policy) == []
    younger = replace(long, queued_at=NOW)
    (sentence,) = turn(replace(q, earlier_s=2000.0, queued_at=NOW - timedelta(hours=1)), younger, policy)
    assert "has had no more (1) and queued before it" in sentence
    # And what it runs now is a turn of its own, though it fills another one in all.
    assert turn(q, replace(long, started_at=NOW - timedelta(minutes=10), earlier_s=7200.0), policy) == []


def test_who_has_had_more_turns_comes_first_again_only_when_it_has_starved() -> None:
    had = replace(waits("old", gang(8)), queued_at=NOW - timedelta(hours=30), earlier_s=36_000.0)
    young = replace(runs("young", gang(8), "n0", ran_s=2000.0), queued_at=NOW - timedelta(hours=2))
    assert turn(replace(had, waits_since=NOW - timedelta(hours=23)), young) == []
    (sentence,) = turn(replace(had, waits_since=NOW - timedelta(hours=24)), young)
    assert "job old of the same priority has waited for 1 d or more" in sentence


def test_turns_among_equals_are_none_where_the_order_knows_who_is_shorter_or_has_had_less() -> None:
    known = Estimate(7200.0, 7200.0, 7200.0)
    policy = replace(ROTATES, order=QueueOrder.SHORTEST_FIRST)
    v, q = replace(runs("v", gang(8), "n0"), estimate=known), replace(waits("q", gang(8)), estimate=known)
    assert turn(q, v, policy) == []
    by_level = replace(ROTATES, order=QueueOrder.ATTAINED_SERVICE)
    less = replace(runs("v", gang(8), "n0"), attained_gpu_s=10.0)
    assert turn(replace(waits("q", gang(8)), attained_gpu_s=1e6), less, by_level) == []
    # And who has had less by a level has the place at the end of a turn at the latest.
    more = replace(runs("v", gang(8), "n0"), attained_gpu_s=1e6)
    (sentence,) = turn(replace(waits("q", gang(8)), earlier_s=1e6), more, by_level)
    assert "which comes first now" in sentence


def test_turns_make_no_share_less_even_and_take_nothing_that_is_guaranteed() -> None:
    v, q = runs("v", gang(8), "n0", project="poor"), waits("q", gang(8), project="rich")
    other = runs("other", gang(8), "n1", project="rich", ran_s=10.0)
    for accounts in ((), (Account("poor", quota=Quota(guaranteed={"gpu_milli": 8000})), Account("rich"))):
        made = planned(2, [v, other], [q], policy=ROTATES, accounts=accounts)
        assert made.preempts == ()
    made = planned(2, [v, other], [q], policy=replace(ROTATES, is_fair=False))
    assert [preemption.job_id for preemption in made.preempts] == ["v"]


def test_whoever_is_on_a_reserved_node_goes_when_that_begins_unless_it_is_not_preemptible() -> None:
    booking = Booking("b", "demo", "owner", frozenset({NodeId("n0")}), NOW, NOW + timedelta(hours=1))
    made = planned(2, [runs("guest", gang(8), "n0", ran_s=5.0), runs("far", gang(8), "n1")], [], bookings=(booking,))
    (preemption,) = made.preempts
    assert (preemption.job_id, preemption.for_job, preemption.code) == ("guest", None, PreemptCode.BOOKING)
    assert "n0 is reserved for project owner until about 15:00 UTC (demo)" in preemption.sentence
    stays = replace(runs("guest", gang(8), "n0", ran_s=5.0), is_preemptible=False)
    assert planned(1, [stays], [], bookings=(booking,)).preempts == ()


def test_whoever_is_on_a_drained_node_goes_on_elsewhere() -> None:
    stays = replace(runs("stays", gang(2), "n0"), is_preemptible=False)
    seen = snapshot(2, [runs("guest", gang(4), "n0", ran_s=5.0), stays, runs("far", gang(4), "n1")], [])
    nodes = tuple(
        replace(node, is_schedulable=False, why_not="is being drained", is_draining=True) if node.id == "n0" else node
        for node in seen.nodes
    )
    made = plan(replace(seen, nodes=nodes))
    (preemption,) = made.preempts
    assert (preemption.job_id, preemption.for_job, preemption.code) == ("guest", None, PreemptCode.DRAIN)
    assert "n0 is being drained" in preemption.sentence
    after = plan(replace(seen, nodes=nodes, running=(stays,), queued=(waits("guest", gang(4)),)))
    assert [(start.job_id, [place.node for place in start.placements]) for start in after.starts] == [("guest", ["n1"])]
    assert after.preempts == ()


def test_small_jobs_are_proposed_to_move_so_that_a_large_gang_starts() -> None:
    running = [runs("a", gang(2), "n0"), runs("b", gang(6), "n1")]
    queued = [waits("large", gang(8))]
    made = planned(2, running, queued)
    assert made.preempts == ()
    (move,) = made.moves
    assert (move.job_id, move.for_job, [place.node for place in move.placements]) == ("a", "large", ["n1"])
    applied = planned(2, running, queued, policy=Policy(defragment=Defragment.APPLY))
    assert [(p.job_id, p.code) for p in applied.preempts] == [("a", PreemptCode.MOVE)]
    assert planned(2, running, queued, policy=Policy(defragment=Defragment.OFF)).moves == ()


def test_a_gang_gives_no_replica_of_what_is_guaranteed_to_its_project() -> None:
    # Six of its eight are guaranteed: another project gets two of them, and not one more.
    owner = Account("a", quota=Quota(guaranteed={"gpu_milli": 6000}))
    elastic = runs("elastic", gang(1, 2, 8), *["n0"] * 8, project="a", ran_s=5.0)
    (shrink,) = planned(1, [elastic], [waits("q", gang(2), 90, "b")], accounts=(owner,)).shrinks
    assert shrink.indices == (6, 7)
    assert planned(1, [elastic], [waits("q", gang(3), 90, "b")], accounts=(owner,)).shrinks == ()
    assert planned(1, [elastic], [waits("q", gang(3), 90, "a")], accounts=(owner,)).shrinks != ()
    # Two that wait for one each do not get more together, and neither does the next plan while the first ones go.
    two = [waits("q", gang(1), 90, "b"), waits("r", gang(2), 90, "b")]
    given = snapshot(1, [elastic], two, accounts=(owner,))
    made = plan(given)
    assert [(one.for_job, one.indices) for one in made.shrinks] == [("q", (7,))]
    assert plan(apply_plan(given, made)).shrinks == ()


def test_the_newest_replicas_go_and_an_older_one_only_if_its_place_is_needed() -> None:
    elastic = runs("elastic", gang(2, 1, 8), "n0", "n0", "n1", "n1", "n2", "n2", "n3", "n3")
    full = [runs(f"r{n}", gang(4), f"n{n}", ran_s=5.0) for n in range(4)]
    (shrink,) = planned(4, [elastic, *full], [waits("q", gang(2))]).shrinks
    assert shrink.indices == (7,)
    (shrink,) = planned(4, [elastic, *full], [waits("q", gang(4))]).shrinks
    assert shrink.indices == (6, 7)
    there = replace(gang(4), node_selector=(("kubernetes.io/hostname", "n1"),))
    given = snapshot(4, [elastic, *full], [waits("q", there)])
    named = tuple(replace(node, labels={"kubernetes.io/hostname": node.id}) for node in given.nodes)
    (shrink,) = plan(replace(given, nodes=named)).shrinks
    assert shrink.indices == (2, 3)


def test_rank_0_stays_while_another_replica_will_do() -> None:
    old = runs("old", gang(4, 1, 2), "n0", "n0", ran_s=9000.0)
    young = runs("young", gang(4, 1, 2), "n1", "n1", ran_s=400.0)
    made = planned(2, [old, young], [waits("q", gang(4)), waits("r", gang(4))])
    assert [(shrink.job_id, shrink.indices) for shrink in made.shrinks] == [("young", (1,)), ("old", (1,))]


def test_a_plan_has_others_stopped_for_so_many_jobs_and_the_next_one_for_the_rest() -> None:
    number = preemption.MAX_CHOICES + 4
    running = [runs(f"r{n:02}", gang(8), f"n{n}") for n in range(number)]
    given = snapshot(number, running, [waits(f"u{n:02}", gang(8), 90) for n in range(number)])
    made = plan(given)
    assert [p.for_job for p in made.preempts] == [f"u{n:02}" for n in range(preemption.MAX_CHOICES)]
    rest = plan(apply_plan(given, made))
    assert len({p.job_id for p in (*made.preempts, *rest.preempts)}) == number
    assert plan(apply_plan(apply_plan(given, made), rest)).preempts == ()


def kinds_in_vain(number: int) -> tuple[list[NodeSnapshot], list[RunningGang], list[QueuedGang]]:
    """Gangs, each of another kind, for which stopping the only one that may be stopped on n1 is not enough; behind
    them one
    that is preemptors on n0.
    """
    queued = []
    for n in range(number):
        wanted = Gang((GangRole("worker", 1, ResourceRequest(1000, (1 << 30) + n, 8)),), (("pool", "n1"),))
        queued.append(waits(f"a{n:03}", wanted, 60))
    queued.append(waits("z", replace(gang(8), node_selector=(("pool", "n0"),)), 60))
    running = [runs("goes", gang(8), "n0"), runs("small", gang(4), "n1")]
    running.append(replace(runs("stays", gang(4), "n1"), is_preemptible=False))
    nodes = [NodeSnapshot(NodeId(n), {"pool": n}, WHOLE, replace(WHOLE, gpus={"h100": 0})) for n in ("n0", "n1")]
    return nodes, running, queued


def test_kinds_that_nothing_helps_do_not_bar_those_behind_them() -> None:
    nodes, running, queued = kinds_in_vain(200)
    made = plan(Snapshot(NOW, tuple(nodes), tuple(queued), tuple(running), policy=NO_TURNS))
    assert [(preemption.job_id, preemption.for_job) for preemption in made.preempts] == [("goes", "z")]


def test_who_is_behind_more_kinds_than_a_plan_looks_at_has_its_turn_in_a_later_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(preemption, "MAX_SPENT", 8)
    nodes, running, queued = kinds_in_vain(30)
    given = Snapshot(NOW, tuple(nodes), tuple(queued), tuple(running), policy=NO_TURNS)
    plans = [plan(replace(given, now=NOW + timedelta(seconds=10 * n))) for n in range(40)]
    assert {preemption.for_job for made in plans for preemption in made.preempts} == {"z"}
    assert any(not made.preempts for made in plans)


LIMITED = Account("p", quota=Quota(limit={"gpu_milli": 8000}))


def test_who_waits_for_its_projects_limit_takes_the_place_of_its_lower_jobs_and_of_as_few_as_will_do() -> None:
    running = [
        runs("low", gang(2), "n0", priority=10),
        runs("dear", gang(2), "n0", priority=10, lost_gpu_s=9000.0),
        runs("equal", gang(4), "n0", priority=90),
        runs("other", gang(8), "n1", priority=10, project="q"),
    ]
    queued = [waits("urgent", gang(2), 90)]
    given = snapshot(3, running, queued, accounts=(LIMITED,))
    made = plan(given)
    assert [(p.job_id, p.for_job, p.code) for p in made.preempts] == [("low", "urgent", PreemptCode.PRIORITY)]
    assert made.waits[JobId("urgent")].code is WaitReasonCode.PREEMPTING
    # Though n2 is free it does not start before the limit lets it; nobody else is stopped, and nobody takes what is
    # given back.
    later = apply_plan(given, made)
    assert (plan(later).preempts, plan(later).starts) == ((), ())
    gone = [gang for gang in later.running if gang.job_id != "low"]
    third = [waits("third", gang(2), 10)]
    made = plan(replace(later, running=tuple(gone), queued=(*later.queued, *third)))
    assert [start.job_id for start in made.starts] == ["urgent"]
    assert made.waits[JobId("third")].code is WaitReasonCode.QUOTA


def test_quota_is_held_for_a_nominated_job_while_its_last_victim_stops() -> None:
    running = [runs(f"low{n}", gang(4), f"n{n}", priority=10) for n in range(2)]
    given = snapshot(4, running, [waits("urgent", gang(8), 90)], accounts=(LIMITED,))
    later = apply_plan(given, plan(given))
    half = [gang for gang in later.running if gang.job_id != "low0"]
    third = [waits("third", gang(4), 10)]
    made = plan(replace(later, running=tuple(half), queued=(*later.queued, *third)))
    assert (made.starts, made.waits[JobId("third")].code) == ((), WaitReasonCode.QUOTA)


def test_no_preemption_for_a_quota_without_effect() -> None:
    # A user's own limit, which the jobs of others do not free; a limit below what the job needs; no place in the end.
    mine = Account("p", quota=Quota(user_limit={"gpu_milli": 4000}))
    theirs = [
        replace(runs("low", gang(4), "n0", priority=10), user="v"),
        replace(runs("same", gang(4), "n1", priority=90), user="u"),
    ]
    assert planned(3, theirs, [waits("urgent", gang(2), 90)], accounts=(mine,)).preempts == ()
    low = [runs("low", gang(8), "n0", priority=10)]
    assert planned(3, low, [waits("urgent", gang(8, 2), 90)], accounts=(LIMITED,)).preempts == ()
    full = [runs("low", gang(4), "n0", priority=10), runs("stays", gang(4), "n0", priority=90, project="q")]
    assert planned(1, full, [waits("urgent", gang(8), 90)], accounts=(LIMITED,)).preempts == ()
    # Elsewhere another project's job has to go too.
    both = [runs("low", gang(4), "n0", priority=10), runs("else", gang(4), "n0", priority=20, project="q")]
    made = planned(1, both, [waits("urgent", gang(8), 90)], accounts=(LIMITED,))
    assert {p.job_id for p in made.preempts} == {"low", "else"}
