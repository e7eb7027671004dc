"""The driver for plain processes.

Its memory is the file system: one state folder per start of a replica, claimed by a lock that the creator takes and
hands to the runtime without a gap. Later observations read the folder and /proc.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Final

from core import file_locks
from core.domain.errors import AttemptRemoved, ExecutorTryAgain
from core.domain.ids import AttemptId
from core.domain.jobs.layout import PORTS_PER_REPLICA, Layout, Ports
from core.worker_packages import RUNTIME, demand_package, library_folder
from executors.base import Gpu, NodeInfo, Observation, ReplicaKey, ReplicaOrder, newest_generations
from executors.node_resources import with_memory_limit
from executors.order_file import world_fields
from executors.process import machine, procfs
from executors.process.folder_watcher import FolderWatcher
from executors.process.launcher import RuntimeLauncher, build_settings
from executors.process.machine import GpuCache
from executors.process.ports import PortBook, PortRange
from executors.process.state import ReplicaFolder, check_order, mark_of, read_replica, render_order, state_name
from executors.process.warm import WarmLimits, WarmStarts

_TIMEOUT_S: Final = 10.0
_END_S: Final = 2.5  # a runtime whose job has ended stays for 2 s where the API takes nothing, and keeps its reports
_LAST_CALL_S: Final = 60.0  # and for some 10 s while the API takes them, or they are still being read
_RETRY_S: Final = 2.0  # no event says that the reports were sent


def end_replica(folder: ReplicaFolder) -> None:
    """Kill the replica; returns when no process holds its folder any more. Raises ``ExecutorTryAgain``."""
    end = time.monotonic() + _TIMEOUT_S
    stop_sent_at = None
    is_ended = folder.read("exit.json") is not None
    last_call = folder.path.parent / "last_call"
    while True:
        runtime = folder.runtime()
        if runtime is not None and runtime.is_alive():
            # The runtime knows its tree best; if it does not do it in time, it goes with its tree.
            if stop_sent_at is None:
                stop_sent_at = time.monotonic()
                if not is_ended:
                    folder.write("stop.json", {"grace_s": 0})
                    procfs.send(runtime.pid, runtime.start_ticks, signal.SIGTERM)
            if time.monotonic() > stop_sent_at + _END_S or (is_ended and last_call.exists()):
                if is_ended and not _is_last_call_over(last_call):
                    raise ExecutorTryAgain(
                        f"{folder.path.name} has ended and still sends its last reports.", retry_after_s=_RETRY_S
                    )
                procfs.send(runtime.pid, runtime.start_ticks, signal.SIGKILL)
        elif folder.try_lock():
            procfs.kill_replica(folder.path, mark_of(folder.key), runtime.groups if runtime is not None else ())
            return
        if time.monotonic() > end:
            raise ExecutorTryAgain(f"{folder.path.name} does not end; one of its processes waits in the kernel.")
        time.sleep(_LOOK_S)  # noqa: TID251 - another process's end, which is not our child's


def _is_last_call_over(call: Path) -> bool:
    """Makes the call of an attempt the first time. A file: the next look may be another process's."""
    try:
        if not call.exists():
            call.touch(mode=0o600)
        return time.time() > call.stat().st_mtime + _LAST_CALL_S  # noqa: TID251 - the file system's own clock
    except FileNotFoundError:  # another process has removed it all
        return True


WORLD_FILE: Final = "world.json"  # trainmaster_runtime.replica.worlds.FILE
_LOCK_S: Final = 10.0
_LOOK_S: Final = 0.02
_TOMBSTONE_DAYS: Final = 30


class ProcessExecutor:
    """Satisfies :class:`executors.base.Executor` on this machine. Safe to use from several threads and processes.

    Args:
        run_dir: for state folders; must survive a restart of the platform, and be a local file system.
        port_range: ports of gangs, ``20000-29999``.
        runtime: the folder ``trainmaster_runtime``; default: of this installation, which may lack it
            (``PackageMissing``).
        python: runs the runtime.
        extra_path: put in front of the jobs' PATH, so that ``python`` is the platform's; default ``python``'s folder.
        view: ``private`` (a view of the file system of its own where the kernel allows) or ``mapped``.
        use_cgroups: ``False`` leaves limits to the runtime's watchdog.
        gpus: instead of what NVML finds.
        hidden: folders that no job may see, such as the platform's home; what a job needs of them it gets at its own
            places. Only a private view hides anything.
        log_limit_bytes: of one replica's log; 0: no limit.
        warm: keep preloaded parents to fork replicas from; ``None``: execute every command.
        api_url: where this platform's API is now. Replicas that were started under another one find it here.
    """

    name = "process"
    shares_hosts = True

    def __init__(
        self,
        run_dir: Path,
        *,
        port_range: str = "20000-29999",
        runtime: Path | None = None,
        python: str = sys.executable,
        extra_path: str | None = None,
        view: str = "private",
        use_cgroups: bool = True,
        gpus: tuple[Gpu, ...] | None = None,
        hidden: Sequence[Path] = (),
        api_url: str | None = None,
        log_limit_bytes: int = 0,
        warm: WarmLimits | None = None,
    ) -> None:
        self._run_dir = run_dir.absolute()
        self._attempts = self._run_dir / "attempts"
        self._removed = self._run_dir / "removed"
        for folder in (self._attempts, self._removed):
            _make_private(folder)
        self._ports = PortBook(self._run_dir / "ports", PortRange.parse(port_range))
        self._view = view
        self._use_cgroups = use_cgroups
        self._gpus = gpus
        self._find_gpus = GpuCache()
        self._watcher: FolderWatcher | None = None
        self._hidden = tuple(str(path.absolute()) for path in hidden)
        self._node = machine.node_name()
        self._log_limit_bytes = log_limit_bytes
        runtime = runtime or demand_package(RUNTIME)
        extra_path = str(Path(python).parent) if extra_path is None else extra_path
        warm_starts = None
        if warm is not None and warm.parents > 0:
            warm_starts = WarmStarts(self._run_dir / "warm", warm, python=python, runtime=runtime)
        self._launcher = RuntimeLauncher(
            runtime,
            python,
            extra_path=extra_path,
            homes=self._run_dir / "homes",
            library=library_folder(self._run_dir / "library"),
            warm=warm_starts,
        )
        self._api_file = self._run_dir / "api.json"
        if api_url is not None:
            # One file for all replicas: orders are written once, and running jobs outlive the platform's address.
            ReplicaFolder(self._run_dir).write(self._api_file.name, {"url": api_url})

    # `database_id` is not needed: the folder is this platform's alone.
    def nodes(self, *, database_id: str = "") -> Sequence[NodeInfo]:  # noqa: ARG002
        return (machine.describe_machine(self._known_gpus()),)

    def assign_addresses(
        self,
        layout: Layout,
        taken_ports: frozenset[int],
        attempt_id: AttemptId,  # noqa: ARG002
        *,
        world: int = 1,  # noqa: ARG002 - ports come again only when all others were given out
    ) -> Layout:
        ports = self._ports.allocate(len(layout.replicas) * PORTS_PER_REPLICA, taken_ports)
        return Layout(
            tuple(
                replace(
                    replica, host="127.0.0.1", ports=Ports(*ports[n * PORTS_PER_REPLICA : (n + 1) * PORTS_PER_REPLICA])
                )
                for n, replica in enumerate(layout.replicas)
            )
        )

    def create(self, order: ReplicaOrder) -> None:
        """Returns when the runtime has claimed the order. Blocks for up to half a minute on a machine in trouble."""
        check_order(order, self._node)
        if order.request.gpu_milli:
            order = with_memory_limit(order, self._known_gpus())
        folder = self._folder(order.key)
        with self._claim(folder) as lock:
            if lock is None:
                return
            self._write_order(folder, order)
            if not self._launcher.start(folder, order, lock):
                self._check_tombstone(order.key.attempt_id)

    def _known_gpus(self) -> tuple[Gpu, ...]:
        return self._find_gpus() if self._gpus is None else self._gpus

    def change_world(self, order: ReplicaOrder) -> None:
        folder = ReplicaFolder(self._folder(order.key))
        known = folder.read(WORLD_FILE) or {}
        if folder.read("exit.json") is None and int(known.get("world") or 0) < (order.world or 0):
            folder.write(WORLD_FILE, world_fields(order))

    def kill(self, key: ReplicaKey) -> None:
        """See :class:`executors.base.ChangesWorlds`."""
        self.stop(key, grace=timedelta())

    def stop(self, key: ReplicaKey, *, grace: timedelta) -> None:
        folder = ReplicaFolder(self._folder(key))
        if not folder.path.is_dir() or folder.read("exit.json") is not None:
            return
        folder.write("stop.json", {"grace_s": grace.total_seconds()})
        runtime = folder.runtime()
        if runtime is not None and runtime.boot_id == procfs.boot_id():
            procfs.send(runtime.pid, runtime.start_ticks, signal.SIGTERM)

    def observe(self, attempt_id: AttemptId, *, fresh: bool = False) -> Sequence[Observation]:  # noqa: ARG002 (always)
        return newest_generations(map(self._read, self._folders(attempt_id)))

    def _read(self, path: Path) -> Observation | None:
        if self._watcher is not None:
            self._watcher.watch(path)  # first, so that changes during the read are noticed
        return read_replica(ReplicaFolder(path))

    def attempts(self) -> Mapping[AttemptId, str]:
        """Without their database: the folder is this platform's alone."""
        try:
            return {AttemptId(entry.name): "" for entry in os.scandir(self._attempts) if entry.is_dir()}
        except FileNotFoundError as error:
            raise ExecutorTryAgain(f"The folder {self._attempts} is away; is its disk mounted?") from error

    def remove(self, attempt_id: AttemptId) -> None:
        """Raises :class:`ExecutorTryAgain` when a process does not die within ten seconds (it waits in the kernel), or
        still sends the last reports of a job that has ended: for a minute at most.
        """
        # First the tombstone: a creator that comes from here on finds it and gives up.
        (self._removed / attempt_id).touch()
        waits: ExecutorTryAgain | None = None
        for path in self._folders(attempt_id):
            try:
                end_replica(ReplicaFolder(path))
            except ExecutorTryAgain as error:  # the others need not wait for it
                waits = waits or error
        if waits is not None:
            raise waits
        shutil.rmtree(self._attempts / attempt_id, ignore_errors=True)
        self._forget_old_tombstones()

    def listen(self) -> bool:
        """Watch observed state folders by inotify from now on; ``False`` where the kernel has none."""
        self._watcher = self._watcher or FolderWatcher()
        return not self._watcher.is_unavailable

    def wait_for_change(self, timeout_s: float) -> frozenset[AttemptId]:
        """See :class:`executors.base.ReportsChanges`; empty before :meth:`listen`."""
        if self._watcher is None:
            time.sleep(timeout_s)  # noqa: TID251 - no watch: only the timeout ends the wait
            return frozenset()
        return self._watcher.wait(timeout_s)

    # Creating

    def _folder(self, key: ReplicaKey) -> Path:
        return self._attempts / key.attempt_id / state_name(key)

    def _folders(self, attempt_id: AttemptId) -> list[Path]:
        try:
            return sorted(Path(entry.path) for entry in os.scandir(self._attempts / attempt_id) if entry.is_dir())
        except FileNotFoundError:
            return []

    @contextmanager
    def _claim(self, folder: Path) -> Iterator[int | None]:
        """The held lock of ``folder``, or ``None`` when its runtime has been started already."""
        attempt = AttemptId(folder.parent.name)
        end = time.monotonic() + _LOCK_S
        while True:
            self._check_tombstone(attempt)
            _make_private(folder)
            try:
                fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:  # removed in this moment
                continue
            try:
                if (folder / "runtime.json").exists():
                    yield None
                    return
                if file_locks.try_lock(fd) and _is_same_file(fd, folder / "lock"):
                    # Again under the lock: a removal that began meanwhile waits for it and must find nothing running.
                    if (self._removed / attempt).exists():
                        shutil.rmtree(folder.parent, ignore_errors=True)
                        self._check_tombstone(attempt)
                    yield None if (folder / "runtime.json").exists() else fd
                    return
            finally:
                os.close(fd)
            if time.monotonic() > end:
                raise ExecutorTryAgain(f"{folder.name} is being created by another process.")
            time.sleep(_LOOK_S)  # noqa: TID251 - flock has no timeout

    def _check_tombstone(self, attempt: AttemptId) -> None:
        if (self._removed / attempt).exists():
            raise AttemptRemoved(f"Attempt {attempt} was removed; start a new attempt.")

    def _write_order(self, folder: Path, order: ReplicaOrder) -> None:
        state = ReplicaFolder(folder)
        try:
            if order.token is not None:
                state.write_text("token", order.token)
            home = self._launcher.home(order)
            _make_private(home)
            content = render_order(
                order,
                boot_id=procfs.boot_id(),
                tombstone=str(self._removed / order.key.attempt_id),
                needed_paths=self._launcher.needed_paths(),
                hidden=self._hidden,
                view=self._view,
                use_cgroups=self._use_cgroups,
                api_file=str(self._api_file),
                home=str(home),
                library=self._launcher.library,
                build_settings=build_settings(self._run_dir / "environments") if order.environment else {},
                log_limit_bytes=self._log_limit_bytes,
            )
            state.write_text("order.json", json.dumps(content))
        except OSError as error:
            raise ExecutorTryAgain(
                f"The state of {order.key.role}-{order.key.index} cannot be written: {error.strerror}."
            ) from error

    def _forget_old_tombstones(self) -> None:
        oldest = time.time() - _TOMBSTONE_DAYS * 86_400  # noqa: TID251 - compared with the file system's own clock
        for entry in self._removed.iterdir():
            try:
                if entry.stat().st_mtime < oldest:
                    entry.unlink()
            except FileNotFoundError:
                pass


def _make_private(folder: Path) -> None:
    """Make ``folder``, and what is missing above it, for its owner alone (mkdir's mode would be the last one's)."""
    for path in (*reversed(folder.parents), folder):
        if not path.exists():
            path.mkdir(mode=0o700, exist_ok=True)


def _is_same_file(fd: int, path: Path) -> bool:
    """Whether ``path`` is still the file that was opened: a removal may have taken it away meanwhile."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
