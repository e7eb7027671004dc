from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from trainmaster.spec import parse_spec

from core.domain.errors import StaleWrite
from core.domain.ids import AttemptId, JobId
from core.domain.jobs.exits import ExitCause, ExitKind
from core.domain.jobs.lifecycle import JobEvent, ReplicaEvent
from core.domain.jobs.states import AttemptState, DesiredState, JobState, ReplicaState
from executors.base import Observation, Phase, ReplicaExit, ReplicaKey
from scheduler.control.attempts.attempt_snapshot import (
    AttemptFacts,
    AttemptSnapshot,
    GangMember,
    JobFacts,
    PreviousEnd,
    StopCause,
)
from scheduler.control.attempts.completion_rules import HIDDEN_FAILURE_WAIT, START_PATIENCE
from scheduler.control.attempts.decide import decide_attempt
from scheduler.control.attempts.decision import Decision

NOW = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)
LATER = timedelta(seconds=10)


def snapshot(roles, *, attempt_state=AttemptState.RUNNING, **changes):
    """A job of ``{"worker": 2}`` or ``{"worker": {"replicas": 2, "restart": "never"}}``, all running, nothing seen."""
    job_changes = {key: changes.pop(key) for key in ("wanted", "restart_count", "state") if key in changes}
    spec_changes = {key: changes.pop(key) for key in ("max_restarts", "max_run_time", "grace") if key in changes}
    spec = parse_spec(
        {
            "name": "job",
            "command": "train",
            "roles": {name: role if isinstance(role, dict) else {"replicas": role} for name, role in roles.items()},
            **spec_changes,
        }
    )
    is_running = attempt_state is AttemptState.RUNNING
    members = tuple(
        GangMember(
            f"{name}-{index}",
            name,
            index,
            1,
            ReplicaState.RUNNING if is_running else ReplicaState.PENDING,
            "node-0",
            started_at=NOW - LATER if is_running else None,
        )
        for name, role in spec.ordered_roles()
        for index in range(role.replicas)
    )
    job = JobFacts(
        JobId("job-1"), "job", "project-1", "default", JobState.RUNNING if is_running else JobState.STARTING,
        DesiredState.RUN, 1, 0, 1, None, "output", "default/job-1", NOW - LATER, spec,
    )  # fmt: skip
    attempt = AttemptFacts(
        AttemptId("att-1"),
        1,
        attempt_state,
        1,
        None,
        None,
        None,
        NOW - LATER,
        NOW - LATER if is_running else None,
        None,
    )
    whole = AttemptSnapshot(NOW, replace(job, **job_changes), attempt, members, {})
    return show(replace(whole, **changes), **{m.name.replace("-", "_"): Phase.RUNNING for m in members if is_running})


def show(before, **phases):
    """The same with the executor showing ``worker_0=Phase.RUNNING`` or ``worker_0=(code, cause, log)``."""
    seen = dict(before.observed)
    for name, phase in phases.items():
        role, _, index = name.rpartition("_")
        key = ReplicaKey(before.job.id, before.attempt.id, role, int(index), 1)
        if isinstance(phase, Phase):
            started = None if phase is Phase.PENDING else NOW - LATER
            seen[role, int(index)] = Observation(key, phase, started)
        else:
            code, cause, log = (*phase, "")[:3]
            exit_ = ReplicaExit(cause, code, "", NOW - timedelta(seconds=1), log)
            seen[role, int(index)] = Observation(key, Phase.FAILED if code else Phase.SUCCEEDED, NOW - LATER, exit_)
    return replace(before, observed=seen)


DONE = (0, ExitCause.EXITED)
KILLED = (137, ExitCause.SIGNALLED)
STOPPED = (143, ExitCause.STOPPED)


def follow(before: AttemptSnapshot, decision: Decision) -> AttemptSnapshot:
    """What the next look sees when ``decision`` was recorded."""
    from core.domain.jobs.lifecycle import advance

    members = {m.id: m for m in before.members}
    for move in decision.moves:
        state = advance(members[move.member.id].state, move.event).state
        members[move.member.id] = replace(
            members[move.member.id],
            state=state,
            exit=move.exit,
            ended_at=move.at if state.is_terminal else None,
            generation=move.member.generation + (move.event is ReplicaEvent.RESTART),
        )
    attempt = replace(
        before.attempt,
        stop=decision.stop or before.attempt.stop,
        decided_at=before.now if decision.is_decided else before.attempt.decided_at,
        state=AttemptState.RUNNING if decision.is_running else before.attempt.state,
    )
    return replace(before, members=tuple(members.values()), attempt=attempt)


def moved(decision):
    return [(move.member.name, move.event) for move in decision.moves]


def test_a_pending_gang_is_created_and_nothing_is_written():
    decision = decide_attempt(snapshot({"worker": 2}, attempt_state=AttemptState.STARTING))
    assert [m.name for m in decision.creates] == ["worker-0", "worker-1"]
    assert not decision.has_writes


def test_a_replica_that_an_earlier_run_created_is_adopted_not_created_again():
    seen = show(snapshot({"worker": 2}, attempt_state=AttemptState.STARTING), worker_0=Phase.PENDING)
    decision = decide_attempt(seen)
    assert moved(decision) == [("worker-0", ReplicaEvent.CREATE)]
    assert [m.name for m in decision.creates] == ["worker-1"]


def test_the_job_runs_when_every_replica_does():
    begun = snapshot({"worker": 2}, attempt_state=AttemptState.STARTING)
    assert not decide_attempt(show(begun, worker_0=Phase.RUNNING, worker_1=Phase.PENDING)).is_running
    assert decide_attempt(show(begun, worker_0=Phase.RUNNING, worker_1=Phase.RUNNING)).is_running


def test_a_replica_too_quick_to_be_seen_running_still_ran():
    begun = snapshot({"worker": 1}, attempt_state=AttemptState.STARTING)
    decision = decide_attempt(show(begun, worker_0=DONE))
    assert moved(decision) == [("worker-0", ReplicaEvent.RUN), ("worker-0", ReplicaEvent.SUCCEED)]
    assert decision.end is not None
    assert decision.end.event is JobEvent.SUCCEED


def test_without_a_chief_all_workers_decide():
    one = show(snapshot({"worker": 2}), worker_0=DONE)
    assert not decide_attempt(one).is_decided
    both = decide_attempt(show(one, worker_1=DONE))
    assert both.is_decided
    assert both.end is not None
    assert both.end.sentence == "All 2 workers finished."


@pytest.mark.parametrize(("grace", "seconds"), [({}, 30), ({"exit": 90}, 90)])
def test_the_chief_decides_and_the_workers_next_to_it_may_finish_writing(grace, seconds):
    seen = show(snapshot({"chief": 1, "worker": 2}, grace=grace), chief_0=DONE)
    decision = decide_attempt(seen)
    assert decision.is_decided
    assert not decision.stops
    due = NOW + timedelta(seconds=seconds)
    assert decision.recheck_at == due
    assert not decide_attempt(replace(follow(seen, decision), now=due - timedelta(seconds=1))).stops
    after = replace(follow(seen, decision), now=due)
    assert [m.name for m in decide_attempt(after).stops] == ["worker-0", "worker-1"]


def test_a_ps_never_decides_and_is_stopped_when_the_deciders_are_done():
    seen = snapshot({"worker": 1, "ps": 1})
    assert decide_attempt(show(seen, ps_0=DONE)).end is None
    decision = decide_attempt(show(seen, worker_0=DONE))
    assert [m.name for m in decision.stops] == ["ps-0"]
    after = decide_attempt(show(follow(seen, decision), ps_0=STOPPED))
    assert moved(after) == [("ps-0", ReplicaEvent.STOP)]
    assert after.end is not None
    assert after.end.event is JobEvent.SUCCEED


def test_an_evaluator_gets_its_grace():
    seen = show(snapshot({"worker": 1, "evaluator": 1}, grace={"evaluator": 7}), worker_0=DONE)
    decision = decide_attempt(seen)
    assert not decision.stops
    assert decision.recheck_at == NOW + timedelta(seconds=7)
    after = replace(follow(seen, decision), now=NOW + timedelta(seconds=7))
    assert [m.name for m in decide_attempt(after).stops] == ["evaluator-0"]


@pytest.mark.parametrize("role", ["worker", "ps", "chief"])
def test_a_death_stops_the_gang_and_the_next_attempt_starts_at_once(role):
    seen = show(snapshot({"chief": 1, "worker": 2, "ps": 1}), **{f"{role}_0": KILLED})
    decision = decide_attempt(seen)
    assert decision.stop is not None
    assert decision.stop.cause is StopCause.FAILURE
    assert len(decision.stops) == 3
    rest = {m.name.replace("-", "_"): STOPPED for m in decision.stops}
    after = decide_attempt(show(follow(seen, decision), **rest))
    assert after.end is not None
    assert after.end.event is JobEvent.REQUEUE
    assert after.end.is_counted
    assert after.end.delay == timedelta()
    assert after.end.role == role


def end_of(seen, **phases):
    """The end after everything that was stopped has ended."""
    seen = show(seen, **phases)
    for _ in range(3):
        decision = decide_attempt(seen)
        if decision.end is not None:
            return decision.end
        seen = follow(seen, decision)
        seen = show(seen, **{m.name.replace("-", "_"): STOPPED for m in decision.stops})
    raise AssertionError("no end")


def test_the_last_restart_is_the_last():
    end = end_of(snapshot({"worker": 1}, max_restarts=2, restart_count=2), worker_0=KILLED)
    assert end.event is JobEvent.FAIL
    assert "restarted 2 times already (max_restarts)" in end.sentence


def test_a_hopeless_end_is_not_tried_again():
    end = end_of(snapshot({"worker": 1}), worker_0=(127, ExitCause.EXITED, "sh: 1: tran: not found"))
    assert end.event is JobEvent.FAIL
    assert end.kind is ExitKind.USER_ERROR


def test_the_same_error_twice_in_a_row_without_progress_is_enough():
    error = (1, ExitCause.EXITED, "Traceback (most recent call last):\nValueError: x")
    first = end_of(snapshot({"worker": 1}), worker_0=error)
    assert first.event is JobEvent.REQUEUE
    past = PreviousEnd(first.signature, has_progressed=False, streak=1)
    second = end_of(snapshot({"worker": 1}, previous=past), worker_0=error)
    assert second.event is JobEvent.FAIL
    assert "not started a third time" in second.sentence
    trained = end_of(snapshot({"worker": 1}, previous=past, has_checkpoint=True), worker_0=error)
    assert trained.event is JobEvent.REQUEUE


def test_a_port_that_is_taken_again_is_an_error_of_the_program():
    error = (1, ExitCause.EXITED, "Traceback (most recent call last):\nOSError: [Errno 98] Address already in use")
    first = end_of(snapshot({"worker": 1}), worker_0=error)
    assert (first.event, first.kind) == (JobEvent.REQUEUE, ExitKind.TRANSIENT)
    past = PreviousEnd(first.signature, has_progressed=False, streak=1)
    second = end_of(snapshot({"worker": 1}, previous=past), worker_0=error)
    assert (second.event, second.kind) == (JobEvent.FAIL, ExitKind.USER_ERROR)
    assert "use MASTER_PORT, or port 0. It ended the same way twice in a row" in second.sentence
    other = PreviousEnd("1:KeyError: 'x'", has_progressed=False, streak=1)
    assert end_of(snapshot({"worker": 1}, previous=other), worker_0=error).kind is ExitKind.TRANSIENT


def test_the_same_error_at_the_same_step_twice_in_a_row_is_no_progress():
    error = (1, ExitCause.EXITED, "Traceback (most recent call last):\nKeyError: 'x'")

    def at(step, past=None):
        seen = snapshot({"worker": 2}, previous=past)
        end = end_of(
            replace(seen, members=tuple(replace(member, step=step) for member in seen.members)), worker_0=error
        )
        return end, PreviousEnd(end.signature, end.has_progressed, end.streak, end.to_json()["last_step"])

    first, past = at(1)
    assert (first.event, first.has_progressed) == (JobEvent.REQUEUE, True)
    further, _ = at(2, past)
    assert further.event is JobEvent.REQUEUE
    second, _ = at(1, past)
    assert second.event is JobEvent.FAIL
    assert "twice in a row at step 1, so it is not started a third time" in second.sentence


def test_quick_deaths_in_a_row_wait_longer_and_longer():
    delays = []
    past = None
    for _ in range(4):
        end = end_of(snapshot({"worker": 1}, previous=past, max_restarts=9), worker_0=KILLED)
        delays.append(end.delay.total_seconds())
        past = PreviousEnd(end.signature, end.has_progressed, end.streak)
    assert delays == [0, 1, 2, 4]


def test_a_lost_node_does_not_count_and_is_the_cause_of_its_peers_deaths():
    seen = snapshot({"worker": 2}, restart_count=3, max_restarts=3)
    first, second = seen.members
    elsewhere = replace(second, node="node-1")
    seen = replace(seen, members=(first, elsewhere), lost_nodes={"node-1": NOW - timedelta(seconds=3)})
    lost = "Traceback (most recent call last):\nConnectionResetError: [Errno 104] Connection reset by peer"
    end = end_of(seen, worker_0=(1, ExitCause.EXITED, lost))
    assert end.kind is ExitKind.PLATFORM
    assert end.event is JobEvent.REQUEUE
    assert not end.is_counted


def test_a_platform_that_loses_a_job_again_and_again_says_so():
    past = PreviousEnd("node_lost:worker", has_progressed=False, streak=20)
    seen = snapshot({"worker": 1}, previous=past)
    end = end_of(replace(seen, lost_nodes={"node-0": NOW}, observed={}))
    assert end.event is JobEvent.FAIL
    assert "ask the administrator" in end.sentence


def test_a_replica_that_vanished_was_lost_and_does_not_count():
    seen = replace(snapshot({"worker": 1}), observed={})
    decision = decide_attempt(seen)
    assert moved(decision) == [("worker-0", ReplicaEvent.LOSE)]
    assert decision.end is not None
    assert (decision.end.event, decision.end.is_counted) == (JobEvent.REQUEUE, False)


def test_the_last_detail_of_a_vanished_replica_is_the_reason():
    """As of a pod that somebody deletes: while it ends there is time to say so, then it is gone."""
    running = snapshot({"worker": 1})
    member = replace(running.members[0], detail="Pod p is gone: somebody deleted it in the cluster.")
    lost = decide_attempt(replace(running, members=(member,), observed={}))
    assert lost.moves[0].event is ReplicaEvent.LOSE
    assert lost.moves[0].exit.sentence == "Pod p is gone: somebody deleted it in the cluster."
    starting = replace(member, state=ReplicaState.STARTING, detail="Node n is making its container ready.")
    assert decide_attempt(replace(running, members=(starting,), observed={})).moves[0].exit.sentence == ""


@pytest.mark.parametrize("cause", [ExitCause.EVICTED, ExitCause.ENGINE_REFUSED, ExitCause.NODE_LOST])
def test_a_place_that_is_gone_moves_the_gang_whatever_the_role_says_and_does_not_count(cause):
    roles = {"worker": {"replicas": 2, "restart": "replica"}}
    end = end_of(snapshot(roles, max_restarts=0), worker_0=(1, cause))
    assert end.event is JobEvent.REQUEUE
    assert not end.is_counted
    assert end.kind is ExitKind.PLATFORM


def test_policy_replica_starts_the_one_again_and_counts_it():
    seen = show(snapshot({"worker": {"replicas": 2, "restart": "replica"}}), worker_0=KILLED)
    decision = decide_attempt(seen)
    assert (decision.moves[-1].member.name, decision.moves[-1].event) == ("worker-0", ReplicaEvent.RESTART)
    assert decision.counted_restarts == 1
    assert decision.stop is None
    assert [(m.name, m.generation) for m in decision.creates] == [("worker-0", 2)]


def test_policy_replica_has_the_same_limit():
    roles = {"worker": {"replicas": 2, "restart": "replica"}}
    end = end_of(snapshot(roles, max_restarts=1, restart_count=1), worker_0=KILLED)
    assert end.event is JobEvent.FAIL


def test_policy_never_fails_the_job_unless_the_platform_was_the_cause():
    roles = {"worker": {"replicas": 1, "restart": "never"}}
    assert end_of(snapshot(roles), worker_0=KILLED).event is JobEvent.FAIL
    assert end_of(replace(snapshot(roles), observed={})).event is JobEvent.REQUEUE


def test_policy_ignore_goes_on_without_it_and_needs_one_that_succeeds():
    seen = show(snapshot({"worker": {"replicas": 2, "restart": "ignore"}}), worker_0=KILLED)
    decision = decide_attempt(seen)
    assert decision.stop is None
    assert decide_attempt(show(follow(seen, decision), worker_1=DONE)).is_decided
    assert end_of(seen, worker_1=KILLED).event is JobEvent.FAIL


def test_a_dead_evaluator_never_takes_the_training_with_it():
    seen = show(snapshot({"worker": 1, "evaluator": 1}), evaluator_0=(127, ExitCause.EXITED))
    decision = decide_attempt(seen)
    assert decision.stop is None
    assert moved(decision) == [("evaluator-0", ReplicaEvent.FAIL)]


def test_a_cancel_stops_everything_and_wins_over_every_other_end():
    seen = snapshot({"worker": 2}, wanted=DesiredState.CANCEL)
    decision = decide_attempt(seen)
    assert decision.stop is not None
    assert decision.stop.cause is StopCause.CANCEL
    assert len(decision.stops) == 2
    assert end_of(seen).event is JobEvent.CONFIRM_CANCEL
    assert end_of(show(seen, worker_0=KILLED)).event is JobEvent.CONFIRM_CANCEL


def test_a_cancel_before_anything_was_created_creates_nothing():
    decision = decide_attempt(snapshot({"worker": 2}, attempt_state=AttemptState.PLACED, wanted=DesiredState.CANCEL))
    assert not decision.creates
    assert not decision.stops
    assert decision.end is not None
    assert decision.end.event is JobEvent.CONFIRM_CANCEL


def test_a_pause_ends_the_attempt_and_taking_it_back_starts_another():
    seen = snapshot({"worker": 1}, wanted=DesiredState.PAUSE)
    assert end_of(seen).event is JobEvent.PAUSE
    stopping = follow(seen, decide_attempt(seen))
    back = replace(stopping, job=replace(stopping.job, wanted=DesiredState.RUN))
    end = end_of(back)
    assert (end.event, end.is_counted) == (JobEvent.REQUEUE, False)


def test_a_job_that_has_finished_is_not_paused_any_more():
    end = end_of(snapshot({"worker": 1}, wanted=DesiredState.PAUSE), worker_0=DONE)
    assert end.event is JobEvent.SUCCEED


def test_max_run_time_expires_the_job_by_the_runtime_or_by_us():
    reported = end_of(snapshot({"worker": 1}, max_run_time=60), worker_0=(143, ExitCause.DEADLINE))
    assert reported.event is JobEvent.EXPIRE
    seen = snapshot({"worker": 1}, max_run_time=60)
    waiting = decide_attempt(seen)
    assert waiting.recheck_at is not None
    late = end_of(replace(seen, now=waiting.recheck_at))
    assert late.event is JobEvent.EXPIRE


def test_a_refusal_of_the_executor_fails_the_job_with_its_message():
    seen = snapshot({"worker": 1}, attempt_state=AttemptState.STARTING, refusal="There is no such image.")
    end = end_of(seen)
    assert (end.event, end.sentence) == (JobEvent.FAIL, "There is no such image.")


def test_an_attempt_that_the_executor_had_removed_is_followed_by_another_and_not_counted():
    seen = snapshot(
        {"worker": 1}, attempt_state=AttemptState.STARTING, refusal="Attempt a was removed.", is_removed=True
    )
    end = end_of(seen)
    assert (end.event, end.kind, end.is_counted) == (JobEvent.REQUEUE, ExitKind.PLATFORM, False)


def test_a_gang_that_cannot_be_started_for_long_gives_its_place_back():
    seen = snapshot({"worker": 2}, attempt_state=AttemptState.STARTING)
    stuck = tuple(replace(m, detail="No port is free.") for m in seen.members)
    assert decide_attempt(replace(seen, members=stuck)).stop is None
    end = end_of(replace(seen, members=stuck, now=NOW + START_PATIENCE))
    assert (end.event, end.kind, end.is_counted) == (JobEvent.REQUEUE, ExitKind.CAPACITY, False)


def test_what_does_not_end_after_its_grace_is_removed():
    seen = snapshot({"worker": 1}, wanted=DesiredState.CANCEL, grace={"stop": 5})
    stopping = follow(seen, decide_attempt(seen))
    assert [m.name for m in decide_attempt(stopping).stops] == ["worker-0"]
    late = decide_attempt(replace(stopping, now=NOW + timedelta(seconds=36)))
    assert late.end is not None
    assert moved(late) == [("worker-0", ReplicaEvent.STOP)]


def test_rows_older_than_what_the_executor_shows_are_dropped():
    seen = snapshot({"worker": 1})
    newer = {
        ("worker", 0): replace(seen.observed["worker", 0], key=replace(seen.observed["worker", 0].key, generation=2))
    }
    with pytest.raises(StaleWrite):
        decide_attempt(replace(seen, observed=newer))


def test_deciding_again_on_the_outcome_writes_nothing_new():
    for seen in (
        show(snapshot({"chief": 1, "worker": 2, "ps": 1}), chief_0=DONE),
        show(snapshot({"worker": 2}), worker_0=KILLED),
        show(snapshot({"worker": {"replicas": 2, "restart": "ignore"}}), worker_0=KILLED),
        snapshot({"worker": 2}, wanted=DesiredState.PAUSE),
    ):
        after = follow(seen, decide_attempt(seen))
        assert not decide_attempt(after).has_writes


TRACEBACK = 'epoch 1\nTraceback (most recent call last):\n  File "t.py", line 3\nKeyError: 512'


def _after_a_success(log, wait, **others):
    before = show(snapshot({"worker": 2}), worker_0=(*DONE, log), **others)
    before = follow(before, decide_attempt(before))
    return decide_attempt(replace(before, now=before.now + wait))


def test_a_traceback_behind_exit_code_0_ends_a_gang_that_waits_for_it():
    decision = _after_a_success(TRACEBACK, HIDDEN_FAILURE_WAIT)
    assert decision.stop.cause is StopCause.REFUSED
    assert (
        "worker-0 ended with exit code 0, but its last lines are a traceback (KeyError: 512)" in decision.stop.sentence
    )
    assert decision.stop.is_final


def test_a_line_that_the_shell_prints_behind_a_traceback_hides_it_not():
    assert "(KeyError: 512)" in _after_a_success(f"{TRACEBACK}\ndone", HIDDEN_FAILURE_WAIT).stop.sentence


def test_a_gang_gets_a_while_to_end_after_a_traceback_behind_exit_code_0():
    decision = _after_a_success(TRACEBACK, HIDDEN_FAILURE_WAIT / 2)
    assert decision.stop is None
    assert NOW < decision.recheck_at <= NOW + HIDDEN_FAILURE_WAIT


@pytest.mark.parametrize("log", ["epoch 1", TRACEBACK + 12 * "\ngoes on without it", "KeyError: 512"])
def test_a_success_that_ends_with_no_traceback_lets_the_others_run(log):
    assert _after_a_success(log, 10 * HIDDEN_FAILURE_WAIT).stop is None


def test_a_traceback_behind_exit_code_0_is_no_failure_once_all_have_succeeded():
    before = show(snapshot({"worker": 2}), worker_0=(*DONE, TRACEBACK), worker_1=DONE)
    decision = decide_attempt(before)
    assert (decision.stop, decision.is_decided) == (None, True)
