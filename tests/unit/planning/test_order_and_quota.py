"""Who comes next, who is passed over for a quota or a booking, and what they read."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from core.domain.ids import JobId, NodeId
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import (
    Account,
    Booking,
    Estimate,
    NodeSnapshot,
    Plan,
    Policy,
    QueuedGang,
    QueueOrder,
    Quota,
    RunningGang,
    Snapshot,
    WaitReasonCode,
    plan,
)
from scheduler.planning.queue.ordering import sort_key
from scheduler.planning.queue.shares import Shares

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
QUIET = Policy(
    order=QueueOrder.ATTAINED_SERVICE, time_slice_s=None, preempts_priority=False, reclaims=False, usage_weight=0.0
)


def node(name: str, gpus: int = 8, free: int | None = None, model: str = "h100-80gb-hbm3") -> NodeSnapshot:
    whole = Amounts(640_000, 2**40, {model: gpus})
    return NodeSnapshot(NodeId(name), {}, whole, whole if free is None else replace(whole, gpus={model: free}))


def gang(gpus: int, *models: str, replicas: int = 1, **more) -> Gang:
    return Gang((GangRole("worker", replicas, ResourceRequest(100, 2**27, gpus, models)),), **more)


def job(name: str, wanted: Gang, project: str = "vision", user: str = "ann", *, age: int = 0, **more) -> QueuedGang:
    at = NOW - timedelta(seconds=age)
    return QueuedGang(JobId(name), name, project, user, more.pop("priority", 50), at, wanted, wanted.shape(), **more)


def runs(name: str, gpus: int, on: str, project: str = "vision", user: str = "ann", **more) -> RunningGang:
    nodes = (("worker", NodeId(on)),)
    return RunningGang(JobId(name), name, project, 50, gang(gpus), nodes, user=user, started_at=NOW, **more)


def planned(nodes, queued, running=(), policy: Policy = QUIET, **more) -> Plan:
    return plan(Snapshot(NOW, tuple(nodes), tuple(queued), tuple(running), policy=policy, **more))


def started(made: Plan) -> list[str]:
    return [start.job_id for start in made.starts]


# ---- order ----


def test_what_a_project_holds_already_counts_and_what_it_lately_had_by_the_weight_that_is_set() -> None:
    nodes = [node("n0", 8, free=1)]
    queued = [job("v", gang(1), "vision", age=9), job("n", gang(1), "nlp")]
    assert started(planned(nodes, queued, [runs("r", 7, "n0", "vision")])) == ["n"]
    assert started(planned(nodes, queued, [runs("r", 7, "n0", "nlp")])) == ["v"]
    past = replace(QUIET, usage_weight=0.9)
    had = (Account("nlp"), Account("vision", usage=0.9))
    assert started(planned(nodes, queued, policy=past, accounts=had)) == ["n"]
    assert started(planned(nodes, queued, policy=QUIET, accounts=had)) == ["v"]


def test_without_fair_shares_there_is_one_line() -> None:
    nodes = [node("n0", 8, free=1)]
    queued = [job("v", gang(1), "vision", age=9), job("n", gang(1), "nlp")]
    running = [runs("r", 7, "n0", "vision")]
    assert started(planned(nodes, queued, running, replace(QUIET, is_fair=False))) == ["v"]


def test_the_dominant_share_is_of_the_scarcest_resource_that_is_held() -> None:
    # A project with all the CPUs has no less of the cluster than one with all of the A100s.
    whole = Amounts(8000, 2**40, {"a100": 8})
    view = NodeSnapshot(NodeId("n0"), {}, whole, whole)
    cpus = RunningGang(
        JobId("c"),
        "c",
        "cpus",
        50,
        Gang((GangRole("worker", 1, ResourceRequest(6000, 1)),)),
        (("worker", NodeId("n0")),),
    )
    gpus = RunningGang(JobId("g"), "g", "gpus", 50, gang(2), (("worker", NodeId("n0")),))
    shares = Shares(Snapshot(NOW, (view,), (), (cpus, gpus), policy=QUIET))
    assert shares.project_share("cpus") == pytest.approx(0.75)
    assert shares.project_share("gpus") == pytest.approx(0.25)
    assert shares.project_share("nobody") == 0


def test_parts_of_a_gpu_count_as_parts() -> None:
    part = Gang((GangRole("worker", 2, ResourceRequest(100, 2**27, gpu_milli=500)),))
    held = RunningGang(JobId("g"), "g", "p", 50, part, (("worker", NodeId("n0")), ("worker", NodeId("n0"))))
    shares = Shares(Snapshot(NOW, (node("n0", 4),), (), (held,), policy=QUIET))
    assert shares.project_share("p") == pytest.approx(0.25)


def test_who_is_below_what_is_guaranteed_to_it_comes_before_smaller_shares() -> None:
    nodes = [node("n0", 8, free=1)]
    queued = [job("v", gang(1), "vision"), job("n", gang(1), "nlp", age=9)]
    running = [runs("r", 7, "n0", "vision")]
    accounts = (Account("vision", quota=Quota(guaranteed={"gpu_milli/h100": 8000})),)
    assert started(planned(nodes, queued, running, accounts=accounts)) == ["v"]
    accounts = (Account("vision", quota=Quota(guaranteed={"gpu_milli/h100": 7000})),)
    assert started(planned(nodes, queued, running, accounts=accounts)) == ["n"]


def test_shortest_first_goes_by_gpu_seconds_that_are_left_and_takes_the_unknown_to_need_what_its_level_allows() -> None:
    policy = Policy(order=QueueOrder.SHORTEST_FIRST, levels_gpu_s=(3600.0, 7200.0))
    known = job("known", gang(4), estimate=Estimate(1000, 500, 2000))  # 4000 GPU-seconds
    cpu_only = job("cpu", Gang((GangRole("worker", 9, ResourceRequest(100, 1)),)), estimate=Estimate(3700, 1, 9999))
    fresh, second, last = (job(f"u{had}", gang(1), attained_gpu_s=had) for had in (0.0, 3600.0, 9000.0))
    waits = job("starving", gang(8), attained_gpu_s=1e9, age=25 * 3600)
    jobs = [known, cpu_only, fresh, second, last, waits]
    ranked = sorted(jobs, key=lambda one: sort_key(one, policy, NOW))
    assert [one.name for one in ranked] == ["starving", "u0.0", "cpu", "known", "u3600.0", "u9000.0"]


def test_attained_service_goes_by_levels_then_age_and_raises_who_starves() -> None:
    policy = Policy(order=QueueOrder.ATTAINED_SERVICE, levels_gpu_s=(3600.0, 7200.0))
    jobs = [
        job("old-with-much", gang(1), attained_gpu_s=8000, age=500),
        job("young", gang(1), age=1),
        job("older", gang(1), attained_gpu_s=3599, age=2),
        job("preempted-long-ago", gang(1), attained_gpu_s=9e9, age=3, waits_since=NOW - timedelta(days=2)),
        job("just-preempted", gang(1), attained_gpu_s=9e9, age=10**7, waits_since=NOW),
    ]
    ranked = [one.name for one in sorted(jobs, key=lambda one: sort_key(one, policy, NOW))]
    assert ranked == ["preempted-long-ago", "older", "young", "just-preempted", "old-with-much"]


def test_the_order_of_who_waits_is_the_one_in_which_they_would_start() -> None:
    # Not all of vision before all of nlp: after each start it would be the other one's turn.
    nodes = [node("n0", 8, free=0)]
    queued = [job(f"v{n}", gang(1), "vision", age=10 - n) for n in range(3)]
    queued += [job(f"n{n}", gang(1), "nlp", age=5 - n) for n in range(3)]
    assert planned(nodes, queued).order == ("v0", "n0", "v1", "n1", "v2", "n2")


def test_in_a_project_users_who_stay_within_what_is_guaranteed_to_them_come_first() -> None:
    running = [runs("r", 3, "n0", user="ann")]
    queued = [job(f"a{n}", gang(1), user="ann", age=5) for n in range(3)] + [job("b", gang(1), user="bob", age=90)]
    nodes = [node("n0", 8, free=1)]
    assert started(planned(nodes, queued, running)) == ["b"]
    of_ann = (Account("vision", quota=Quota(user_guaranteed={"ann": {"gpu_milli/h100": 5000}})),)
    assert started(planned(nodes, queued, running, accounts=of_ann)) == ["a0"]
    # After two of them ann has what is guaranteed; the third waits for its turn.
    assert planned([node("n0", 8, free=0)], queued, running, accounts=of_ann).order == ("a0", "a1", "b", "a2")
    # In one line they come first among those who stay within what is guaranteed to their project.
    both = Quota(guaranteed={"gpu_milli": 9000}, user_guaranteed={"ann": {"gpu_milli/h100": 5000}})
    one_line = replace(QUIET, is_fair=False)
    made = planned([node("n0", 8, free=0)], queued, running, one_line, accounts=(Account("vision", quota=both),))
    assert made.order == ("a0", "a1", "b", "a2")


# ---- quotas ----


def reason(nodes, queued, running=(), **more):
    return planned(nodes, queued, running, **more).waits[queued[0].job_id]


def test_a_quota_says_what_is_allowed_what_is_held_and_what_is_needed() -> None:
    accounts = (Account("vision", quota=Quota(limit={"gpu_milli": 16_000})),)
    nodes = [node("n0"), node("n1", free=2), node("n2")]
    running = [runs("a", 8, "n0"), runs("b", 6, "n1")]
    reported = reason(nodes, [job("me", gang(4))], running, accounts=accounts)
    assert reported.code is WaitReasonCode.QUOTA
    assert reported.sentence.startswith("project vision may use 16 GPUs at once and has 14; this job needs 4")
    assert reported.numbers == {
        "project": "vision", "resource": "gpu_milli", "limit": 16_000, "held": 14_000, "needed": 4000, "is_never": False
    }  # fmt: skip
    assert "jobs" not in reason(nodes, [job("me", gang(32))], running, accounts=accounts).sentence


def test_a_quota_that_a_job_exceeds_by_itself_says_that_it_never_starts_and_what_to_do() -> None:
    accounts = (Account("vision", quota=Quota(user_limit={"memory_bytes": 2**27}, limit={"jobs": 0})),)
    reported = reason([node("n0")], [job("me", gang(1))], accounts=accounts)
    assert reported.numbers["is_never"]
    assert "project vision may run no job" in reported.sentence
    accounts = (Account("vision", quota=Quota(user_limits={"ann": {"gpu_milli/H100": 2000}})),)
    reported = reason([node("n0")], [job("me", gang(4))], accounts=accounts)
    assert reported.sentence.startswith(
        "needs 4 GPUs of H100 by itself, and user ann may use 2 GPUs of H100 of project vision"
    )
    assert "larger quota" in reported.sentence


@pytest.mark.parametrize(
    ("quota", "limit", "is_never"),
    [
        # Of A100s it would need more than there may ever be, of H100s only more than is left now; the other way about.
        (Quota(limit={"gpu_milli/a100": 4000, "gpu_milli/h100": 16_000}), "gpu_milli/h100", False),
        (Quota(limit={"gpu_milli/a100": 16_000, "gpu_milli/h100": 4000}), "gpu_milli/a100", False),
        (Quota(limit={"gpu_milli/a100": 4000, "gpu_milli/h100": 4000}), "gpu_milli/a100", True),
        # The user's own limit leaves no H100s whatever the project gives back.
        (
            Quota(limit={"gpu_milli/h100": 16_000, "gpu_milli/a100": 16_000}, user_limit={"gpu_milli/h100": 4000}),
            "gpu_milli/a100",
            False,
        ),
    ],
)
def test_with_limits_on_all_its_models_it_says_never_only_where_none_can_be_given_back(
    quota: Quota, limit: str, is_never: bool
) -> None:
    nodes = [node("h0"), node("h1"), node("a0", model="a100-sxm4-80gb"), node("a1", model="a100-sxm4-80gb")]
    running = [
        runs("r0", 12, "h0", gpu_models=("h100-80gb-hbm3",)),
        runs("r1", 12, "a0", gpu_models=("a100-sxm4-80gb",)),
    ]
    reported = reason(nodes, [job("me", gang(8, "H100", "A100"))], running, accounts=(Account("vision", quota=quota),))
    assert (reported.numbers["resource"], reported.numbers["is_never"]) == (limit, is_never)
    assert ("never" in reported.sentence) == is_never


def test_a_role_that_can_never_start_says_so_beside_one_that_waits() -> None:
    quota = Quota(limit={"gpu_milli/a100": 4000, "gpu_milli/h100": 4000, "gpu_milli/l4": 8000, "gpu_milli/t4": 8000})
    kinds = ("h100-80gb-hbm3", "a100-sxm4-80gb", "nvidia-l4", "tesla-t4")
    nodes = [node(f"n{number}", model=model) for number, model in enumerate(kinds)]
    running = [runs("r0", 7, "n2", gpu_models=("nvidia-l4",)), runs("r1", 7, "n3", gpu_models=("tesla-t4",))]
    roles = (
        GangRole("chief", 1, ResourceRequest(100, 2**27, 4, ("L4", "T4"))),
        GangRole("worker", 1, ResourceRequest(100, 2**27, 8, ("H100", "A100"))),
    )
    reported = reason(nodes, [job("me", Gang(roles))], running, accounts=(Account("vision", quota=quota),))
    assert reported.numbers["is_never"]


def test_a_job_goes_to_another_model_that_it_accepts_when_its_quota_of_the_first_is_used_up() -> None:
    accounts = (Account("vision", quota=Quota(limit={"gpu_milli/h100": 2000})),)
    nodes = [node("h"), node("a", model="a100-sxm4-80gb")]
    running = [runs("r", 2, "h", gpu_models=("h100-80gb-hbm3",))]
    made = planned(nodes, [job("me", gang(2, "H100", "A100"))], running, accounts=accounts)
    assert [placement.node for start in made.starts for placement in start.placements] == ["a"]
    full = [node("h"), node("a", model="a100-sxm4-80gb", free=0)]
    assert reason(full, [job("me", gang(2, "H100", "A100"))], running, accounts=accounts).code is WaitReasonCode.QUOTA
    assert reason(full, [job("me", gang(2, "H100"))], running, accounts=accounts).code is WaitReasonCode.QUOTA


def test_growing_stops_at_a_quota() -> None:
    accounts = (Account("vision", quota=Quota(limit={"gpu_milli": 3000})),)
    elastic = Gang((GangRole("worker", 1, ResourceRequest(100, 2**27, 1), 8),))
    made = planned([node("n0")], [job("me", elastic)], accounts=accounts)
    assert len(made.starts[0].placements) == 3


def test_fifty_thousand_jobs_over_one_quota_share_a_reason_for_each_user_and_shape() -> None:
    accounts = (Account("vision", quota=Quota(limit={"gpu_milli": 0})),)
    one = gang(1)
    queued = [job(f"j{n}", one, user=f"u{n % 5}") for n in range(50_000)]
    waits = planned([node("n0")], queued, accounts=accounts).waits
    assert len({id(reported) for reported in waits.values()}) == 5


# ---- bookings ----


def test_a_booking_says_who_has_the_node_and_until_when() -> None:
    booking = Booking("b", "demo", "nlp", frozenset({NodeId("n0")}), NOW, NOW + timedelta(hours=2))
    reported = reason([node("n0")], [job("me", gang(8))], bookings=(booking,))
    assert reported.code is WaitReasonCode.BOOKED
    assert "n0 is reserved for project nlp (demo) until about 14:00 UTC" in reported.sentence
    assert reported.numbers["until"] == "2026-11-21T14:00:00+00:00"


def test_a_blocked_gang_gets_no_reservation_on_nodes_that_will_be_booked_for_others() -> None:
    booking = Booking("b", "demo", "nlp", frozenset({NodeId("n0")}), NOW + timedelta(hours=1), NOW + timedelta(hours=9))
    running = [
        runs("a", 8, "n0", expected_end=NOW + timedelta(minutes=10)),
        runs("b", 8, "n1", expected_end=NOW + timedelta(hours=3)),
    ]
    reported = reason([node("n0", free=0), node("n1", free=0)], [job("me", gang(8))], running, bookings=(booking,))
    assert reported.numbers["on"] == ["n1"]


# ---- shares in words ----


def test_who_would_fit_but_has_more_than_its_share_reads_whose_jobs_come_first_and_why() -> None:
    nodes = [node("n0", 16, free=4)]
    running = [runs("r", 12, "n0", "vision")]
    queued = [job("me", gang(2), "vision", age=9), job("large", gang(8), "nlp")]
    reported = reason(nodes, queued, running)
    assert reported.code is WaitReasonCode.RESERVED
    assert (
        "project vision has 12 of 16 GPUs of h100-80gb-hbm3 (75%), and its share by weight is 50%" in reported.sentence
    )
    assert "jobs of project nlp" in reported.sentence
    assert reported.numbers["entitled"] == 0.5


def test_an_infeasible_job_lends_its_age_to_no_other_job() -> None:
    hour = 3600
    patient = job("patient", gang(2), "nlp", "bob", age=10 * hour)
    fresh = job("fresh", gang(2), age=10)
    hopeless = job("hopeless", gang(9), age=25 * hour)
    for order in QueueOrder:
        policy = replace(QUIET, order=order)
        made = planned([node("a", 2)], [patient, fresh, hopeless], policy=policy)
        assert started(made) == started(planned([node("a", 2)], [patient, fresh], policy=policy)) == ["patient"]
        assert made.order[-1] == "hopeless"


def test_a_job_blocked_by_quota_or_booking_lends_its_age_to_no_other_job() -> None:
    day = 24 * 3600
    patient = job("patient", gang(2), "nlp", "bob", age=10 * 3600)
    fresh = job("fresh", gang(2), age=10)
    blocked = job("blocked", gang(2), user="cat", age=2 * day)
    large = job("large", gang(2, "A100"), age=2 * day)
    # A limit of one of the users, of the whole project on one model, and a node that is reserved for others.
    of_user = (Account("vision", quota=Quota(user_limits={"cat": {"gpu_milli": 1000}})),)
    of_model = (Account("vision", quota=Quota(limit={"gpu_milli/a100": 0})),)
    nodes = (node("a", 2), node("b", 2, model="a100-sxm4-80gb"))
    booking = Booking("b", "demo", "speech", frozenset({NodeId("b")}), NOW, NOW + timedelta(hours=2))
    cases = (
        (blocked, {"accounts": of_user}),
        (replace(blocked, user="ann"), {"accounts": (replace(of_user[0], quota=Quota(user_limit={"jobs": 0})),)}),
        (large, {"accounts": of_model}),
        (large, {"bookings": (booking,)}),
    )
    for order in QueueOrder:
        policy = replace(QUIET, order=order)
        for older, rules in cases:
            may = () if older.user == "ann" and older.name == "blocked" else (fresh,)
            wish = [replace(one, gang=gang(2, "H100"), shape=gang(2, "H100").shape()) for one in (patient, *may)]
            made = planned(nodes, [*wish, older], policy=policy, **rules)
            assert started(made) == started(planned(nodes, wish, policy=policy, **rules)) == ["patient"]
            assert made.order[-1] == older.name
            assert made.waits[older.job_id].code in (WaitReasonCode.QUOTA, WaitReasonCode.BOOKED)


def test_no_user_has_a_turn_after_another_user_s_start_used_up_the_project_quota() -> None:
    # ann's job takes what vision may have. bob's, which has starved, would be next, and behind it stands one without
    # GPUs.
    day = 24 * 3600
    accounts = (Account("vision", quota=Quota(limit={"gpu_milli": 1000})),)
    bare = Gang((GangRole("worker", 1, ResourceRequest(400, 2**27)),))
    queued = [
        job("first", gang(1), user="ann", age=3 * day),
        job("barred", gang(1), user="bob", age=2 * day),
        job("bare", bare, user="bob", age=5),
        job("other", bare, "nlp", age=9),
    ]
    nodes = [replace(node("n0", 2), free=Amounts(600, 2**40, {"h100-80gb-hbm3": 2}))]
    made = planned(nodes, queued, accounts=accounts)
    assert started(made) == ["first", "other"]
    assert made.order == ("first", "other", "bare", "barred")


def test_without_fair_shares_too_who_stays_within_a_guarantee_comes_first() -> None:
    accounts = (Account("nlp", quota=Quota(guaranteed={"gpu_milli/h100": 3000})),)
    queued = [job(f"v{n}", gang(1), "vision", age=100 - n) for n in range(3)]
    queued += [job("large", gang(4), "nlp", age=90), *(job(f"n{n}", gang(1), "nlp", age=10 - n) for n in range(5))]
    one_line = replace(QUIET, is_fair=False)
    made = planned([node("n0", 4)], queued, policy=one_line, accounts=accounts)
    assert started(made) == ["n0", "n1", "n2", "v0"]
    full = planned([node("n0", 4, free=0)], queued, policy=one_line, accounts=accounts)
    assert full.order == ("n0", "n1", "n2", "v0", "v1", "v2", "large", "n3", "n4")
    # A larger priority comes before what is guaranteed.
    queued.append(job("urgent", gang(4), "vision", priority=60))
    assert started(planned([node("n0", 4)], queued, policy=one_line, accounts=accounts)) == ["urgent"]
