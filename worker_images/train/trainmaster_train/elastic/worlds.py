"""Which world this process is in, as the platform tells it while the process runs. Standard library only."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional

_POLL_S = 0.01
# The platform makes a new world in a fraction of a second once it knows who is lost; a node counts as lost after a minute.
PATIENCE_S = 180.0
_JOIN_PATIENCE_S = 1800.0


class WorldError(RuntimeError):
    """There is no next world, or it cannot be understood; the message says what was waited for."""


@dataclass(frozen=True)
class ElasticWorld:
    """One layout of the gang. ``number`` grows with each; ``rank`` counts the processes from 0 to ``size`` - 1.

    Who was in the world before keeps its place in the order and stands before those that join. ``env``: what the
    frameworks' contracts say of this process in this world.
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
    """The world to begin with; one that joins a gang which runs waits for its place.

    Raises:
        WorldError: none came within half an hour.
    """
    if not is_elastic():
        return _world(1, os.environ)
    _keep_process()
    return next_world(0, _JOIN_PATIENCE_S)


def own_world() -> ElasticWorld:
    """The world that this process's environment is of: the one it was started in, or has entered since."""
    return _world(int(os.environ.get("TRAINMASTER_WORLD") or 1), os.environ)


def newest_number() -> int:
    """The number of the newest world that this process was told of; 0: it joins, and has none yet. Cheap."""
    content = _read_world_file()
    return int(content.get("world") or 0) if content is not None else 1


def newest_size() -> int:
    """How many processes the newest world has that this process was told of."""
    content = _read_world_file()
    processes = content["processes"] if content is not None else [os.environ]
    return int(processes[0].get("WORLD_SIZE") or 1)


def next_world(after: int, patience_s: float = PATIENCE_S) -> ElasticWorld:
    """The newest world, as soon as its number is larger than ``after``.

    Raises:
        WorldError: none came within ``patience_s`` seconds, or none can come.
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
                f"no world after {after} came within {patience_s:g} s: the platform is away, or too few are left"
            )
        time.sleep(_POLL_S)  # noqa: TID251 - a file is looked at, with a deadline above


def enter(world: ElasticWorld) -> None:
    """Make the environment of this process the world's, for whoever reads it from now on."""
    os.environ.update(world.env)
    if is_elastic():
        os.environ["TRAINMASTER_WORLD"] = str(world.number)


def _keep_process() -> None:
    """Tell the runtime that this process goes from world to world itself, and is not to be started again for each."""
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
