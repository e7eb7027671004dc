from __future__ import annotations

import http.client
import socket

import pytest
from trainmaster_runtime import rendezvous
from trainmaster_runtime.rendezvous import serve


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def ask(port, method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def test_a_key_is_unknown_until_it_is_set(port):
    said = []
    serve(port, said.append)
    assert ask(port, "GET", "/global/0") == (404, b"")
    assert ask(port, "PUT", "/global/0", b"\x00address") == (200, b"")
    assert ask(port, "GET", "/global/0") == (200, b"\x00address")
    assert ask(port, "GET", "/local/0") == (404, b"")
    assert ask(port, "DELETE", "/global/0") == (200, b"")
    assert ask(port, "GET", "/global/0") == (404, b"")
    assert said == []


def test_a_port_in_use_is_told_and_does_not_raise():
    said = []
    with socket.create_server(("", 0)) as server:
        serve(server.getsockname()[1], said.append)
    assert "not served" in said[0]


def test_each_attempts_store_begins_empty_and_a_deleted_scope_is_gone(port):
    with socket.create_server(("127.0.0.1", 0)) as server:
        next_port = server.getsockname()[1]
    serve(port, lambda _: None)
    for key in ("global/0", "global/1", "local_h/0"):
        ask(port, "PUT", f"/{key}", b"address")
    serve(next_port, lambda _: None)
    assert ask(next_port, "GET", "/global/0") == (404, b"")
    assert ask(port, "DELETE", "/global") == (200, b"")
    assert [ask(port, "GET", f"/{key}")[0] for key in ("global/0", "global/1", "local_h/0")] == [404, 404, 200]


def test_what_is_kept_is_bounded(port, monkeypatch):
    monkeypatch.setattr(rendezvous, "_VALUE_BYTES", 10)
    monkeypatch.setattr(rendezvous, "_STORE_BYTES", 25)
    serve(port, lambda _: None)
    assert [ask(port, "PUT", f"/global/{n}", b"0123456789")[0] for n in range(3)] == [200, 200, 507]
    assert ask(port, "PUT", "/global/3", b"0123456789a")[0] == 413
    assert ask(port, "PUT", "/global/4", b"01234") == (200, b"")
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("PUT", "/global/5", headers={"Content-Length": "-1"})
    assert connection.getresponse().status == 413
    connection.close()


def test_a_gang_of_one_machine_is_served_on_its_loopback_alone(port):
    serve(port, lambda _: None, "127.0.0.1")
    assert ask(port, "PUT", "/global/0", b"address")[0] == 200
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", port), timeout=10)
