from __future__ import annotations

import importlib.util
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")


def test_a_look_at_a_batch_that_others_have_not_come_to_ends_at_once():
    from torch import distributed as dist
    from trainmaster_train.horovod.torch.backend import CpuBatch

    store, limit = dist.HashStore(), timedelta(seconds=120)
    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(lambda rank: dist.ProcessGroupGloo(store, rank, 2, limit), range(2)))
        mine, theirs = torch.ones(1), torch.ones(1)
        batch = CpuBatch([both[0].allreduce([mine])], lambda: None)
        look = pool.submit(batch.wait, 0.0)
        try:
            is_done = look.result(60)
        finally:  # whoever waits on without end is let go
            both[1].allreduce([theirs]).wait()

        assert not is_done
        assert batch.wait(60)
        assert mine.item() == 2.0


@pytest.fixture(scope="module")
def operations(run_ranks):
    return run_ranks("operations.operations", 3)


def test_every_rank_knows_its_place(operations):
    assert [results["place"] for results in operations] == [[rank, 3, rank, 3, 0, 1] for rank in range(3)]
    assert all(results["homogeneous"] for results in operations)


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("average", [2.0, 4.0, 8.0]),
        ("Sum", [6.0, 12.0, 24.0]),
        ("Min", [1.0, 2.0, 4.0]),
        ("Max", [3.0, 6.0, 12.0]),
        ("Product", [6.0, 48.0, 384.0]),
        ("scaled", [30.0, 60.0, 120.0]),
        ("integers", [1, 10]),
        ("int16", [3]),
        ("half", [2.0, 4.0, 8.0]),
        ("bfloat16", [6.0, 12.0, 24.0]),
        ("strided", [[0.0, 9.0], [3.0, 12.0], [6.0, 15.0]]),
        ("in place", [6.0, 12.0, 24.0]),
        ("same tensor", True),
        ("group", [[3.0, 3.0], [3.0, 3.0, 3.0], 15.0]),
        ("gathered", [[1, 1], [2, 2], [2, 2]]),
        ("gathered evenly", [[0, 1], [1, 1], [2, 1]]),
        ("group gathered", [[0, 1, 2], [1.0] * 6]),
        ("broadcast", [True, True, True]),
        ("scalar broadcast", 1),
        ("object", 1),
        ("objects", [["of", 0], ["of", 1], ["of", 2]]),
    ],
)
def test_an_operation_gives_every_rank_the_same(operations, operation, expected):
    assert [results[operation] for results in operations] == [expected] * 3


def test_a_tensor_that_is_not_reduced_in_place_stays_as_it_was(operations):
    assert [results["kept"] for results in operations] == [[1.0, 2.0, 4.0], [2.0, 4.0, 8.0], [3.0, 6.0, 12.0]]


def test_alltoall_and_reducescatter_give_each_rank_its_share(operations):
    assert [results["alltoall"] for results in operations] == [
        [[0, 100, 200], [1, 1, 1]],
        [[1, 2, 101, 102, 201, 202], [2, 2, 2]],
        [[3, 4, 5, 103, 104, 105, 203, 204, 205], [3, 3, 3]],
    ]
    assert [results["even alltoall"] for results in operations] == [[0, 10, 20], [1, 11, 21], [2, 12, 22]]
    # Four rows among three ranks: the first gets two.
    assert [results["scattered"] for results in operations] == [
        [[0.0, 6.0], [12.0, 18.0]],
        [[24.0, 30.0]],
        [[36.0, 42.0]],
    ]
    assert [results["scattered average"] for results in operations] == [[1.0]] * 3


def test_a_process_set_runs_operations_of_its_own(operations):
    assert [results["set"] for results in operations] == [[True, 2, 0], [False, 2, -1], [True, 2, 1]]
    for rank in (0, 2):
        assert operations[rank]["set sum"] == [4.0, 8.0, 16.0]
        assert operations[rank]["set broadcast"] == [3.0, 6.0, 12.0]
        assert operations[rank]["set gathered"] == [0, 2, 2, 2]
    assert operations[1]["not in set"] == ["ValueError", "rank 1 is not in process set 1."]
    assert all(results["removed"] == [True, False] for results in operations)


def test_what_cannot_be_queried_is_refused_in_a_sentence(operations):
    results = operations[0]
    assert "power of two; here are 3" in results["adasum of three"][1]
    assert results["bad splits"] == ["ValueError", "alltoall: splits [1, 1, 1] must be 3 counts that add up to 4 rows."]
    assert "root_rank=7" in results["bad root"][1]
    assert "not both" in results["both"][1]
    assert "unsqueeze(0)" in results["scalar gathered"][1]
    assert "'allreduce.twice' is on its way already" in results["twice"][1]
    assert results["after shutdown"] == ["ValueError", "Horovod has not been initialized; use hvd.init()."]


def test_gradients_flow_through_the_operations(run_ranks):
    first, second = run_ranks("operations.gradients", 2)
    assert first["allreduce"] == second["allreduce"] == [3.0, 3.0]
    assert (first["allgather"], second["allgather"]) == ([1.0], [10.0, 10.0])
    assert (first["broadcast"], second["broadcast"]) == ([0.0, 0.0], [3.0, 3.0])
    assert (first["alltoall"], second["alltoall"]) == ([1.0, 2.0], [10.0, 20.0])
    assert first["reducescatter"] == second["reducescatter"] == [0.5, 1.0]
    assert first["grouped"] == [5.0]
    # Orthogonal ones are added, equal ones are taken once.
    assert first["adasum"] == second["adasum"] == [[1.0, 1.0], [2.0, 4.0]]


def test_ranks_may_start_their_operations_in_any_order(run_ranks):
    assert run_ranks("operations.any_order", 3) == [[True] * 5 + [[1, 1], True]] * 3


def test_small_and_large_tensors_are_put_together_and_taken_apart_again(run_ranks):
    assert run_ranks("operations.many", 2) == [[], []]


def test_a_rank_that_joined_takes_part_with_zeros(run_ranks):
    results = run_ranks("failures.joins", 3)
    assert [t["sums"] for t in results] == [
        [[3.0, 3.0]],
        [[3.0, 3.0], [2.0, 2.0]],
        [[3.0, 3.0], [2.0, 2.0], [1.0, 1.0], [2]],
    ]
    assert [t["last"] for t in results] == [2, 2, 2]
    assert [t["again"] for t in results] == [[3.0]] * 3
    assert results[2]["refusal"][0] == "HorovodInternalError"
    assert "ranks 0, 1 called hvd.join()" in results[2]["refusal"][1]


def test_tensors_that_do_not_fit_are_named_on_every_rank(run_ranks):
    for results in run_ranks("failures.mismatch", 2):
        kinds = {entry[0] for entry in results[:4]}
        assert kinds == {"HorovodInternalError"}
        assert "allreduce 'allreduce.shape' differs" in results[0][1]
        assert "[3]" in results[0][1]
        assert "[4]" in results[0][1]
        assert "float64" in results[1][1]
        assert "root rank 1" in results[2][1]
        assert "allgather 'allgather.rows' differs" in results[3][1]
        assert results[4] == [2.0]


def test_a_stall_is_reported_with_name_and_missing_ranks_and_ends(run_ranks):
    results = run_ranks(
        "failures.stall", 3, HOROVOD_STALL_CHECK_TIME_SECONDS="0.3", HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="1.5"
    )
    assert "allreduce 'allreduce.lonely' has waited" in results.log
    assert "ranks 0, 2 asked for it, rank 1 did not" in results.log
    for kind, sentence in (results[0], results[2], results[1]):
        assert kind == "HorovodInternalError"
        assert "rank 1 did not; that is the end" in sentence


def test_process_sets_come_and_go_while_a_gang_works(run_ranks):
    results = run_ranks("operations.process_sets", 3)
    # Pairs 0 1, 1 2, 2 0 and each rank alone in its turn.
    assert [rank["sums"] for rank in results] == [[3.0, 1.0, 4.0], [3.0, 5.0, 2.0], [5.0, 4.0, 3.0]]
    for rank in results:
        assert rank["late"][0] == "HorovodInternalError"
        assert "allreduce 'allreduce.late': process set" in rank["late"][1]
        assert "was removed" in rank["late"][1]
        assert rank["removed"][0] is None
        assert "call hvd.add_process_set()" in rank["removed"][1][1]
        assert "rank 0 has ranks [0], rank 1 ranks [0, 1]" in rank["other ranks"][1]
    assert [rank["again"] for rank in results] == [2.0, 2.0, None]


@pytest.mark.parametrize(("environment", "what"), [({}, "add"), ({"REMOVES": "1"}, "remove")], ids=["add", "remove"])
def test_a_process_set_added_or_removed_by_one_rank_alone_ends_with_a_report(run_ranks, environment, what):
    limits = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "0.3", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "1.5"}
    for kind, sentence in run_ranks("failures.lonely_sets", 2, **limits, **environment):
        assert kind == "HorovodInternalError"
        assert f"{what}_process_set" in sentence
        assert "rank 0 asked for it, rank 1 did not; that is the end" in sentence


def test_the_others_hear_of_a_dead_rank_at_once(run_ranks):
    results = run_ranks("failures.death", 3)
    assert results[2] is None
    for kind, sentence, waited_s, later in results[:2]:
        assert kind == later == "HorovodInternalError"
        assert "rank 2 is gone" in sentence
        assert waited_s < 60  # far below every deadline, whatever the machine does beside


def test_a_rank_that_left_in_good_order_fails_only_what_needs_it(run_ranks):
    (kind, sentence), _ = run_ranks("failures.departure", 2)
    assert kind == "HorovodInternalError"
    assert "rank 1 ended, or called hvd.shutdown()" in sentence


def test_repeating_operations_skip_negotiation_and_mix_with_others(run_ranks):
    results = run_ranks("repeats.repeats", 3)
    assert [rank["wrong"] for rank in results] == [[]] * 3
    # Asked for as ever, 40 operations would be 40 messages from each rank, and 80 from rank 0.
    assert [rank["messages in ten turns"] for rank in results] == [0, 0, 0]


def test_a_rank_that_joined_takes_part_in_what_repeats(run_ranks):
    results = run_ranks("repeats.repeats_until_join", 3)
    assert [rank["sums"] for rank in results] == [[3.0], [3.0, 2.0], [3.0, 2.0, 1.0]]
    assert [rank["last"] for rank in results] == [2, 2, 2]
    assert [rank["again"] for rank in results] == [[3.0] * 8] * 3


def test_a_tensor_that_suddenly_differs_is_named_on_every_rank_and_harms_nothing_later(run_ranks):
    for (kind, sentence), is_right in run_ranks("repeats.repeats_and_differs", 3):
        assert kind == "HorovodInternalError"
        assert "allreduce 'allreduce.x' differs" in sentence
        assert "[3]" in sentence
        assert "[4]" in sentence
        assert is_right


def test_a_rank_that_leaves_or_dies_while_operations_repeat_is_named(run_ranks):
    left = run_ranks("repeats.repeats_and_leaves", 2)[0]
    assert left[0] == "HorovodInternalError"
    assert "rank 1 ended, or called hvd.shutdown(), without allreduce 'allreduce.x'" in left[1]
    for kind, sentence in run_ranks("repeats.repeats_and_dies", 3)[:2]:
        assert kind == "HorovodInternalError"
        assert "rank 2 is gone" in sentence


def test_a_rank_that_skips_a_repeating_operation_is_named_and_the_wait_ends(run_ranks):
    results = run_ranks(
        "repeats.repeats_and_stalls",
        3,
        HOROVOD_STALL_CHECK_TIME_SECONDS="0.3",
        HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="1.5",
    )
    for kind, sentence in results:
        assert kind == "HorovodInternalError"
        assert "ranks 0, 2 asked for it, rank 1 did not; that is the end" in sentence


@pytest.fixture(scope="module")
def optimizers(run_ranks):
    return run_ranks("optimizers.optimizers", 2)


@pytest.fixture(scope="module")
def models():
    path = Path(__file__).parent / "scenarios" / "models.py"
    described = importlib.util.spec_from_file_location("horovod_models", path)
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference(models):
    """The same steps by one process: the mean of both ranks' gradients, by hand."""

    def trained(passes=1):
        net = models.model()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.05)
        for _ in range(3):
            optimizer.zero_grad()
            for rank in (0, 1):
                x, y = models.data(rank)
                # Passes are added up, not averaged.
                (((net(x) - y) ** 2).mean() * passes / 2).backward()
            optimizer.step()
        return models.weights(net)

    return trained


@pytest.mark.parametrize("way", ["plain", "groups", "predivide", "closure"])
def test_two_ranks_train_as_one_process_with_all_data(optimizers, reference, way):
    assert optimizers[0][way] == optimizers[1][way]
    assert optimizers[0][way] == pytest.approx(reference(), abs=2e-5)


def test_half_precision_gradients_train_nearly_alike(optimizers, reference):
    assert optimizers[0]["half"] == optimizers[1]["half"]
    assert optimizers[0]["half"] == pytest.approx(reference(), abs=0.02)


def test_several_backward_passes_are_one_step(optimizers, reference):
    assert optimizers[0]["passes"] == optimizers[1]["passes"]
    assert optimizers[0]["passes"] == pytest.approx(reference(passes=2), abs=2e-5)


def test_the_optimizer_keeps_its_class_and_works_with_a_schedule(optimizers):
    assert optimizers[0]["class"] == ["Adam", True]
    assert optimizers[0]["rate"] == 0.025


def test_gradients_can_be_looked_at_between_synchronize_and_step(optimizers):
    assert [results["synchronized"] for results in optimizers] == [True, True]
    assert "call it before backward()" in optimizers[0]["too early"][1]


def test_a_parameter_that_one_rank_skipped_counts_as_zero_there(optimizers):
    assert [results["dynamic"] for results in optimizers] == [[-0.5, -0.5]] * 2


def test_more_backward_passes_than_announced_are_an_error(optimizers):
    kind, sentence = optimizers[0]["too many"]
    assert kind == "AssertionError"
    assert "backward_passes_per_step=1" in sentence


def test_an_optimizer_without_state_takes_the_roots(optimizers):
    assert optimizers[0]["state"] == optimizers[1]["state"]
    assert optimizers[1]["state"][0] == 0.1
    assert len(optimizers[1]["state"][1]) == 4


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients_add_up_where_rows_meet(optimizers, as_dense):
    expected = [[0.5, 0.5], [0.5, 0.5], [0.0, 0.0], [0.0, 0.0], [2.0, 2.0]]
    assert [results[f"embedding {as_dense}"] for results in optimizers] == [expected] * 2


def test_adasum_of_ranks_that_agree_is_what_each_would_do_alone(optimizers):
    assert optimizers[0]["adasum"] == optimizers[1]["adasum"]
    assert optimizers[0]["adasum"] == pytest.approx(optimizers[0]["alone"], abs=2e-5)


def test_names_of_parameters_are_checked(optimizers):
    results = optimizers[0]
    assert "0.weight is named twice" in results["doubled"][1]
    assert "3 of the optimizer's 4 parameters have no name" in results["unnamed"][1]
    assert "pairs of name and parameter" in results["no pairs"][1]
    assert "op=hvd.Average only" in results["factor"][1]


def test_an_elastic_function_goes_on_from_its_last_commit_in_another_gang(run_ranks):
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    ports = ",".join(str(server.getsockname()[1]) for server in servers)
    for server in servers:
        server.close()
    results = run_ranks("elastic.elastic", 2, NEXT_PORTS=ports)
    for rank in results:
        # Step 1 was not committed when the gang broke; the change after step 2 loses none.
        assert rank["steps"] == [0, 1, 1, 2, 3]
        assert rank["rejoined"] == 2
        assert len(rank["resets"]) == 2
        assert rank["left"] == [4, 5, 6, 7, 8, 9]
        assert rank["size"] == 2


def test_in_an_elastic_job_a_killed_rank_is_missed_and_another_joins(run_ranks, tmp_path):
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = ",".join(str(server.getsockname()[1]) for server in servers)
    for server in servers:
        server.close()
    killed, behind, ahead, joiner = run_ranks("elastic.worlds", 4, WORLDS=str(tmp_path), PORTS=ports)
    assert killed is None
    for rank in (behind, ahead, joiner):
        assert rank["result"] == "done"
        assert rank["equal"]
    # Step 3 was committed on one of the two alone: neither does it again.
    both = [[4, 2, 2], [5, 2, 2], [6, 3, 3], [7, 3, 3], [8, 3, 3], [9, 3, 3]]
    assert [[step, size, world] for step, _, size, world in behind["steps"]][3:] == both
    assert [[step, size, world] for step, _, size, world in ahead["steps"]][3:] == both
    assert [step[1] for step in behind["steps"]] == [1, 1, 1, 0, 0, 0, 0, 0, 0]
    assert joiner["steps"] == [[step, 2, 3, 3] for step in (6, 7, 8, 9)]


def test_a_single_process_needs_no_peers(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "HOROVOD_RANK", "HOROVOD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    import trainmaster_train.horovod.torch as hvd

    hvd.init()
    try:
        assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.cross_size()) == (0, 1, 0, 1)
        assert hvd.allreduce(torch.tensor([3.0])).tolist() == [3.0]
        assert hvd.allgather(torch.ones(2, 1)).tolist() == [[1.0], [1.0]]
        assert hvd.alltoall(torch.arange(3)).tolist() == [0, 1, 2]
        assert hvd.reducescatter(torch.ones(3)).tolist() == [1.0, 1.0, 1.0]
        assert hvd.broadcast_object("mine") == "mine"
        assert hvd.join() == 0
        hvd.barrier()
        net = torch.nn.Linear(1, 1)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), net.named_parameters())
        net(torch.ones(1, 1)).sum().backward()
        optimizer.step()
    finally:
        hvd.shutdown()
    assert not hvd.is_initialized()
    assert "torch.distributed" in sys.modules
