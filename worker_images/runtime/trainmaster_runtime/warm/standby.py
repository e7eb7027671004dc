"""``python -I -S standby.py <key folder> <state folder> <hint file>``: becomes a parent when that disturbs no job's
start.

The first job of its kind starts cold, and nothing competes with its start: this process checks, twice a second, which
framework the job loads, and imports it for the jobs to come when the job has had it for a while, or has ended.
"""

from __future__ import annotations

import os
import sys

if not __package__:
    _folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [os.path.dirname(os.path.dirname(_folder)), *(entry for entry in sys.path if entry != _folder)]

from trainmaster_runtime import clock
from trainmaster_runtime.prepare import exit_hook_env
from trainmaster_runtime.process import procfs
from trainmaster_runtime.record import read_json
from trainmaster_runtime.warm import pool_files

_LOOK_S = 0.5
_GIVE_UP_S = 120.0  # a job that has loaded none by then must not keep others from being looked at
_LIBRARIES = {"torch": b"/libtorch_python.so", "tensorflow": b"/libtensorflow_"}

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main(folder: str, state: str, hint: str) -> None:
    waiting = pool_files.try_lock(folder + "/waiting")
    parent_config = read_json(folder + "/about.json")
    if waiting is None or parent_config is None or os.fork() > 0:
        return
    os.setsid()
    framework = _watch_replica(state, parent_config["settle_s"])
    if framework is None:
        return
    os.makedirs(os.path.dirname(hint), mode=0o700, exist_ok=True)
    pool_files.write(hint, framework)
    parent_folder = folder + "/" + framework
    os.makedirs(parent_folder, mode=0o700, exist_ok=True)
    if pool_files.is_unfit(parent_folder):
        return
    lock = pool_files.try_lock(parent_folder + "/lock")
    if lock is None:
        return
    if pool_files.make_room(os.path.dirname(folder), parent_config["parents"]):
        _become_parent(parent_config, parent_folder, lock)


def _watch_replica(state: str, settle_s: float) -> str | None:
    """The framework that the replica of ``state`` has loaded, when it has run with it for ``settle_s`` or has ended.

    ``None``: it ended without one, or has loaded none for long.
    """
    framework = None
    found_at = 0.0
    end = clock.monotonic() + _GIVE_UP_S
    while framework is not None or clock.monotonic() < end:
        runtime = read_json(state + "/runtime.json")
        has_ended = runtime is None or procfs.start_ticks(runtime["pid"]) != runtime["start_ticks"]
        has_ended = has_ended or os.path.exists(state + "/exit.json")
        if framework is None and runtime is not None and not has_ended:
            framework = _loaded_below(runtime["pid"])
            found_at = clock.monotonic()
        if has_ended or (framework is not None and clock.monotonic() > found_at + settle_s):
            return framework
        clock.pause(_LOOK_S)
    return None


def _loaded_below(runtime: int) -> str | None:
    for pid in procfs.descendants(runtime):
        try:
            with open("/proc/%d/maps" % pid, "rb") as stream:
                maps = stream.read()
        except OSError:
            continue
        for framework, library in _LIBRARIES.items():
            if library in maps:
                return framework
    return None


def _become_parent(parent_config: dict[str, Any], parent_folder: str, lock: int) -> None:
    env = dict(parent_config["env"])
    env.update(exit_hook_env(env, os.devnull), TRAINMASTER_WARM=parent_folder, TRAINMASTER_WARM_LOCK=str(lock))
    for fd, name in ((1, "stdout"), (2, "stderr")):
        opened = os.open(parent_folder + "/" + name, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, fd)
        os.close(opened)
    os.set_inheritable(lock, True)
    # It never comes to the module: see `child.run_as_main`.
    # Root's parent imports nothing from the home of a project.
    options = [] if parent_config.get("uid") is None else ["-s"]
    os.execve(parent_config["python"], [parent_config["argv0"], *options, "-m", "trainmaster_warm"], env)  # noqa: S606


if __name__ == "__main__":
    main(*sys.argv[1:])
