"""What an elastic gang does when a worker is lost, and when one joins."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from core.domain.jobs.layout import Layout, Ports, ReplicaAddress
from core.domain.jobs.lifecycle import JobEvent, ReplicaEvent
from core.domain.jobs.states import AttemptState, ReplicaState
from executors.base import Phase
from scheduler.control.attempts.attempt_snapshot import AttemptSnapshot, GangMember, StopCause
from scheduler.control.attempts.decide import decide_attempt
from scheduler.control.attempts.worlds import CREATE_CALL_TIMEOUT, CREATE_PATIENCE, JOIN_PATIENCE
from tests.unit.control.test_decide import DONE, KILLED, STOPPED, follow, moved, show, snapshot

ELASTIC = {"worker": {"replicas": {"min": 2, "max": 4}}}
BROKEN = (1, *KILLED[1:2], "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1")


def elastic(**changes) -> AttemptSnapshot:
    """Four workers in the first world, all running, on an executor that can tell them of another."""
    whole = snapshot(ELASTIC, **changes)
    return replace(whole, can_change_worlds=True, attempt=replace(whole.attempt, layout=layout_of(whole.members)))


def layout_of(members) -> Layout:
    return Layout(tuple(ReplicaAddress(m.role, m.index, "host", Ports(), m.node) for m in members))


def named(members) -> list[str]:
    return [member.name for member in members]


def entered(before: AttemptSnapshot, decision) -> AttemptSnapshot:
    """What the next look sees when the decided world was written, and those that stay have heard of nothing yet."""
    after = follow(before, decision)
    released_members = {member.id for member in decision.releases}
    members = tuple(replace(m, holds_resources=m.id not in released_members) for m in after.members)
    attempt = replace(after.attempt, world=2, layout=layout_of(decision.world.members))
    return replace(after, members=members, attempt=attempt)


def knows(before: AttemptSnapshot, world: int, *names: str, phase=Phase.RUNNING, **facts) -> AttemptSnapshot:
    """The executor shows that ``names`` have heard of ``world``."""
    seen = dict(before.observed)
    for name in names:
        role, _, index = name.rpartition("-")
        found = before.observed[role, int(index)]
        seen[role, int(index)] = replace(found, phase=phase, facts={"world": world, **facts})
    return replace(before, observed=seen)


def test_the_others_go_on_without_one_that_was_killed_and_its_place_is_free():
    decision = decide_attempt(show(elastic(), worker_1=KILLED))
    assert moved(decision) == [("worker-1", ReplicaEvent.FAIL)]
    assert named(decision.world.members) == ["worker-0", "worker-2", "worker-3"]
    assert "worker-1 was ended by SIGKILL" in decision.world.reason
    assert "3 of 2 to 4 workers go on." in decision.world.reason
    assert named(decision.releases) == ["worker-1"]
    assert decision.stop is None
    assert decision.counted_restarts == 1


def test_members_that_do_not_know_the_new_world_are_updated_until_all_do():
    before = show(elastic(), worker_1=KILLED)
    after = knows(entered(before, decide_attempt(before)), 1, "worker-0", "worker-2", "worker-3")
    reported = decide_attempt(after)
    assert named(reported.world_updates) == ["worker-0", "worker-2", "worker-3"]
    assert reported.world is None
    assert named(decide_attempt(knows(after, 2, "worker-0", "worker-3")).world_updates) == ["worker-2"]
    assert decide_attempt(knows(after, 2, "worker-0", "worker-2", "worker-3")).world_updates == ()


def test_with_fewer_than_it_needs_the_gang_starts_again_as_a_whole():
    decision = decide_attempt(show(elastic(), worker_0=KILLED, worker_1=KILLED, worker_2=KILLED))
    assert decision.world is None
    assert decision.stop.cause is StopCause.FAILURE
    assert "1 of at least 2 workers is left." in decision.stop.sentence
    assert decision.counted_restarts == 0  # the end of the attempt counts
    over = follow(show(elastic(), worker_0=KILLED, worker_1=KILLED, worker_2=KILLED), decision)
    assert decide_attempt(show(over, worker_3=STOPPED)).end.event is JobEvent.REQUEUE


def test_a_peer_that_failed_of_the_loss_is_lost_too_and_does_not_count():
    decision = decide_attempt(show(elastic(), worker_0=BROKEN, worker_1=KILLED))
    assert named(decision.world.members) == ["worker-2", "worker-3"]
    assert decision.counted_restarts == 1


def test_a_loss_too_many_ends_the_gang():
    decision = decide_attempt(show(elastic(restart_count=3, max_restarts=3), worker_1=KILLED))
    assert decision.world is None
    assert decision.stop.cause is StopCause.FAILURE


def test_before_it_runs_or_without_world_updates_a_loss_ends_the_gang():
    starting = elastic(attempt_state=AttemptState.STARTING)
    assert decide_attempt(show(starting, worker_1=KILLED)).stop is not None
    assert decide_attempt(show(replace(elastic(), can_change_worlds=False), worker_1=KILLED)).stop is not None


def test_when_a_replica_has_finished_no_loss_is_tolerated():
    assert decide_attempt(show(elastic(), worker_0=DONE, worker_1=KILLED)).stop.cause is StopCause.FAILURE


def test_what_was_given_up_decides_nothing_any_more():
    before = show(elastic(), worker_1=KILLED)
    after = entered(before, decide_attempt(before))
    decision = decide_attempt(show(after, worker_0=DONE, worker_2=DONE, worker_3=DONE))
    assert decision.is_decided
    assert decision.stop is None


def joining(before: AttemptSnapshot, state=ReplicaState.STARTING) -> AttemptSnapshot:
    """The same while worker-4 was given a place; ``before`` may have five."""
    spec = before.job.spec.model_copy(
        update={"roles": {"worker": before.job.spec.roles["worker"].model_copy(update={"replicas": 5})}}
    )
    member = GangMember("worker-4", "worker", 4, 1, state, "node-0")
    return replace(before, members=(*before.members, member), job=replace(before.job, spec=spec))


def test_one_that_joins_is_created_and_taken_in_when_it_is_ready_behind_all_others():
    created = decide_attempt(joining(elastic(), ReplicaState.PENDING))
    assert named(created.creates) == ["worker-4"]
    assert created.world is None
    waiting = show(joining(elastic()), worker_4=Phase.PENDING)
    assert decide_attempt(knows(waiting, 0, "worker-4", phase=Phase.PENDING)).world is None
    ready = decide_attempt(knows(waiting, 0, "worker-4", phase=Phase.PENDING, is_ready=True))
    assert named(ready.world.members) == ["worker-0", "worker-1", "worker-2", "worker-3", "worker-4"]
    assert ready.world.reason == "worker-4 joined. 5 of 2 to 5 workers go on."


def test_a_replica_that_fails_while_joining_gives_its_place_back_unnoticed():
    decision = decide_attempt(show(joining(elastic()), worker_4=KILLED))
    assert decision.stop is None
    assert decision.world is None
    gone = follow(show(joining(elastic()), worker_4=KILLED), decision)
    gone = replace(gone, members=tuple(replace(m, has_facts=True) for m in gone.members))
    assert named(decide_attempt(gone).releases) == ["worker-4"]


def test_one_whose_creation_may_still_be_on_its_way_keeps_its_place():
    lost = replace(joining(elastic(), ReplicaState.PENDING), lost_nodes={})
    members = tuple(replace(m, state=ReplicaState.LOST, ended_at=lost.now) if m.index == 4 else m for m in lost.members)
    assert decide_attempt(replace(lost, members=members)).releases == ()


def test_when_the_work_is_done_one_that_still_waits_to_join_is_stopped_at_once():
    whole = show(joining(elastic()), worker_4=Phase.PENDING, worker_0=DONE, worker_1=DONE, worker_2=DONE, worker_3=DONE)
    decision = decide_attempt(whole)
    assert decision.is_decided
    assert named(decision.stops) == ["worker-4"]


def test_a_lost_replica_that_still_exists_is_discarded():
    cut_off = replace(show(elastic(), worker_1=Phase.RUNNING), lost_nodes={})
    cut_off = replace(
        cut_off, members=tuple(replace(m, state=ReplicaState.LOST) if m.index == 1 else m for m in cut_off.members)
    )
    decision = decide_attempt(cut_off)
    assert named(decision.world.members) == ["worker-0", "worker-2", "worker-3"]
    assert named(decision.discards) == ["worker-1"]
    after = entered(cut_off, decision)
    assert named(decide_attempt(after).discards) == ["worker-1"]
    assert decide_attempt(replace(after, observed={})).discards == ()
    again_state = tuple(
        replace(m, generation=2, state=ReplicaState.STARTING) if m.index == 1 else m for m in after.members
    )
    assert decide_attempt(replace(after, members=again_state)).discards == ()


def test_with_none_left_that_has_trained_the_gang_starts_again_from_its_checkpoint():
    lost = show(joining(elastic()), worker_0=KILLED, worker_1=KILLED, worker_2=KILLED, worker_3=KILLED)
    ready = knows(show(lost, worker_4=Phase.PENDING), 0, "worker-4", phase=Phase.PENDING, is_ready=True)
    one_is_enough = ready.job.spec.roles["worker"].model_copy(update={"min_replicas": 1})
    spec = ready.job.spec.model_copy(update={"roles": {"worker": one_is_enough}, "max_restarts": 9})
    decision = decide_attempt(replace(ready, job=replace(ready.job, spec=spec)))
    assert decision.world is None
    assert "None of those that trained is left." in decision.stop.sentence


@pytest.mark.parametrize(
    ("state", "patience"), [(ReplicaState.PENDING, CREATE_PATIENCE), (ReplicaState.STARTING, JOIN_PATIENCE)]
)
def test_one_that_never_gets_ready_gives_its_place_back(state, patience):
    waiting = joining(elastic(), state)
    member = replace(waiting.members[-1], detail="The registry is away.")
    waiting = replace(waiting, members=(*waiting.members[:-1], member), observed={})
    if state is ReplicaState.STARTING:
        waiting = knows(show(waiting, worker_4=Phase.PENDING), 0, "worker-4", phase=Phase.PENDING)
    patient = replace(waiting, joining_since={"worker-4": waiting.now - patience + timedelta(seconds=1)})
    first = decide_attempt(show(patient, worker_0=Phase.RUNNING, worker_1=Phase.RUNNING, worker_2=Phase.RUNNING,
                        worker_3=Phase.RUNNING))  # fmt: skip
    assert first.moves == ()
    assert first.recheck_at == waiting.now + timedelta(seconds=1)
    late = replace(patient, joining_since={"worker-4": waiting.now - patience}, observed=first_seen(patient))
    decision = decide_attempt(late)
    assert moved(decision) == [("worker-4", ReplicaEvent.FAIL)]
    assert "worker-4 could not join for too long, and the others train on: " in decision.moves[0].exit.sentence
    assert (decision.stop, decision.world) == (None, None)


def first_seen(before: AttemptSnapshot):
    return show(
        before, worker_0=Phase.RUNNING, worker_1=Phase.RUNNING, worker_2=Phase.RUNNING, worker_3=Phase.RUNNING
    ).observed


def test_resources_are_held_only_while_a_create_call_may_be_under_way():
    waiting = joining(elastic(), ReplicaState.PENDING)
    seen = first_seen(waiting)

    def gone_since(ago: timedelta) -> AttemptSnapshot:
        ended = replace(waiting.members[-1], state=ReplicaState.FAILED, ended_at=waiting.now - ago)
        return replace(waiting, members=(*waiting.members[:-1], ended), observed=seen)

    fresh = decide_attempt(gone_since(timedelta(seconds=1)))
    assert fresh.releases == ()
    assert fresh.recheck_at == waiting.now - timedelta(seconds=1) + CREATE_CALL_TIMEOUT
    assert named(decide_attempt(gone_since(CREATE_CALL_TIMEOUT)).releases) == ["worker-4"]
