"""The response cache: when a cycle is announced, and what happens to ranks that do not follow it."""

from __future__ import annotations

import pytest
from trainmaster_train.horovod.controller.coordinator import Coordinator
from trainmaster_train.horovod.controller.messages import ALLREDUCE, BROADCAST, FAST_PATH, JOIN, CollectiveRequest
from trainmaster_train.horovod.controller.response_cache import PendingOperation, ResponseCache


def reduction(name, count=10, **more):
    return CollectiveRequest(name, ALLREDUCE, dtype="float32", shape=(count,), op="sum", item_bytes=4, **more)


def cycles_after(names, fast_path_counts=None):
    """The rhythm after each of ``names``, as one string."""
    cache = ResponseCache()
    counts = fast_path_counts or [0] * len(names)
    return [
        "".join(request.name for request in cache.observe(reduction(name), count))
        for name, count in zip(names, counts, strict=True)
    ]


def test_a_cycle_is_detected_after_three_repetitions():
    assert cycles_after("aaa") == ["", "", "a"]
    assert cycles_after("xabababb") == [""] * 6 + ["ab", ""]
    assert cycles_after("abcd" * 3)[-1] == "abcd"
    assert cycles_after("abcabd" * 2) == [""] * 12


def test_operations_on_the_fast_path_in_between_reset_the_history():
    assert cycles_after("www", [5, 9, 14]) == ["", "", ""]
    assert cycles_after("www", [5, 5, 5]) == ["", "", "w"]


def test_unnamed_operations_repeat_although_their_numbers_differ():
    cache = ResponseCache()
    results = [cache.observe(reduction(f"allreduce.noname.{number}"), 0) for number in range(1, 4)]
    assert results == [(), (), (reduction("allreduce"),)]


class FakeGang:
    """A coordinator of three ranks, and what each of them has started on the lane."""

    def __init__(self):
        self.coordinator = Coordinator(3, fusion_bytes=1000, has_fast_path=True)
        self.started = [0, 0, 0]

    def ask(self, rank, request, *, blocking=False):
        self.report(rank)
        self.coordinator.take(rank, [request], 0.0, blocking=[request.name] if blocking else [])

    def report(self, rank, *slow, ended=0):
        self.coordinator.take_fast_path(rank, self.started[rank], ended, slow, 0.0)

    def answers(self):
        found = []
        while (response := self.coordinator.next_response()) is not None:
            found.append(response)
        return found


@pytest.fixture
def gang():
    return FakeGang()


def wait_on_fast_path(gang, *ranks, number=0, name="a"):
    for rank in ranks:
        gang.started[rank] = number + 1
        gang.report(rank, PendingOperation(number, reduction(name)))


def test_the_cycle_is_announced_in_a_response_that_all_ranks_wait_for(gang):
    for number in range(3):
        for rank in range(3):
            gang.ask(rank, reduction("a"), blocking=True)
        (answer,) = gang.answers()
        assert answer.cached_cycle == ((reduction("a"),) if number == 2 else ())


@pytest.mark.parametrize("request_", [CollectiveRequest("b", BROADCAST, shape=(1,)), reduction("a", device="cuda")])
def test_only_synchronizing_operations_are_cached(gang, request_):
    for _ in range(5):
        for rank in range(3):
            gang.ask(rank, request_, blocking=True)
    assert not any(answer.cached_cycle for answer in gang.answers())


def test_an_operation_that_a_rank_does_not_block_on_is_not_cached(gang):
    for _ in range(5):
        for rank in range(3):
            gang.ask(rank, reduction("a", 2000), blocking=rank != 2)
    assert not any(answer.cached_cycle for answer in gang.answers())


def test_a_slow_operation_that_all_have_started_needs_no_response(gang):
    wait_on_fast_path(gang, 0, 1, 2)
    assert gang.answers() == []
    assert gang.coordinator.stalls(9.0) == []


def test_a_report_after_the_end_of_its_operation_is_ignored(gang):
    gang.started[0] = 1
    gang.report(0, ended=1)
    wait_on_fast_path(gang, 2)
    gang.ask(1, CollectiveRequest("join", JOIN))
    assert gang.answers() == []


def test_a_rank_with_an_ordinary_request_is_sent_to_the_fast_path(gang):
    gang.ask(1, reduction("a"))
    wait_on_fast_path(gang, 2)
    assert gang.answers() == []
    wait_on_fast_path(gang, 0)
    (answer,) = gang.answers()
    assert (answer.process_set, answer.names, answer.error, answer.zeros_like, answer.result) == (
        FAST_PATH,
        ("a",),
        None,
        (),
        0,
    )


def test_a_rank_that_has_started_it_is_not_sent_there_twice(gang):
    gang.started[1] = 1
    wait_on_fast_path(gang, 2)
    gang.ask(1, reduction("a"))
    wait_on_fast_path(gang, 0)
    assert gang.answers() == []


def test_a_joined_rank_takes_part_on_the_fast_path_with_zeros(gang):
    gang.ask(1, CollectiveRequest("join", JOIN))
    wait_on_fast_path(gang, 0, 2)
    (answer,) = gang.answers()
    assert (answer.process_set, answer.zeros_like) == (FAST_PATH, (reduction("a"),))


def test_a_different_shape_is_rejected_on_the_fast_path_too(gang):
    wait_on_fast_path(gang, 0)
    gang.ask(1, reduction("a", 12))
    (answer,) = gang.answers()
    assert answer.process_set == FAST_PATH
    assert answer.error == "allreduce 'a' differs: rank 0 has shape [10], rank 1 shape [12]."


def test_a_late_report_after_the_fast_path_closed_is_ignored(gang):
    wait_on_fast_path(gang, 0)
    gang.ask(1, reduction("a", 12))
    assert len(gang.answers()) == 1
    wait_on_fast_path(gang, 2)
    for rank in range(3):
        gang.ask(rank, reduction("a", 14), blocking=True)
    (answer,) = gang.answers()
    assert (answer.process_set, answer.error) == (0, None)


def test_a_departed_rank_is_named_unless_it_has_started_the_operation(gang):
    gang.started[1] = 1
    gang.report(1)
    gang.coordinator.leave(1)
    wait_on_fast_path(gang, 0, 2)
    assert gang.answers() == []
    wait_on_fast_path(gang, 2, number=1, name="b")
    (answer,) = gang.answers()
    assert answer.error == "rank 1 ended, or called hvd.shutdown(), without allreduce 'b'."


def test_a_stall_on_the_fast_path_names_missing_ranks(gang):
    wait_on_fast_path(gang, 0, 2)
    (stall,) = gang.coordinator.stalls(15.0)
    assert stall.sentence() == "allreduce 'a' has waited 15 s: ranks 0, 2 asked for it, rank 1 did not"
