from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

np = pytest.importorskip("numpy")

from trainmaster_train.horovod.mesh import Mesh  # noqa: E402 (after what it needs)

KEY = b"0" * 32


@pytest.fixture
def meshes():
    """Four ranks, as threads of this process."""
    size = 4
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(size)]
    addresses = [listener.getsockname()[:2] for listener in listeners]
    with ThreadPoolExecutor(size) as pool:
        made = list(
            pool.map(lambda rank: Mesh(rank, listeners[rank], addresses, KEY, start_s=60, timeout_s=60), range(size))
        )
    yield made
    for mesh in made:
        mesh.close()
    for listener in listeners:
        listener.close()


def on_all(meshes, run, members=(0, 1, 2, 3)):
    """``run(rank, mesh)`` on each of ``members`` at once; the results, in their order."""
    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(lambda rank: run(rank, meshes[rank]), members))


@pytest.mark.parametrize("count", [1, 3, 4, 1_000_003])
@pytest.mark.parametrize("members", [(0, 1, 2, 3), (1, 3)])
def test_allreduce_adds_up_whatever_the_length(meshes, count, members):
    def run(rank, mesh):
        array = np.arange(count, dtype=np.float64) * (rank + 1)
        mesh.allreduce(array, members, np.add)
        return array

    factor = sum(rank + 1 for rank in members)
    for array in on_all(meshes, run, members):
        assert np.array_equal(array, np.arange(count) * factor)


def test_ragged_parts_are_gathered_in_order(meshes):
    def run(rank, mesh):
        output = np.empty(6, np.int32)
        parts = np.split(output, [0, 1, 3])
        parts[rank][...] = rank
        mesh.allgather(parts, (0, 1, 2, 3))
        return output.tolist()

    assert on_all(meshes, run) == [[1, 2, 2, 3, 3, 3]] * 4


def test_a_broadcast_of_many_pieces_comes_whole(meshes):
    def run(rank, mesh):
        array = np.arange(700_000, dtype=np.float64) if rank == 2 else np.zeros(700_000)
        mesh.broadcast(array, 2, (0, 1, 2, 3))
        return array.sum()

    assert on_all(meshes, run) == [np.arange(700_000, dtype=np.float64).sum()] * 4


def test_alltoall_gives_each_its_rows(meshes):
    def run(rank, mesh):
        sent = [np.full(2, 10 * rank + other) for other in range(4)]
        received = [np.empty(2, sent[0].dtype) for _ in range(4)]
        mesh.alltoall(sent, received, (0, 1, 2, 3))
        return [int(part[0]) for part in received]

    assert on_all(meshes, run) == [[rank + 10 * other for other in range(4)] for rank in range(4)]


def test_a_rank_that_hangs_up_ends_the_others_wait(meshes):
    results = []

    def wait():
        with pytest.raises(ConnectionError) as raised:
            meshes[0].allreduce(np.ones(1000), (0, 1, 2, 3), np.add)
        results.append(raised.value)

    waiting = threading.Thread(target=wait)
    waiting.start()
    meshes[3].close()
    waiting.join(60)
    assert len(results) == 1
