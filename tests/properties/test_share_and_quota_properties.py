"""Shares, quotas and bookings: what no plan may ever do, on small random clusters of several projects."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import timedelta
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.domain.ids import JobId, NodeId
from core.domain.sharing.gpus import accepts
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import (
    Account,
    Booking,
    Estimate,
    NodeSnapshot,
    Policy,
    QueuedGang,
    QueueOrder,
    Quota,
    Snapshot,
    WaitReasonCode,
    plan,
    plan_to_apply,
)
from scheduler.simulator.cluster import SimulatedCluster
from tests.properties.planner_worlds import NOW, first_fit, nodes, queues
from tests.properties.test_elastic_planner_properties import elastic_jobs

often = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
PROJECTS, USERS = ("vision", "nlp", "speech"), ("ann", "bob")
KEYS = ("jobs", "cpu_milli", "memory_bytes", "gpu_milli", "gpu_milli/h100", "gpu_milli/a100", "gpu_milli/a100-80gb")


@st.composite
def limits(draw: st.DrawFn) -> dict[str, int]:
    keys = draw(st.lists(st.sampled_from(KEYS), max_size=2, unique=True))
    return {key: draw(st.integers(0, 6)) * (1000 if key.startswith("gpu") else 1) for key in keys}


@st.composite
def accounts(draw: st.DrawFn) -> tuple[Account, ...]:
    made = []
    for project in draw(st.lists(st.sampled_from(PROJECTS), unique=True)):
        quota = Quota(
            draw(limits()), draw(limits()), draw(limits()), {"ann": draw(limits())} if draw(st.booleans()) else {}
        )
        made.append(
            Account(
                project,
                draw(st.sampled_from([0.5, 1.0, 3.0])),
                quota,
                draw(st.sampled_from([0.0, 0.3])),
                {"bob": draw(st.sampled_from([0.0, 0.2]))},
                {"ann": draw(st.sampled_from([1.0, 2.0]))},
            )
        )
    return tuple(made)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    return Policy(
        order=draw(st.sampled_from(QueueOrder)),
        is_fair=draw(st.sampled_from([True, True, True, False])),
        usage_weight=draw(st.sampled_from([0.0, 0.5, 1.0])),
        preempts_priority=False,
        reclaims=False,
        shrinks=False,
    )


@st.composite
def bookings(draw: st.DrawFn, of: tuple[NodeSnapshot, ...]) -> tuple[Booking, ...]:
    made = []
    for number in range(draw(st.integers(0, 3))):
        booked = draw(st.sets(st.sampled_from([node.id for node in of]), min_size=1))
        begins_at = NOW + timedelta(seconds=draw(st.sampled_from([-100, 0, 30, 300])))
        ends_at = begins_at + timedelta(seconds=draw(st.sampled_from([50, 100, 1000])))
        project = draw(st.sampled_from(PROJECTS))
        made.append(Booking(f"b{number}", f"demo-{number}", project, frozenset(booked), begins_at, ends_at))
    return tuple(made)


@st.composite
def worlds(draw: st.DrawFn) -> SimulatedCluster:
    cluster = draw(nodes(most=4))
    world = SimulatedCluster(
        cluster, policy=draw(policies()), accounts=draw(accounts()), bookings=draw(bookings(cluster))
    )

    def owned(job: QueuedGang) -> QueuedGang:
        return replace(
            job,
            project=draw(st.sampled_from(PROJECTS)),
            user=draw(st.sampled_from(USERS)),
            attained_gpu_s=draw(st.sampled_from([0.0, 5000.0, 1e6])),
            estimate=draw(st.sampled_from([None, Estimate(60, 30, 90), Estimate(6000, 3000, 9000)])),
            waits_since=draw(st.sampled_from([None, NOW - timedelta(days=2)])),
        )

    for job in (*draw(elastic_jobs("e")), *draw(queues(prefix="r", most=3))):
        first_fit(world, owned(job), NOW - timedelta(seconds=draw(st.integers(0, 100))))
    for job in (*draw(elastic_jobs("q")), *draw(queues(most=8))):
        world.enqueue(owned(job))
    return world


def used(world: SimulatedCluster) -> Counter[tuple[str, str, str]]:
    """By (project, user, key) and (project, "", key): what jobs hold, counted replica by replica."""
    held: Counter[tuple[str, str, str]] = Counter()
    for running in world.running.values():
        job = running.job
        requests = {role.role: role.request for role in job.gang.roles}
        for user in ("", job.user):
            held[job.project, user, "jobs"] += 1
            for placement in running.placements:
                request = requests[placement.role]
                held[job.project, user, "cpu_milli"] += request.cpu_milli
                held[job.project, user, "memory_bytes"] += request.memory_bytes
                held[job.project, user, "gpu_milli"] += 1000 * request.gpu_count
                for key in KEYS[4:]:
                    if placement.gpu_model and accepts(key.partition("/")[2], placement.gpu_model):
                        held[job.project, user, key] += 1000 * request.gpu_count
    return held


def every_limit(world: SimulatedCluster) -> list[tuple[str, str, str, int]]:
    found = []
    for account in world.accounts:
        found += [(account.project, "", key, most) for key, most in account.quota.limit.items()]
        for user in USERS:
            of_user = account.quota.user_limits.get(user, account.quota.user_limit)
            found += [(account.project, user, key, most) for key, most in of_user.items()]
    return found


@often
@given(worlds())
def test_neither_starts_nor_growth_exceed_a_quota(world: SimulatedCluster) -> None:
    before = used(world)
    world.apply(plan(world.snapshot(NOW)), NOW)
    after = used(world)
    for project, user, key, most in every_limit(world):
        name = (project, user, key)
        # Who had more already, since the quota was lowered, gets no more of it.
        assert after[name] <= most or after[name] == before[name], (name, most)


@often
@given(worlds())
def test_who_waits_for_a_quota_would_exceed_it_with_what_is_held_now(world: SimulatedCluster) -> None:
    made = plan(world.snapshot(NOW))
    waiting = dict(world.queued)
    world.apply(made, NOW)
    held = used(world)
    for job_id, reason in made.waits.items():
        if reason.code is not WaitReasonCode.QUOTA:
            continue
        numbers, job = reason.numbers, waiting[job_id]
        name = (numbers["project"], numbers.get("user", ""), numbers["resource"])
        assert (job.project, numbers.get("user", job.user)) == (numbers["project"], job.user)
        assert (*name, numbers["limit"]) in every_limit(world)
        assert numbers["held"] == held[name]
        assert numbers["held"] + numbers["needed"] > numbers["limit"]
        assert numbers["is_never"] == (numbers["needed"] > numbers["limit"])


@often
@given(worlds())
def test_planning_again_after_applying_starts_and_grows_nothing(world: SimulatedCluster) -> None:
    world.apply(plan(world.snapshot(NOW)), NOW)
    again = plan(world.snapshot(NOW))
    assert again.starts == ()
    assert again.grows == ()


@often
@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_the_input_does_not_matter_and_the_same_snapshot_gives_the_same_plan(
    world: SimulatedCluster, chance
) -> None:
    def shuffled(items):
        items = list(items)
        chance.shuffle(items)
        return tuple(items)

    snapshot = world.snapshot(NOW)
    names = ("nodes", "queued", "running", "growing", "accounts", "bookings")
    twin = replace(snapshot, **{name: shuffled(getattr(snapshot, name)) for name in names})
    made = plan(snapshot)
    assert plan(twin) == made
    assert plan(snapshot) == made
    assert sorted(made.order) == sorted(job.job_id for job in snapshot.queued)
    assert made.order[: len(made.starts)] == tuple(start.job_id for start in made.starts)
    assert plan_to_apply(snapshot) == replace(made, order=())


@often
@given(worlds())
def test_no_job_runs_on_a_node_booked_for_another_project_unless_it_surely_ends_before(
    world: SimulatedCluster,
) -> None:
    snapshot = world.snapshot(NOW)
    jobs = {job.job_id: job for job in snapshot.queued}
    ends = {job.job_id: job.expected_end for job in snapshot.running}
    projects = {job.job_id: job.project for job in snapshot.running}
    made = plan(snapshot)
    for line in (*made.starts, *made.grows):
        job = jobs.get(line.job_id)
        if job is not None:
            project = job.project
            end = None if job.max_run_time_s is None else NOW + timedelta(seconds=job.max_run_time_s)
        else:
            project, end = projects[line.job_id], ends[line.job_id]
        for booking in snapshot.bookings:
            if (
                booking.project != project
                and booking.ends_at > NOW
                and {p.node for p in line.placements} & booking.nodes
            ):
                assert booking.begins_at > NOW
                assert end is not None
                assert end <= booking.begins_at
    for job_id, reason in made.waits.items():
        if reason.code is WaitReasonCode.BOOKED:
            booking = next(booking for booking in snapshot.bookings if booking.id == reason.numbers["booking"])
            assert booking.project != jobs[job_id].project
            assert booking.name in reason.sentence
            assert booking.project in reason.sentence


def _filled(seed: int, *, per_user: bool) -> tuple[SimulatedCluster, dict[str, float], int]:
    """Infinite demand of jobs of one size per plan on one resource; who may have how much, and the largest gang."""
    chance = Random(seed)
    names = [f"x{number}" for number in range(chance.randint(2, 5))]
    weights = {name: chance.choice([0.5, 1.0, 1.0, 2.0, 4.0]) for name in names}
    whole = Amounts(10_000, 10_000, {"h100": 8})
    cluster = [NodeSnapshot(NodeId(f"n{number}"), {}, whole, whole) for number in range(chance.randint(3, 8))]
    if per_user:
        owners = (Account("p", user_weights=weights),)
    else:
        owners = tuple(Account(name, weight) for name, weight in weights.items())
    order = chance.choice(list(QueueOrder))
    world = SimulatedCluster(cluster, policy=Policy(usage_weight=0.0, order=order), accounts=owners)
    # Gangs of single GPUs, so that no hole is left over that somebody else could not use.
    sizes = {name: chance.choice([1, 1, 2, 4]) for name in names}
    for name in names:
        for number in range(8 * len(cluster)):
            gang = Gang((GangRole("worker", sizes[name], ResourceRequest(1, 1, 1)),))
            project, user = ("p", name) if per_user else (name, "u")
            at = NOW - timedelta(seconds=chance.randint(0, 1000))
            world.enqueue(QueuedGang(JobId(f"{name}-{number}"), name, project, user, 50, at, gang, gang.shape()))
    return world, weights, max(sizes.values())


def test_with_endless_demand_every_share_ends_within_one_gang_of_what_its_weight_entitles_to() -> None:
    for seed in range(100):
        for per_user in (False, True):
            world, weights, largest = _filled(seed, per_user=per_user)
            total = 8 * len(world.nodes)
            world.apply(plan(world.snapshot(NOW)), NOW)
            held: Counter[str] = Counter()
            for running in world.running.values():
                held[running.job.name] += len(running.placements)
            assert sum(held.values()) > total - largest
            for name, weight in weights.items():
                entitled = total * weight / sum(weights.values())
                assert abs(held[name] - entitled) <= largest, (seed, per_user, name, held, entitled)


def test_over_time_the_mean_shares_come_near_the_weights_also_where_gangs_are_unlike() -> None:
    # One project runs long gangs of 4, the other short single jobs; what each had on average lately counts.
    whole = Amounts(10_000, 10_000, {"h100": 8})
    cluster = [NodeSnapshot(NodeId("n0"), {}, whole, whole)]
    weights = {"long": 1.0, "short": 3.0}
    sizes, lasts = {"long": 4, "short": 1}, {"long": 40, "short": 7}
    usage = dict.fromkeys(weights, 0.0)
    world = SimulatedCluster(cluster, policy=Policy(usage_weight=0.8))
    ends: dict[str, int] = {}
    had: Counter[str] = Counter()
    half_life, rounds, serial = 300.0, 2000, 0
    for second in range(rounds):
        now = NOW + timedelta(seconds=second)
        for job_id in [job_id for job_id, end in ends.items() if end <= second]:
            world.finish(JobId(job_id))
            del ends[job_id]
        for project, size in sizes.items():
            while sum(job.project == project for job in world.queued.values()) < 8:
                serial += 1
                gang = Gang((GangRole("worker", size, ResourceRequest(1, 1, 1)),))
                job_id = JobId(f"{project}-{serial:06}")
                world.enqueue(
                    QueuedGang(job_id, job_id, project, "u", 50, now, gang, gang.shape(), float(lasts[project]))
                )
        world.accounts = tuple(Account(name, weight, usage=usage[name]) for name, weight in weights.items())
        made = plan(world.snapshot(now))
        for start in made.starts:
            ends[start.job_id] = second + lasts[world.queued[start.job_id].project]
        world.apply(replace(made, preempts=(), shrinks=()), now)
        keep = 0.5 ** (1 / half_life)
        for project in weights:
            gpus = sum(len(r.placements) for r in world.running.values() if r.job.project == project)
            usage[project] = keep * usage[project] + (1 - keep) * gpus / 8
            had[project] += gpus
    total = sum(had.values())
    for project, weight in weights.items():
        assert abs(had[project] / total - weight / sum(weights.values())) < 0.05, had


def test_priority_comes_before_any_share() -> None:
    whole = Amounts(8, 8, {"h100": 1})
    one = Gang((GangRole("worker", 1, ResourceRequest(1, 1, 1)),))

    def job(name: str, project: str, priority: int) -> QueuedGang:
        return QueuedGang(JobId(name), name, project, "u", priority, NOW, one, one.shape())

    accounts_ = (Account("rich", usage=0.9), Account("poor"))
    view = NodeSnapshot(NodeId("n0"), {}, whole, whole)
    snapshot = Snapshot(NOW, (view,), (job("a", "poor", 50), job("b", "rich", 90)), accounts=accounts_)
    made = plan(snapshot)
    assert [start.job_id for start in made.starts] == ["b"]
    assert made.order == ("b", "a")
