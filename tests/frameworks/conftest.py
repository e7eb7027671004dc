"""Real jobs of frameworks that the platform's own environment does not hold.

Each framework has an environment of its own (`python3 dev.py frameworks`); tests of one that is not there are skipped.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.conftest import eventually, platform, processes_of  # noqa: F401 (fixtures)

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
EXAMPLES = ROOT / "examples"
JOB_TIMEOUT_S = 240.0


def folder() -> Path:
    return Path(os.environ.get("TRAINMASTER_TEST_FRAMEWORKS") or ROOT / ".frameworks")


@pytest.fixture(scope="session", autouse=True)
def environments() -> None:
    """Skips before a platform is started where no framework is there at all."""
    if not any(folder().glob("*/installed")):
        pytest.skip(f"no frameworks in {folder()}: make them with `python3 dev.py frameworks`")


@pytest.fixture(scope="session")
def python_of() -> Any:
    """``python_of("tf")``: the interpreter that has the framework; skips where there is none."""

    def find(name: str) -> str:
        python = folder() / name / "bin" / "python"
        if not (folder() / name / "installed").exists():
            pytest.skip(f"no {python}: make it with `python3 dev.py frameworks {name}`")
        return str(python)

    return find


@dataclass
class Run:
    """One job of a framework."""

    job: Any

    def result(self) -> dict[str, Any]:
        """The job's result, once it has succeeded."""
        self.succeed()
        found: dict[str, Any] = json.loads(self.job.read_file("result.json"))
        return found

    def succeed(self) -> None:
        detail = self.job.wait(timeout_s=JOB_TIMEOUT_S)
        assert detail.state == "succeeded", f"{detail.exit}\n{self.story()}"

    def fail(self) -> Any:
        """How it ended, once it has failed."""
        detail = self.job.wait(timeout_s=JOB_TIMEOUT_S)
        assert detail.state == "failed", f"{detail.state}\n{self.story()}"
        return detail.exit

    def log(self, role: str, index: int = 0, attempt: int | None = None) -> str:
        lines = self.job.logs(attempt=attempt, role=role)
        return "\n".join(line.text for line in lines if line.index == index)

    def story(self) -> str:
        """Events and logs of all attempts, for who reads a failed test."""
        lines = [f"{event.at} {event.kind} {event.reason}" for event in self.job.events()]
        for attempt in self.job.attempts():
            log = self.job.logs(attempt=attempt.number)
            lines += [f"{line.attempt} {line.role}-{line.index} {line.text}" for line in log]
        return "\n".join(lines)

    def steps(self) -> int:
        """How far the training says that it is."""
        steps: int = self.job.detail().progress.get("step", 0)
        return steps

    def states(self) -> dict[str, str]:
        """How each replica of the newest attempt ended."""
        newest = max(self.job.attempts(), key=lambda attempt: attempt.number)
        return {f"{replica.role}-{replica.index}": str(replica.state) for replica in newest.replicas}

    def generations(self) -> dict[str, int]:
        """How often each replica of the newest attempt was started."""
        newest = max(self.job.attempts(), key=lambda attempt: attempt.number)
        return {f"{replica.role}-{replica.index}": replica.generation for replica in newest.replicas}


@pytest.fixture
def run(platform: Any, python_of: Any) -> Any:  # noqa: F811
    """``run(environment, folder, command, **spec) -> Run``: submits ``command``, run by that environment's Python.

    Jobs are asked to end when the test is over, however it was.
    """
    jobs: list[Any] = []

    def submit(environment: str, code: Path, command: list[str], **spec: Any) -> Run:
        base = {
            "name": f"{environment}-{Path(command[0]).stem.replace('_', '-')}",
            "command": [python_of(environment), *command],
            "max_restarts": 0,
            "grace": {"stop": 5, "exit": 5, "evaluator": 5},
        }
        spec["env"] = {"TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1", **spec.get("env", {})}
        jobs.append(platform.client.submit({**base, **spec}, code=code))
        return Run(jobs[-1])

    yield submit
    for job in jobs:
        if job.detail().state not in ("succeeded", "failed"):
            job.cancel()
            job.wait(timeout_s=60)


@pytest.fixture(scope="session")
def digits(platform: Any) -> str:  # noqa: F811
    """The digits, in the platform's volume ``data``."""
    pytest.importorskip("sklearn")
    script = EXAMPLES / "data" / "make_digits.py"
    subprocess.run([sys.executable, str(script), str(platform.home / "data" / "digits")], check=True)
    return "data/digits"


@pytest.fixture
def kill(processes_of: Any) -> Any:  # noqa: F811
    """``kill(run, "worker", 1, script="train.py")``: SIGKILL to the user's process of a replica."""

    def send(run: Run, role: str, index: int, *, script: str) -> None:
        marks = {f"TRAINMASTER_ROLE={role}", f"TRAINMASTER_INDEX={index}"}
        pids = [
            pid
            for pid in processes_of(f"TRAINMASTER_JOB_ID={run.job.id}")
            if marks <= set(Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0"))
            and script.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        assert pids, f"no process of {role}-{index}"
        for pid in pids:
            os.kill(pid, signal.SIGKILL)

    return send


@dataclass(frozen=True)
class Bridge:
    """A `trainmaster vertex-bridge` that runs. ``address``: HOST:PORT, for ``api_endpoint``."""

    address: str
    ca: str

    @property
    def env(self) -> dict[str, str]:
        """What a client's process needs to trust it."""
        return {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": self.ca}


@pytest.fixture(scope="session")
def bridge_to(python_of: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``bridge_to(url) -> Bridge``: a process of its own, in the environment that its extra makes."""
    found: dict[str, Bridge] = {}
    processes: list[subprocess.Popen[str]] = []

    def start(url: str) -> Bridge:
        if url not in found:
            home = tmp_path_factory.mktemp("bridge")
            paths = [str(ROOT / "sdk"), *filter(None, [os.environ.get("PYTHONPATH")])]
            env = {**os.environ, "TRAINMASTER_HOME": str(home), "TRAINMASTER_API_URL": url}
            command = ["vertex-bridge", "--listen", "127.0.0.1:0", "--self-signed", "--json"]
            with (home / "err").open("w") as err:
                process = subprocess.Popen(
                    [python_of("vertex-bridge"), "-m", "trainmaster.cli.main", *command],
                    env={**env, "PYTHONPATH": os.pathsep.join(paths)},
                    stdout=subprocess.PIPE,
                    stderr=err,
                    text=True,
                )
            processes.append(process)
            assert process.stdout is not None
            output = ""
            while not output.rstrip().endswith("}") and (line := process.stdout.readline()):
                output += line
            assert output, (home / "err").read_text()
            reported = json.loads(output)
            found[url] = Bridge(reported["address"], reported["ca"])
        return found[url]

    yield start
    for process in processes:
        process.terminate()
        process.wait(60)
        process.stdout.close()
