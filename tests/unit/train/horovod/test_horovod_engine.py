from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from trainmaster_train.horovod.controller.engine import CollectiveEngine
from trainmaster_train.horovod.controller.link import ControlLink
from trainmaster_train.horovod.controller.messages import BARRIER, CollectiveRequest
from trainmaster_train.horovod.errors import HorovodInternalError
from trainmaster_train.horovod.settings import HorovodSettings


class NoBackend:
    has_fast_path = False

    def start(self, response, entries, members):
        raise AssertionError("nothing was agreed on")

    def abort(self):
        pass

    close = abort_fast_path = abort


@pytest.fixture
def pair():
    """Both ends of a connection that holds little of what the first one sends."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as there:
        there.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        there.connect(listener.getsockname())
        here, _ = listener.accept()
        here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        with here:
            yield here, there


def test_a_peer_that_stops_reading_is_named_and_blocks_no_rank_for_ever(pair):
    engine = CollectiveEngine(1, 2, {0: ControlLink(pair[0], patience_s=0.2)}, NoBackend(), HorovodSettings())
    requests = [CollectiveRequest(f"{i:0100}", BARRIER) for i in range(10_000)]
    with ThreadPoolExecutor(1) as pool:
        handles = engine.submit(requests, [None] * len(requests))
        for handle in (handles[0], handles[-1]):
            with pytest.raises(HorovodInternalError, match=r"rank 0 broke \(it has read nothing for 0.2 s\)"):
                pool.submit(engine.wait, handle).result(60)
    engine.close()


def test_rank_0_names_a_peer_that_stops_reading(pair):
    here, there = pair
    engine = CollectiveEngine(0, 2, {1: ControlLink(here, patience_s=0.2)}, NoBackend(), HorovodSettings())
    requests = [CollectiveRequest("x" * 1_000_000, BARRIER)]
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(
            ControlLink(there, patience_s=60).send, {"requests": requests, "blocking": [], "fast_path": [0, 0, []]}
        )
        (handle,) = engine.submit(requests, [None])
        with pytest.raises(HorovodInternalError, match=r"rank 1 is gone: .* read nothing for 0.2 s"):
            pool.submit(engine.wait, handle).result(60)
        asking.result(60)
        engine.close()
