"""Who lacks the token or sends nonsense is turned away, and hurts nobody."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import zmq  # noqa: E402
from trainmaster_train.ps import ParameterServerError, RefusedError  # noqa: E402
from trainmaster_train.ps.errors import LostError  # noqa: E402
from trainmaster_train.ps.wire.messages import PROTOCOL, Seal, WireError, job_key, plain, zap_password  # noqa: E402

from tests.unit.train.ps.loopback import KEY, WITHIN_S, Cluster, step  # noqa: E402


def test_a_wrong_token_is_named_at_once_and_disturbs_no_other(
    cluster: Callable[..., Cluster], capfd: pytest.CaptureFixture[str]
) -> None:
    job = cluster()
    model, servers = job.join()

    with pytest.raises(WireError, match="rejects this replica's token"):
        job.join(1, key=b"another key")
    step(model, servers, 1)

    assert "a connection with a wrong token was refused" in capfd.readouterr().out


def test_a_peer_with_the_password_but_without_the_key_is_refused(
    cluster: Callable[..., Cluster], capfd: pytest.CaptureFixture[str]
) -> None:
    job = cluster()
    model, servers = job.join()
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        stranger.plain_username, stranger.plain_password = b"x", zap_password(KEY)
        stranger.connect(f"tcp://{job.addresses[0]}")
        stranger.send(plain({"nonce": "00" * 32, "protocol": PROTOCOL}))
        assert stranger.poll(int(WITHIN_S * 1000))
        assert "proof" in stranger.recv().decode()
        stranger.send(b"0" * 64)
        for hostile in (b"", b"\xff", b"[1]", b"{}", b'{"nonce": 3}', b'{"nonce": "00", "protocol": 1}', b"[" * 50_000):
            stranger.send_multipart([hostile, b"more"])
        stranger.send(plain({"nonce": "00" * 32, "protocol": PROTOCOL + 1}))
        step(model, servers, 1)
        step(model, servers, 2)

    out = capfd.readouterr().out
    assert "an unknown process is disconnected: it does not know this attempt's token" in out
    assert servers.version == 2


JOIN = {"worker": 1, "name": "worker 1", "chief": False, "ps": 1, "mode": "async", "wire": "full", "signature": {}}


@pytest.mark.parametrize(
    ("header", "frames"),
    [
        ({"op": "push"}, []),
        ({"op": "push", "version": 0, "blocks": [7], "exponents": [0]}, [b"1234"]),
        ({"op": "push", "version": 0, "blocks": [0], "exponents": [0]}, []),
        ({"op": "push", "version": 0, "blocks": [0], "exponents": [0]}, [b"123"]),
        ({"op": "rows", "table": "nowhere"}, [b"12345678"]),
        ({"op": "erase"}, []),
        ({"op": "push", "version": 0, "blocks": [], "exponents": [], "last": True}, []),
        ({"op": "push", "version": float("inf"), "blocks": [], "exponents": []}, []),
        ({"op": "join", **JOIN, "signature": [1]}, []),
        ({"op": "join", **JOIN, "signature": {"tensors": [1]}}, []),
        ({"op": "join", **JOIN, "worker": float("inf")}, []),
        ({"op": "join", **JOIN, "worker": 10**15}, []),
        ({"op": "initialise", "table": ["unhashable"], "begin": 0}, [b"1234"]),
        ({"op": "share", "slots": 0}, []),
        ({"op": "share", "slots": 1}, []),
        ({"op": "push", "version": 0, "blocks": [], "exponents": [], "last": True, "shared": 7}, []),
    ],
)
def test_a_request_that_makes_no_sense_ends_at_most_its_own_connection(
    cluster: Callable[..., Cluster], header: dict[str, Any], frames: list[bytes]
) -> None:
    job = cluster(workers=2)
    model, servers = job.join(0)
    _, other = job.join(1)
    other._shards.connections[0].send(header, frames)

    for number in range(3):
        step(model, servers, number)
    assert servers.version == 3


def test_first_values_of_a_wrong_size_are_refused_in_words(cluster: Callable[..., Cluster]) -> None:
    job = cluster(make=lambda: torch.nn.Embedding(4, 3, sparse=True), optimizer=plain_sgd)
    job.servers[0]._updates.is_initialised = True
    _, servers = job.join()
    job.servers[0]._updates.is_initialised = False
    connection = servers._shards.connections[0]

    number = connection.send({"op": "initialise", "table": "weight", "begin": 0}, [b"1234" * 4])

    with pytest.raises(RefusedError, match=r"a malformed request \(RuntimeError: .*size"):
        connection.answer(number, WITHIN_S, "the first values")
    job.servers[0]._updates.is_initialised = True
    servers.pull(tables=True)


def plain_sgd(model: Any) -> Any:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_peer_with_an_oversized_message_is_disconnected(cluster: Callable[..., Cluster]) -> None:
    job = cluster(workers=2)
    model, servers = job.join(0)
    _, other = job.join(1)
    connection = other._shards.connections[0]

    number = connection.send({"op": "pull"}, [bytes(18 << 20)])

    with pytest.raises(LostError, match=r"ps 0 at .* is gone"):
        connection.answer(number, WITHIN_S, "a pull")
    step(model, servers, 1)
    assert servers.version == 1


def test_a_changed_repeated_or_reordered_header_is_no_header() -> None:
    one, other = Seal(b"k", b"n", is_server=False), Seal(b"k", b"n", is_server=True)
    first, second = one.close({"op": "pull"}), one.close({"op": "bye"})
    with pytest.raises(WireError, match="out of order"):
        other.open(second, 0)
    assert other.open(first, 0)["op"] == "pull"
    for bad in (first, second[:-1] + b" ", b"", first[::-1]):
        with pytest.raises(WireError, match="seal is wrong"):
            other.open(bad, 0)
    with pytest.raises(WireError, match="more or fewer frames"):
        other.open(second, 1)
    with pytest.raises(WireError, match="seal is wrong"):  # its own, sent back
        one.open(first, 0)


def test_the_key_is_the_token_of_the_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PS_KEY", "by hand")
    by_hand = job_key(None)
    (tmp_path / "token").write_text("tma_1\n")
    assert job_key(tmp_path / "token") != by_hand
    monkeypatch.delenv("PS_KEY")
    with pytest.raises(ParameterServerError, match="set PS_KEY"):
        job_key(None)
