from __future__ import annotations

import json
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from trainmaster_runtime.process import procfs
from trainmaster_runtime.replica.peer_connections import KIND, WARN_S, PeerConnections

# Connects to the port that it is given, and stays until its stdin ends.
_CONNECTS = "import socket, sys; c = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); print(); input()"


@pytest.fixture
def watch(tmp_path):
    """``watch(**env)``: of rank 0 in a gang of two on this machine; ``.sentences`` are the log's."""

    def watch(**env):
        order = SimpleNamespace(
            role="worker", index=0, peer_hosts=["127.0.0.1"], attempt_id="att-1", mark="att-1/worker-0.1"
        )
        report = tmp_path / "report.jsonl"
        report.touch()
        sentences = []
        log = SimpleNamespace(say=sentences.append)
        gang = {"PET_NNODES": "2", "PET_NODE_RANK": "0", **env}
        peers = PeerConnections(order, gang, log, started_at=0.0, report_path=str(report))
        return SimpleNamespace(peers=peers, sentences=sentences, events=lambda: report.read_text().splitlines())

    return watch


@pytest.fixture
def connected():
    """``connected(mark)``: a process with that mark connects to a port of this one; returns the port."""
    stack = []

    def connected(mark):
        listener = socket.create_server(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        process = subprocess.Popen(
            [sys.executable, "-c", _CONNECTS, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={procfs.MARK_VARIABLE: mark},
        )
        accepted, _ = listener.accept()
        assert process.stdout.readline()
        stack.extend((process, accepted, listener))
        return process, port

    yield connected
    for process, accepted, listener in zip(stack[::3], stack[1::3], stack[2::3], strict=True):
        process.communicate(b"\n")
        accepted.close()
        listener.close()


def test_replicas_that_never_connect_are_warned_of_after_a_while_and_at_the_end(watch):
    seen = watch()
    seen.peers.check(10.0)
    assert seen.sentences == []
    seen.peers.check(WARN_S + 10.0)
    seen.peers.check(WARN_S + 20.0)
    seen.peers.finish(WARN_S + 30.0)
    while_it_runs, at_its_end = seen.sentences
    assert "WARNING: worker-0 has not connected to another one for 130 s: the 2 replicas train alone" in while_it_runs
    assert "ended and has never connected" in at_its_end
    events = [json.loads(line) for line in seen.events()]
    assert [event["event"] for event in events] == [KIND, KIND]


def test_a_port_of_the_gang_shows_a_connection(watch, connected):
    _, port = connected("another/worker-0.1")
    seen = watch(MASTER_PORT=str(port))
    seen.peers.check(10.0)
    assert seen.peers.check_at is None
    seen.peers.finish(WARN_S)
    assert seen.sentences == []


def test_a_connection_that_its_client_has_closed_shows_still(watch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = listener.accept()
        client.close()
        assert accepted.recv(1) == b""
        accepted.close()
    seen = watch(MASTER_PORT=str(port))
    seen.peers.finish(WARN_S)
    assert seen.sentences == []


def test_a_connection_to_a_process_of_another_job_does_not_count(watch, connected):
    connected("att-2/worker-1.1")
    seen = watch()
    seen.peers.check(10.0)
    assert seen.peers.check_at is not None


def test_processes_of_an_attempt_are_found_without_the_own_replicas(connected):
    process, _ = connected("att-1/worker-1.1")
    other, _ = connected("att-1/worker-0.1")
    found = procfs.of_attempt("att-1", "att-1/worker-0.1")
    assert process.pid in found
    assert other.pid not in found
    assert procfs.socket_inodes([process.pid])


@pytest.mark.parametrize(
    "env", [{"PET_NNODES": "1"}, {"PET_NODE_RANK": "1"}, {"TRAINMASTER_LAUNCHER": "none"}, {"PET_NODE_RANK": ""}]
)
def test_a_single_replica_the_other_ranks_and_independent_replicas_are_not_watched(watch, env):
    seen = watch(**env)
    assert seen.peers.check_at is None
    seen.peers.finish(WARN_S)
    assert seen.sentences == []


def test_a_job_of_a_moment_is_not_judged(watch):
    seen = watch()
    seen.peers.finish(1.0)
    assert seen.sentences == []
