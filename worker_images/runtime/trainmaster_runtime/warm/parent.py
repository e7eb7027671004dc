"""The parent: imports the framework once, then forks a runtime for each order until it has rested long enough.

It imports, and does nothing else of the framework's: no operation, no device, no thread. Where that cannot be kept (an
extension starts threads at import, a device is opened) it says so in ``unfit`` and ends.
"""

from __future__ import annotations

import array
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
import sys
import traceback
from collections.abc import ItemsView, KeysView, ValuesView

from trainmaster_runtime import clock
from trainmaster_runtime.process import procfs, syscalls
from trainmaster_runtime.record import read_json
from trainmaster_runtime.warm import pool_files
from trainmaster_runtime.warm.child import PreloadedParent, RunnableProgram, WarmFork, can_look_fresh

# What DDP's constructor imports stands among it.
_MODULES = {
    "torch": ("torch", "torch.distributed", "torch.nn.parallel", "torch.utils.data", "torch._dynamo"),
    "tensorflow": ("tensorflow",),
}
_LOOK_S = 5.0
_REQUEST_S = 2.0
_IMPORT_OUTPUT_BYTES = 65_536
_OWN = {"TRAINMASTER_WARM", "TRAINMASTER_WARM_LOCK", "TRAINMASTER_EXIT_NOTES", "TRAINMASTER_EXIT_HOOK"}
_OWN |= {"JAX_PROCESS_ID", "JAX_NUM_PROCESSES"}  # asked for by the hook, and again by each child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Unfit(Exception):
    """No parent can be made here; the message says why."""


def wait(folder: str, end: dict[str, Any]) -> None:
    """Be the parent of ``folder``. Returns in the user's processes alone, where the interpreter goes on to the program.

    Args:
        end: the exit hook's state.
    """
    parent_config = read_json(os.path.dirname(folder) + "/about.json") or {}
    framework = os.path.basename(folder)
    lock = int(os.environ.pop("TRAINMASTER_WARM_LOCK"))
    os.set_inheritable(lock, False)
    os.environ.pop("TRAINMASTER_WARM")
    parent = PreloadedParent(
        framework=framework,
        python=parent_config["python"],
        argv0=parent_config["argv0"],
        env={name: value for name, value in _env.items() if name not in _OWN},
        names=parent_config["names"],
    )
    parent.end = end
    try:
        _preload(parent, parent_config["memory_bytes"], parent_config.get("uid"))
    except BaseException as error:  # noqa: BLE001 - an import's error, SystemExit too, is recorded and reaches no job
        pool_files.write(folder + "/unfit", "%s: %s\n" % (type(error).__name__, error))
        os._exit(1)
    pool_files.write(
        folder + "/parent.json", json.dumps({"pid": os.getpid(), "start_ticks": procfs.start_ticks(os.getpid())})
    )
    started = _Service(parent, folder, parent_config["idle_s"], lock).run()
    if started is not None:
        fork, ready = started
        fork.become(ready)


def note_reads() -> None:
    """Note from now on which variables are asked for: a job in which one of them differs cannot use what was imported.

    Walking through all variables is no question for any of them: libraries do it to find those with a prefix of their
    own (tqdm: ``TQDM_``), and each job has variables that differ from every other job's.
    """
    _env.update(os.environ)  # before: this reads all of them
    for name, method in _NOTED.items():
        setattr(os._Environ, name, method)  # noqa: SLF001


def _stop_noting() -> set[str]:
    """The variables that were asked for by their names."""
    for name, method in _PLAIN.items():
        if method is None:
            delattr(os._Environ, name)  # noqa: SLF001
        else:
            setattr(os._Environ, name, method)  # noqa: SLF001
    _read.update(_walk.passed())
    return _read


class _Walk:
    """``dict(os.environ)``: C code takes all keys, then asks for each of them in their order."""

    def __init__(self) -> None:
        self._keys: list[str] = []
        self._at = 0

    def begin(self, keys: list[str]) -> None:
        _read.update(self.passed())
        self._keys, self._at = keys, 0

    def passes(self, name: str) -> bool:
        """Whether ``name`` is the walk's next key. A walk that is broken off has asked for what it passed."""
        if self._at < len(self._keys) and self._keys[self._at] == name:
            self._at += 1
            return True
        _read.update(self.passed())
        self._keys = []
        return False

    def passed(self) -> list[str]:
        return self._keys[: self._at] if self._at < len(self._keys) else []


class _Items(ItemsView):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter([(key, _ask(os.environ, key)) for key in list(os.environ)])


class _Values(ValuesView):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter([_ask(os.environ, key) for key in list(os.environ)])


def _note(self: Any, name: Any) -> Any:
    if isinstance(name, str) and not _walk.passes(name):
        _read.add(name)
    return _ask(self, name)


def _note_keys(self: Any) -> Any:
    _walk.begin(list(self))
    return KeysView(self)


_ask = os._Environ.__getitem__  # noqa: SLF001 - every way to ask comes by here
_read: set[str] = set()
_env: dict[str, str] = {}
_walk = _Walk()
_NOTED: dict[str, Any] = {
    "__getitem__": _note,
    "keys": _note_keys,
    "items": lambda self: _Items(self),  # noqa: PLW0108 (a class would not be bound)
    "values": lambda self: _Values(self),  # noqa: PLW0108
}
# What the class has of its own; the others it inherits.
_PLAIN = {name: vars(os._Environ).get(name) for name in _NOTED}  # noqa: SLF001


def _preload(parent: PreloadedParent, memory_bytes: int, uid: int | None) -> None:
    before = _open_fds()
    if uid is not None:
        # What libraries write into the home of the project, they write as its user.
        syscalls.set_file_user(uid)
        syscalls.read_as_root()
    for name in _MODULES[parent.framework]:
        importlib.import_module(name)
    if uid is not None:
        syscalls.set_file_user(0)
    parent.read = _stop_noting() - _OWN
    parent.preserved_fds = _open_fds() - before
    sys.stdout.flush()
    sys.stderr.flush()
    parent.import_output = (_read_output(1), _read_output(2))
    for fd in (1, 2):
        os.dup2(0, fd)
    parent.path = list(sys.path)
    gc.collect()
    # Libraries with a pool of threads (OpenBLAS) end it before a fork and make it again when it is used.
    child = os.fork()
    if child == 0:
        os._exit(0 if can_look_fresh() else 1)
    if os.waitpid(child, 0)[1] != 0:
        raise Unfit("the kernel does not let a process set its own command line")
    if procfs.thread_count(os.getpid()) != 1:
        raise Unfit("importing it starts threads")
    for fd in parent.preserved_fds:
        if os.readlink("/proc/self/fd/%d" % fd).startswith(("/dev/", "socket:", "pipe:", "anon_inode:")):
            raise Unfit("importing it opens %s" % os.readlink("/proc/self/fd/%d" % fd))
    if procfs.memory_bytes(os.getpid()) > memory_bytes:
        raise Unfit("it takes %d bytes of memory" % procfs.memory_bytes(os.getpid()))
    module = sys.modules[parent.framework]
    for path in (sys.executable, module.__file__ or "", sys.prefix, os.path.dirname(os.__file__)):
        status = os.stat(path)
        parent.identity.append((path, status.st_dev, status.st_ino))


def _read_output(fd: int) -> bytes:
    with open("/proc/self/fd/%d" % fd, "rb") as stream:
        return stream.read(_IMPORT_OUTPUT_BYTES)


def _open_fds() -> set[int]:
    fds = {int(name) for name in os.listdir("/proc/self/fd")}
    return {fd for fd in fds if os.path.exists("/proc/self/fd/%d" % fd)}


class _Service:
    def __init__(self, parent: PreloadedParent, folder: str, idle_s: float, lock: int) -> None:
        self._parent = parent
        self._folder = folder
        self._idle_s = idle_s
        self._lock = lock
        self._environment = _Environment()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._address = folder + "/socket"
        self._inode = self._listen()
        # The exits of the forked runtimes do not matter here.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)

    def _listen(self) -> int:
        opened = os.open(self._folder, os.O_RDONLY)
        try:
            os.unlink(self._address)
        except FileNotFoundError:
            pass
        mask = os.umask(0o177)
        # By the descriptor: a socket's address holds 107 bytes, and a folder's path may be longer.
        self._listener.bind("/proc/self/fd/%d/socket" % opened)
        os.umask(mask)
        os.close(opened)
        self._listener.listen(64)
        return os.stat(self._address).st_ino

    def run(self) -> tuple[WarmFork, RunnableProgram] | None:
        """Serve; returns in the user's processes. The parent's own process ends in here."""
        until = clock.monotonic() + self._idle_s
        while True:
            has_request = bool(select.select([self._listener], [], [], _LOOK_S)[0])
            if self._is_over() or (not has_request and clock.monotonic() > until):
                os._exit(0)
            if has_request:
                until = clock.monotonic() + self._idle_s
                started = self._serve()
                if started is not None:
                    return started

    def _is_over(self) -> bool:
        """Whether the environment has changed, or the socket was removed or replaced."""
        try:
            is_own_socket = os.stat(self._address).st_ino == self._inode
        except OSError:
            is_own_socket = False
        if is_own_socket and self._environment.is_unchanged():
            return False
        if is_own_socket:
            os.unlink(self._address)
        return True

    def _serve(self) -> tuple[WarmFork, RunnableProgram] | None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return None
        with connection:
            try:
                connection.settimeout(_REQUEST_S)
                if not _is_own(connection):
                    return None
                connection.sendall(b"+")
                request, fds = _receive(connection)
            except (OSError, ValueError):
                return None
            try:
                os.utime(self._folder + "/used")
            except OSError:
                pool_files.write(self._folder + "/used", "")
            if os.fork() > 0:
                for fd in fds:
                    os.close(fd)
                return None
            self._listener.close()
            # It is held until the last copy is closed: a parent that has died would count as alive while the job runs.
            os.close(self._lock)
            answer_fd = os.dup(connection.fileno())
        return self._be_runtime(request, fds, answer_fd)

    def _be_runtime(self, request: dict[str, Any], fds: list[int], answer_fd: int) -> tuple[WarmFork, RunnableProgram]:
        from trainmaster_runtime import main
        from trainmaster_runtime.warm.child import ProgramStarted

        fork = WarmFork(self._parent, is_known=bool(request.get("is_known")))
        try:
            lock, log = fds
            for fd in (1, 2):
                os.dup2(log, fd)
            os.close(log)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.environ.clear()
            os.environ.update(request["env"])
            # Nothing of the job's own may get into the runtime.
            library = os.path.dirname(os.__file__)
            sys.path[:] = [entry for entry in sys.path if entry in (library, library + "/lib-dynload")]
            main.run_forked(request["order"], lock, answer_fd, fork)
        except ProgramStarted as started:
            return fork, started.ready
        except BaseException:  # noqa: BLE001 - as an executed runtime would end
            traceback.print_exc()
        os._exit(1)


def _is_own(connection: socket.socket) -> bool:
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.geteuid())


def _receive(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """One line of JSON, with two descriptors. Raises ``ValueError`` for less."""
    fds = array.array("i")
    text = b""
    while not text.endswith(b"\n"):
        data, extra, _, _ = connection.recvmsg(65_536, socket.CMSG_SPACE(2 * fds.itemsize))
        for level, kind, content in extra:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
        if not data:
            break
        text += data
    if len(fds) != 2 or not text.endswith(b"\n"):
        for fd in fds:
            os.close(fd)
        raise ValueError("a line and two descriptors are wanted")
    for fd in fds:
        os.set_inheritable(fd, False)
    return json.loads(text), list(fds)


class _Environment:
    """Whether the imported files, and those that a fresh interpreter would find, are unchanged on disk."""

    def __init__(self) -> None:
        files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
        paths = {str(path) for path in files if path and os.path.isabs(path)}
        paths.update(entry for entry in sys.path if entry)
        paths.add(sys.prefix + "/pyvenv.cfg")
        self._before = {path: _stat_of(path) for path in paths}

    def is_unchanged(self) -> bool:
        return all(_stat_of(path) == before for path, before in self._before.items())


def _stat_of(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino)
