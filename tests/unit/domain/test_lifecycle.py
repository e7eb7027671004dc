from __future__ import annotations

import pytest

from core.domain.errors import IllegalTransition
from core.domain.jobs.lifecycle import (
    ATTEMPT_MOVES,
    JOB_MOVES,
    REPLICA_MOVES,
    AttemptEvent,
    Effect,
    JobEvent,
    ReplicaEvent,
    advance,
    can_advance,
)
from core.domain.jobs.states import AttemptState, JobState, ReplicaState


def test_a_job_that_goes_well_moves_from_queued_to_succeeded():
    state = JobState.QUEUED
    for event in (JobEvent.PLACE, JobEvent.RUN, JobEvent.SUCCEED):
        state = advance(state, event).state
    assert state is JobState.SUCCEEDED


def test_no_move_leaves_a_terminal_job():
    for state in JobState:
        if state.is_terminal:
            assert not [event for event in JobEvent if can_advance(state, event)]


def test_every_live_job_can_be_cancelled_and_every_job_can_reach_an_end():
    for state in JobState:
        if not state.is_terminal and state is not JobState.CANCELLING:
            assert can_advance(state, JobEvent.CANCEL)
    reached = {JobState.QUEUED}
    while True:
        more = {move.state for (state, _), move in JOB_MOVES.items() if state in reached} - reached
        if not more:
            break
        reached |= more
    assert reached == set(JobState)


def test_a_job_with_a_live_attempt_is_cancelled_only_after_the_attempt_ended():
    for state in (JobState.STARTING, JobState.RUNNING):
        move = advance(state, JobEvent.CANCEL)
        assert move.state is JobState.CANCELLING
        assert Effect.STOP_ATTEMPT in move.effects
    assert advance(JobState.CANCELLING, JobEvent.CONFIRM_CANCEL).state is JobState.CANCELLED


def test_a_restart_keeps_its_place_in_the_line_and_a_resume_begins_anew():
    assert Effect.STAMP_QUEUED not in advance(JobState.RUNNING, JobEvent.REQUEUE).effects
    assert Effect.STAMP_QUEUED in advance(JobState.PAUSED, JobEvent.RESUME).effects


def test_every_end_is_stamped_and_wakes_the_planner():
    for move in JOB_MOVES.values():
        assert (Effect.STAMP_FINISHED in move.effects) == move.state.is_terminal
        if move.state.is_terminal:
            assert Effect.RING_TICK in move.effects
    for replica_move in REPLICA_MOVES.values():
        assert (Effect.STAMP_FINISHED in replica_move.effects) == replica_move.state.is_terminal


def test_an_attempt_ends_from_wherever_it_was_and_only_once():
    for state in AttemptState:
        assert ((state, AttemptEvent.END) in ATTEMPT_MOVES) == (state is not AttemptState.ENDED)


def test_a_replica_restarts_only_after_it_failed_or_was_lost_or_gave_its_place():
    can_restart = {state for state in ReplicaState if (state, ReplicaEvent.RESTART) in REPLICA_MOVES}
    assert can_restart == {ReplicaState.FAILED, ReplicaState.LOST, ReplicaState.STOPPED}


def test_an_illegal_move_says_in_one_short_sentence_why_and_what_to_do():
    with pytest.raises(IllegalTransition) as refused:
        advance(JobState.SUCCEEDED, JobEvent.CANCEL)
    assert refused.value.sentence == "The job has succeeded and cannot be cancelled."
    with pytest.raises(
        IllegalTransition, match=r"^The job has failed and cannot be resumed; clone it to run it again\.$"
    ):
        advance(JobState.FAILED, JobEvent.RESUME)
    with pytest.raises(IllegalTransition, match=r"^The job cannot be resumed: it runs already\.$"):
        advance(JobState.RUNNING, JobEvent.RESUME)
    with pytest.raises(IllegalTransition, match="The attempt is ended: end is no move"):
        advance(AttemptState.ENDED, AttemptEvent.END)


def test_an_event_of_another_thing_is_a_bug():
    with pytest.raises(TypeError, match="no event of"):
        advance(JobState.QUEUED, ReplicaEvent.RUN)  # type: ignore[call-overload]
