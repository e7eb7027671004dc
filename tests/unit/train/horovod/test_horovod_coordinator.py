from __future__ import annotations

import pytest
from trainmaster_train.horovod.controller.coordinator import Coordinator
from trainmaster_train.horovod.controller.messages import ALLGATHER, ALLREDUCE, BROADCAST, JOIN, CollectiveRequest
from trainmaster_train.horovod.settings import rank_and_size, ranks_of, read_settings


def gradient(name, count=10, **more):
    return CollectiveRequest(name, ALLREDUCE, dtype="float32", shape=(count,), op="sum", item_bytes=4, **more)


def taken(coordinator):
    found = []
    while (response := coordinator.next_response()) is not None:
        found.append(response)
    return found


@pytest.fixture
def coordinator():
    return Coordinator(2, fusion_bytes=1000)


def test_nothing_starts_before_every_rank_queried(coordinator):
    coordinator.take(0, [gradient("a"), gradient("b")], 0.0)
    coordinator.take(1, [gradient("b")], 0.0)
    assert [response.names for response in taken(coordinator)] == [("b",)]
    coordinator.take(1, [gradient("a")], 0.0)
    assert [response.names for response in taken(coordinator)] == [("a",)]


def test_what_is_ready_together_is_fused_up_to_the_threshold_and_only_with_its_like(coordinator):
    wanted = [
        gradient("a", 100),
        gradient("other op")._replace(op="max"),
        gradient("b", 100),
        gradient("c", 100),
        CollectiveRequest("weights", BROADCAST, dtype="float32", shape=(1,), item_bytes=4),
        gradient("alone", 250),
        gradient("d", 10),
    ]
    for rank in (0, 1):
        coordinator.take(rank, wanted, 0.0)
    assert [response.names for response in taken(coordinator)] == [
        ("a", "b", "d"),
        ("other op",),
        ("c",),
        ("weights",),
        ("alone",),
    ]


def test_a_group_goes_only_together(coordinator):
    members = [gradient(name, group="g", group_size=2) for name in "ab"]
    coordinator.take(0, members, 0.0)
    coordinator.take(1, members[:1], 0.0)
    assert taken(coordinator) == []
    coordinator.take(1, members[1:], 0.0)
    assert [response.names for response in taken(coordinator)] == [("a", "b")]


def test_a_stall_names_ready_and_missing_ranks():
    coordinator = Coordinator(3, fusion_bytes=0)
    coordinator.take(2, [gradient("late")], 5.0)
    (stall,) = coordinator.stalls(15.0)
    assert (stall.ready, stall.missing, stall.waited_s) == ((2,), (0, 1), 10.0)
    assert stall.sentence() == "allreduce 'late' has waited 10 s: rank 2 asked for it, ranks 0, 1 did not"


def test_a_rank_that_joins_completes_what_the_others_wait_for(coordinator):
    coordinator.take(0, [gradient("a"), CollectiveRequest("rows", ALLGATHER, shape=(3, 2))], 0.0)
    coordinator.take(1, [CollectiveRequest("join", JOIN)], 0.0)
    first, rows = taken(coordinator)
    assert first.zeros_like == (gradient("a"),)
    assert rows.rows == (3, 0)
    coordinator.take(0, [CollectiveRequest("join", JOIN)], 0.0)
    assert [(response.kind, response.result) for response in taken(coordinator)] == [(JOIN, 0)]


def test_a_rank_that_joined_takes_no_part_in_an_adasum(coordinator):
    coordinator.take(1, [CollectiveRequest("join", JOIN)], 0.0)
    coordinator.take(0, [gradient("a")._replace(op="adasum")], 0.0)
    (response,) = taken(coordinator)
    assert response.error == "rank 1 called hvd.join() and cannot take part in adasum allreduce 'a'."


def test_a_rank_that_left_fails_what_needs_it_now_and_later(coordinator):
    coordinator.take(0, [gradient("now")], 0.0)
    coordinator.leave(1)
    coordinator.take(0, [gradient("later")], 0.0)
    assert ["rank 1 ended" in (response.error or "") for response in taken(coordinator)] == [True, True]


def test_local_and_cross_ranks_count_hosts_of_different_sizes():
    announcements = [{"host": host, "local_rank": None} for host in ("a", "a", "b", "a")]
    ranks = [ranks_of(rank, announcements) for rank in range(4)]
    assert [(p.local_rank, p.local_size, p.cross_rank, p.cross_size) for p in ranks] == [
        (0, 3, 0, 2),
        (1, 3, 0, 1),
        (0, 1, 1, 2),
        (2, 3, 0, 1),
    ]
    assert not ranks[0].is_homogeneous


def test_horovods_ranks_come_before_torchs():
    assert rank_and_size({"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4", "RANK": "1", "WORLD_SIZE": "2"}) == (3, 4)
    assert rank_and_size({"RANK": "1", "WORLD_SIZE": "2"}) == (1, 2)
    assert rank_and_size({"RANK": "1"}) == (0, 1)  # UAI's RANK alone counts nodes
    with pytest.raises(ValueError, match="RANK: 2 is not a rank of WORLD_SIZE=2"):
        rank_and_size({"RANK": "2", "WORLD_SIZE": "2"})


def test_horovods_variables_are_read_and_checked():
    settings = read_settings({"HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_STALL_CHECK_DISABLE": "1"})
    assert settings.fusion_bytes == 0
    assert settings.stall_warn_s == float("inf")
    assert 0 < settings.stall_end_s < float("inf")
    with pytest.raises(ValueError, match="HOROVOD_FUSION_THRESHOLD: 'big' is not a number"):
        read_settings({"HOROVOD_FUSION_THRESHOLD": "big"})
