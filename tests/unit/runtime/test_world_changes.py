"""What the runtime makes of the worlds that it is told of."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trainmaster_runtime.record import StateFolder
from trainmaster_runtime.replica.worlds import WorldChanges, hold_s

from executors.kubernetes.pods.pod_writer import encode_world
from tests.orders import bare_order


@pytest.fixture
def worlds(tmp_path: Path) -> WorldChanges:
    order: Any = SimpleNamespace(
        world=1,
        joins_warm=False,
        command="train",
        args=[],
        env={"RANK": "1"},
        process_env=[{}],
        files={},
        request_path=None,
    )
    return WorldChanges(order, StateFolder(str(tmp_path)), str(tmp_path))


def update(number: int, rank: str) -> dict[str, Any]:
    return {"world": number, "command": "train", "args": [], "env": {"RANK": rank}, "process_env": [{}], "files": {}}


def test_only_a_newer_world_is_news_and_only_once(worlds: WorldChanges, tmp_path: Path) -> None:
    state = StateFolder(str(tmp_path))
    assert worlds.newer_world() is None
    state.write("world.json", update(1, "1"))
    assert worlds.newer_world() is None
    state.write("world.json", update(3, "0"))
    newer_world = worlds.newer_world()
    assert newer_world is not None
    assert worlds.newer_world() is None
    worlds.enter(newer_world)
    assert worlds.facts() == {"world": 3, "keeps_processes": False, "is_ready": False}


def test_processes_find_their_environment_of_the_newest_world(tmp_path: Path) -> None:
    order: Any = SimpleNamespace(
        world=2,
        joins_warm=False,
        command="train",
        args=[],
        env={"SIZE": "4"},
        process_env=[{"RANK": "2"}, {"RANK": "3"}],
        request_path=None,
    )
    WorldChanges(order, StateFolder(str(tmp_path / "state")), str(tmp_path)).publish()
    assert json.loads((tmp_path / "world.json").read_text()) == {
        "world": 2,
        "processes": [{"SIZE": "4", "RANK": "2"}, {"SIZE": "4", "RANK": "3"}],
    }


def test_one_that_joins_is_ready_when_its_process_says_so_or_when_there_is_none_yet(tmp_path: Path) -> None:
    order: Any = SimpleNamespace(world=0, joins_warm=True, env={}, process_env=[{}], request_path=None)
    warm = WorldChanges(order, StateFolder(str(tmp_path)), str(tmp_path))
    assert not warm.facts()["is_ready"]
    (tmp_path / "keeps-0").touch()
    assert warm.facts() == {"world": 0, "keeps_processes": True, "is_ready": True}
    warm.forget_processes()
    order.joins_warm = False
    assert warm.facts() == {"world": 0, "keeps_processes": False, "is_ready": True}


def test_who_failed_of_a_lost_peer_waits_long_who_was_killed_not_at_all() -> None:
    of_a_peer = "RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:4"
    assert hold_s(of_a_peer, was_killed=False) > hold_s("KeyError: 'label'", was_killed=False) > 0
    assert hold_s(of_a_peer, was_killed=True) == 0


def test_an_engine_that_changes_a_file_of_its_own_is_heard_too(worlds: WorldChanges, tmp_path: Path) -> None:
    request_folder = tmp_path / "asked"
    request_folder.mkdir()
    order: Any = SimpleNamespace(
        world=1,
        joins_warm=False,
        command=["train"],
        args=[],
        env={"RANK": "1", "SIZE": "2", "API_KEY": "hunter2"},
        process_env=[{}],
        files={},
        request_path=str(request_folder / "stop"),
    )
    worlds = WorldChanges(order, StateFolder(str(tmp_path)), str(tmp_path))
    (request_folder / "world").touch()
    assert worlds.newer_world() is None
    whole = encode_world(
        bare_order(world=2, env={"RANK": "0", "API_KEY": "hunter2"}, job_variables=frozenset({"API_KEY"}))
    )
    (request_folder / "world").write_text(whole[:40])
    assert worlds.newer_world() is None  # half of it is there
    (request_folder / "world").write_text(whole)
    newer_world = worlds.newer_world()
    assert newer_world is not None
    worlds.enter(newer_world)
    assert worlds.number == 2
    assert order.env == {"RANK": "0", "API_KEY": "hunter2"}
    assert order.command == ["true"]


def test_who_joins_learns_from_the_others_folder_that_the_program_keeps_its_processes(tmp_path: Path) -> None:
    shared = tmp_path / "logs"
    shared.mkdir()

    def replica(name: str, world: int) -> WorldChanges:
        job_folder = tmp_path / name
        job_folder.mkdir()
        order: Any = SimpleNamespace(world=world, joins_warm=False, env={}, process_env=[{}], request_path=None)
        return WorldChanges(order, StateFolder(str(job_folder)), str(job_folder), str(shared))

    first = replica("first", 1)
    first.show()
    cold = replica("cold", 0)
    assert cold.facts()["is_ready"]
    cold.show()
    assert (tmp_path / "cold" / "joins").exists()
    (tmp_path / "first" / "keeps-0").touch()
    first.show()
    warm = replica("warm", 0)
    assert not warm.facts()["is_ready"]  # its command begins at once, and says so when it has imported what it needs
    warm.show()
    assert not (tmp_path / "warm" / "joins").exists()
    (tmp_path / "warm" / "keeps-0").touch()
    warm.show()
    assert (tmp_path / "warm" / "joins").exists()
