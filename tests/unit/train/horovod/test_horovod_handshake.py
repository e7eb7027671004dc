"""Who gets into a gang: only ranks that know its key, and strangers neither break nor delay it."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from trainmaster_runtime import rendezvous as kv_store
from trainmaster_train.horovod.controller.handshake import mac, own_key
from trainmaster_train.horovod.controller.link import accept_all, connect, listen
from trainmaster_train.horovod.errors import HorovodInternalError
from trainmaster_train.horovod.gang import rendezvous
from trainmaster_train.horovod.settings import HorovodSettings

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
ROOT = Path(__file__).parents[4]


@pytest.fixture
def listener():
    with listen("127.0.0.1") as found:
        yield found


def gather(listener, before, *, size=2, keys=None):
    """What rank 0 heard of all ranks, where ``before(address)`` happens ahead of the others' coming."""
    address = listener.getsockname()
    with ThreadPoolExecutor(size) as pool:
        accepted = pool.submit(accept_all, listener, size=size, key=KEY, announcement={"rank": 0}, timeout_s=60)
        intruders = before(address)
        others = [
            pool.submit(connect, [address], rank=rank, key=KEY, announcement={"rank": rank}, timeout_s=60)
            for rank in range(1, size)
        ]
        links, results = accepted.result(90)
        assert all(other.result(90)[1] == results for other in others)
        for link in [*links.values(), *(other.result()[0] for other in others)]:
            link.close()
    for intruder in intruders or ():
        intruder.close()
    return results


def silent(address):
    return [socket.create_connection(address) for _ in range(3)]


def port_scan(address):
    for linger in (0, 1):
        with socket.create_connection(address) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1 - linger, 0))


def garbage(address):
    found = [socket.create_connection(address) for _ in range(2)]
    found[0].sendall("Schlüssel".encode() * 40)
    found[1].sendall(b"\0" * 32 + struct.pack("!I", 7))  # no such rank
    return found


def first_as_rank_1(address):
    """One that knows all but the key; it answers the proof with the one that it was given."""
    connection = socket.create_connection(address)
    connection.sendall(b"n" * 32 + struct.pack("!I", 1))
    answer = connection.recv(64, socket.MSG_WAITALL)
    connection.sendall(answer[32:])
    assert connection.recv(1) == b""
    return [connection]


@pytest.mark.parametrize("before", [silent, port_scan, garbage, first_as_rank_1])
def test_unauthenticated_connections_are_refused_and_delay_no_rank(listener, before):
    assert gather(listener, before, size=3) == [{"rank": rank} for rank in range(3)]


def test_a_wrong_key_is_reported_once_and_the_right_peer_is_waited_for(listener, capsys):
    def wrong(address):
        with pytest.raises(HorovodInternalError, match="does not know the gang's key"):
            connect([address], rank=1, key=OTHER_KEY, announcement={}, timeout_s=2)

    assert gather(listener, wrong) == [{"rank": 0}, {"rank": 1}]
    printed = capsys.readouterr().err
    assert "127.0.0.1 came as rank 1, but not with this gang's key" in printed
    assert printed.count("not with this gang's key") == 1


def test_a_false_rank_0_is_detected_before_it_gets_a_message(listener):
    received = []

    def play_rank_0():
        connection, _ = listener.accept()
        with connection:
            announcement = connection.recv(36, socket.MSG_WAITALL)
            connection.sendall(announcement[:32] * 2)
            received.append(connection.recv(1000))

    with ThreadPoolExecutor(1) as pool:
        playing = pool.submit(play_rank_0)
        with pytest.raises(HorovodInternalError, match="not rank 0 of this gang"):
            connect([listener.getsockname()], rank=1, key=KEY, announcement={"secret": "plan"}, timeout_s=2)
        playing.result(60)
    assert received == [b""]


def test_the_published_text_holds_no_key_and_a_changed_address_is_refused(monkeypatch, tmp_path):
    token = tmp_path / "token"
    token.write_text("t0ken of this attempt\n")
    monkeypatch.setenv("TRAINMASTER_TOKEN_FILE", str(token))
    results = []
    with pytest.raises(HorovodInternalError, match="rank 1 of 2 did not come"):
        rendezvous(
            0,
            2,
            {},
            rank_0_host="127.0.0.1",
            publish=results.append,
            fetch=lambda: results[0],
            settings=HorovodSettings(start_s=0.1),
        )
    (text,) = results
    assert sorted(json.loads(text)) == ["hosts", "port", "seal"]
    assert own_key().hex() not in text
    for changed in ({"hosts": ["127.0.0.9"]}, {"seal": "né"}):
        forged = json.dumps({**json.loads(text), **changed})
        with pytest.raises(HorovodInternalError, match="different keys"):
            rendezvous(
                1,
                2,
                {},
                rank_0_host="",
                publish=results.append,
                fetch=[forged].pop,
                settings=HorovodSettings(start_s=5),
            )


def test_a_key_made_by_rank_0_does_not_replace_the_attempts(monkeypatch):
    monkeypatch.setenv("HOROVOD_KEY", "mine")
    forged = {"hosts": ["127.0.0.1"], "port": 1, "key": KEY.hex()}
    forged["seal"] = mac(KEY, b"where rank 0 is: ", json.dumps([forged["hosts"], forged["port"]]).encode()).hex()
    with pytest.raises(HorovodInternalError, match="different keys"):
        rendezvous(
            1,
            2,
            {},
            rank_0_host="",
            publish=print,
            fetch=lambda: json.dumps(forged),
            settings=HorovodSettings(start_s=5),
        )


SCRIPT = """
import numpy as np
from trainmaster_train.horovod.arrays import join_gang
from trainmaster_train.horovod.controller.messages import ALLREDUCE, CollectiveRequest
from trainmaster_train.horovod.arrays import ArrayEntry
from trainmaster_train.horovod.settings import read_settings
gang = join_gang(read_settings())
request = CollectiveRequest("x", ALLREDUCE, "float64", (3,), "sum", item_bytes=8)
print(gang.run(request, ArrayEntry(request, np.ones(3))).entry.output.tolist())
gang.barrier()
gang.close()
"""


@pytest.fixture
def run_pair():
    """Two processes that meet by the runtime's key-value store; returns their output and the store's port."""
    pytest.importorskip("numpy")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    kv_store.serve(port, print)

    def run(host="127.0.0.1", **environment):
        env = {name: value for name, value in os.environ.items() if not name.startswith(("HOROVOD_", "TRAINMASTER_"))}
        env |= {"PYTHONPATH": str(ROOT / "worker_images" / "train"), "OMP_NUM_THREADS": "1", **environment}
        env |= {"HOROVOD_SIZE": "2", "HOROVOD_GLOO_RENDEZVOUS_ADDR": host, "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}
        pair = [
            subprocess.Popen(
                [sys.executable, "-c", SCRIPT],
                env={**env, "HOROVOD_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(2)
        ]
        return [process.communicate(timeout=120) for process in pair], port

    return run


def in_store(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.read()
    except urllib.error.HTTPError:
        return None


def test_a_gang_with_a_token_leaves_nothing_where_others_can_look(run_pair, tmp_path):
    (tmp_path / "token").write_text("t0ken")
    results, port = run_pair(TRAINMASTER_TOKEN_FILE=str(tmp_path / "token"))
    assert [out for out, _ in results] == ["[2.0, 2.0, 2.0]\n"] * 2, results
    assert in_store(port, "/trainmaster/key") is None
    assert in_store(port, "/trainmaster/gang") is None


def test_on_one_machine_no_key_need_be_given(run_pair):
    results, _ = run_pair()
    assert [out for out, _ in results] == ["[2.0, 2.0, 2.0]\n"] * 2, results


def test_over_a_network_a_key_must_be_given(run_pair):
    results, _ = run_pair(host="0.0.0.0")  # noqa: S104 (any address that is not the loopback's)
    assert all("set HOROVOD_KEY to the same long random text" in err for _, err in results)
