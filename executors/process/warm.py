"""Warm starts: replicas forked from an idle Python that has imported the framework already.

The executor looks for a parent that fits an order and asks it to fork; an order without an answer
in time is executed as usual. The state is the folder ``warm``; ``trainmaster_runtime.warm.pool_files`` lists the files.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shlex
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from core import file_locks
from core.domain.errors import ExecutorTryAgain
from executors.base import ReplicaOrder
from executors.process import procfs
from executors.process.state import ReplicaFolder

# Variables that frameworks, and the libraries below them, read while they are imported. Python's reads are noted by the
# parent itself; these are for what C code reads unseen. What belongs to one job (TF_CONFIG, the devices) is not among
# them.
IMPORT_ENV: Final = (
    *("PYTHON", "LD_", "GLIBC_", "MALLOC_", "LC_", "LANG", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_"),
    *("NUMEXPR_", "NUMPY_", "NPY_", "TORCH_", "PYTORCH_", "ATEN_", "TRITON_", "CUDA_DEVICE_ORDER", "CUDA_HOME"),
    *("CUDA_PATH", "CUDA_LAUNCH", "CUDA_MODULE", "CUBLAS_", "CUDNN_", "TF_CPP_", "TF_ENABLE_", "TF_FORCE_", "TF_GPU_"),
    *("TF_NUM_", "TF_USE_", "TF_XLA_", "XLA_", "KERAS_", "DNNL_", "ONEDNN_", "PROTOCOL_BUFFERS_", "ABSL_"),
    *("HOME", "USER", "LOGNAME", "TZ", "TMPDIR", "TQDM_"),
)
_FRAMEWORKS: Final = ("torch", "tensorflow")
_PYTHON: Final = re.compile(r"python(\d(\.\d+)?)?")
_PLAIN_TEXT: Final = re.compile(r"[\w ./:=,@%+-]+", re.ASCII)
# A path in a job's own folders, alone or among others; not /mnt/data or /database.
_OWN: Final = re.compile(r"(?<![\w~@+-])/data(?![\w.~@+-])")
_NAME_BYTES: Final = 24
HELLO_S: Final = 1.0  # an idle parent answers within 10 ms, and importing takes seconds; both longer on a busy machine
ANSWER_S: Final = 2.0
CLAIM_S: Final = 20.0  # for a forked runtime that claimed the start: as long as an executed one has
_DEATH_S: Final = 5.0
_LEARN_S: Final = 10.0
_LOOK_S: Final = 0.02
CLAIMED: Final = 0
_NOT_CLAIMED: Final = 75  # trainmaster_runtime.main.NOT_CLAIMED


@dataclass(frozen=True, slots=True)
class WarmLimits:
    """``parents``: how many at most; ``memory_bytes``: of each, beyond what it shares with files; ``settle_s``: how
    long a job has had its framework before a parent imports the same.
    """

    parents: int
    memory_bytes: int
    idle_s: float
    settle_s: float = 10.0  # twice what importing takes: the first job is past its start


@dataclass(frozen=True, slots=True)
class ParentPool:
    """The pool of parents that fit an order: ``folder`` holds them, ``parent_config`` is for a new one, ``hint`` is the
    file that names the framework of this command.
    """

    folder: Path
    parent_config: Mapping[str, Any]
    hint: Path


class WarmStarts:
    """Safe to use from several threads and processes.

    Args:
        python, runtime: run the standby process, as they run the runtime.
    """

    def __init__(self, folder: Path, limits: WarmLimits, *, python: str, runtime: Path) -> None:
        self._folder = folder
        self._limits = limits
        self._python = python
        self._standby = runtime / "warm" / "standby.py"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def pool(self, order: ReplicaOrder, environment: Mapping[str, str]) -> ParentPool | None:
        """The pool for ``order``; ``None`` where the command must be executed."""
        if not order.may_start_warm or not sys.platform.startswith("linux"):
            return None
        words = _plain_words(order.command)
        env = {**environment, **order.env, **(order.process_env[0] if order.process_env else {})}
        if words is None or not _PYTHON.fullmatch(Path(words[0]).name) or env.get("TRAINMASTER_EXIT_HOOK", "1") == "0":
            return None
        python = _find(words[0], env.get("PATH", ""))
        import_env = {name: value for name, value in env.items() if name.startswith(IMPORT_ENV)}
        for name in ("PYTHONUNBUFFERED", "PYTHONFAULTHANDLER"):  # as the runtime sets them
            import_env.setdefault(name, "1")
        import_env["PATH"] = env.get("PATH", "")  # by which Python finds itself; a job may have more in it
        # Files in the job's own folders cannot be shared with other jobs.
        if python is None or any(_OWN.search(value) for value in (python, *import_env.values())):
            return None
        parent_config: dict[str, Any] = {"python": python, "argv0": words[0], "env": import_env, "names": IMPORT_ENV}
        if order.uid is not None:
            # A parent is root's, so nothing that its imports go by may be a job's, but for numbers (OMP_NUM_THREADS).
            own = (name for name in order.job_variables if name.startswith((*IMPORT_ENV, "PATH")))
            if not all(env.get(name, "").isdigit() for name in own) or not _is_roots(python):
                return None
            parent_config["uid"] = order.uid
        key = _digest([parent_config, _inherited(), str(self._standby)])
        parent_config |= {
            "parents": self._limits.parents,
            "memory_bytes": self._limits.memory_bytes,
            "idle_s": self._limits.idle_s,
            "settle_s": self._limits.settle_s,
        }
        folder = self._folder / key
        # Its arguments are left out: a study's trials differ in them. A file's name, or -m and the module's, decides.
        return ParentPool(
            folder, parent_config, folder / "hints" / _digest([order.project, *words[: 3 if "-m" in words[:3] else 2]])
        )

    def start(
        self, pool: ParentPool, state: ReplicaFolder, environment: Mapping[str, str], *, lock: int, log: int
    ) -> int | None:
        """Let a parent fork the runtime, as if it had been executed with ``--detach``.

        Returns:
            The code that it would have ended with, or ``None``: execute it.
        """
        if (state.path / "start_claim").exists():
            return None  # an earlier try: the lock is ours, so the process that claimed that start is gone
        hint = _read(pool.hint)
        for framework in (hint,) if hint else _FRAMEWORKS:
            folder = pool.folder / framework
            if not (folder / "socket").exists():
                continue
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                if not _reach(connection, folder):
                    continue
                return self._ask(connection, state, environment, fds=(lock, log), is_known=bool(hint))
        return None

    def _ask(
        self,
        connection: socket.socket,
        state: ReplicaFolder,
        environment: Mapping[str, str],
        *,
        fds: Sequence[int],
        is_known: bool,
    ) -> int | None:
        request = {"order": str(state.path / "order.json"), "env": dict(environment), "is_known": is_known}
        is_silent = False
        try:
            connection.settimeout(ANSWER_S)
            # First the small part: descriptors must come with at least one byte.
            socket.send_fds(connection, [b" "], list(fds))
            connection.sendall(json.dumps(request).encode() + b"\n")
            answer = connection.recv(1)
        except TimeoutError:
            answer, is_silent = b"", True
        except OSError:
            answer = b""
        if answer:
            return CLAIMED if answer == b"1" else _NOT_CLAIMED
        # No process has claimed the start. The process that creates the file `start_claim` starts the order.
        if not state.claim_start():
            return _wait_for_runtime(connection, state)
        if is_silent:
            # It holds descriptors of ours, and may hold them for ever: what does not answer must not stay.
            _kill_peer(connection)
        return None

    def watch_imports(self, pool: ParentPool, state: ReplicaFolder) -> None:
        """Start a process that watches which framework the replica loads, unless a parent for it exists already."""
        hint = _read(pool.hint)
        if hint and file_locks.is_locked(pool.folder / hint / "lock"):
            return
        if file_locks.is_locked(pool.folder / "waiting"):
            return
        pool.folder.mkdir(mode=0o700, exist_ok=True)
        ReplicaFolder(pool.folder).write("about.json", pool.parent_config)
        # It runs on by itself, and holds the lock when this returns. A failure costs only a warm start.
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [self._python, "-I", "-S", str(self._standby), str(pool.folder), str(state.path), str(pool.hint)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                start_new_session=True,
                timeout=_LEARN_S,
                check=False,
            )


def _plain_words(command: Sequence[str] | str | None) -> Sequence[str] | None:
    """A command without anything that only a shell understands."""
    if command is None or not isinstance(command, str):
        return command or None
    return shlex.split(command) or None if _PLAIN_TEXT.fullmatch(command) else None


def _find(name: str, path: str) -> str | None:
    candidates = [name] if "/" in name else [f"{folder or '.'}/{name}" for folder in path.split(":")]
    return next((c for c in candidates if c.startswith("/") and os.access(c, os.X_OK)), None)


def _is_roots(path: str) -> bool:
    """Whether no other user can put another file there, by the path as it is and behind its links."""
    for name in (Path(path), Path(path).resolve()):
        for place in (name, *name.parents):
            status = place.lstat()
            # In a sticky folder such as /tmp nobody replaces what is root's.
            is_sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
            if status.st_uid != 0 or (status.st_mode & 0o022 and not place.is_symlink() and not is_sticky):
                return False
    return True


def _inherited() -> list[Any]:
    """What a process inherits from its parent; a replica must not see a difference."""
    status = dict(line.split(":\t", 1) for line in _read(Path("/proc/self/status")).splitlines() if ":\t" in line)
    limits = [resource.getrlimit(number) for name, number in vars(resource).items() if name.startswith("RLIMIT_")]
    import_env = [status.get(name) for name in ("Umask", "Uid", "Gid", "Groups", "CapBnd", "Seccomp", "NoNewPrivs")]
    place = [_read(Path("/proc/self/cgroup")), sorted(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0)]
    return [import_env, limits, place, _read(Path("/proc/self/oom_score_adj"))]


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:_NAME_BYTES]


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _reach(connection: socket.socket, folder: Path) -> bool:
    """Connect to the parent of ``folder``, and wait for its greeting."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        connection.settimeout(HELLO_S)
        # By the descriptor: a socket's address holds 107 bytes, and the home's path may be longer.
        connection.connect(f"/proc/self/fd/{opened}/socket")
        return _peer(connection)[1] == os.geteuid() and connection.recv(1) == b"+"
    except OSError:
        return False
    finally:
        os.close(opened)


def _peer(connection: socket.socket) -> tuple[int, int]:
    """Pid and user of the listening process."""
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return pid, uid


def _kill_peer(connection: socket.socket) -> None:
    try:
        os.kill(_peer(connection)[0], signal.SIGKILL)
    except OSError:  # gone by itself
        pass


def _wait_for_runtime(connection: socket.socket, state: ReplicaFolder) -> int | None:
    """The code of the forked runtime that claimed the start; ``None`` when it failed and nothing of it is left.

    Raises:
        ExecutorTryAgain: it neither goes on nor dies: it waits in the kernel, for a disk as a rule.
    """
    try:
        connection.settimeout(CLAIM_S)
        answer = connection.recv(1)
    except OSError:
        answer = b""
    if answer:
        return CLAIMED if answer == b"1" else _NOT_CLAIMED
    taken = state.read("start_claim") or {}
    end = time.monotonic() + _DEATH_S
    while state.runtime() is None and taken and procfs.start_ticks(taken["pid"]) == taken["start_ticks"]:
        # It writes `runtime.json` before it starts anything: killed without that file, it has done nothing.
        procfs.send(taken["pid"], taken["start_ticks"], signal.SIGKILL)
        if time.monotonic() > end:
            raise ExecutorTryAgain(f"The runtime of {state.path.name} hangs in the kernel; does its disk answer?")
        time.sleep(_LOOK_S)  # noqa: TID251 - another process's end, which is not our child's
    return None if state.runtime() is None else CLAIMED
