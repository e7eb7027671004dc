"""run: the folder at hand as a job."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import Result

Invoke = Callable[..., Result]
STREAM = "/jobs/job_1/logs/stream"


def test_run_packs_submits_streams_and_ends_with_0(
    cli: Invoke, server: Any, takes_jobs: Any, code: Path, sse: Any, line_json: Any, job_json: Any
) -> None:
    takes_jobs(server, job_json())
    server.on("GET", STREAM, httpx.Response(200, content=sse(("line", line_json("hello", offset=6)), ("end", {}))))
    server.on("GET", "/jobs/job_1", job_json(state="succeeded"))
    done = cli(
        *("run", "--workers", "2", "--ps", "1", "--gpus", "1", "--cpu", "500m", "--env", "LR=0.1", "--label", "team=a"),
        *("--processes", "2", "--secret", "KEY", "--priority", "70", "--max-run-time", "1h", "--contract", "mxnet"),
        *("--", "python", "train.py", "--epochs", "3", "--json"),
    )
    assert done.exit_code == 0, done.output
    assert done.stdout == "worker-0 | hello\n"
    assert "succeeded" in done.stderr
    checked, submitted = (body["spec"] for body in server.bodies("POST", "/jobs"))
    assert "code" not in checked
    assert submitted.pop("code").startswith("sha256:")
    assert submitted == checked
    assert submitted == {
        "name": "my-digits",
        "command": ["python", "train.py", "--epochs", "3", "--json"],
        "workers": 2,
        "ps": 1,
        "gpus": 1,
        "cpu": "500m",
        "env": {"LR": "0.1"},
        "labels": {"team": "a"},
        "processes_per_replica": 2,
        "secrets": ["KEY"],
        "priority": 70,
        "max_run_time": "1h",
        "contract": "mxnet",
    }


def test_run_warns_of_a_nearly_full_project(
    cli: Invoke, server: Any, takes_jobs: Any, code: Path, job_json: Any
) -> None:
    near = "Project vision uses 9.0 GiB of its storage quota of 10.0 GiB (90 %)."
    takes_jobs(server, job_json(warnings=[near]))
    for more in ([], ["--no-code"]):
        done = cli("run", "--detach", *more, "--project", "vision", "--", "python", "train.py")
        assert done.exit_code == 0, done.output
        assert f"Warning: {near}" in " ".join(done.stderr.split())
    (archive,) = (request for request in server.requests if request.url.path == "/api/v1/archives")
    assert archive.url.params["project"] == "vision"
    server.on("GET", "/jobs/job_1", job_json(warnings=[near])).on("GET", "/jobs/job_1/checkpoints", {"items": []})
    server.on("GET", "/jobs/job_1/events", {"items": []})
    assert near in " ".join(cli("show", "job_1").stdout.split())


def test_run_takes_a_span_of_workers(cli: Invoke, server: Any, takes_jobs: Any, code: Path, job_json: Any) -> None:
    takes_jobs(server, job_json())
    done = cli("run", "--detach", "--workers", "2:4", "--", "python", "train.py")
    assert done.exit_code == 0, done.output
    assert server.bodies("POST", "/jobs")[-1]["spec"]["workers"] == {"min": 2, "max": 4}


@pytest.mark.parametrize(
    ("state", "end", "exit_code"),
    [
        ("failed", {"kind": "user_error", "sentence": "It exited with 3.", "exit_code": 3}, 3),
        ("failed", {"kind": "platform", "sentence": "The node is gone."}, 1),
        ("failed", {"kind": "user_error", "sentence": "Killed.", "exit_code": -9}, 1),
        ("expired", None, 1),
        ("cancelled", {"kind": "cancelled", "sentence": "ann cancelled it.", "exit_code": 143}, 130),
    ],
)
def test_run_and_wait_end_with_the_jobs_code(
    state: str, end: Any, exit_code: int, cli: Invoke, server: Any, sse: Any, job_json: Any
) -> None:
    server.on("POST", "/jobs", job_json())
    server.on("GET", STREAM, httpx.Response(200, content=sse(("end", {}))))
    server.on("GET", "/jobs/job_1", job_json(state=state, exit=end))
    done = cli("run", "--no-code", "--", "false")
    assert done.exit_code == exit_code
    assert state in done.stderr
    if end:
        assert end["sentence"] in done.stderr
    assert cli("wait", "job_1").exit_code == exit_code


def test_run_ends_with_the_command_that_shows_how_to_read_metrics(
    cli: Invoke, server: Any, sse: Any, job_json: Any
) -> None:
    server.on("POST", "/jobs", job_json())
    server.on("GET", STREAM, httpx.Response(200, content=sse(("end", {}))))
    server.on("GET", "/jobs/job_1", job_json(state="succeeded"))
    found: dict[str, Any] = {"suggestions": [{"line": "the loss 0.5", "pattern": "the loss {loss}"}]}
    server.on("GET", "/jobs/job_1/metrics/suggestions", httpx.Response(200, json=found))
    done = cli("run", "--no-code", "--", "true")
    assert done.exit_code == 0, done.output
    (line,) = [line for line in done.stderr.splitlines() if "look like" in line]
    assert "No metrics were found" in line
    assert "`trainmaster metrics job_1`" in line
    server.on("GET", "/jobs/job_1/metrics/suggestions", httpx.Response(200, json={"suggestions": []}))
    assert "No metrics" not in cli("run", "--no-code", "--", "true").stderr


def test_run_tells_why_it_waits(
    cli: Invoke, server: Any, sse: Any, line_json: Any, job_json: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainmaster.cli.jobs import follow

    has_looked = threading.Event()

    class Telling(follow.queue.Queue[Any]):
        def put(self, item: Any, *args: Any) -> None:
            super().put(item, *args)
            if isinstance(item, follow.JobDetail):
                has_looked.set()

    def stream(_request: httpx.Request) -> httpx.Response:
        assert has_looked.wait(30)
        server.on("GET", "/jobs/job_1", job_json(state="succeeded"))
        return httpx.Response(200, content=sse(("line", line_json("hello", offset=6)), ("end", {})))

    monkeypatch.setattr(follow.queue, "Queue", Telling)
    waits = {"code": "gpus", "sentence": "needs 8 GPUs, 4 are free", "numbers": {}}
    queued = job_json(state="queued", wait_reason=waits, queue_position=2)
    server.on("POST", "/jobs", queued)
    server.on("GET", "/jobs/job_1", queued)
    server.on("GET", STREAM, stream)
    done = cli("run", "--no-code", "--", "true")
    assert done.exit_code == 0
    assert "queued (position 2): needs 8 GPUs, 4 are free" in done.stderr


def test_run_detached_prints_the_id_alone(cli: Invoke, server: Any, takes_jobs: Any, code: Path, job_json: Any) -> None:
    takes_jobs(server, job_json())
    done = cli("run", "--detach", "--", "python", "train.py")
    assert done.stdout == "job_1\n"
    assert "trainmaster logs -f job_1" in done.stderr


def test_a_detached_job_that_can_never_start_is_reported_at_once(
    cli: Invoke, server: Any, takes_jobs: Any, code: Path, job_json: Any
) -> None:
    just = {"code": "just_queued", "sentence": "The next plan decides.", "numbers": {}}
    never = {"code": "never_fits", "sentence": "Needs 8 GPUs, and no node has a GPU.", "numbers": {}}
    takes_jobs(server, job_json(state="queued"))
    states = [job_json(state="queued", wait_reason=reason) for reason in (just, never)]
    server.on("GET", "/jobs/job_1", *states)
    done = cli("run", "--detach", "--gpus", "8", "--", "python", "train.py")
    assert done.exit_code == 0
    assert done.stdout == "job_1\n"
    assert "mnist cannot run on the present nodes: needs 8 GPUs, and no node has a GPU." in done.stderr
    server.on("GET", "/jobs/job_1", job_json(state="queued", wait_reason=never | {"code": "gpus"}))
    assert "Needs 8" not in cli("run", "--detach", "--gpus", "8", "--", "python", "train.py").stderr


def test_ctrl_c_without_a_terminal_detaches_and_says_how_to_cancel(
    cli: Invoke, server: Any, sse: Any, job_json: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainmaster.cli.jobs import follow

    class Interrupted(follow.queue.Queue[Any]):
        def get(self, *_: Any) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setattr(follow.queue, "Queue", Interrupted)
    server.on("POST", "/jobs", job_json())
    server.on("GET", STREAM, httpx.Response(200, content=sse(("end", {}))))
    server.on("GET", "/jobs/job_1", job_json())
    done = cli("run", "--no-code", "--", "true")
    assert done.exit_code == 130
    assert "trainmaster cancel job_1" in done.stderr
    assert server.count("POST", "/jobs/job_1/cancel") == 0


def test_sigterm_of_run_says_that_the_job_continues(
    cli: Invoke, server: Any, sse: Any, job_json: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainmaster.cli.jobs import follow

    class Terminated(follow.queue.Queue[Any]):
        def get(self, *_: Any) -> Any:
            raise SystemExit(143)  # as the command line's signal handler does

    monkeypatch.setattr(follow.queue, "Queue", Terminated)
    server.on("POST", "/jobs", job_json())
    server.on("GET", STREAM, httpx.Response(200, content=sse(("end", {}))))
    server.on("GET", "/jobs/job_1", job_json())
    done = cli("run", "--no-code", "--", "true")
    assert done.exit_code == 143
    assert "Detached; mnist continues." in done.stderr
    assert "trainmaster cancel job_1" in done.stderr
    assert "Traceback" not in done.stderr
    assert server.count("POST", "/jobs/job_1/cancel") == 0


def test_ctrl_c_and_c_cancels_and_stays_to_the_end(
    cli: Invoke, server: Any, sse: Any, job_json: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainmaster.cli.jobs import follow
    from trainmaster.cli.terminal import output

    interrupts = [KeyboardInterrupt()]

    class InterruptedOnce(follow.queue.Queue[Any]):
        def get(self, *args: Any) -> Any:
            if interrupts:
                raise interrupts.pop()
            return super().get(*args)

    monkeypatch.setattr(follow.queue, "Queue", InterruptedOnce)
    monkeypatch.setattr(output, "is_interactive", lambda: True)
    server.on("POST", "/jobs", job_json())
    server.on("POST", "/jobs/job_1/cancel", job_json(state="cancelling"))
    server.on("GET", STREAM, httpx.Response(200, content=sse(("end", {}))))
    server.on("GET", "/jobs/job_1", job_json(state="cancelled"))
    done = cli("run", "--no-code", "--", "true", stdin="c\n")
    assert done.exit_code == 130
    assert server.count("POST", "/jobs/job_1/cancel") == 1


def test_run_says_between_the_lines_why_an_attempt_ended(
    cli: Invoke, server: Any, sse: Any, line_json: Any, job_json: Any
) -> None:
    lines = [("line", line_json("one", offset=4)), ("line", line_json("two", offset=4, attempt=3)), ("end", {})]
    server.on("POST", "/jobs", job_json())
    server.on("GET", STREAM, httpx.Response(200, content=sse(*lines)))
    server.on("GET", "/jobs/job_1", job_json(state="succeeded", attempt_count=4))
    attempt = {"id": "a", "state": "ended", "executor": "process", "created_at": "2026-11-21T07:00:00Z"}
    for number, why in ((1, "worker-0 failed: boom."), (2, "Node n1 was lost."), (3, "Paused by ann.")):
        end = {"kind": "user_error", "sentence": why}
        server.on("GET", f"/jobs/job_1/attempts/{number}", {**attempt, "number": number, "end": end})
    assert cli("run", "--no-code", "--", "true").stdout.splitlines() == [
        "worker-0 | one",
        "── attempt 1 ended: worker-0 failed: boom. ──",
        "── attempt 2 ended: Node n1 was lost. ──",
        "── attempt 3 ──",
        "worker-0 | two",
        "── attempt 3 ended: Paused by ann. ──",
        "── attempt 4 ──",
    ]


def test_one_file_is_no_files(cli: Invoke, server: Any, takes_jobs: Any, code: Path, job_json: Any) -> None:
    takes_jobs(server, job_json())
    assert "Code: 1 file from ." in cli("run", "-d", "--", "true").stderr
