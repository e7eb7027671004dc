"""The Python of a job's commands: an interpreter, a virtual environment or a conda environment, and on it a layer with
the job's requirements, which is built once and shared by all jobs with the same.

Files of the store, by the digest of all that a layer depends on: the folder ``<digest>``; ``<digest>.lock``, locked
exclusively by its builder and shared by every replica that uses it; ``<digest>.json``, written when it is complete and
touched at each use.
"""

from __future__ import annotations

import copy
import fcntl
import hashlib
import json
import os
import pwd
import re
import select
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager

from trainmaster_runtime import clock, layer
from trainmaster_runtime.order import OrderMount
from trainmaster_runtime.process import job_user, syscalls
from trainmaster_runtime.view import Builder, ViewRefused, closed_folders

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Iterator

    from trainmaster_runtime.log_writer import JobLog
    from trainmaster_runtime.order import RuntimeOrder
    from trainmaster_runtime.record import StateFolder
    from trainmaster_runtime.view import View

# Where containers of jobs with requirements have it.
_UV = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "uv")
_UNUSED_S = 30 * 86_400
_LOOK_S = 0.25
_DIGEST_CHARS = 24
_PASSED = ("PIP_", "UV_")
_CONDA_FOLDERS = ("miniconda3", "anaconda3", "miniforge3", "mambaforge", "micromamba", ".conda")
_CONDA_ROOTS = ("/opt/conda", "/opt/miniconda3", "/opt/anaconda3", "/opt/miniforge3")
_NETWORK = re.compile(
    r"failed to fetch|error sending request|dns error|connection (?:error|refused|reset|aborted|timed out)"
    r"|operation timed out|read timed out|temporary failure in name resolution|network is unreachable"
    r"|(?:50[0234]|429) (?:server error|service|bad gateway|too many)|newconnectionerror|request failed after",
    re.IGNORECASE,
)


class EnvironmentRefused(Exception):
    """Why there is no such Python, a sentence for the user. ``is_transient``: another attempt may succeed."""

    def __init__(self, sentence: str, *, is_transient: bool = False) -> None:
        super().__init__(sentence)
        self.is_transient = is_transient


class CommandPython:
    """The Python of the commands. ``path``: its executable; ``variables`` of the environment; ``needed_paths``: what
    the view must show.
    """

    def __init__(self, path: str, variables: dict[str, str]) -> None:
        self.path = path
        self.variables = variables
        self.folders = [os.path.dirname(path)]
        self.needed_paths: list[str] = []
        # Whether `python` and `python3` on the path are this one, or links must be made.
        self.has_own_names = all(_is_same(os.path.dirname(path) + "/" + name, path) for name in ("python", "python3"))

    def put_names(self, folder: str) -> None:
        """Make ``python`` and ``python3`` in ``folder``. Programs, because an interpreter behind a link does not find
        its environment.
        """
        os.makedirs(folder, exist_ok=True)
        for name in ("python", "python3"):
            with open(folder + "/" + name, "w") as stream:
                stream.write("#!/bin/sh\nexec '%s' \"$@\"\n" % self.path.replace("'", "'\\''"))
            os.chmod(folder + "/" + name, 0o755)  # noqa: S103 - a program


def find_python(order: RuntimeOrder) -> CommandPython | None:
    """The Python that the order names; ``None``: it names none. Raises :class:`EnvironmentRefused`."""
    wanted = order.environment
    place = "the image" if order.view == "as_is" else "this machine"
    if wanted.get("python"):
        path = wanted["python"]
        if not os.path.isfile(path) or not os.access(path, os.X_OK):
            raise EnvironmentRefused(
                "environment.python: %s is no program of %s; name a Python that is there, such as /usr/bin/python3."
                % (path, place)
            )
        return _shown_python(order, _shown(order, path, "python"), {}, "python")
    if wanted.get("venv"):
        folder = _shown(order, wanted["venv"], "venv")
        if not os.path.isfile(folder + "/pyvenv.cfg") or not os.access(folder + "/bin/python", os.X_OK):
            raise EnvironmentRefused(
                "environment.venv: %s is no virtual environment of %s (pyvenv.cfg or a working bin/python is missing); "
                "make it with `python3 -m venv %s`, or name another folder." % (folder, place, folder)
            )
        return _shown_python(order, folder + "/bin/python", {"VIRTUAL_ENV": folder}, "venv")
    if wanted.get("conda"):
        name = wanted["conda"]
        prefix = _shown(order, find_conda(name, place), "conda")
        variables = {"CONDA_PREFIX": prefix, "CONDA_DEFAULT_ENV": name}
        return _shown_python(order, prefix + "/bin/python", variables, "conda")
    return None


def _shown_python(order: RuntimeOrder, path: str, variables: dict[str, str], field: str) -> CommandPython:
    """The Python at ``path``. Jobs with a user of their own do not see folders such as ``/root``, but the environment
    in it, and the Python that the environment is based on.
    """
    python = CommandPython(path, variables)
    for each in dict.fromkeys((path, os.path.realpath(path))) if order.uid is not None else ():
        closed = closed_folders([each])
        if not closed:
            continue
        prefix = os.path.dirname(os.path.dirname(each))
        if not _is_prefix(prefix):
            raise EnvironmentRefused(
                "environment.%s: %s lies in %s, which only its owner may enter, and in no environment of Python that "
                "could be shown alone; name one in a folder that all users may read, such as /opt."
                % (field, path, closed[0])
            )
        python.needed_paths.append(prefix)
    return python


def _is_prefix(folder: str) -> bool:
    """Whether Python, or an environment of it, is installed in ``folder``."""
    try:
        names = os.listdir(folder + "/lib")
    except OSError:
        names = []
    own = [folder + "/pyvenv.cfg", folder + "/conda-meta"]
    return any(map(os.path.exists, own)) or any(name.startswith("python3.") for name in names)


def _shown(order: RuntimeOrder, path: str, field: str) -> str:
    """``path``, if the job may see it: the platform's own folder is hidden from jobs."""
    real = os.path.realpath(path)
    for hidden in order.hidden:
        folder = os.path.realpath(hidden)
        if real == folder or real.startswith(folder + "/"):
            raise EnvironmentRefused(
                "environment.%s: %s lies in the platform's own folder, which jobs do not see; name one outside of it."
                % (field, path)
            )
    return path


def find_conda(name: str, place: str = "this machine") -> str:
    """The folder of a conda environment, by conda's own list or at its usual places."""
    home = _home()
    roots = [home + "/" + folder for folder in _CONDA_FOLDERS] + list(_CONDA_ROOTS)
    prefixes: list[str] = []
    conda = os.environ.get("CONDA_EXE") or shutil.which("conda") or shutil.which("mamba")
    if conda:
        roots.insert(0, os.path.dirname(os.path.dirname(os.path.realpath(conda))))
        prefixes += _listed_by(conda, home)
    try:
        with open(home + "/.conda/environments.txt") as stream:
            prefixes += stream.read().split("\n")
    except OSError:
        pass
    for root in dict.fromkeys(roots):
        if name == "base" and os.path.isdir(root + "/conda-meta"):
            return root
        try:
            prefixes += [root + "/envs/" + entry for entry in sorted(os.listdir(root + "/envs"))]
        except OSError:
            pass
    prefixes = [prefix.strip() for prefix in dict.fromkeys(prefixes) if prefix.strip()]
    for prefix in prefixes:
        if os.path.basename(prefix) == name and os.access(prefix + "/bin/python", os.X_OK):
            return prefix
    names = sorted({os.path.basename(prefix) for prefix in prefixes})
    known = "it has %s" % ", ".join(names[:20]) if names else "it has none, or conda is not there"
    raise EnvironmentRefused(
        "environment.conda: %s has no conda environment %s with a Python (%s); `conda env list` shows the names, and "
        "`conda create -n %s python` makes it." % (place, name, known, name)
    )


def _listed_by(conda: str, home: str) -> list[str]:
    command = [conda, "env", "list", "--json"]
    try:
        with _unnoticed_children():
            listed = subprocess.run(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "HOME": home},
                timeout=60,
                check=False,
            )
        return [str(prefix) for prefix in json.loads(listed.stdout)["envs"]]
    except (OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError):
        return []  # its files say the same


@contextmanager
def _unnoticed_children() -> Iterator[None]:
    """Children of this time do not wake the waits for signals that come later."""
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, handler)


def _home() -> str:
    """The home of the own user, not the job's HOME; ``/`` for a user that the image does not know."""
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/"


class LayerStore:
    """Finds or builds the layer of one replica; a shared lock on it stays until this process ends.

    Args:
        check_stop: waits for so many seconds and raises when the replica is to stop.
    """

    def __init__(
        self, order: RuntimeOrder, state: StateFolder, log: JobLog, check_stop: Callable[[float], None]
    ) -> None:
        self._order = order
        self._state = state
        self._log = log
        self._check_stop = check_stop
        self._wanted = order.environment
        # Real, for a layer does not work under another name; a job's own view shows it at the same place.
        store = self._wanted["store"] + ("" if order.uid is None else "/%d" % order.uid)
        # What packages' code may write to while they are built: with user ids, nothing that root relies on.
        built = store + ("" if order.uid is None else "/built")
        with job_user.as_root():
            os.makedirs(built, mode=0o700, exist_ok=True)
            if order.uid is not None:
                os.chown(built, order.uid, order.uid, follow_symlinks=False)
        self._store = os.path.realpath(store)
        self._built = os.path.realpath(built)
        self._view: View | None = None
        self._lines: list[str] = []

    def demand(self, python: CommandPython | None) -> CommandPython:
        """The Python with the order's requirements. Raises :class:`EnvironmentRefused`."""
        base = python.path if python is not None else _python_of(self._order)
        self._open_view()
        facts = self._inspect(base)
        digest = self._digest(facts)
        folder = self._built + "/" + digest
        self._lock(digest, lambda: self._build(folder, base, facts))
        own = CommandPython(folder + "/bin/python", {"VIRTUAL_ENV": folder})
        own.folders += python.folders if python is not None else []
        own.needed_paths.append(folder)
        return own

    def _open_view(self) -> None:
        """A view like the job's, in which only the store can be written: packages run code when they are built."""
        if self._order.view != "private":
            return
        order = copy.copy(self._order)
        order.mounts = [OrderMount(self._built, self._built, False)]
        order.shm_bytes = None
        own = os.path.dirname(os.path.abspath(__file__))
        order.needed_paths = [*order.needed_paths, *filter(None, (own, self._wanted.get("uv"), _uv_settings()))]
        work, staging = self._state.file("environment"), self._state.file("root")
        with job_user.as_root():
            for path in (work, staging):
                os.makedirs(path, mode=0o700, exist_ok=True)
        try:
            self._view = Builder(order, work, staging).finish()
        except ViewRefused as error:
            if order.uid is not None:
                raise EnvironmentRefused("There is no view of the file system to build it in: %s." % error) from error
            self._view = None  # then nothing is hidden from the job either, as its log says

    def _inspect(self, base: str) -> dict[str, Any]:
        code = self._run([base, "-I", "-c", layer.INSPECT], is_logged=False)
        try:
            if code == 0:
                facts: dict[str, Any] = json.loads(self._lines[-1])
                return facts
        except (IndexError, ValueError):
            pass
        raise EnvironmentRefused(
            "%s is no working Python 3 on which requirements could be installed: %s"
            % (base, " ".join(self._lines[-3:])[-400:] or "it printed nothing")
        )

    def _digest(self, facts: dict[str, Any]) -> str:
        settings = sorted((name, value) for name, value in self._order.env.items() if name.startswith(_PASSED))
        content = json.dumps([1, self._wanted["requirements"], settings, facts], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:_DIGEST_CHARS]

    def _lock(self, digest: str, build: Callable[[], None]) -> None:
        """Return with a shared lock on a complete layer; the first of several processes builds it."""
        record = self._store + "/" + digest + ".json"
        with job_user.as_root():
            lock = os.open(self._store + "/" + digest + ".lock", os.O_RDWR | os.O_CREAT, 0o600)
        is_waiting = False
        while True:
            if not _try_lock(lock, fcntl.LOCK_EX):
                if _try_lock(lock, fcntl.LOCK_SH) and _touch(record):
                    return
                fcntl.flock(lock, fcntl.LOCK_UN)
                if not is_waiting:
                    is_waiting = True
                    self._tell("Waiting for the environment, which another replica builds.")
                self._check_stop(0.0)
                clock.pause(_LOOK_S)
                continue
            if not _touch(record):
                build()
                with job_user.as_root():
                    with open(record, "w") as stream:
                        json.dump({"requirements": self._wanted["requirements"]}, stream)
                    self._remove_unused(digest)
            # Not one step: whoever takes the lock in between finds the layer complete and just used.
            fcntl.flock(lock, fcntl.LOCK_SH)
            return

    def _build(self, folder: str, base: str, facts: dict[str, Any]) -> None:
        began = clock.monotonic()
        uv = self._wanted.get("uv") or shutil.which(_UV) or shutil.which("uv", path=_path_of(self._order))
        count = len(self._wanted["requirements"])
        self._tell("Building the environment: %d requirement%s on %s." % (count, "" if count == 1 else "s", base))
        content = {
            "folder": folder,
            "python": base,
            "base": facts,
            "uv": uv,
            "requirements": self._wanted["requirements"],
        }
        try:
            code = self._run([sys.executable, "-I", "-S", layer.__file__, json.dumps(content)], is_logged=True)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        if code != 0:
            shutil.rmtree(folder, ignore_errors=True)
            raise self._failure()
        self._tell("The environment is complete after %.1f s." % (clock.monotonic() - began))

    def _failure(self) -> EnvironmentRefused:
        text = " ".join(" ".join(self._lines).split())
        if any("No module named pip" in line for line in self._lines):
            return EnvironmentRefused(
                "The requirements cannot be installed: the image has neither uv nor pip; use an image with one of them."
            )
        # uv's message begins with a cross or a word, and explains itself in the lines behind.
        found = re.search(r"(?:×|\berror:|\bERROR:).*", text)
        reason = (found.group(0) if found else text[-400:]).strip("× ")
        reason = reason if len(reason) <= 400 else reason[:399] + "…"
        if _NETWORK.search(text):
            return EnvironmentRefused(
                "The environment could not be built, because its packages could not be downloaded: %s" % reason,
                is_transient=True,
            )
        return EnvironmentRefused(
            "The environment could not be built: %s – correct environment.requirements; the log has the whole message."
            % reason
        )

    def _run(self, command: list[str], *, is_logged: bool) -> int:
        """The exit code of ``command``, run in the view; its lines go to the log and into the replica's status."""
        view = self._view

        def enter() -> None:
            if view is not None:
                view.enter()
            job_user.become_user()
            syscalls.die_with_parent(signal.SIGKILL)

        self._lines = []
        read, write = os.pipe()
        try:
            with _unnoticed_children():
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=write,
                    stderr=write,
                    env=self._env(),
                    cwd="/",
                    start_new_session=True,
                    preexec_fn=enter,  # noqa: PLW1509 - the runtime has no threads yet
                )
                os.close(write)
                write = -1
                try:
                    self._read(read, is_logged)
                    return process.wait()
                finally:
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGKILL)
                        process.wait()
        except OSError as error:
            raise EnvironmentRefused("%s cannot be executed: %s." % (command[0], error.strerror)) from error
        except subprocess.SubprocessError as error:
            raise EnvironmentRefused("%s cannot be executed in the job's view: %s" % (command[0], error)) from error
        finally:
            os.close(read)
            if write >= 0:
                os.close(write)

    def _read(self, fd: int, is_logged: bool) -> None:
        rest = b""
        while True:
            self._check_stop(0.0)
            if not select.select([fd], [], [], _LOOK_S)[0]:
                continue
            data = os.read(fd, 65_536)
            *lines, rest = (rest + data).replace(b"\r", b"\n").split(b"\n")
            if not data and rest:
                lines, rest = [*lines, rest], b""
            for line in filter(None, (line.decode("utf-8", "replace").rstrip() for line in lines)):
                self._lines.append(line)
                if is_logged:
                    self._log.say("environment: " + line)
                    self._state.write_status(phase="pending", detail="Building the environment: " + line.strip()[:200])
            if not data:
                return

    def _env(self) -> dict[str, str]:
        env = {**os.environ, **{name: value for name, value in self._order.env.items() if name.startswith(_PASSED)}}
        given = {name: value for name, value in self._wanted.get("settings", {}).items() if name not in env}
        env.update(given)
        home = _home()
        pip_files = ["/etc/pip.conf", home + "/.pip/pip.conf", home + "/.config/pip/pip.conf"]
        env.update(layer.settings_of_uv(env, [*pip_files, env.get("PIP_CONFIG_FILE", "")]))
        if "UV_CONFIG_FILE" not in env and _uv_settings():
            env["UV_CONFIG_FILE"] = _uv_settings()
        env.update(
            HOME=self._built + "/home",
            UV_CACHE_DIR=self._built + "/cache",
            PIP_CACHE_DIR=self._built + "/cache/pip",
            UV_PYTHON_DOWNLOADS="never",
            PYTHONUNBUFFERED="1",
        )
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX"):
            env.pop(name, None)
        return env

    def _tell(self, text: str) -> None:
        self._log.say(text)
        self._state.write_status(phase="pending", detail=text)

    def _remove_unused(self, digest: str) -> None:
        """Remove layers that no replica has used for a month, and then downloads, which are those of old layers."""
        is_any_removed = False
        for name in os.listdir(self._store):
            path = self._store + "/" + name
            if not name.endswith(".json") or name == digest + ".json" or clock.now() - _age(path) < _UNUSED_S:
                continue
            lock = os.open(path[: -len(".json")] + ".lock", os.O_RDWR | os.O_CREAT, 0o600)
            if _try_lock(lock, fcntl.LOCK_EX):
                os.unlink(path)
                shutil.rmtree(self._built + "/" + name[: -len(".json")], ignore_errors=True)
                is_any_removed = True
            os.close(lock)
        if is_any_removed:
            shutil.rmtree(self._built + "/cache", ignore_errors=True)


def _uv_settings() -> str:
    """The file of the own user's uv settings; empty where there is none."""
    path = _home() + "/.config/uv/uv.toml"
    return path if os.path.isfile(path) else ""


def _python_of(order: RuntimeOrder) -> str:
    path = _path_of(order)
    return shutil.which("python3", path=path) or shutil.which("python", path=path) or sys.executable


def _path_of(order: RuntimeOrder) -> str:
    return order.env.get("PATH") or os.environ.get("PATH") or os.defpath


def _is_same(path: str, other: str) -> bool:
    try:
        return os.path.realpath(path) == os.path.realpath(other) and os.access(path, os.X_OK)
    except OSError:
        return False


def _try_lock(fd: int, kind: int) -> bool:
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _touch(path: str) -> bool:
    """Whether it is there; its time of change is now."""
    try:
        with job_user.as_root():
            os.utime(path)
    except OSError:
        return False
    return True


def _age(path: str) -> float:
    """When it was changed, in seconds since 1970."""
    return os.stat(path).st_mtime
