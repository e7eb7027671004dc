"""Users inside a project: their guarantees and shares give preemption_policy over one another, and never in circles."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from random import Random

import pytest

from core.domain.ids import JobId, NodeId
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import (
    Account,
    NodeSnapshot,
    Plan,
    PreemptCode,
    QueuedGang,
    Quota,
    RunningGang,
    Snapshot,
    WaitReasonCode,
    plan,
)
from scheduler.planning.queue.quota import is_guaranteed_to_user
from scheduler.planning.queue.shares import GPUS, Shares, gpu_milli
from tests.properties.planner_worlds import NOW
from tests.properties.preemption_worlds import Story, any_policy

SEQUENCES = int(os.environ.get("TRAINMASTER_SEQUENCES", "40"))
CHUNK = 20


def story_of(seed: int, *, ends: bool = True) -> Story:
    """Projects whose users have guarantees and weights, in half of the stories one project alone."""
    chance = Random(seed)
    policy = replace(
        any_policy(chance, slices=ends), is_fair=True, reclaims=True, preempts_shares=chance.random() < 0.7
    )
    story = Story(seed, policy=policy, ends=ends)
    accounts = []
    for account in story.world.accounts:
        of_users = {
            user: {"gpu_milli": 1000 * chance.randint(1, 4)} for user in ("ann", "bob") if chance.random() < 0.5
        }
        quota = Quota(guaranteed=account.quota.guaranteed, user_guaranteed=of_users)
        weights = {"ann": chance.choice([1.0, 1.0, 3.0])}
        accounts.append(Account(account.project, account.weight, quota, user_weights=weights))
    story.world.accounts = tuple(accounts)
    return story


def arrive(story: Story, *, is_one_project: bool) -> None:
    story.arrive()
    last = max(story.world.queued)
    job = story.world.queued[last]
    if is_one_project:
        job = replace(job, project="red")
    (role,) = job.gang.roles
    if role.request.gpu_count == 1 and story.chance.random() < 0.5:
        gang = Gang((replace(role, most=role.replicas + 4),))
        job = replace(job, gang=gang, shape=gang.shape())
    story.world.queued[last] = job


@pytest.mark.parametrize("chunk", range(-(-SEQUENCES // CHUNK)))
def test_a_waiting_job_preempts_another_at_most_once_and_only_for_the_stated_reason(chunk: int) -> None:
    for seed in range(chunk * CHUNK, min(SEQUENCES, (chunk + 1) * CHUNK)):
        story = story_of(seed)
        for _ in range(story.chance.randint(4, 10)):
            for _ in range(story.chance.choice([0, 1, 1, 2])):
                arrive(story, is_one_project=seed % 2 == 0)
            story.plan()
            story.step(story.chance.choice([10, 60, 400]))
        waits = {job_id: 1 + life.preempted for job_id, life in story.lives.items()}
        pairs: Counter[tuple[JobId, JobId | None]] = Counter()
        for snapshot, made in story.plans:
            jobs = {job.job_id: job for job in snapshot.queued}
            running = {gang.job_id: gang for gang in snapshot.running}
            shares = Shares(snapshot)
            for preempt in made.preempts:
                pairs[preempt.job_id, preempt.for_job] += 1
                if preempt.for_job is None or preempt.code not in (PreemptCode.GUARANTEE, PreemptCode.FAIR_SHARE):
                    continue
                job, gang = jobs[preempt.for_job], running[preempt.job_id]
                if job.project != gang.project:
                    continue
                assert job.user != gang.user, f"seed {seed}"
                assert job.priority >= gang.priority, f"seed {seed}"
                assert gang.user in preempt.sentence, f"seed {seed}"
                assert job.user in preempt.sentence, f"seed {seed}"
                held = shares.running_amounts(gang)
                assert not is_guaranteed_to_user(gang.project, gang.user, held, shares), f"seed {seed}"
        for (victim, for_job), times in pairs.items():
            assert for_job is None or times <= waits[for_job], f"seed {seed}: {victim} {times} times for {for_job}"


def shrunk_by_equals(snapshot: Snapshot, made: Plan) -> dict[tuple[str, str], tuple[int, int]]:
    """Of whom other users of the same project, without a larger priority, get replicas: what is guaranteed to each, and
    what each still has of it, with what starts and is promised, without what others take by a better right.
    """
    jobs = {job.job_id: job for job in snapshot.queued}
    running = {gang.job_id: gang for gang in snapshot.running}
    left = {who: held[GPUS] for who, held in Shares(snapshot).occupied_by_user.items()}
    found: set[tuple[str, str]] = set()
    for shrink in made.shrinks:
        job, gang = jobs[shrink.for_job], running[shrink.job_id]
        role = gang.gang.elastic
        assert role is not None
        if job.project == gang.project and job.user != gang.user and job.priority <= gang.priority:
            found.add((gang.project, gang.user))
            left[gang.project, gang.user] -= len(shrink.indices) * gpu_milli(role.request)
    for job in snapshot.queued:
        if job.job_id not in made.waits or made.waits[job.job_id].code is WaitReasonCode.PREEMPTING:
            who = (job.project, job.user)
            left[who] = left.get(who, 0) + sum(role.replicas * gpu_milli(role.request) for role in job.gang.roles)
    accounts = {account.project: account for account in snapshot.accounts}
    return {who: (accounts[who[0]].quota.user_guaranteed.get(who[1], {}).get(GPUS, 0), left[who]) for who in found}


def any_elastic_world(chance: Random) -> Snapshot:
    """A node full of the elastic jobs of three users of a project, some with guarantees, and some of
    theirs that wait.
    """
    gpus = 12
    users = ("ann", "bob", "cat")
    guaranteed = {user: {GPUS: 1000 * chance.randint(1, 6)} for user in users if chance.random() < 0.6}
    running, queued, left = list[RunningGang](), list[QueuedGang](), gpus
    at = NOW - timedelta(hours=1)
    while left:
        held = chance.randint(1, left)
        left -= held
        gang = Gang((GangRole("worker", chance.randint(1, held), ResourceRequest(1, 1, 1), held),))
        name, places = f"r{left}", (("worker", NodeId("n0")),) * held
        user, priority = chance.choice(users), chance.choice([50, 50, 90])
        running.append(
            RunningGang(JobId(name), name, "red", priority, gang, places, user=user, queued_at=at, started_at=at)
        )
    for number in range(chance.randint(1, 3)):
        gang = Gang((GangRole("worker", chance.randint(1, 4), ResourceRequest(1, 1, 1)),))
        name, user = f"w{number}", chance.choice(users)
        queued.append(QueuedGang(JobId(name), name, "red", user, chance.choice([50, 50, 90]), NOW, gang, gang.shape()))
    whole = Amounts(99, 99, {"h100": gpus})
    node = NodeSnapshot(NodeId("n0"), {}, whole, Amounts(90, 90, {"h100": 0}))
    accounts = (Account("red", quota=Quota(user_guaranteed=guaranteed)),)
    policy = replace(any_policy(chance), shrinks=True)
    return Snapshot(NOW, (node,), tuple(queued), tuple(running), accounts=accounts, policy=policy)


def test_no_equal_user_of_the_project_gets_a_replica_that_is_guaranteed_to_another_one() -> None:
    seen = 0
    for seed in range(4 * SEQUENCES):
        snapshot = any_elastic_world(Random(seed))
        for who, (guaranteed, left) in shrunk_by_equals(snapshot, plan(snapshot)).items():
            seen += guaranteed > 0
            assert left >= guaranteed, f"seed {seed}: {who}"
    assert seen > SEQUENCES // 10


@pytest.mark.parametrize("seed", range(12))
def test_without_arrivals_and_ends_preemption_between_users_comes_to_rest(seed: int) -> None:
    story = story_of(seed, ends=False)
    for _ in range(14):
        arrive(story, is_one_project=seed % 2 == 0)
    last = 0
    for at in range(60):
        if story.plan().preempts:
            last = at
        story.step(330)
    assert last <= 40, f"seed {seed}: still stopped somebody in round {last}"
    # Inside a project nobody takes the place back. (Between projects: only when something else was taken meanwhile.)
    project = {job.job_id: job.project for snapshot, _ in story.plans for job in (*snapshot.queued, *snapshot.running)}
    edges = {
        (p.for_job, p.job_id)
        for _, made in story.plans
        for p in made.preempts
        if p.for_job is not None and project[p.for_job] == project[p.job_id]
    }
    assert not [edge for edge in edges if edge[::-1] in edges], f"seed {seed}"
