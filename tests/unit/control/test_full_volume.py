"""A full output volume is the infrastructure's: nothing is counted, and the job waits for room."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from core.domain.jobs.exits import ExitCause, ExitKind
from core.domain.jobs.lifecycle import JobEvent
from core.domain.jobs.volume_room import VolumeRoom
from scheduler.control.attempts.attempt_snapshot import PreviousEnd, StopCause
from scheduler.control.attempts.decide import decide_attempt
from scheduler.control.attempts.ending import PLATFORM_STREAK_LIMIT
from tests.unit.control.test_decide import STOPPED, follow, show, snapshot

FULL = VolumeRoom(3 * 2**20, 32 * 2**20)
ROOMY = VolumeRoom(200 * 2**30, 10 * 2**40)
ENOSPC = (1, ExitCause.EXITED, "OSError: [Errno 28] No space left on device: '/data/output/model.pt'")


def end_of(cause, room=FULL, *, roles=None, **changes):
    before = show(snapshot(roles or {"worker": 2}, max_restarts=0, output_room=room, **changes), worker_0=cause)
    decision = decide_attempt(before)
    assert decision.stop is not None
    return decide_attempt(show(follow(before, decision), worker_1=STOPPED)).end


@pytest.mark.parametrize("cause", [ENOSPC, (1, ExitCause.DISK_FULL)])
def test_a_full_volume_is_not_counted_and_the_job_waits(cause):
    end = end_of(cause)
    assert (end.event, end.kind, end.is_counted) == (JobEvent.REQUEUE, ExitKind.CAPACITY, False)
    assert end.sentence.startswith("The output volume output has no room (3 of 32 MiB are free): ")
    assert end.delay == timedelta(seconds=15)


def test_the_wait_grows_to_minutes_and_never_ends_the_job():
    delays = []
    for streak in (1, 2, 5, 500):
        previous = PreviousEnd("volume_full", has_progressed=False, streak=streak)
        end = end_of(ENOSPC, previous=previous)
        assert end.event is JobEvent.REQUEUE
        delays.append(end.delay.total_seconds())
    assert delays == [30, 60, 300, 300]


def test_a_volume_that_the_platform_does_not_see_is_waited_for_with_a_bound():
    assert end_of(ENOSPC, None).event is JobEvent.REQUEUE
    previous = PreviousEnd("volume_full", has_progressed=False, streak=PLATFORM_STREAK_LIMIT)
    assert end_of(ENOSPC, None, previous=previous).event is JobEvent.FAIL


def test_a_full_disk_is_the_programs_own_where_the_volume_has_room():
    end = end_of(ENOSPC, ROOMY)
    assert (end.event, end.sentence.partition(" ")[0]) == (JobEvent.FAIL, "worker-0")


def test_a_pod_that_wrote_more_than_it_may_to_its_node_has_failed_itself():
    assert end_of((1, ExitCause.DISK_LIMIT)).event is JobEvent.FAIL


def test_replicas_that_restart_alone_wait_together():
    roles = {"worker": {"replicas": 2, "restart": "replica"}}
    assert end_of(ENOSPC, None, roles=roles).event is JobEvent.REQUEUE


def test_an_output_folder_that_cannot_be_made_on_a_full_volume_does_not_end_the_job():
    before = snapshot({"worker": 1}, refusal="The output volume output has no room: it is full.", is_volume_full=True)
    decision = decide_attempt(before)
    assert decision.stop.cause is StopCause.VOLUME_FULL
    end = decide_attempt(show(follow(before, decision), worker_0=STOPPED)).end
    assert (end.event, end.is_counted, end.delay.total_seconds()) == (JobEvent.REQUEUE, False, 15)


@pytest.mark.parametrize(
    ("room", "is_short"),
    [
        (VolumeRoom(2**20, 2**40), True),
        (VolumeRoom(50 * 2**30, 2**40), True),  # a checkpoint of 60 GiB is gone again
        (VolumeRoom(120 * 2**30, 2**42), False),
        (VolumeRoom(2**31, 10 * 2**30), False),
        (replace(ROOMY, free_files=0), True),
    ],
)
def test_a_volume_is_short_of_room(room, is_short):
    assert room.is_short is is_short
