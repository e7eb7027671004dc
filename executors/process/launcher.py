"""Launches the runtime of a replica: executed, or forked from a preloaded parent."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from core.domain.errors import ExecutorTryAgain
from executors.base import ReplicaOrder
from executors.process.state import ReplicaFolder
from executors.process.warm import WarmStarts

# What a job gets of the control plane's environment; its secrets and settings are not among it.
PASSED_ENV: Final = (
    *("PATH", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"),
    *("LD_LIBRARY_PATH", "CUDA_HOME", "CUDA_PATH", "CONDA_EXE", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"),
    *("http_proxy", "https_proxy", "no_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"),
)
_DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_CLAIM_S: Final = 20.0  # for the runtime to take the order: 50 ms on an idle machine
_NOT_CLAIMED: Final = 75  # trainmaster_runtime.main.NOT_CLAIMED


# By which pip and uv find the machine's package index; only for building environments, as they may hold a password.
_INDEX_PREFIXES: Final = ("PIP_", "UV_")


def build_settings(environments: Path) -> dict[str, Any]:
    """Fields of an order's ``environment`` with requirements: the folder of all layers, uv, and the index."""
    settings = {name: value for name, value in os.environ.items() if name.startswith(_INDEX_PREFIXES)}
    return {"store": str(environments), "uv": _find_uv(), "settings": settings}


def _find_uv() -> str | None:
    try:
        import uv

        return str(uv.find_uv_bin())
    except (ImportError, FileNotFoundError):  # then the base's pip installs
        return shutil.which("uv")


class RuntimeLauncher:
    """``runtime``: its folder; ``python`` runs it; ``extra_path``: in front of the jobs' PATH; ``homes``: the folder of
    the projects' homes; ``library``: a folder with the training library alone, if it is installed.
    """

    def __init__(
        self, runtime: Path, python: str, *, extra_path: str, homes: Path, library: Path | None, warm: WarmStarts | None
    ) -> None:
        self._runtime = runtime
        self._python = python
        self._extra_path = extra_path
        self._homes = homes
        self.library = library
        self._warm = warm

    def needed_paths(self) -> list[str]:
        """The Python, all of its environment (<prefix>/bin/python), the runtime with its hook, and the library."""
        library = [] if self.library is None else [str(self.library)]
        prefix, real = Path(self._python).parents[1], os.path.realpath(self._python)
        # The standard library of a virtual environment lies next to the real interpreter.
        return [real, str(Path(real).parents[1]), self._python, str(prefix), str(self._runtime), *library]

    def start(self, folder: Path, order: ReplicaOrder, lock: int) -> bool:
        """Start the runtime; it gets the lock and goes on when this process dies.

        ``False``: another process runs the order, or its attempt was removed. Raises ``ExecutorTryAgain``.
        """
        environment = self._environment(order)
        pool = None if self._warm is None else self._warm.pool(order, environment)
        code = None
        if self._warm is not None and pool is not None:
            with open(folder / "runtime.log", "ab", opener=_private) as log:
                code = self._warm.start(pool, ReplicaFolder(folder), environment, lock=lock, log=log.fileno())
        if code is None:
            code = self._launch(folder, lock, environment)
        if code not in (0, _NOT_CLAIMED):
            text = (folder / "runtime.log").read_text(errors="replace").strip().splitlines()
            raise ExecutorTryAgain(f"The runtime of {folder.name} did not start: {text[-1] if text else 'no reason'}")
        is_claimed = code == 0
        if self._warm is not None and pool is not None and is_claimed:
            self._warm.watch_imports(pool, ReplicaFolder(folder))
        return is_claimed

    def _launch(self, folder: Path, lock: int, environment: Mapping[str, str]) -> int:
        """Execute the runtime; returns its launcher's code."""
        # -I -S: neither the user's site-packages nor the platform's slow its start down or get into it.
        command = [self._python, "-I", "-S", str(self._runtime / "__main__.py"), "--detach", "--lock-fd", str(lock)]
        with open(folder / "runtime.log", "ab", opener=_private) as log:
            try:
                done = subprocess.run(
                    [*command, str(folder / "order.json")],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env=environment,
                    pass_fds=(lock,),
                    start_new_session=True,
                    timeout=_CLAIM_S,
                    check=False,
                )
            except subprocess.TimeoutExpired as error:
                raise ExecutorTryAgain(
                    f"The runtime of {folder.name} does not start; the machine is too busy."
                ) from error
        return done.returncode

    def home(self, order: ReplicaOrder) -> Path:
        """The home of all jobs of the order's project. It is never the platform's own, where keys and passwords lie;
        downloads of models and data stay in it from job to job.
        """
        return self._homes / (order.project or "none")

    def _environment(self, order: ReplicaOrder) -> Mapping[str, str]:
        env = {name: os.environ[name] for name in PASSED_ENV if name in os.environ}
        env["HOME"] = str(self.home(order))
        path = env.get("PATH", _DEFAULT_PATH)
        env["PATH"] = f"{self._extra_path}:{path}" if self._extra_path else path
        # NVML counts devices in this order.
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        return env


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
