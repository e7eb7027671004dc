"""The whole platform with containers: real gangs on a real Docker engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import elastic_steps, outage_story
from tests.e2e.conftest import wait_until
from tests.e2e.stories import story_of
from tests.e2e.test_environments import put_wheel

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
ACCURACY = 0.95
PYTHON = "python:3.11-slim"
TORCH = os.environ.get("TRAINMASTER_TEST_TORCH_IMAGE", "trainmaster/torch:cpu")

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.docker,
    pytest.mark.xdist_group("e2e"),
    pytest.mark.timeout(600),
    # httpcore leaves a connection that broke in the middle of an answer to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def docker(*words: str) -> str:
    """What the engine's command line says; empty where it fails."""
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False, timeout=280)
    return done.stdout.strip() if done.returncode == 0 else ""


def has_image(name: str) -> bool:
    return bool(docker("image", "inspect", "-f", "{{.Id}}", name))


@pytest.fixture(scope="session")
def runtime_image() -> str:
    try:
        is_there = bool(docker("version", "-f", "{{.Server.Version}}"))
    except FileNotFoundError:
        is_there = False
    if not is_there:
        pytest.skip("no Docker engine answers")
    if not has_image(PYTHON):
        pytest.skip(f"the engine has no {PYTHON}")
    given = os.environ.get("TRAINMASTER_TEST_RUNTIME_IMAGE")
    if given:
        return given
    name = "trainmaster/runtime:test"
    images = ROOT / "worker_images"
    file = str(images / "runtime" / "Dockerfile")
    assert docker("build", "-q", "--network", "host", "-t", name, "-f", file, str(images))
    return name


@pytest.fixture(scope="module")
def instance() -> str:
    return f"e2e-{uuid.uuid4().hex[:8]}"


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    """Further settings of the platform, of a module's own."""
    return {}


@pytest.fixture(scope="module")
def left(instance: str) -> Callable[[], list[str]]:
    """What the engine holds of the platform, but for the marks of attempts that were removed."""

    def find() -> list[str]:
        own = f"label=trainmaster/instance={instance}"
        volumes = docker("volume", "ls", "-q", "--filter", own).split()
        return [
            *docker("ps", "-aq", "--filter", own).split(),
            *docker("network", "ls", "-q", "--filter", own).split(),
            *(name for name in volumes if not name.endswith(".removed")),
        ]

    return find


class OnDocker:
    """A platform with the Docker driver, and the way to kill it and to start it again at the same address."""

    def __init__(self, launch: Callable[[int], Any]) -> None:
        self._launch = launch
        self.now: Any = launch(0)
        self._before: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.now, name)

    def kill(self) -> None:
        for pid in [self.process.pid, *processes_of(self.home)]:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        wait_until(lambda: not processes_of(self.home), within_s=30, what="the old platform is gone")

    def start_again(self) -> None:
        self._before.append(self.now)
        self.now = self._launch(int(self.url.rsplit(":", 1)[1]))

    def end(self) -> None:
        for platform in (*self._before, self.now):
            platform.end()


@pytest.fixture(scope="module")
def containers(
    tmp_path_factory: pytest.TempPathFactory,
    runtime_image: str,
    instance: str,
    launch: Any,
    left: Any,
    settings: dict[str, str],
) -> Iterator[OnDocker]:
    """A platform of the module's own with the Docker driver."""
    home = tmp_path_factory.mktemp("docker") / "home"
    env = {
        "TRAINMASTER_EXECUTOR": "docker",
        "TRAINMASTER_INSTANCE": instance,
        "TRAINMASTER_RUNTIME_IMAGE": runtime_image,
        "TRAINMASTER_DEFAULT_IMAGE": PYTHON,
        **settings,
    }
    started = OnDocker(lambda port: launch(home, port=port, env=env))
    yield started
    started.end()
    assert left() == []
    for mark in docker("volume", "ls", "-q", "--filter", f"label=trainmaster/instance={instance}").split():
        docker("volume", "rm", mark)


def submit(platform: Any, example: str, **changes: Any) -> Any:
    import yaml

    spec = yaml.safe_load((EXAMPLES / example / "job.yaml").read_text())
    if "input" in spec:
        digits = platform.home / "data" / "digits"
        if not digits.exists():
            subprocess.run([sys.executable, str(EXAMPLES / "data" / "make_digits.py"), str(digits)], check=True)
    return platform.client.submit({**spec, **changes}, code=EXAMPLES / example)


def succeeded(job: Any, timeout_s: float = 300) -> Any:
    detail = job.wait(timeout_s=timeout_s)
    assert detail.state == "succeeded", f"{detail.exit}\n{story_of(job)}"
    return detail


@pytest.fixture
def torch_image(runtime_image: str) -> str:
    if not has_image(TORCH):
        pytest.skip(f"the engine has no {TORCH}; `python3 dev.py images` builds it")
    pytest.importorskip("sklearn")  # makes the data
    return TORCH


def test_replicas_of_three_roles_get_every_contract_and_leave_nothing(
    containers: Any, left: Any, eventually: Any
) -> None:
    job = submit(containers, "tf_config")

    succeeded(job)

    text = "\n".join(line.text for line in job.logs())
    assert "worker-0:2222" in text
    assert "ps-0:2223" in text
    eventually(lambda: not left(), within_s=60, what="nothing is left of the job")
    outputs = [path for path in (containers.home / "output").rglob("*.log") if job.id in str(path)]
    assert len(outputs) == 3
    if os.geteuid() == 0:
        assert {path.stat().st_uid for path in outputs} == {1000}


def test_requirements_are_a_layer_on_the_image_for_all_jobs_of_a_project(containers: Any, left: Any) -> None:
    wheels = containers.home / "data" / "wheels"
    wheels.mkdir(mode=0o755)
    put_wheel(wheels)
    spec = {
        "name": "layer",
        "command": ["python", "-c", "import alpha; print('it has', alpha.VALUE)"],
        "workers": 2,
        "input": "data/wheels",
        "environment": {"requirements": ["alpha", "--no-index", "--find-links /data/data"]},
    }
    lines = []
    for _ in range(2):
        job = containers.client.submit(spec)
        succeeded(job)
        lines.append([line.text for line in job.logs()])
    assert [sum("it has 41" in line for line in job_lines) for job_lines in lines] == [2, 2]
    built = [sum("Building the environment: 3" in line for line in job_lines) for job_lines in lines]
    assert built == [1, 0], lines
    assert len(list((containers.home / "output" / "default" / ".environments").glob("*.json"))) == 1


@pytest.mark.parametrize("example", ["allreduce", "parameter_server"])
def test_an_example_trains_in_containers_to_its_accuracy(
    containers: Any, torch_image: str, example: str, left: Any, eventually: Any
) -> None:
    job = submit(containers, example, image=torch_image)

    detail = succeeded(job)

    result = json.loads(job.read_file("result.json"))
    assert result["accuracy"] >= ACCURACY
    assert detail.attempt_count == 1, story_of(job)
    # Told over the API, from inside of the containers.
    assert len(list(job.checkpoints())) >= 3, story_of(job)
    assert job.detail().progress["metrics"]["accuracy"] == result["accuracy"]
    eventually(lambda: not left(), within_s=60, what="nothing is left of the job")


def test_a_control_plane_that_was_killed_adopts_what_goes_on_without_it(
    containers: Any, torch_image: str, eventually: Any, left: Any
) -> None:
    job = submit(
        containers, "allreduce", image=torch_image, args=["--checkpoint-every", "20", "--step-seconds", "0.05"]
    )
    eventually(lambda: list(job.checkpoints()), within_s=180, what="a first checkpoint")
    before = left()
    containers.kill()
    assert left() == before

    containers.start_again()
    detail = succeeded(job)
    assert detail.attempt_count == 1, story_of(job)
    assert json.loads(job.read_file("result.json"))["resumed_at"] in (0, None)


def processes_of(home: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                environ = (entry / "environ").read_bytes().split(b"\0")
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"TRAINMASTER_HOME={home}".encode() in environ and b"-m" in words:
                found.append(int(entry.name))
    return found


def test_cancelling_leaves_nothing(containers: Any, left: Any, eventually: Any) -> None:
    job = containers.client.submit({"name": "long", "workers": 2, "command": "sleep 1000", "grace": {"stop": 1}})
    eventually(lambda: job.detail().state == "running", within_s=120, what="the job runs")
    assert len(left()) == 3  # two containers and their network

    job.cancel()

    assert job.wait(timeout_s=60).state == "cancelled"
    eventually(lambda: not left(), within_s=30, what="nothing is left of the job")


def test_an_image_that_is_not_there_is_reported_while_the_job_waits(containers: Any, eventually: Any) -> None:
    job = containers.client.submit({"name": "lost", "image": "nowhere.invalid/lost:1", "command": "true"})

    eventually(
        lambda: "nowhere.invalid/lost:1 cannot be pulled" in story_and_details(job),
        within_s=90,
        what="the reason is told",
    )
    job.cancel()


def story_and_details(job: Any) -> str:
    replicas = [str(getattr(replica, "detail", "")) for attempt in job.attempts() for replica in attempt.replicas]
    return "\n".join([str(job.detail().exit), *replicas, *(event.reason or "" for event in job.events())])


def test_an_elastic_gang_goes_on_without_a_container_that_was_killed_and_takes_another_in(
    containers: Any, torch_image: str, left: Any, eventually: Any
) -> None:
    job = submit(containers, "elastic", image=torch_image, **elastic_steps.SPEC)
    steps = elastic_steps.Steps(containers.home / "output" / job.detail().output.partition("/")[2])

    def lose() -> None:
        own = [f"label=trainmaster/{name}" for name in (f"job={job.id}", "index=0")]
        assert docker("kill", *docker("ps", "-q", "--filter", own[0], "--filter", own[1]).split())

    elastic_steps.check_elastic_training(job, steps, lose, eventually)
    eventually(lambda: not left(), within_s=60, what="nothing is left of the job")


def test_what_ends_while_the_platform_is_away_has_its_metrics_and_its_exit_code(
    containers: Any, eventually: Any, left: Any
) -> None:
    jobs = outage_story.begin(containers.client, eventually)
    containers.kill()
    outage_story.let_end(
        containers.home / "output",
        jobs,
        eventually,
        lambda job: not docker("ps", "-q", "--filter", f"label=trainmaster/job={job}"),
    )
    containers.start_again()
    outage_story.check(containers.client, jobs, eventually)
    eventually(lambda: not left(), within_s=60, what="no container is left")
