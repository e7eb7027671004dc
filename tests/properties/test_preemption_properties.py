"""What preemption may never do, in random worlds in which jobs come, run, are stopped and end.

Ten thousand sequences: ``TRAINMASTER_SEQUENCES=10000 pytest tests/properties/test_preemption_properties.py``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import permutations
from random import Random

import pytest

from core.domain.ids import JobId
from core.domain.sharing.resources import Amounts, Gang
from scheduler.planning import (
    NodeSnapshot,
    Plan,
    Policy,
    PreemptCode,
    QueuedGang,
    QueueOrder,
    RunningGang,
    Snapshot,
    WaitReasonCode,
    plan,
)
from scheduler.planning.fixpoint import apply_plan
from scheduler.planning.preemption.policy import PreemptionPolicy
from scheduler.planning.queue.shares import Shares
from tests.properties.planner_worlds import assignment
from tests.properties.preemption_worlds import OfModels, Story, any_policy

SEQUENCES = int(os.environ.get("TRAINMASTER_SEQUENCES", "100"))
CHUNK = 50
BY_PRIORITY = Policy(order=QueueOrder.FIFO, is_fair=False, reclaims=False, min_run_time_s=60.0, keeps_for_gpus=False)
_NEVER = {WaitReasonCode.NEVER_FITS, WaitReasonCode.TOO_LARGE, WaitReasonCode.NO_MATCHING_NODE, WaitReasonCode.NO_NODES}


def reported(story: Story, *phases: int) -> Story:
    """Let jobs come and time pass, checking every plan on the way."""
    seen = 0
    for _ in range(story.chance.randint(*phases)):
        for _ in range(story.chance.choice([0, 1, 1, 2])):
            story.arrive()
        if story.world.queued and story.chance.random() < 0.05:
            story.gone(story.chance.choice(sorted(story.world.queued)))
        story.plan()
        story.step(story.chance.choice([10, 60, 400]))
        for snapshot, made in story.plans[seen:]:
            check(snapshot, made, story.seed)
        seen = len(story.plans)
    return story


def check(snapshot: Snapshot, made: Plan, seed: int) -> None:
    """The sentences that hold of every plan."""
    where = f"seed {seed}"
    running = {gang.job_id: gang for gang in snapshot.running}
    stopped = [preempt.job_id for preempt in made.preempts]
    smaller = [shrink.job_id for shrink in made.shrinks]
    # Nothing is both started and stopped, or stopped and made smaller or larger, or stopped twice.
    touched = [*stopped, *{*smaller}, *(start.job_id for start in made.starts)]
    assert len(set(touched)) == len(touched), where
    assert not {*stopped, *smaller} & {grow.job_id for grow in made.grows}, where
    policy = snapshot.policy
    by_id = {job.job_id: job for job in snapshot.queued}
    for preempt in made.preempts:
        gang = running[preempt.job_id]
        # Only who may be stopped, is not stopping, and has had its guaranteed time.
        assert gang.is_preemptible, where
        assert not gang.is_stopping, where
        assert gang.started_at is not None, where
        ran_s = (snapshot.now - gang.started_at).total_seconds()
        if preempt.code is PreemptCode.BOOKING:
            assert preempt.for_job is None, where
            continue
        assert ran_s >= policy.min_run_time_s, where
        assert preempt.for_job is not None, where
        job = by_id[preempt.for_job]
        # A victim has the lower claim by the right that is told.
        match preempt.code:
            case PreemptCode.PRIORITY:
                assert job.priority > gang.priority, where
            case PreemptCode.FAIR_SHARE:
                assert job.priority >= gang.priority, where
                assert (job.project, job.user) != (gang.project, gang.user), where
            case PreemptCode.GUARANTEE:
                assert (job.project, job.user) != (gang.project, gang.user), where
            case PreemptCode.TIME_SLICE:
                assert job.priority == gang.priority, where
                assert ran_s >= min(span for span in (policy.time_slice_s, policy.rotation_s) if span is not None), (
                    where
                )
            case PreemptCode.MOVE:
                pass
        # Who it is for waits, and is told.
        assert made.waits[job.job_id].code is WaitReasonCode.PREEMPTING, where
        assert gang.name in made.waits[job.job_id].sentence or len(stopped) > 2, where
    _check_need(snapshot, made, where)


def _check_need(snapshot: Snapshot, made: Plan, where: str) -> None:
    """All who go are enough, together, for all for whom they go; for one job alone, the removal of each is needed: by
    trying every assignment.
    """
    for_jobs = [p.for_job for p in made.preempts if p.code is not PreemptCode.MOVE] + [s.for_job for s in made.shrinks]
    asking = [job for job in snapshot.queued if job.job_id in for_jobs]
    if not asking or any(role.request.gpu_milli for gang in _gangs(snapshot) for role in gang.roles):
        return  # parts of GPUs have properties of their own
    later = apply_plan(snapshot, made)
    gone = [gang for gang in later.running if gang.is_stopping]
    left = _without(later.nodes, gone)
    promised = [job for job in later.queued if made.waits[job.job_id].code is WaitReasonCode.PREEMPTING]
    assert {job.job_id for job in asking} <= {job.job_id for job in promised}, where
    assert assignment(left, Gang(tuple(role for job in promised for role in job.gang.roles))) is not None, where
    assert all(_within_limits(later, gone, promised, job) for job in asking), where
    is_plain = not made.shrinks and not snapshot.bookings and not any(gang.is_stopping for gang in snapshot.running)
    if len(promised) > 1 or not is_plain:
        return
    (job,) = promised
    nodes = apply_plan(snapshot, replace(made, preempts=(), grows=())).nodes
    if any(
        made.waits[other].code not in _NEVER
        for other in made.order[: made.order.index(job.job_id)]
        if other in made.waits
    ):
        return  # what is reserved for one before it is not its own, though it is free
    victims = [gang for gang in gone if gang.stopping_for == job.job_id]
    for victim in victims:
        fewer = [other for other in gone if other is not victim]
        has_enough_gpus = (
            _within_limits(later, fewer, promised, job) and assignment(_without(nodes, fewer), job.gang) is not None
        )
        assert not has_enough_gpus, f"{where}: {victim.job_id} goes though {job.job_id} would start without"


def _gangs(snapshot: Snapshot) -> list[Gang]:
    return [gang.gang for gang in snapshot.running] + [job.gang for job in snapshot.queued]


def _within_limits(snapshot: Snapshot, gone: list[RunningGang], promised: list[QueuedGang], job: QueuedGang) -> bool:
    """Whether the limits of its project, and of its user, hold with ``job`` and all others of ``promised``."""
    stay = [gang for gang in snapshot.running if gang not in gone]
    quota = next(account.quota for account in snapshot.accounts if account.project == job.project)
    for user, limits in ((None, quota.limit), (job.user, quota.user_limit)):
        mine = [one for one in [*stay, *promised] if one.project == job.project and user in {None, one.user}]
        held = {"jobs": len(mine), "gpu_milli": sum(_milli(one) for one in mine)}
        if any(held[key] > most for key, most in limits.items()):
            return False
    return True


def _milli(one: RunningGang | QueuedGang) -> int:
    (role,) = one.gang.roles
    replicas = len(one.nodes) if isinstance(one, RunningGang) else role.replicas
    return replicas * (1000 * role.request.gpu_count + role.request.gpu_milli)


def _without(nodes: tuple[NodeSnapshot, ...], gangs: list[RunningGang]) -> tuple[NodeSnapshot, ...]:
    by_id = {node.id: node for node in nodes}
    for gang in gangs:
        requests = {role.role: role.request for role in gang.gang.roles}
        for (role, node_id), model in zip(gang.nodes, gang.gpu_models, strict=True):
            node, request = by_id[node_id], requests[role]
            gpus = dict(node.free.gpus)
            if model:
                gpus[model] = gpus.get(model, 0) + request.gpu_count
            free = Amounts(node.free.cpu_milli + request.cpu_milli, node.free.memory_bytes + request.memory_bytes, gpus)
            by_id[node_id] = replace(node, free=free)
    return tuple(by_id.values())


@pytest.mark.parametrize("chunk", range(-(-SEQUENCES // CHUNK)))
def test_there_is_no_circle_and_every_plan_keeps_its_promises(chunk: int) -> None:
    for seed in range(chunk * CHUNK, min(SEQUENCES, (chunk + 1) * CHUNK)):
        story = reported(Story(seed), 4, 10)
        _no_circle(story)


def _no_circle(story: Story) -> None:
    seed = story.seed
    # For one job, in one of its waits, another is stopped once at most: whoever was stopped for it does not come
    # back before it and is stopped again.
    waits = {job_id: 1 + life.preempted for job_id, life in story.lives.items()}
    pairs: Counter[tuple[JobId, JobId | None]] = Counter()
    runs: Counter[JobId] = Counter()
    for _, made in story.plans:
        for preempt in made.preempts:
            pairs[preempt.job_id, preempt.for_job] += 1
            runs[preempt.job_id] += preempt.code is not PreemptCode.BOOKING
    for (victim, for_job), times in pairs.items():
        assert for_job is None or times <= waits[for_job], f"seed {seed}: {victim} stopped {times} times for {for_job}"
    # Each time it had its guaranteed time first.
    for job_id, times in runs.items():
        life, policy = story.lives[job_id], story.world.policy
        in_all_s = (story.now - story.plans[0][0].now).total_seconds()
        assert times * policy.min_run_time_s <= in_all_s, f"seed {seed}"
        assert life.starts >= times, f"seed {seed}"


@pytest.mark.parametrize("chunk", range(-(-SEQUENCES // CHUNK)))
def test_there_is_no_circle_where_models_are_guaranteed_too(chunk: int) -> None:
    for seed in range(chunk * CHUNK, min(SEQUENCES, (chunk + 1) * CHUNK)):
        _no_circle(reported(OfModels(seed, policy=replace(any_policy(Random(seed)), reclaims=True)), 4, 10))


@pytest.mark.parametrize("seed", range(20))
def test_by_priority_a_job_is_stopped_at_most_once_for_each_wait_of_a_job_of_larger_priority(seed: int) -> None:
    story = reported(Story(seed, policy=BY_PRIORITY), 10, 20)
    priority = {job.job_id: job.priority for snapshot, _ in story.plans for job in snapshot.queued}
    for job_id, life in story.lives.items():
        larger = [other for other in story.lives if priority.get(other, 0) > priority.get(job_id, 0)]
        assert life.preempted <= sum(1 + story.lives[other].preempted for other in larger)


@pytest.mark.parametrize("seed", range(25))
def test_without_arrivals_and_ends_preemption_comes_to_rest_and_is_never_mutual(
    seed: int,
) -> None:
    story = Story(seed, policy=any_policy(Random(seed), slices=False), ends=False)
    for _ in range(14):
        story.arrive()
    begun = 0
    last, at = 0, 0
    while at < 80:
        at += 1
        if story.plan().preempts:
            last = at
        story.step(330)
        begun = max(begun, len(story.plans))
    assert last <= 40, f"seed {seed}: still stopped somebody in round {last}"
    edges = {(p.for_job, p.job_id) for _, made in story.plans for p in made.preempts}
    assert not [edge for edge in edges if edge[::-1] in edges], f"seed {seed}"


def test_a_preemptor_starts_when_its_victims_are_gone() -> None:
    promised = 0
    for seed in range(40):
        story = Story(seed, books=False)
        for _ in range(story.chance.randint(6, 14)):
            story.arrive()
            if story.chance.random() < 0.4:
                story.plan()
                story.step(200)
        for _ in range(25):
            story.plan()
            story.step(100)
        again: set[tuple[int, datetime]] = set()
        for snapshot, made in story.plans:
            again |= {(job.priority, job.waits_since) for job in snapshot.queued if job.waits_since is not None}
            if snapshot.now <= story.last_arrival:
                continue
            stopping = {gang.stopping_for for gang in snapshot.running if gang.is_stopping}
            started = {start.job_id for start in made.starts}
            for job in snapshot.queued:
                if job.room_since is None or job.room_since <= story.last_arrival or job.job_id in stopping:
                    continue
                # One of larger priority that was stopped meanwhile is not bound by it.
                if any(priority > job.priority and since >= job.room_since for priority, since in again):
                    continue
                promised += 1
                assert job.job_id in started, f"seed {seed}: {job.job_id} waits: {made.waits[job.job_id].sentence}"
    assert promised > 10


def test_planning_again_after_applying_says_nothing_new() -> None:
    output: Counter[str] = Counter()
    for seed in range(40):
        story = Story(seed)
        for _ in range(12):
            for _ in range(story.chance.randint(0, 2)):
                story.arrive()
            made = story.plan()
            again = plan(apply_plan(story.plans[-1][0], made))
            assert (again.starts, again.preempts, again.shrinks, again.grows) == ((), (), (), ()), f"seed {seed}"
            assert again.moves == made.moves or made.preempts, f"seed {seed}"
            output += Counter(starts=len(made.starts), preempts=len(made.preempts), shrinks=len(made.shrinks))
            story.step(story.chance.choice([10, 60, 400]))
    assert min(output["starts"], output["preempts"], output["shrinks"]) > 5


@pytest.mark.parametrize("seed", range(20))
def test_the_plan_does_not_depend_on_the_order_of_the_snapshot(seed: int) -> None:
    story = reported(Story(seed), 5, 8)
    for snapshot, made in story.plans:

        def shuffled(items: tuple) -> tuple:
            return tuple(story.chance.sample(items, len(items)))

        twin = replace(
            snapshot,
            nodes=shuffled(snapshot.nodes),
            queued=shuffled(snapshot.queued),
            running=shuffled(snapshot.running),
            growing=shuffled(snapshot.growing),
            accounts=shuffled(snapshot.accounts),
        )
        assert plan(twin) == made, f"seed {seed}"


@pytest.mark.parametrize("seed", range(25))
def test_a_project_gets_what_is_guaranteed_to_it_in_one_round(seed: int) -> None:
    # Whoever waits for what is guaranteed to its project, and is promised nothing, would not fit even if all those were
    # gone of whom it could be taken now.
    story = Story(seed, policy=replace(any_policy(Random(seed)), reclaims=True), books=False, parts=False)
    for _ in range(14):
        for _ in range(story.chance.choice([0, 1, 1, 2])):
            story.arrive()
        story.plan()
        story.step(story.chance.choice([60, 400]))
    for snapshot, made in story.plans:
        if made.preempts or made.shrinks or any(gang.is_stopping for gang in snapshot.running):
            continue
        left = apply_plan(snapshot, made)
        preemption_policy = PreemptionPolicy(left, Shares(left))
        for job in left.queued:
            # Room that is kept for another one is not taken, nor a limit exceeded.
            codes = {*_NEVER, WaitReasonCode.PREEMPTING, WaitReasonCode.RESERVED, WaitReasonCode.QUOTA}
            if made.waits[job.job_id].code in codes or not preemption_policy.may_reclaim(job):
                continue
            for gone in _takable(job, left):
                assert assignment(_without(left.nodes, gone), job.gang) is None, f"seed {seed}"


def _takable(job: QueuedGang, snapshot: Snapshot) -> Iterator[list[RunningGang]]:
    """Whom ``job`` could have stopped together, up to three: each must be without its protection once those before it
    are
    gone.
    """
    for count in (1, 2, 3):
        for gangs in permutations(snapshot.running, count):
            shares = Shares(snapshot)
            preemption_policy = PreemptionPolicy(snapshot, shares)
            for gang in gangs:
                if not preemption_policy.may_stop(gang) or preemption_policy.reason_to_preempt(job, gang) is None:
                    break
                shares.add(gang.project, gang.user, shares.running_amounts(gang), -1)
            else:
                yield list(gangs)


def test_a_job_that_is_withdrawn_gives_its_promise_back() -> None:
    withdrawn = 0
    for seed in range(30):
        story = Story(seed, policy=BY_PRIORITY, books=False)
        for _ in range(12):
            story.arrive()
            made = story.plan()
            for preempt in made.preempts:
                if preempt.for_job is not None and preempt.for_job in story.world.queued:
                    story.gone(preempt.for_job)
                    withdrawn += 1
            story.step(61)
        story.now += timedelta(seconds=3600)
        while story.plan().starts or story.world.running:
            story.step(1000)
        left = {job.job_id for job in story.world.queued.values()}
        waits = [reason for job_id, reason in story.plans[-1][1].waits.items() if job_id in left]
        assert all(reason.code in _NEVER or reason.numbers["is_never"] for reason in waits), f"seed {seed}"
    assert withdrawn > 5
