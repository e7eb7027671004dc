"""Where replicas find a platform of one machine."""

from __future__ import annotations

import pytest

from embedded import listening
from embedded.errors import CannotStart


@pytest.fixture(autouse=True)
def _no_setting(monkeypatch):
    monkeypatch.delenv("TRAINMASTER_REPLICA_API_URL", raising=False)


def test_plain_processes_reach_the_platform_where_its_user_does():
    assert listening.listen_for_replicas("process", "127.0.0.1", 1234) == ([], None)


def test_containers_reach_it_at_the_gateway_of_the_bridge(monkeypatch):
    monkeypatch.setattr(listening, "bridge_gateway", lambda: "127.0.0.2")
    sockets, url = listening.listen_for_replicas("docker", "127.0.0.1", 0)
    try:
        assert [one.getsockname()[0] for one in sockets] == ["127.0.0.2"]
        assert url == "http://127.0.0.2:0"
    finally:
        for one in sockets:
            one.close()


def test_an_address_of_the_network_serves_containers_too():
    assert listening.listen_for_replicas("docker", "192.0.2.7", 80) == ([], "http://192.0.2.7:80")


def test_pods_need_to_be_informed_the_way():
    with pytest.raises(CannotStart, match="TRAINMASTER_REPLICA_API_URL"):
        listening.listen_for_replicas("kubernetes", "127.0.0.1", 8765)


def test_what_the_administrator_says_wins(monkeypatch):
    monkeypatch.setenv("TRAINMASTER_REPLICA_API_URL", "http://10.0.0.1:8765")
    assert listening.listen_for_replicas("kubernetes", "127.0.0.1", 8765) == ([], None)


@pytest.mark.parametrize(
    ("host", "expected"), [("localhost", True), ("127.0.0.5", True), ("::1", True), ("10.1.2.3", False), ("a.b", False)]
)
def test_what_loopback_is(host, expected):
    assert listening.is_loopback(host) is expected
