"""Control groups, version 1 and 2: one group per start of a replica, next to or below the runtime's own."""

from __future__ import annotations

import os

from trainmaster_runtime import clock
from trainmaster_runtime.process.job_user import as_root

_PERIOD_US = 100_000  # the kernel's own default of cpu.cfs_period_us
_CONTROLLERS = ("memory", "pids", "cpu")


class Groups:
    """The groups of one replica. Where the kernel or an admin allows none, all of it is empty and harmless.

    Attributes:
        limited: controllers that enforce something here.
    """

    def __init__(self, paths: dict[str, str], version: int) -> None:
        self._paths = paths  # controller -> folder; "unified" for a version 2 group that only kills
        self._version = version
        self.limited: list[str] = []
        self._oom_base = self._oom_kills()
        self._probe = self._start_probe() if paths else 0

    def settle(self) -> None:
        """Find out whether processes may really join; if not, there are no groups."""
        if not self._probe:
            return
        may_join = os.waitpid(self._probe, 0)[1] == 0
        self._probe = 0
        if not may_join:
            self.close()
            self._paths = {}

    def _start_probe(self) -> int:
        """A child that joins and ends: asks whether it may, and takes the wait upon itself. The first join after a
        while waits 10 to 20 ms for all CPUs (an RCU grace period); those that come soon after it do not.
        """
        pid = os.fork()
        if pid == 0:
            try:
                self.join()
                os._exit(0)
            finally:
                os._exit(1)
        return pid

    @property
    def folders(self) -> list[str]:
        return sorted(set(self._paths.values()))

    @property
    def by_controller(self) -> dict[str, str]:
        """Controller to folder."""
        return dict(self._paths)

    @property
    def has_memory(self) -> bool:
        return "memory" in self._paths

    def limit(self, *, cpu_milli: int | None, memory_bytes: int | None, pids: int | None) -> None:
        """Set the given limits; those that the kernel refuses are not in :attr:`limited`."""
        if self._version == 2:
            self._set("memory", "memory.max", memory_bytes)
            if memory_bytes is not None:
                self._try("memory", "memory.swap.max", "0")
            self._set("pids", "pids.max", pids)
            if cpu_milli is not None and self._try(
                "cpu", "cpu.max", "%d %d" % (max(1000, cpu_milli * _PERIOD_US // 1000), _PERIOD_US)
            ):
                self.limited.append("cpu")
        else:
            self._set("memory", "memory.limit_in_bytes", memory_bytes)
            if memory_bytes is not None:
                self._try("memory", "memory.memsw.limit_in_bytes", str(memory_bytes))
            self._set("pids", "pids.max", pids)
            quota = None if cpu_milli is None else max(1000, cpu_milli * _PERIOD_US // 1000)
            self._set("cpu", "cpu.cfs_quota_us", quota)

    def join(self) -> None:
        """Move the calling process in. Raises ``OSError``."""
        for folder in self.folders:
            _write(folder + "/cgroup.procs", str(os.getpid()))

    def oom_kills(self) -> int:
        """Processes of the replica that the kernel killed for memory."""
        return max(0, self._oom_kills() - self._oom_base)

    def close(self) -> None:
        """Kill what is left inside and remove the groups."""
        for folder in self.folders:
            close_group(folder)

    def _oom_kills(self) -> int:
        folder = self._paths.get("memory")
        if folder is None:
            return 0
        name = "memory.events" if self._version == 2 else "memory.oom_control"
        return _count(_read(folder + "/" + name)) or 0

    def _set(self, controller: str, name: str, value: int | None) -> None:
        if value is not None and self._try(controller, name, str(value)):
            self.limited.append(controller)

    def _try(self, controller: str, name: str, value: str) -> bool:
        folder = self._paths.get(controller)
        if folder is None:
            return False
        try:
            _write(folder + "/" + name, value)
        except OSError:
            return False
        return True


def name_of(mark: str) -> str:
    """The name of all groups of one start of a replica."""
    return "trainmaster-" + mark.replace("/", "-")


def folders_to_be(name: str) -> list[str]:
    """Every folder that :func:`make_groups` may make, whether it does or not."""
    own_folders = own_groups()
    unified = own_folders.get("unified")
    parents = {own_folders[controller] for controller in _CONTROLLERS if controller in own_folders}
    parents.update(_and_above(unified) if unified is not None else ())
    return sorted(parent + "/" + name for parent in parents)


def make_groups(name: str) -> Groups:
    """Groups called ``name`` for every available controller; :meth:`Groups.settle` checks whether processes may
    join.
    """
    own_folders = own_groups()
    groups = _make_v2(name, own_folders)
    if groups is not None:
        return groups
    paths = {}
    for controller in (*_CONTROLLERS, "unified"):
        folder = own_folders.get(controller)
        if folder is not None and _make(folder + "/" + name):
            paths[controller] = folder + "/" + name
    return Groups(paths, 1)


def own_groups() -> dict[str, str]:
    """Controller -> folder of the calling process's group; ``unified`` for version 2."""
    where: dict[str, tuple[str, str]] = {}  # controller -> (root inside the hierarchy, mount point)
    for line in _read("/proc/self/mountinfo").splitlines():
        fields, _, tail = line.partition(" - ")
        kind, _, options = tail.split(" ", 2)
        place = (fields.split(" ")[3], fields.split(" ")[4])
        if kind == "cgroup2":
            where["unified"] = place
        elif kind == "cgroup":
            for option in options.split(" ")[-1].split(","):
                where[option] = place
    folders = {}
    for line in _read("/proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        for controller in ["unified"] if number == "0" else controllers.split(","):
            if controller in where:
                root, point = where[controller]
                # In a container the path may be the host's, and the mount shows a part of it.
                below = path[len(root) :] if root != "/" and path.startswith(root) else path
                folder = (point + "/" + below.strip("/")).rstrip("/")
                folders[controller] = folder if os.path.isdir(folder) else point
    return folders


def own_oom_kills() -> int | None:
    """Processes of the calling process's own group that the kernel has killed for memory: in a container, of all of it.

    ``None`` where the kernel does not tell.
    """
    own_folders = own_groups()
    for controller, name in (("memory", "memory.oom_control"), ("unified", "memory.events")):
        count = _count(_read(own_folders.get(controller, "") + "/" + name))
        if count is not None:
            return count
    return None


def _count(text: str) -> int | None:
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill ")), None)


def close_group(folder: str, limit_s: float = 5.0) -> None:
    """SIGKILL all processes in ``folder`` and below, and remove it."""
    if not os.path.isdir(folder):
        return
    end = clock.monotonic() + limit_s
    wait = 0.001
    while True:
        _kill(folder)
        for path, _, _ in os.walk(folder, topdown=False):
            try:
                with as_root():
                    os.rmdir(path)
            except OSError:  # still busy: a killed process takes a moment to leave
                pass
        if not os.path.isdir(folder) or clock.monotonic() > end:
            return
        clock.pause(wait)
        wait = min(wait * 2, 0.05)


def _kill(folder: str) -> None:
    try:
        _write(folder + "/cgroup.kill", "1")
        return
    except OSError:  # version 1, or Linux before 5.14
        pass
    for path, _, _ in os.walk(folder):
        for pid in _read(path + "/cgroup.procs").split():
            try:
                os.kill(int(pid), 9)
            except OSError:
                pass


def _make_v2(name: str, own_folders: dict[str, str]) -> Groups | None:
    """A version 2 group with at least the memory controller.

    A group that holds processes cannot hand controllers to groups below it ("no internal processes",
    https://docs.kernel.org/admin-guide/cgroup-v2.html), and ours holds the platform. The nearest ancestor that hands
    them out already and lets us in is taken instead: with systemd's delegation that is the slice of the service.
    """
    for folder in _and_above(own_folders.get("unified") or ""):
        handed_out = _read(folder + "/cgroup.subtree_control").split()
        if "memory" in handed_out and _make(folder + "/" + name):
            return Groups(
                {controller: folder + "/" + name for controller in _CONTROLLERS if controller in handed_out}, 2
            )
    return None


def _and_above(folder: str) -> list[str]:
    """A version 2 group's folder and those of its ancestors, nearest first."""
    ancestors = []
    while folder:
        ancestors.append(folder)
        folder = folder.rpartition("/")[0]
        if not os.path.exists(folder + "/cgroup.procs"):
            break
    return ancestors


def _make(folder: str) -> bool:
    try:
        with as_root():
            os.mkdir(folder)
    except FileExistsError:
        return True
    except OSError:
        return False
    # On a read-only or foreign hierarchy mkdir may work where joining does not.
    return os.access(folder + "/cgroup.procs", os.W_OK)


def _write(path: str, text: str) -> None:
    with as_root():
        fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _read(path: str) -> str:
    try:
        with open(path) as stream:
            return stream.read()
    except OSError:
        return ""
