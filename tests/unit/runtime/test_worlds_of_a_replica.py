"""What the runtime makes of the worlds that it is told of."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from trainmaster_runtime.record import StateFolder
from trainmaster_runtime.worlds import Worlds, hold_s


@pytest.fixture
def worlds(tmp_path: Path) -> Worlds:
    order: Any = SimpleNamespace(
        world=1, joins_warm=False, command="train", args=[], env={"RANK": "1"}, process_env=[{}], files={}
    )
    return Worlds(order, StateFolder(str(tmp_path)), str(tmp_path))


def told(number: int, rank: str) -> dict[str, Any]:
    return {"world": number, "command": "train", "args": [], "env": {"RANK": rank}, "process_env": [{}], "files": {}}


def test_only_a_newer_world_is_news_and_only_once(worlds: Worlds, tmp_path: Path) -> None:
    state = StateFolder(str(tmp_path))
    assert worlds.news() is None
    state.write("world.json", told(1, "1"))
    assert worlds.news() is None
    state.write("world.json", told(3, "0"))
    news = worlds.news()
    assert news is not None
    assert worlds.news() is None
    worlds.take(news)
    assert worlds.facts() == {"world": 3, "keeps_processes": False, "is_ready": False}


def test_processes_find_their_environment_of_the_newest_world(tmp_path: Path) -> None:
    order: Any = SimpleNamespace(
        world=2,
        joins_warm=False,
        command="train",
        args=[],
        env={"SIZE": "4"},
        process_env=[{"RANK": "2"}, {"RANK": "3"}],
    )
    Worlds(order, StateFolder(str(tmp_path / "state")), str(tmp_path)).publish()
    assert json.loads((tmp_path / "world.json").read_text()) == {
        "world": 2,
        "processes": [{"SIZE": "4", "RANK": "2"}, {"SIZE": "4", "RANK": "3"}],
    }


def test_one_that_joins_is_ready_when_its_process_says_so_or_when_there_is_none_yet(tmp_path: Path) -> None:
    order: Any = SimpleNamespace(world=0, joins_warm=True, env={}, process_env=[{}])
    warm = Worlds(order, StateFolder(str(tmp_path)), str(tmp_path))
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
