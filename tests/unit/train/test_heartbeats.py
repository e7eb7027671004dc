"""Who holds a training up, by what its processes tell of themselves."""

from __future__ import annotations

from trainmaster_train.distributed.peer_monitor import Heartbeat, HeartbeatTable, parse_heartbeat


def board(size: int = 3) -> HeartbeatTable:
    return HeartbeatTable(size, lambda rank: f"rank {rank} (worker-{rank})", 0.0)


def sign(beat: int, *, collectives: int = 7, still_s: float = 0.0, at: str = "train.py:41 in train") -> Heartbeat:
    return Heartbeat(beat, collectives, still_s, at)


def test_a_sign_comes_through_the_store_as_it_was() -> None:
    assert parse_heartbeat(sign(3, still_s=1.5).to_text().encode()) == sign(3, still_s=1.5)
    assert parse_heartbeat(b"null") is None


def test_no_stall_while_all_make_progress() -> None:
    seen = board()
    for rank in range(3):
        seen.record(rank, sign(1, collectives=7 + rank), 60.0)

    assert seen.sentence(61.0, 60.0) == ""
    assert seen.silent(61.0, 60.0) == []


def test_a_rank_that_does_not_come_to_the_collective_is_named_with_its_location() -> None:
    seen = board()
    for rank in (0, 2):
        seen.record(rank, sign(1, still_s=65.0), 60.0)
    seen.record(1, sign(1, collectives=6, at="data.py:12 in load"), 60.0)

    results = "ranks 0, 2 waited for 65 s at train.py:41 in train: rank 1 (worker-1) is still at data.py:12 in load"
    assert seen.sentence(61.0, 60.0) == results
    assert seen.silent(61.0, 60.0) == []


def test_a_sign_that_does_not_change_is_none() -> None:
    seen = board()
    for at in (10.0, 70.0):
        seen.record(1, sign(1), at)
    for rank in (0, 2):
        seen.record(rank, sign(2, still_s=62.0), 70.0)

    assert seen.silent(75.0, 60.0) == [1]
    assert seen.sentence(75.0, 60.0) == (
        "ranks 0, 2 waited for 62 s at train.py:41 in train: "
        "rank 1 (worker-1) has sent no heartbeat for 65 s, so it is stopped or its machine is unreachable"
    )


def test_a_rank_that_announced_its_exit_is_not_silent() -> None:
    seen = board()
    seen.record(1, sign(1)._replace(has_left=True), 10.0)
    for rank in (0, 2):
        seen.record(rank, sign(9, collectives=9), 400.0)

    assert seen.silent(401.0, 300.0) == []
    assert seen.sentence(401.0, 60.0) == ""


def test_a_stall_of_all_ranks_names_no_culprit() -> None:
    seen = board()
    for rank in range(3):
        seen.record(rank, sign(1, still_s=61.0 + rank), 60.0)

    assert seen.sentence(61.0, 60.0) == "all 3 processes are stalled for 61 s, rank 0 at train.py:41 in train"


def test_a_process_that_was_stopped_itself_takes_no_rank_for_silent() -> None:
    seen = board()
    seen.reset(1000.0)

    assert seen.silent(1001.0, 300.0) == []


def test_many_are_counted() -> None:
    seen = board(10)
    for rank in range(5):
        seen.record(rank, sign(1, still_s=61.0), 60.0)
    for rank in range(5, 10):
        seen.record(rank, sign(1, collectives=6), 60.0)

    results = seen.sentence(61.0, 60.0)
    assert results.startswith("ranks 0, 1, 2, 3 and others waited for 61 s at ")
    assert results.endswith("; rank 8 (worker-8) is still at train.py:41 in train; and 1 more")
