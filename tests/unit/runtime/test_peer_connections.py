from __future__ import annotations

import json
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from trainmaster_runtime.process import procfs
from trainmaster_runtime.replica.peer_connections import KIND, WARN_S, PeerConnections

# Connects to the port that it is given, or to an own one, and stays until its stdin ends.
_CONNECTS = (
    "import socket, sys; s = socket.create_server(('127.0.0.1', 0)); "
    "port = int(sys.argv[1]) or s.getsockname()[1]; "
    "c = socket.create_connection(('127.0.0.1', port)); int(sys.argv[1]) and c.recv(1); "  # it is accepted
    "print(port, flush=True); input()"
)
# Accepts connections until its stdin ends; it is no child of the tests, as another replica is none of this one.
_ACCEPTS = (
    "import socket, threading; s = socket.create_server(('127.0.0.1', 0)); accepted = []; "
    "accept = lambda: (accepted.append(s.accept()), accepted[-1][0].send(b'x')); "
    "threading.Thread(target=lambda: [accept() for _ in range(9)], daemon=True).start(); "
    "print(s.getsockname()[1], flush=True); input()"
)
_ORPHANED = 'exec 3<&0; "$0" -c "$1" <&3 &'


@pytest.fixture
def watch(tmp_path):
    """``watch(**env)``: of rank 0 in a gang of two on this machine; ``.sentences`` are the log's."""

    def watch(world=None, **env):
        order = SimpleNamespace(role="worker", index=0, attempt_id="att-1", mark="att-1/worker-0.1", world=world)
        report = tmp_path / "report.jsonl"
        report.touch()
        sentences = []
        log = SimpleNamespace(say=sentences.append)
        gang = {"PET_NNODES": "2", "PET_NODE_RANK": "0", **env}
        peers = PeerConnections(order, gang, log, started_at=0.0, report_path=str(report))
        return SimpleNamespace(peers=peers, sentences=sentences, events=lambda: report.read_text().splitlines())

    return watch


@pytest.fixture
def connect():
    """``connect(port) -> (process, port)``: a process of this replica connects to the port, or to itself for 0."""
    processes = []

    def connect(port):
        command = [sys.executable, "-c", _CONNECTS, str(port)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        processes.append(process)
        return process, int(process.stdout.readline())

    yield connect
    for process in processes:
        if process.poll() is None:
            process.communicate(b"\n")


@pytest.fixture
def replica():
    """``replica(mark) -> port``: of a process with that mark, which accepts connections."""
    shells = []

    def replica(mark):
        shell = subprocess.Popen(
            ["/bin/sh", "-c", _ORPHANED, sys.executable, _ACCEPTS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={procfs.MARK_VARIABLE: mark},
        )
        shells.append(shell)
        return int(shell.stdout.readline())

    yield replica
    for shell in shells:
        shell.communicate(b"\n")


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


def test_a_connection_to_a_process_of_another_replica_counts(watch, connect, replica):
    connect(replica("att-1/worker-1.1"))
    seen = watch()
    seen.peers.check(10.0)
    assert seen.peers.check_at is None
    seen.peers.finish(WARN_S)
    assert seen.sentences == []


def test_a_connected_replica_hides_no_other(watch, connect, replica):
    layout = {"roles": {"worker": [f"127.0.0.1:{port}" for port in range(1, 5)]}}
    connect(replica("att-1/worker-2.1"))
    seen = watch(PET_NNODES="4", TRAINMASTER_LAYOUT=json.dumps(layout))
    seen.peers.check(10.0)
    seen.peers.check(WARN_S + 10.0)
    connect(replica("att-1/worker-3.1"))
    seen.peers.check(WARN_S + 20.0)
    seen.peers.finish(WARN_S + 30.0)
    first, last = seen.sentences
    assert "worker-0 has not connected to worker-1, worker-3 for 130 s: 2 of the 4 replicas train apart" in first
    assert "worker-0 ended and has never connected to worker-1: 1 of the 4 replicas train apart" in last


def test_a_connection_of_a_replica_to_itself_does_not_count(watch, connect):
    process, port = connect(0)
    seen = watch(MASTER_PORT=str(port))
    seen.peers.check(10.0)
    process.communicate(b"\n")  # the kernel lists its end still
    seen.peers.finish(WARN_S)
    assert len(seen.sentences) == 1


def test_beside_parameter_servers_and_in_elastic_gangs_any_replica_is_enough(watch, connect, replica):
    layout = {"roles": {"worker": ["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"], "ps": ["127.0.0.1:4"]}}
    connect(replica("att-1/ps-0.1"))
    seen = watch(PET_NNODES="3", TRAINMASTER_LAYOUT=json.dumps(layout))
    seen.peers.check(10.0)
    assert seen.peers.check_at is None
    connect(replica("att-1/worker-1.1"))
    seen = watch(PET_NNODES="3", world=1)
    seen.peers.check(10.0)
    assert seen.peers.check_at is None


def test_replicas_with_own_addresses_are_known_by_these_alone(watch, connect, monkeypatch):
    layout = {"roles": {"worker": ["one.invalid:1", "two.invalid:1"]}}
    addresses = {"one.invalid": "198.51.100.1", "two.invalid": "198.51.100.2"}
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *_, **__: [(0, 0, 0, "", (addresses.get(host, "198.51.100.1"), 0))],
    )
    process, port = connect(0)
    process.communicate(b"\n")
    seen = watch(MASTER_PORT=str(port), TRAINMASTER_LAYOUT=json.dumps(layout))
    seen.peers.finish(WARN_S)
    (sentence,) = seen.sentences
    assert "the 2 replicas train alone" in sentence


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


def test_a_connection_to_a_process_of_another_job_does_not_count(watch, connect, replica):
    port = replica("att-2/worker-1.1")
    connect(port)
    seen = watch(MASTER_PORT=str(port))
    seen.peers.check(10.0)
    assert seen.peers.check_at is not None


def test_processes_of_an_attempt_are_found_without_the_own_replicas(replica):
    replica("att-1/worker-1.1")
    replica("att-1/worker-0.1")
    found = procfs.of_attempt("att-1", "att-1/worker-0.1")
    assert set(found.values()) == {"worker-1"}
    assert procfs.socket_inodes(list(found))


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
