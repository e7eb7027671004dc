"""Evictions and drained nodes: the gang goes on elsewhere, nothing is counted, and no node is blamed."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from core.domain.jobs.exits import ExitCause, ExitFacts, ExitKind, classify
from core.domain.jobs.lifecycle import JobEvent
from core.domain.jobs.states import AttemptState, ReplicaState
from executors.base import Phase
from scheduler.control.attempts.attempt_snapshot import PreviousEnd, StopCause
from scheduler.control.attempts.decide import decide_attempt
from scheduler.control.attempts.ending import PLATFORM_STREAK_LIMIT
from tests.unit.control.test_decide import NOW, STOPPED, follow, show, snapshot

SENTENCE = "Pod a was evicted: node node-0 was drained (it is cordoned in the cluster)."


def evict(before, role="worker", index=0):
    observation = replace(before.observed[role, index], eviction=SENTENCE)
    return replace(before, observed={**before.observed, (role, index): observation})


def test_a_gang_of_which_one_replica_is_evicted_is_stopped_and_requeued_uncounted():
    before = evict(snapshot({"worker": 2}, max_restarts=0))
    decision = decide_attempt(before)
    assert (decision.stop.cause, decision.stop.sentence) == (StopCause.MAINTENANCE, SENTENCE)
    assert sorted(member.name for member in decision.stops) == ["worker-0", "worker-1"]
    evicted = (143, ExitCause.MAINTENANCE)
    end = decide_attempt(show(follow(before, decision), worker_0=evicted, worker_1=STOPPED)).end
    assert (end.event, end.kind, end.is_counted, end.sentence) == (JobEvent.REQUEUE, ExitKind.PLATFORM, False, SENTENCE)
    assert end.delay.total_seconds() == 6  # the planner knows of the cordon by then


def test_a_peer_that_fails_in_the_moment_of_the_eviction_is_its_consequence():
    failed = (1, ExitCause.EXITED, "ValueError: the store is gone")
    decision = decide_attempt(evict(show(snapshot({"worker": 2}, max_restarts=0), worker_1=failed)))
    assert decision.stop.cause is StopCause.MAINTENANCE


@pytest.mark.parametrize("role", ["evaluator"])
def test_a_replica_that_the_gang_can_miss_does_not_stop_it(role):
    decision = decide_attempt(evict(snapshot({"worker": 2, role: 1}), role))
    assert decision.stop is None


def test_a_replica_of_a_drained_node_that_is_gone_had_to_leave_for_maintenance():
    before = snapshot({"worker": 2}, draining_nodes=frozenset({"node-0"}))
    seen = {key: item for key, item in before.observed.items() if key != ("worker", 1)}
    (move,) = decide_attempt(replace(before, observed=seen)).moves
    assert (move.exit.cause, classify(move.exit).fault) == (ExitCause.MAINTENANCE, None)
    lost = replace(before, lost_nodes={"node-0": NOW - timedelta(minutes=1)})
    causes = {move.exit.cause for move in decide_attempt(lost).moves}
    assert causes == {ExitCause.MAINTENANCE}


def test_maintenance_is_the_platforms_and_no_fault_of_the_machine():
    verdict = classify(ExitFacts("worker-0", "worker", ExitCause.MAINTENANCE, 143, NOW, SENTENCE))
    assert (verdict.kind, verdict.fault, verdict.sentence) == (ExitKind.PLATFORM, None, SENTENCE)


def test_an_evicted_replica_that_restarts_alone_takes_its_gang_to_another_node():
    roles = {"worker": {"replicas": 2, "restart": "replica"}, "ps": 1}
    decision = decide_attempt(show(snapshot(roles), worker_0=(143, ExitCause.MAINTENANCE)))
    assert (decision.stop.cause, decision.stop.is_final) == (StopCause.FAILURE, False)
    assert all(item.state is not ReplicaState.SUCCEEDED for item in decision.stops)
    assert show(snapshot(roles), worker_0=Phase.RUNNING)


def test_a_registry_that_is_away_is_retried_uncounted_with_growing_waits_and_a_bound():
    unreachable = (1, ExitCause.IMAGE_UNREACHABLE)
    delays = []
    for streak in (0, 1, 4, PLATFORM_STREAK_LIMIT):
        previous = PreviousEnd("image_unreachable:worker", has_progressed=False, streak=streak) if streak else None
        before = snapshot({"worker": 1}, attempt_state=AttemptState.STARTING, max_restarts=0, previous=previous)
        decision = decide_attempt(show(before, worker_0=unreachable))
        end = decide_attempt(follow(before, decision)).end
        assert (end.kind, end.is_counted) == (ExitKind.PLATFORM, False)
        delays.append((end.event, end.delay.total_seconds()))
    requeue = JobEvent.REQUEUE
    assert delays == [(requeue, 15), (requeue, 30), (requeue, 240), (JobEvent.FAIL, 0)]
    assert "ask the administrator to look at the registry" in end.sentence
