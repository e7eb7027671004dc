"""Worlds of this process, as the platform announces them while it runs. Standard library only."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional

_POLL_S = 0.01
# The platform forms a new world in a fraction of a second after a loss is detected; for a node that takes a minute.
PATIENCE_S = 180.0
_JOIN_PATIENCE_S = 1800.0


class WorldError(RuntimeError):
    """There is no next world, or it is invalid; the message says what was waited for."""


@dataclass(frozen=True)
class ElasticWorld:
    """One generation of the gang. ``number`` grows with each; ``rank`` is from 0 to ``size`` - 1.

    Processes of the previous world keep their order, and come before new ones. ``env``: environment variables of the
    frameworks for this process in this world.
    """

    number: int = 1
    rank: int = 0
    size: int = 1
    local_rank: int = 0
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    env: Mapping[str, str] = field(default_factory=dict)


def is_elastic() -> bool:
    """Whether the platform may change the world of this process."""
    return bool(os.environ.get("TRAINMASTER_WORLD_FILE"))


def first_world() -> ElasticWorld:
    """The first world of this process; one that joins a running gang waits for its rank.

    Raises:
        WorldError: no world came within half an hour.
    """
    if not is_elastic():
        return _world(1, os.environ)
    _keep_process()
    return next_world(0, _JOIN_PATIENCE_S)


def own_world() -> ElasticWorld:
    """The current world of this process: the one it was started in, or has entered since."""
    return _world(int(os.environ.get("TRAINMASTER_WORLD") or 1), os.environ)


def newest_number() -> int:
    """The number of the newest announced world; 0: this process joins, and has none yet. Cheap."""
    content = _read_world_file()
    return int(content.get("world") or 0) if content is not None else 1


def newest_size() -> int:
    """The number of processes of the newest announced world."""
    content = _read_world_file()
    processes = content["processes"] if content is not None else [os.environ]
    return int(processes[0].get("WORLD_SIZE") or 1)


def next_world(after: int, patience_s: float = PATIENCE_S) -> ElasticWorld:
    """Wait for a world with a number larger than ``after``; returns the newest.

    Raises:
        WorldError: none came within ``patience_s`` seconds, or the gang is not elastic.
    """
    if not is_elastic():
        raise WorldError("this gang is not elastic: the platform starts it again as a whole")
    end = time.monotonic() + patience_s
    while True:
        content = _read_world_file()
        number = int(content.get("world") or 0) if content is not None else 0
        if content is not None and number > after:
            processes = content["processes"]
            return _world(number, processes[_local_rank() if _local_rank() < len(processes) else 0])
        if time.monotonic() >= end:
            raise WorldError(
                f"no world after {after} came within {patience_s:g} s: the platform is unreachable, "
                "or too few workers are left"
            )
        time.sleep(_POLL_S)  # noqa: TID251 - polls a file, with a deadline above


def enter(world: ElasticWorld) -> None:
    """Set this process's environment to that of ``world``."""
    os.environ.update(world.env)
    if is_elastic():
        os.environ["TRAINMASTER_WORLD"] = str(world.number)


def _keep_process() -> None:
    """Tell the runtime that this process goes from world to world itself, and must not be restarted for each."""
    folder = os.path.dirname(os.environ["TRAINMASTER_WORLD_FILE"])
    with open(os.path.join(folder, f"keeps-{_local_rank()}"), "w") as stream:
        stream.write(str(os.getpid()))


def _read_world_file() -> Optional[Dict[str, Any]]:
    try:
        with open(os.environ.get("TRAINMASTER_WORLD_FILE", ""), "rb") as stream:
            content = json.loads(stream.read())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK") or 0)


def _world(number: int, env: Mapping[str, str]) -> ElasticWorld:
    return ElasticWorld(
        number,
        int(env.get("RANK") or 0),
        int(env.get("WORLD_SIZE") or 1),
        int(env.get("LOCAL_RANK") or 0),
        env.get("MASTER_ADDR") or "127.0.0.1",
        int(env.get("MASTER_PORT") or 0),
        {} if env is os.environ else dict(env),
    )
