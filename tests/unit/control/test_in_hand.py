from __future__ import annotations

from scheduler.messaging.work_queue import InFlight


def test_one_at_a_time_and_who_came_meanwhile_is_not_forgotten() -> None:
    held: InFlight[str] = InFlight()
    assert held.enter("study-1")
    assert held.enter("study-2")
    assert not held.enter("study-1")
    assert not held.enter("study-1")
    assert held.leave("study-1")  # once, however often it was asked for
    assert not held.leave("study-2")
    assert held.enter("study-1")
    assert not held.leave("study-1")
