"""The library's part of an elastic gang, with the platform's world file written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from trainmaster_train import elastic
from trainmaster_train.elastic import group, worlds


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "world.json"
    monkeypatch.setenv("TRAINMASTER_WORLD_FILE", str(path))
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    return path


def write(file: Path, number: int, **env: str) -> None:
    file.write_text(json.dumps({"world": number, "processes": [env]}))


def test_the_first_world_is_read_and_the_process_says_that_it_stays(file: Path) -> None:
    write(file, 3, RANK="1", WORLD_SIZE="2", MASTER_ADDR="10.0.0.1", MASTER_PORT="29502")
    world = elastic.first_world()
    assert (world.number, world.rank, world.size) == (3, 1, 2)
    assert (world.master_addr, world.master_port) == ("10.0.0.1", 29502)
    assert (file.parent / "keeps-0").exists()


def test_a_world_that_does_not_come_is_an_error_and_an_old_one_does_not_count(file: Path) -> None:
    write(file, 3, RANK="0", WORLD_SIZE="1")
    with pytest.raises(elastic.WorldError, match=r"no world after 3 came within 0\.05 s"):
        elastic.next_world(3, 0.05)
    assert elastic.next_world(2, 0.05).number == 3


def test_entering_a_world_changes_what_the_process_reads_of_itself(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trainmaster_train import current

    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    write(file, 2, RANK="2", WORLD_SIZE="3")
    worlds.enter(elastic.next_world(1))
    assert (current().rank, current().world_size) == (2, 3)


def test_without_the_platform_there_is_one_world(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINMASTER_WORLD_FILE", raising=False)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert elastic.first_world() == elastic.ElasticWorld()
    with pytest.raises(elastic.WorldError, match="not elastic"):
        elastic.next_world(1)


def test_a_state_goes_back_to_its_last_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.delenv("TRAINMASTER_WORLD_FILE", raising=False)
    model = torch.nn.Linear(1, 1)
    state = elastic.State(model=model, step=0)
    state.step = 5
    state.commit()
    retained = model.weight.detach().clone()
    with torch.no_grad():
        model.weight += 1
    state.step = 6
    state.restore()
    assert state.step == 5
    assert torch.equal(model.weight, retained)


def test_a_part_may_not_hide_what_the_state_itself_is() -> None:
    with pytest.raises(ValueError, match="commit: choose another name"):
        elastic.State(commit=1)


def test_a_program_s_own_error_is_no_lost_peer() -> None:
    assert elastic.is_peer_loss(RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer"))
    assert not elastic.is_peer_loss(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not elastic.is_peer_loss(ValueError("Connection closed by peer"))
    assert not elastic.is_peer_loss(RuntimeError("timeout: the tokenizer's Socket server did not answer"))
    assert not elastic.is_peer_loss(RuntimeError("Timed out waiting for the data loader"))


def test_rank_0_whose_port_is_taken_asks_for_it_now_and_then(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("torch.distributed")
    clock = SimpleNamespace(now=0.0, requested=0)

    def taken(*_args: object, **_options: object) -> None:
        clock.requested += 1
        assert clock.requested < 1000, "it never pauses"
        raise RuntimeError("address already in use")

    def sleep(seconds: float) -> None:
        clock.now += seconds

    write(file, 3, RANK="0", WORLD_SIZE="2")
    monkeypatch.setattr(distributed, "TCPStore", taken)
    monkeypatch.setattr(group, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    world = elastic.ElasticWorld(number=3, rank=0, size=2, master_addr="127.0.0.1", master_port=29500)
    with pytest.raises(elastic.PeerLost, match=r"rank 0 at 127\.0\.0\.1:29500 for too long: address already in use"):
        elastic.Group("gloo", timeout_s=20).join(world)
    assert 10 <= clock.requested <= 400
