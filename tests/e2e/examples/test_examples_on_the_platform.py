"""The examples as jobs: submitted with the SDK, broken with kill -9, brought to their accuracy."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e")]

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
ACCURACY = 0.95


@pytest.fixture(scope="module")
def digits(platform: Any) -> None:
    """The data, in the platform's volume ``data``."""
    script = EXAMPLES / "data" / "make_digits.py"
    subprocess.run([sys.executable, str(script), str(platform.home / "data" / "digits")], check=True)


@pytest.fixture
def submit(platform: Any, digits: None) -> Any:
    """``submit(example, **changes) -> Job``"""

    def submit(example: str, **changes: Any) -> Any:
        import yaml

        spec = yaml.safe_load((EXAMPLES / example / "job.yaml").read_text())
        # The tests' own interpreter, whatever the platform's PATH says.
        spec["command"] = [sys.executable, *spec["command"][1:]]
        return platform.client.submit({**spec, **changes}, code=EXAMPLES / example)

    return submit


def finished(job: Any) -> dict[str, Any]:
    """The job's result, once it has succeeded."""
    detail = job.wait(timeout_s=120)
    assert detail.state == "succeeded", f"{detail.exit}\n{story_of(job)}"
    found: dict[str, Any] = json.loads(job.read_file("result.json"))
    return found


def story_of(job: Any) -> str:
    """Events and logs of all attempts, for who reads a failed test."""
    lines = [f"{event.at} {event.kind} {event.reason}" for event in job.events()]
    for attempt in job.attempts():
        lines += [f"{line.attempt} {line.role}-{line.index} {line.text}" for line in job.logs(attempt=attempt.number)]
    return "\n".join(lines)


def kill(processes_of: Any, job: Any, role: str, index: int) -> None:
    """SIGKILL to the user's process of a replica."""
    pids = [
        pid
        for pid in processes_of(f"TRAINMASTER_JOB_ID={job.id}")
        if {f"TRAINMASTER_ROLE={role}", f"TRAINMASTER_INDEX={index}"}
        <= set(Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0"))
        and b"train.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    assert pids, f"no process of {role}-{index}"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("example", ["allreduce", "parameter_server", "pipeline"])
def test_an_example_trains_to_its_accuracy_and_shows_its_checkpoints(submit: Any, example: str) -> None:
    job = submit(example)

    result = finished(job)

    assert result["accuracy"] >= ACCURACY
    checkpoints = list(job.checkpoints())
    assert len(checkpoints) >= 3
    assert all(found.path.startswith("checkpoints/step-") for found in checkpoints)
    newest = max(checkpoints, key=lambda found: found.step)
    assert newest.metrics["accuracy"] == result["accuracy"]
    assert newest.size_bytes > 10_000
    assert job.detail().attempt_count == 1, story_of(job)
    assert job.detail().progress["metrics"]["accuracy"] == result["accuracy"]
    names = {source.name for source in job.log_sources()}
    assert {"worker-0", "worker-1"} <= names


def test_allreduce_goes_on_from_its_checkpoint_after_kill_9(submit: Any, eventually: Any, processes_of: Any) -> None:
    job = submit("allreduce", args=["--checkpoint-every", "20", "--step-seconds", "0.1"])
    eventually(lambda: list(job.checkpoints()), within_s=60, what="a first checkpoint")
    kill(processes_of, job, "worker", 1)

    result = finished(job)

    assert result["accuracy"] >= ACCURACY
    assert result["resumed_at"] >= 20
    first, second = sorted(job.attempts(), key=lambda attempt: attempt.number)
    assert first.is_counted
    assert second.resume_from is not None
    assert int(second.resume_from.rpartition("step-")[2]) == result["resumed_at"]


def test_a_worker_of_the_parameter_server_comes_back_alone_after_kill_9(
    submit: Any, eventually: Any, processes_of: Any
) -> None:
    job = submit("parameter_server", args=["--checkpoint-every", "100", "--step-seconds", "0.01"])
    eventually(lambda: list(job.checkpoints()), within_s=60, what="a first checkpoint")
    kill(processes_of, job, "worker", 1)

    result = finished(job)

    assert result["accuracy"] >= ACCURACY
    (attempt,) = job.attempts()
    generations = {(replica.role, replica.index): replica.generation for replica in attempt.replicas}
    assert generations == {("worker", 0): 1, ("worker", 1): 2, ("ps", 0): 1}


def test_a_ps_that_dies_starts_the_gang_again_from_its_checkpoint(
    submit: Any, eventually: Any, processes_of: Any
) -> None:
    job = submit("parameter_server", args=["--checkpoint-every", "100", "--step-seconds", "0.01"])
    eventually(lambda: list(job.checkpoints()), within_s=60, what="a first checkpoint")
    kill(processes_of, job, "ps", 0)

    result = finished(job)

    assert result["accuracy"] >= ACCURACY
    assert job.detail().attempt_count == 2
    log = [line.text for line in job.logs(attempt=2, role="ps")]
    assert any(text.startswith("resuming from step-") for text in log), log


def test_a_pause_loses_no_step(submit: Any, eventually: Any) -> None:
    job = submit("allreduce", args=["--checkpoint-every", "1000", "--step-seconds", "0.05"])
    eventually(lambda: job.detail().progress.get("step", 0) >= 20, within_s=60, what="twenty steps")
    job.pause()
    eventually(lambda: job.detail().state == "paused", within_s=60, what="the pause")
    step = max(found.step for found in job.checkpoints())
    job.resume()

    result = finished(job)

    assert result["resumed_at"] == step >= 20
    assert result["accuracy"] >= ACCURACY


def test_every_role_of_the_contracts_example_says_who_it_is(submit: Any) -> None:
    job = submit("tf_config")

    assert job.wait(timeout_s=60).state == "succeeded"
    for name, role in (("chief-0", "chief"), ("worker-0", "worker"), ("ps-0", "ps")):
        log = job.read_log(name)
        assert f"I am {role} 0 of" in log
        assert f"→ {role} 0: 127.0.0.1:" in log


def test_the_demo_ends_well(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "demo.py"), "--home", str(tmp_path / "home")],
        env={**os.environ, "COLUMNS": "140"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("✓ succeeded") == 2
    assert "worker-1 │" in done.stdout
    assert "ps-0 │" in done.stdout
    assert "checkpoints/step-00000220" in done.stdout
    assert "job.queued" in done.stdout
    assert not (tmp_path / "home" / "up.json").exists()


def test_torchrun_behind_a_shell_makes_one_world_of_all_processes(platform: Any, tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "reduce.py").write_text(
        "import os, torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "told = torch.tensor([dist.get_rank() + 1])\n"
        "dist.all_reduce(told)\n"
        # One write a line: the processes of a replica share its output.
        "os.write(1, f'world {dist.get_world_size()} sum {told.item()}\\n'.encode())\n"
        "dist.destroy_process_group()\n"
    )
    torchrun = f"{sys.executable} -m torch.distributed.run reduce.py"
    reported = platform.cli(
        *("run", "--workers", "2", "--processes", "2", "--", "sh", "-c", f"cd src && {torchrun}"),
        cwd=tmp_path,
        timeout=240,
    )
    assert reported.returncode == 0, reported.stdout + reported.stderr
    # Two replicas of two processes, and not torchrun twice in each.
    assert reported.stdout.count("world 4 sum 10") == 4


def test_a_second_attempt_meets_at_other_ports_than_the_first(platform: Any) -> None:
    names = ("MASTER_PORT", "HOROVOD_GLOO_RENDEZVOUS_PORT", "DMLC_TRACKER_PORT")
    command = f"echo ports {' '.join(f'${name}' for name in names)}; test $TRAINMASTER_ATTEMPT = 2"
    job = platform.client.submit({"name": "ports", "command": command, "workers": 2, "max_restarts": 1})
    assert job.wait(timeout_s=120).state == "succeeded", story_of(job)
    seen = [
        {port for line in job.logs(attempt=number) if line.text.startswith("ports ") for port in line.text.split()[1:]}
        for number in (1, 2)
    ]
    assert len(seen[0]) == len(seen[1]) == 3
    assert seen[0].isdisjoint(seen[1])


def test_a_horovod_script_trains_with_one_line_changed(submit: Any) -> None:
    result = finished(submit("horovod"))

    assert result["accuracy"] >= ACCURACY
    assert result["world"] == 2


def test_a_command_line_of_horovodrun_starts_every_process_with_its_ranks(platform: Any, tmp_path: Path) -> None:
    (tmp_path / "tell.py").write_text(
        "import os, sys\n"
        "names = ('HOROVOD_RANK', 'HOROVOD_SIZE', 'HOROVOD_LOCAL_RANK', 'HOROVOD_CROSS_RANK')\n"
        "os.write(1, f'told {[int(os.environ[name]) for name in names]} {sys.argv[1:]}\\n'.encode())\n"
    )
    line = f"exec horovodrun -np 4 -H h1:2,h2:2 --verbose {sys.executable} tell.py -np 9"
    reported = platform.cli(
        *("run", "--workers", "2", "--processes", "2", "--", "sh", "-c", line), cwd=tmp_path, timeout=240
    )
    assert reported.returncode == 0, reported.stdout + reported.stderr
    for places in ([0, 4, 0, 0], [1, 4, 1, 0], [2, 4, 0, 1], [3, 4, 1, 1]):
        assert reported.stdout.count(f"told {places} ['-np', '9']") == 1, reported.stdout


def test_a_horovodrun_for_another_number_of_processes_is_refused_in_a_sentence(platform: Any) -> None:
    job = platform.client.submit({"name": "np", "command": "horovodrun -np 4 true", "workers": 2})
    assert job.wait(timeout_s=120).state == "failed"
    # The first replica that ends stops the other one, maybe before it has come to its command.
    logs = [job.read_log(f"worker-{index}") for index in range(2)]
    assert any("horovodrun: -np 4, but the job has 2 processes" in log for log in logs), logs
