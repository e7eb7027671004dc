from __future__ import annotations

from core.work_queue import InFlight


def test_a_key_is_in_flight_once_and_a_request_meanwhile_makes_it_dirty() -> None:
    keys: InFlight[str] = InFlight()
    assert keys.start("study-1")
    assert keys.start("study-2")
    assert not keys.start("study-1")
    assert not keys.start("study-1")
    assert keys.finish("study-1")  # once, however often it was requested
    assert not keys.finish("study-2")
    assert keys.start("study-1")
    assert not keys.finish("study-1")
