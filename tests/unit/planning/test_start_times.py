"""When those that wait are expected to start."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from math import inf

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trainmaster.wire.jobs import INFEASIBLE_CODES

from core.domain.ids import JobId, NodeId
from core.domain.sharing.policy import Policy
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import Booking, Estimate, GrowingGang, QueuedGang, RunningGang, Snapshot, plan
from scheduler.planning.forecast.projection import give_back, take
from scheduler.planning.forecast.start_times import QueueForecast, StartCode, StartForecast, forecast_starts
from scheduler.planning.model import WaitReasonCode
from tests.properties.planner_worlds import any_snapshots
from tests.unit.planning.test_reasons import NOW, gang, job, node, quarantined, runs


def minutes(expected: StartForecast | None) -> tuple[float | None, ...]:
    assert expected is not None
    return tuple(
        None if at is None else (at - NOW).total_seconds() / 60
        for at in (expected.earliest, expected.likely, expected.latest)
    )


def guessed(view: RunningGang | QueuedGang, early: float, likely: float, late: float):
    return replace(view, estimate=Estimate(likely * 60, early * 60, late * 60, "3 finished jobs named a-*"))


def of(found: QueueForecast, name: str) -> StartForecast | None:
    return found.forecast_of(JobId(name))


def test_it_starts_when_the_estimated_ends_of_others_make_room() -> None:
    running = guessed(runs("r", 8, "a", None), 10, 20, 60)
    found = forecast_starts(Snapshot(NOW, (node("a", free=0),), (job("me", gang(1, 8)),), (running,)))
    me = of(found, "me")
    assert minutes(me) == (10, 20, 60)
    assert me is not None
    assert (me.code, me.position, me.nodes) == (StartCode.EXPECTED, 1, ("a",))
    assert me.sentence == "probably at about 12:20 UTC, between 12:10 UTC and 13:00 UTC"


def test_a_quarantine_that_ends_by_itself_is_reckoned_with() -> None:
    alone = of(forecast_starts(Snapshot(NOW, (quarantined("a"),), (job("me", gang(1, 8)),))), "me")
    assert minutes(alone) == (180, 180, 180)
    running = guessed(runs("r", 8, "b", None), 400, 500, 600)
    busy = of(
        forecast_starts(Snapshot(NOW, (quarantined("a"), node("b", free=0)), (job("me", gang(1, 8)),), (running,))),
        "me",
    )
    assert minutes(busy) == (180, 180, 180)
    for_good = replace(quarantined("a"), opens_at=None)
    never = of(forecast_starts(Snapshot(NOW, (for_good,), (job("me", gang(1, 8)),))), "me")
    assert never is None or never.likely is None


def test_those_in_line_start_one_after_the_other() -> None:
    queue = [guessed(job(f"q{n}", gang(1, 8), age=9 - n), 5, 10, 20) for n in range(3)]
    running = guessed(runs("r", 8, "a", None), 10, 20, 60)
    found = forecast_starts(Snapshot(NOW, (node("a", free=0),), tuple(queue), (running,)))
    assert [minutes(of(found, f"q{n}")) for n in range(3)] == [(10, 20, 60), (15, 30, 80), (20, 40, 100)]
    assert [one.position for one in found.starts] == [1, 2, 3]


def test_a_job_that_starts_now_is_forecast_and_counted_for_those_behind() -> None:
    queue = (job("now", gang(1, 8), age=9, limit=600), job("then", gang(1, 8)))
    found = forecast_starts(Snapshot(NOW, (node("a"),), queue))
    first, then = of(found, "now"), of(found, "then")
    assert first is not None
    assert (first.code, first.run_s) == (StartCode.NOW, 600)
    assert minutes(then) == (1, 10, 10)  # of a job that only states its longest time, one in ten ends in a tenth of it


def test_an_unknown_end_that_blocks_a_start_is_named_with_its_job() -> None:
    found = forecast_starts(
        Snapshot(NOW, (node("a", free=0),), (job("me", gang(1, 8)),), (runs("endless", 8, "a", None),))
    )
    me = of(found, "me")
    assert me is not None
    assert me.code is StartCode.NOT_KNOWN
    assert me.sentence == (
        "at a time that is not known: job endless on a states no max_run_time, and no job like it has ended yet; "
        "a max_run_time there, or progress that is reported as a step of how many, would tell"
    )


def test_what_serves_has_no_end_and_is_not_queried_to_state_one() -> None:
    serves = replace(runs("sums-default-9km2h", 8, "a", None), is_endless=True)
    me = of(forecast_starts(Snapshot(NOW, (node("a", free=0),), (job("me", gang(1, 8)),), (serves,))), "me")
    assert me is not None
    assert me.sentence == (
        "at a time that is not known: job sums-default-9km2h on a serves an endpoint and has no end of its own"
    )


def test_run_times_beyond_the_calendar_do_not_affect_other_forecasts() -> None:
    endless = [guessed(job(f"q{n}", gang(1, 8)), *[1e9] * 3) for n in range(6)]
    running = guessed(runs("r", 8, "a", None), *[1e9] * 3)
    short = guessed(runs("s", 8, "b", None), *[10.0] * 3)
    beside = job("beside", gang(1, 8, node_selector=(("disk", "ssd"),)))
    nodes = (node("a", free=0), node("b", free=0, labels={"disk": "ssd"}))
    found = forecast_starts(Snapshot(NOW, nodes, (beside, *endless), (running, short)))
    assert minutes(of(found, "beside")) == (10.0, 10.0, 10.0)
    last = of(found, "q5")
    assert last is not None
    assert (last.code, last.likely) == (StartCode.NOT_KNOWN, None)


def test_one_that_no_node_could_hold_has_no_place_in_the_queue() -> None:
    found = forecast_starts(Snapshot(NOW, (node("a", free=0),), (job("big", gang(1, 9), age=5), job("me", gang(1, 8)))))
    big, me = of(found, "big"), of(found, "me")
    assert big is not None
    assert (big.code, big.position) == (StartCode.NEVER, None)
    assert me is not None
    assert me.position == 1


def test_bookings_end_and_elastic_jobs_shrink_and_grow_on_the_way() -> None:
    booking = Booking("b", "course", "other", frozenset({NodeId("a")}), NOW, NOW + timedelta(hours=1))
    snapshot = Snapshot(NOW, (node("a"),), (job("me", gang(1, 8)),), bookings=(booking,))
    if plan(snapshot).waits:  # a planner that knows bookings
        assert minutes(of(forecast_starts(snapshot), "me"))[1] == 60
    elastic = Gang((GangRole("worker", 2, ResourceRequest(100, 2**27, 1), most=4),))
    view = RunningGang(
        JobId("e"), "e", "p", 50, elastic, (("worker", NodeId("a")),) * 2, None, ("H100",) * 2, "u", NOW, NOW,
        estimate=Estimate(600, 600, 600),
    )  # fmt: skip
    growing = GrowingGang(JobId("e"), 50, NOW, elastic, (2, 3), ((NodeId("a"), "H100"),) * 2)
    found = forecast_starts(Snapshot(NOW, (node("a", gpus=4, free=2),), (job("me", gang(1, 4)),), (view,), (growing,)))
    assert minutes(of(found, "me")) == (10, 10, 10)


def test_a_small_budget_says_what_was_not_worked_out() -> None:
    queue = tuple(guessed(job(f"q{n}", gang(1, 8), age=99 - n), 5, 10, 20) for n in range(50))
    snapshot = Snapshot(NOW, (node("a", free=0),), queue, (guessed(runs("r", 8, "a", None), 10, 20, 60),))
    found = forecast_starts(snapshot, budget=1000)
    codes = [one.code for one in found.starts]
    assert codes[0] is StartCode.EXPECTED
    assert codes[-1] is StartCode.LATER
    assert "not worked out" in found.starts[-1].sentence
    assert forecast_starts(snapshot, budget=1000) == found


def test_one_job_alone_can_be_requested_whatever_its_place() -> None:
    queue = tuple(guessed(job(f"q{n}", gang(1, 8), age=99 - n), 5, 10, 20) for n in range(5))
    snapshot = Snapshot(NOW, (node("a", free=0),), queue, (guessed(runs("r", 8, "a", None), 10, 20, 60),))
    alone = forecast_starts(snapshot, only=JobId("q3"), most=1)
    assert alone.starts == (forecast_starts(snapshot).starts[3],)
    brief = forecast_starts(snapshot, only=JobId("q3"), is_brief=True).starts[0]
    assert brief.likely == alone.starts[0].likely


@given(st.integers(1, 999), st.lists(st.integers(1, 999), max_size=5))
def test_parts_of_gpus_are_taken_and_given_back(part: int, others: list[int]) -> None:
    free = Amounts(1000, 1000, {"H100": 8})
    for other in others:
        free = take(free, ResourceRequest(1, 1, 0, (), other), "H100")
    back = give_back(take(free, ResourceRequest(1, 1, 0, (), part), "H100"), ResourceRequest(1, 1, 0, (), part), "H100")

    def left(amounts: Amounts) -> int:
        return 1000 * amounts.gpus["H100"] + sum(amounts.shares.get("H100", ()))

    assert left(back) == left(free)
    assert all(0 <= amount <= 1000 for amount in back.shares.get("H100", ()))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(any_snapshots(), st.randoms())
def test_every_waiting_job_has_an_outlook_in_order_of_time_and_the_order_of_the_input_does_not_matter(
    snapshot, chance
) -> None:
    found = forecast_starts(snapshot)
    made = plan(snapshot)
    assert {one.job_id for one in found.starts} == {job.job_id for job in snapshot.queued}
    for one in found.starts:
        assert (one.code is StartCode.NOW) == (one.job_id not in made.waits)
        known = [at for at in (one.earliest, one.likely, one.latest) if at is not None]
        assert known == sorted(known)
        assert all(at >= snapshot.now for at in known)
        assert (one.likely is None) == (one.code in (StartCode.NOT_KNOWN, StartCode.LATER, StartCode.NEVER))
    parts = [list(snapshot.nodes), list(snapshot.queued), list(snapshot.running)]
    for part in parts:
        chance.shuffle(part)
    nodes, queued, running = map(tuple, parts)
    assert forecast_starts(replace(snapshot, nodes=nodes, queued=queued, running=running)) == found


def test_an_outlook_s_moments_are_those_of_the_simulator_when_all_ends_are_known() -> None:
    """Held against the other program that runs the planner forward, with ends that are exactly as expected."""
    from scheduler.simulator.cluster import SimulatedCluster

    world = SimulatedCluster([node("a"), node("b")], policy=NO_TURNS)
    lengths = {}
    for number in range(30):
        length = 60.0 * (7 + number * 13 % 17)
        one = job(f"q{number:02}", gang(1 + number % 2, 1 + number * 3 % 8), age=60 - number)
        world.enqueue(replace(one, estimate=Estimate(length, length, length)))
        lengths[one.job_id] = length
    snapshot = world.snapshot(NOW)
    found = forecast_starts(snapshot)
    started, now = {}, NOW
    while world.queued or world.running:
        made = plan(world.snapshot(now))
        world.apply(made, now)
        started |= {start.job_id: now for start in made.starts}
        if not world.running:
            break
        ends = {
            job_id: running.started_at + timedelta(seconds=lengths[job_id]) for job_id, running in world.running.items()
        }
        now = min(ends.values())
        for job_id, at in ends.items():
            if at == now:
                world.finish(job_id)
    for one in found.starts:
        assert one.likely is not None
        off = abs((one.likely - started[one.job_id]).total_seconds())
        assert off <= 0.2 * max(60.0, (started[one.job_id] - NOW).total_seconds()), one
    assert sum(one.likely == started[one.job_id] for one in found.starts) > 15


# A job that is stopped for a turn gives its place back before its run time is over.
NO_TURNS = Policy(time_slice_s=None)


def overfilled(snapshot: Snapshot, found: QueueForecast) -> list[tuple[str, float, Amounts]]:
    """Nodes on which the forecast runs more than they hold, by its own starts and run times."""
    uses: list[tuple[float, float, str, str | None, ResourceRequest]] = []
    totals = {node.id: node.allocatable for node in snapshot.nodes}
    for view in snapshot.running:
        if view.estimate is None and view.expected_end is None:
            end_s = inf
        else:
            stated = inf if view.expected_end is None else (view.expected_end - snapshot.now).total_seconds()
            end_s = max(1.0, stated if view.estimate is None else min(stated, view.estimate.likely_s))
        requests = {role.role: role.request for role in view.gang.roles}
        models = view.gpu_models or (None,) * len(view.nodes)
        uses += [(0.0, end_s, on, model, requests[role]) for (role, on), model in zip(view.nodes, models, strict=True)]
    jobs = {job.job_id: job for job in snapshot.queued}
    for start in found.starts:
        if start.likely is None:
            continue
        at_s = (start.likely - snapshot.now).total_seconds()
        end_s = inf if start.run_s is None else at_s + start.run_s
        requests = {role.role: role.request for role in jobs[start.job_id].gang.roles}
        uses += [(at_s, end_s, seat.node, seat.gpu_model, requests[seat.role]) for seat in start.placements]
    too_much = []
    for at_s in sorted({begin for begin, *_ in uses}):
        for name, whole in totals.items():
            there = [
                (model, request) for begin, end, on, model, request in uses if on == name and begin <= at_s < end - 1e-3
            ]
            started = any(begin == at_s > 0 and on == name for begin, _, on, _, _ in uses)
            gpus = Counter[str | None]()
            for model, request in there:
                gpus[model] += request.gpu_count
            cpu, memory = (sum(getattr(each, of) for _, each in there) for of in ("cpu_milli", "memory_bytes"))
            is_over = cpu > whole.cpu_milli or memory > whole.memory_bytes
            is_over |= any(count > whole.gpus.get(model or "", 0) for model, count in gpus.items() if count)
            if started and is_over:
                too_much.append((name, at_s, Amounts(cpu, memory)))
    return too_much


def cpu_job(name: str, milli: int, age: int, estimate: Estimate | None, limit: float | None = None) -> QueuedGang:
    wanted = Gang((GangRole("worker", 1, ResourceRequest(milli, 2**27, 0)),))
    return replace(job(name, wanted, age=age, limit=limit), estimate=estimate)


@pytest.mark.parametrize(
    ("estimate", "limit"),
    [(None, None), (None, 3600.0), (Estimate(3, 1, 9), None), (Estimate(600, 300, 1200), 900.0)],
)
def test_five_small_and_two_large_jobs_do_not_start_together_on_one_node(
    estimate: Estimate | None, limit: float | None
) -> None:
    queue = [cpu_job(f"small-{n}", 900, 20 - n, estimate, limit) for n in range(5)]
    queue += [cpu_job(f"large-{n}", 2000, 5 - n, estimate, limit) for n in range(2)]
    a = replace(node("a", gpus=0), allocatable=Amounts(2000, 2**33), free=Amounts(2000, 2**33))
    snapshot = Snapshot(NOW, (a,), tuple(queue), policy=NO_TURNS)
    found = forecast_starts(snapshot)
    assert overfilled(snapshot, found) == []
    starts = [start.likely for start in found.starts]
    assert starts[:2] == [NOW, NOW]
    if estimate or limit:
        assert len(set(starts)) == 5  # two small jobs at a time, then one, then each large one alone
    else:
        assert starts[2:] == [None] * 5


def test_a_node_that_holds_more_than_it_has_is_not_filled_beyond_that_when_jobs_end() -> None:
    """Its allocatable amounts have shrunk, or other users' pods came, since its jobs started."""
    small = cpu_job("x", 900, 0, None).gang

    def running(name: str, minutes: float) -> RunningGang:
        seats = (("worker", NodeId("a")),)
        return RunningGang(JobId(name), name, "p", 50, small, seats, estimate=Estimate(*[60 * minutes] * 3))

    a = replace(node("a", gpus=0), allocatable=Amounts(2000, 2**33), free=Amounts(0, 2**33))
    queue = [cpu_job(f"small-{n}", 900, 20 - n, Estimate(600, 600, 600)) for n in range(3)]
    snapshot = Snapshot(NOW, (a,), tuple(queue), tuple(running(f"r{n}", 10 + n) for n in range(4)))
    found = forecast_starts(snapshot)
    assert overfilled(snapshot, found) == []
    assert [minutes(of(found, f"small-{n}"))[1] for n in range(3)] == [12, 13, 22]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(any_snapshots(), st.data())
def test_a_forecast_never_puts_more_on_a_node_than_it_holds(snapshot: Snapshot, data: st.DataObject) -> None:
    def known(view):
        seconds = data.draw(st.sampled_from([None, 1.0, 5.0, 60.0, 600.0, 5000.0]))
        return view if seconds is None else replace(view, estimate=Estimate(seconds, seconds / 2, 3 * seconds))

    def shrunk(view):
        less = data.draw(st.sampled_from([1, 1, 2]))
        whole = Amounts(view.allocatable.cpu_milli // less, view.allocatable.memory_bytes, view.allocatable.gpus)
        missing = view.allocatable.cpu_milli - whole.cpu_milli
        return replace(
            view, allocatable=whole, free=replace(view.free, cpu_milli=max(0, view.free.cpu_milli - missing))
        )

    snapshot = replace(
        snapshot,
        nodes=tuple(map(shrunk, snapshot.nodes)),
        queued=tuple(map(known, snapshot.queued)),
        running=tuple(map(known, snapshot.running)),
        policy=replace(snapshot.policy, time_slice_s=None),
    )
    assert overfilled(snapshot, forecast_starts(snapshot)) == []


def test_every_infeasible_code_is_a_code_of_the_planner() -> None:
    assert set(map(str, WaitReasonCode)) >= INFEASIBLE_CODES
