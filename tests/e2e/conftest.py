from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

START_WITHIN_S = 300.0


@dataclass
class Platform:
    """A whole embedded platform, started by the command that users start it with."""

    home: Path
    process: subprocess.Popen[bytes]
    url: str
    token: str

    @cached_property
    def client(self) -> Any:
        """One client for all; closed by ``stop``."""
        from trainmaster import Client

        return Client(self.url, token=self.token)

    def cli_env(self) -> dict[str, str]:
        """The environment in which `trainmaster …` talks to this platform."""
        return {
            **os.environ,
            "TRAINMASTER_HOME": str(self.home),
            "TRAINMASTER_API_URL": self.url,
            "TRAINMASTER_TOKEN": self.token,
            "NO_COLOR": "1",
            "COLUMNS": "160",
        }

    def cli(self, *arguments: str, cwd: Path | None = None, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "trainmaster.cli.main", *arguments],
            env=self.cli_env(),
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def end(self) -> None:
        """Down, with all of its jobs cancelled."""
        subprocess.run(
            [sys.executable, "-m", "embedded", "down", "--home", str(self.home), "--jobs", "cancel"],
            capture_output=True,
            check=False,
            timeout=150,
        )
        self.stop()

    def stop(self) -> None:
        if "client" in self.__dict__:
            self.client.close()
        with suppress(ProcessLookupError):
            self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_platform(
    home: Path, *, port: int = 0, host: str = "127.0.0.1", env: Mapping[str, str] | None = None
) -> Platform:
    """``env`` is laid over the test's own environment."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "supervisor.out").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "embedded", "up", "--home", str(home), "--host", host, "--port", str(port)],
            env={**os.environ, **(env or {})},
            stdout=output,
            stderr=output,
        )
    deadline = time.monotonic() + START_WITHIN_S
    while (up := ready_message(process, home)) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            pytest.fail(f"the platform did not start: {(home / 'supervisor.out').read_text()}{tail_of_logs(home)}")
        time.sleep(0.05)
    return Platform(home, process, up["url"], (home / "token").read_text().strip())


def ready_message(process: subprocess.Popen[bytes], home: Path) -> dict[str, Any] | None:
    """What this very platform says of itself; one that was killed before it may have left its own word."""
    try:
        up: dict[str, Any] = json.loads((home / "up.json").read_text())
    except (OSError, ValueError):
        return None
    return up if up["pid"] == process.pid else None


def tail_of_logs(home: Path) -> str:
    return "\n".join(
        f"--- {p.name}\n{p.read_text(errors='replace')[-3000:]}" for p in sorted((home / "logs").glob("*.log"))
    )


def wait_until(condition: Any, *, within_s: float, what: str) -> Any:
    """The first true value of ``condition()``; fails with ``what`` after the deadline.

    ``within_s`` is for a machine with time for it. What never comes is told later by twice as long a wait, what is only
    slow is not told at all.
    """
    deadline = time.monotonic() + 2 * within_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            pytest.fail(f"not within {within_s} s: {what}")
        time.sleep(0.3)  # a look costs the platform processor time, of which the jobs have little


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Open to the users that jobs run as: pytest closes its own folder whenever it is started."""
    with tempfile.TemporaryDirectory(prefix="trainmaster-test-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """One platform for all end-to-end tests that do not break it."""
    started = start_platform(tmp_path_factory.mktemp("home"))
    yield started
    for job in started.client.list_jobs(state=["queued", "starting", "running", "paused"]):
        with suppress(Exception):
            started.client.cancel_job(job.id)
    started.stop()


@pytest.fixture
def own_platform(tmp_path: Path) -> Iterator[Platform]:
    """A platform of the test's own, to be broken."""
    started = start_platform(tmp_path / "home")
    yield started
    started.end()


@pytest.fixture(scope="session")
def launch() -> Any:
    """``launch(home, port=0, …) -> Platform``, for tests that start one again on the same home."""
    return start_platform


@pytest.fixture(scope="session")
def eventually() -> Any:
    """``eventually(condition, within_s=…, what=…)``."""
    return wait_until


@pytest.fixture(scope="session")
def embedded() -> Any:
    """``embedded("down", "--home", …)`` runs the supervisor's command line and returns the finished process."""

    def run(*arguments: str, timeout: float = 150) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "embedded", *arguments],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def processes_of() -> Any:
    """``processes_of("KEY=value")``: pids of all processes whose environment holds that entry."""

    def find(marker: str) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    if marker.encode() in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    return find
