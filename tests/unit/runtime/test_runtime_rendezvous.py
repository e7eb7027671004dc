from __future__ import annotations

import http.client
import socket
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from trainmaster_runtime import prepare, rendezvous
from trainmaster_runtime.rendezvous import serve, wait_for


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def ask(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_a_key_is_unknown_until_it_is_set(port, monkeypatch):
    monkeypatch.setattr(rendezvous, "PATIENCE_S", 0.0)
    log_text = []
    serve(port, log_text.append)
    assert ask(port, "GET", "/global/0") == (404, b"")
    assert ask(port, "PUT", "/global/0", b"\x00address") == (200, b"")
    assert ask(port, "GET", "/global/0") == (200, b"\x00address")
    assert ask(port, "GET", "/local/0") == (404, b"")
    assert ask(port, "DELETE", "/global/0") == (200, b"")
    assert ask(port, "GET", "/global/0") == (404, b"")
    assert log_text == []


def test_a_port_in_use_is_reported_and_does_not_raise():
    log_text = []
    with socket.create_server(("", 0)) as server:
        serve(server.getsockname()[1], log_text.append)
    assert "not served" in log_text[0]


def test_each_attempts_store_begins_empty_and_a_deleted_scope_is_gone(port, monkeypatch):
    monkeypatch.setattr(rendezvous, "PATIENCE_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        next_port = server.getsockname()[1]
    serve(port, lambda _: None)
    for key in ("global/0", "global/1", "local_h/0"):
        ask(port, "PUT", f"/{key}", b"address")
    serve(next_port, lambda _: None)
    assert ask(next_port, "GET", "/global/0") == (404, b"")
    assert ask(port, "DELETE", "/global") == (200, b"")
    assert [ask(port, "GET", f"/{key}")[0] for key in ("global/0", "global/1", "local_h/0")] == [404, 404, 200]


def test_the_store_is_bounded(port, monkeypatch):
    monkeypatch.setattr(rendezvous, "VALUE_BYTES", 10)
    monkeypatch.setattr(rendezvous, "STORE_BYTES", 25)
    serve(port, lambda _: None)
    assert [ask(port, "PUT", f"/global/{n}", b"0123456789")[0] for n in range(3)] == [200, 200, 507]
    assert ask(port, "PUT", "/global/3", b"0123456789a")[0] == 413
    assert ask(port, "PUT", "/global/4", b"01234") == (200, b"")
    for length in ("-1", "\u00b2", "9" * 5_000):  # the second is a digit of another kind
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("PUT", "/global/5", headers={"Content-Length": length})
        assert connection.getresponse().status == 413
        connection.close()


def test_a_gang_of_one_machine_is_served_on_its_loopback_alone(port):
    serve(port, lambda _: None, "127.0.0.1")
    assert ask(port, "PUT", "/global/0", b"address")[0] == 200
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port), timeout=10)


def init_of_horovod(port, rank, size=2):
    """What Horovod 0.28.1 asks in ``hvd.init()`` of one rank in each replica, as it was recorded. Returns what it
    got.
    """
    got = {}
    for scope, number, count in (("global", rank, size), (f"local_worker-{rank}", 0, 1), ("cross_0", rank, size)):
        assert ask(port, "PUT", f"/{scope}/rank_{number}", b"node-1") == (200, b"")
        for other in range(number):
            assert ask(port, "GET", f"/{scope}/rank_{other}")[0] in (200, 404)
        # The addresses for each other rank; of a single one, nothing.
        assert ask(port, "PUT", f"/{scope}/{number}", bytes([number]) * 68 * (count if count > 1 else 0)) == (200, b"")
        for other in set(range(count)) - {number}:
            status, got[f"{scope}/{other}"] = ask(port, "GET", f"/{scope}/{other}")
            assert status == 200
            assert ask(port, "GET", f"/{scope}/{other}") == (200, got[f"{scope}/{other}"])
        yield scope
        assert ask(port, "DELETE", f"/{scope}/{number}") == (200, b"")
    yield got


def test_what_horovods_client_asks_is_answered_also_when_it_begins_again(port):
    serve(port, lambda _: None, "127.0.0.1")
    with ThreadPoolExecutor(2) as ranks:
        for _ in ("hvd.init()", "hvd.shutdown(), hvd.init()"):
            sides = [init_of_horovod(port, rank) for rank in range(2)]
            # Nobody takes its addresses away before all have met: there is a barrier between.
            steps = [list(ranks.map(next, sides)) for _ in range(4)]
            assert steps[-1] == [
                {"global/1": b"\1" * 136, "cross_0/1": b"\1" * 136},
                {"global/0": bytes(136), "cross_0/0": bytes(136)},
            ]


def test_who_asks_for_a_rank_that_comes_later_is_answered_when_it_has_come(port):
    serve(port, lambda _: None, "127.0.0.1")
    with ThreadPoolExecutor(2) as early:
        requested = [early.submit(ask, port, "GET", "/global/1") for _ in range(2)]
        # What no rank waits for has its answer at once.
        assert ask(port, "GET", "/global/rank_1") == (404, b"")
        assert ask(port, "PUT", "/global/0", b"zero") == (200, b"")
        assert ask(port, "PUT", "/global/1", b"one") == (200, b"")
        assert [item.result(60) for item in requested] == [(200, b"one")] * 2


def test_those_who_wait_are_bounded(port, monkeypatch):
    monkeypatch.setattr(rendezvous, "MAX_AWAITED", 0)
    serve(port, lambda _: None, "127.0.0.1")
    assert ask(port, "GET", "/global/1") == (404, b"")


@pytest.fixture
def horovod(tmp_path, port):
    """The variables of a program that finds Horovod by its PATH, beside a Python's packages."""
    package = tmp_path / "lib/python3.9/site-packages/horovod"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    address = {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}
    return {"PATH": f"/nowhere/bin:{tmp_path}/bin", "HOROVOD_RANK": "1", **address}


def test_horovod_begins_when_the_rendezvous_is_there(horovod, port):
    pauses = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            serve(port, lambda _: None, "127.0.0.1")

    wait_for(horovod, lambda: False, pause)
    assert len(pauses) == 3
    assert ask(port, "PUT", "/global/0", b"address") == (200, b"")


def test_no_replica_waits_for_a_rank_0_that_is_over(horovod):
    pauses = []
    wait_for(horovod, lambda: len(pauses) == 2, pauses.append)
    assert len(pauses) == 2


@pytest.mark.parametrize(
    "changes", [{"HOROVOD_RANK": "0"}, {"PATH": "/nowhere/bin"}, {"HOROVOD_GLOO_RENDEZVOUS_PORT": ""}]
)
def test_rank_0_and_whoever_has_no_horovod_begin_at_once(horovod, changes):
    wait_for({**horovod, **changes}, lambda: pytest.fail("it waits"), lambda _: None)


def test_horovod_is_found_by_pythonpath_too(horovod, tmp_path):
    env = {**horovod, "PATH": "/nowhere/bin", "PYTHONPATH": f"/nowhere:{tmp_path}/lib/python3.9/site-packages"}
    pauses = []
    wait_for(env, lambda: bool(pauses), pauses.append)
    assert len(pauses) == 1


def test_a_container_waits_for_the_rendezvous_until_rank_0_says_that_it_is_over(horovod, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "OUTPUT", str(tmp_path))
    logs = tmp_path / ".trainmaster/logs/1"
    logs.mkdir(parents=True)
    env = {**horovod, "HOROVOD_GLOO_RENDEZVOUS_ADDR": "worker-0.invalid"}
    order: Any = SimpleNamespace(env={}, process_env=[env], peers_grace_s=600.0, log_name="1/worker-1.log")
    reported, pauses = [], []
    state: Any = SimpleNamespace(write_status=lambda **status: reported.append(status))

    def check_stop(seconds):
        pauses.append(seconds)
        (logs / ".worker-0.ended").touch()

    prepare._wait_for_rendezvous(order, state, check_stop)
    assert len(pauses) == 1
    assert "rendezvous" in reported[0]["detail"]
