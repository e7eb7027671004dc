"""list and show."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from trainmaster.cli.terminal import output
from trainmaster.cli.terminal.options import complete_contract, complete_state
from typer.testing import Result

Invoke = Callable[..., Result]


def test_list_tells_why_a_job_waits(cli: Invoke, server: Any, page: Any, job_json: Any) -> None:
    waits = {"code": "gpus", "sentence": "needs 8 GPUs, the largest node has 4", "numbers": {}}
    server.on("GET", "/jobs", page(job_json(state="queued", wait_reason=waits), job_json(name="other", id="job_2")))
    done = cli("list", "--state", "queued", "--label", "team=vision", "--limit", "5")
    assert done.exit_code == 0
    assert "needs 8 GPUs, the largest node has 4" in done.stdout
    assert done.stdout.splitlines()[0].split() == ["ID", "NAME", "STATE", "ROLES", "GPUS", "AGE", "RUNTIME", "DETAIL"]
    requested = server.requests[0].url.params
    assert requested["project"] == "default"
    assert (requested.get_list("state"), requested.get_list("label")) == (["queued"], ["team=vision"])


def test_list_as_json_is_json_alone(cli: Invoke, server: Any, page: Any, job_json: Any) -> None:
    server.on("GET", "/jobs", page(job_json()))
    done = cli("list", "--json", "--all-projects")
    assert json.loads(done.stdout)[0]["name"] == "mnist"
    assert done.stderr == ""
    assert "project" not in server.requests[0].url.params


def test_a_number_that_was_meant_as_a_limit_is_distinguished_from_a_name(cli: Invoke, server: Any, page: Any) -> None:
    server.on("GET", "/jobs", page())
    done = cli("list", "-n", "12")
    assert done.exit_code == 0
    assert server.requests[0].url.params["name"] == "12"
    assert "-n is --name: only jobs named 12 are listed; `--limit 12` shows the newest 12." in done.stderr
    assert "-n is" not in cli("list", "-n", "mnist").stderr


def test_an_empty_list_says_what_to_do(cli: Invoke, server: Any, page: Any) -> None:
    server.on("GET", "/jobs", page())
    done = cli("list")
    assert done.stdout == ""
    assert "trainmaster run" in done.stderr


def test_a_line_in_a_pipe_is_never_cut(
    cli: Invoke, server: Any, page: Any, job_json: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    server.on("GET", "/jobs", page(job_json(name="a-" + "very-" * 10 + "long-name")))
    assert "a-" + "very-" * 10 + "long-name" in cli("list").stdout


def test_show_tells_state_reason_numbers_replicas_and_end(cli: Invoke, server: Any, job_json: Any) -> None:
    end = {"kind": "out_of_memory", "sentence": "The kernel ended it for memory; ask for more.", "exit_code": 137}
    replica = {
        "role": "worker",
        "index": 0,
        "rank": 0,
        "state": "failed",
        "generation": 1,
        "node": "n1",
        "gpus": ["GPU-1"],
        "address": "127.0.0.1:20001",
        "exit": end,
    }
    attempt = {
        "id": "a1",
        "number": 2,
        "state": "ended",
        "executor": "process",
        "created_at": "2026-11-21T07:00:00Z",
        "replicas": [replica],
    }
    numbers = {"needed": 16, "free": 4, "from": "2026-11-21T07:00:00+00:00", "preempted": "Stopped for job big."}
    reason = {"code": "cpu", "sentence": "needs 16 CPUs, 4 are free", "numbers": numbers}
    server.on(
        "GET",
        "/jobs/mnist",
        job_json(state="queued", wait_reason=reason, queue_position=3, attempt=attempt, attempt_count=2, exit=end),
    )
    earlier = {
        **attempt,
        "id": "a0",
        "number": 1,
        "started_at": "2026-11-21T06:00:00Z",
        "ended_at": "2026-11-21T06:00:42Z",
        "end": {"kind": "user_error", "sentence": "worker-0 failed with exit code 3.", "exit_code": 3},
    }
    server.on("GET", "/jobs/job_1/attempts", {"items": [earlier, attempt], "next_cursor": None})
    checkpoint = {"path": "checkpoints/step-100", "step": 100, "created_at": "2026-11-21T07:00:00Z"}
    server.on("GET", "/jobs/job_1/checkpoints", {"items": [checkpoint]})
    done = cli("show", "mnist")
    assert done.exit_code == 0, done.output
    for part in (
        "needs 16 CPUs, 4 are free (position 3 in the queue)",
        f"needed=16  free=4  from={datetime.fromisoformat(str(numbers['from'])).astimezone():%Y-%m-%d %H:%M:%S}\n",
        "127.0.0.1:20001",
        "n1",
        "GPU-1",
        "checkpoints/step-100 (of 1)",
        "The kernel ended it for memory; ask for more. [out_of_memory, exit code 137]",
        "42 s  worker-0 failed with exit code 3. [user_error, exit code 3]",
    ):
        assert part in done.stdout


def test_an_attempt_that_was_over_before_it_was_seen_running_has_its_replicas_start(
    cli: Invoke, server: Any, job_json: Any, page: Any
) -> None:
    at = "2026-11-21T06:00:"
    replica = {
        "role": "worker", "index": 0, "rank": 0, "state": "failed", "generation": 1, "node": "n1",
        "started_at": f"{at}01Z",
    }  # fmt: skip
    first, last = (
        {
            "id": f"a{number}", "number": number, "state": "ended", "executor": "fake", "created_at": f"{at}00Z",
            "ended_at": f"{at}03Z", "replicas": [replica],
        }
        for number in (1, 2)
    )  # fmt: skip
    server.on("GET", "/jobs/mnist", job_json(state="failed", attempt=last, attempt_count=2))
    server.on("GET", "/jobs/job_1/attempts", page(first, last))
    server.on("GET", "/jobs/job_1/checkpoints", page())
    started = f"{datetime.fromisoformat(f'{at}01+00:00').astimezone():%H:%M:%S}"
    done = cli("show", "mnist")
    assert done.exit_code == 0, done.output
    [row] = [line for line in done.stdout.splitlines() if line.split()[:1] == ["1"]]
    assert started in row
    assert "2.0 s" in row


def test_an_elastic_job_says_how_many_may_run_and_how_many_do_once(
    cli: Invoke, server: Any, job_json: Any, page: Any
) -> None:
    attempt = {
        "id": "a1", "number": 1, "state": "running", "executor": "fake", "created_at": "2026-11-21T07:00:00Z",
        "world": 3, "world_reason": "worker-1 joined. 3 of 2 to 3 workers go on.",
        "replicas": [
            {"role": "worker", "index": n, "rank": n, "state": "running", "generation": 1,
            "node": "n1"} for n in range(3)
        ],
    }  # fmt: skip
    spec = {"name": "mnist", "command": ["train"], "roles": {"worker": {"replicas": 3, "min_replicas": 2}}}
    job = job_json(attempt=attempt, attempt_count=1, spec=spec, most_replicas={"worker": 3})
    server.on("GET", "/jobs", page(job))
    server.on("GET", "/jobs/mnist", job)
    server.on("GET", "/jobs/job_1/checkpoints", {"items": []})
    server.on("GET", "/jobs/job_1/events", page())
    assert "worker×2–3" in cli("list").stdout
    shown = " ".join(cli("show", "mnist").stdout.split())
    assert "worker×2–3" in shown
    assert "3: 3 of 2 to 3 workers. worker-1 joined. " in shown
    assert shown.count("3 of 2 to 3 workers") == 1


def test_show_has_the_launcher_and_what_was_added_to_its_command_line(
    cli: Invoke, server: Any, job_json: Any, page: Any
) -> None:
    attempt = {
        "id": "a1", "number": 1, "state": "running", "executor": "fake", "created_at": "2026-11-21T07:00:00Z",
        "replicas": [
            {"role": "worker", "index": n, "rank": n, "state": "running", "generation": 1,
            "node": "n1"} for n in range(2)
        ],
    }  # fmt: skip
    spec = {"name": "mnist", "command": ["train"], "roles": {"worker": {"replicas": 2}}, "launcher": "torchrun"}
    server.on("GET", "/jobs/mnist", job_json(attempt=attempt, attempt_count=1, spec=spec))
    server.on("GET", "/jobs/job_1/checkpoints", {"items": []})
    reasons = ["torchrun: added for 2 replicas: --nnodes=3", "torchrun: added for 2 replicas: --nnodes=2"]
    event = {"at": "2026-11-21T07:00:00Z", "kind": "train.launcher", "actor": "worker-0"}
    server.on(
        *("GET", "/jobs/job_1/events"),
        page(
            *({**event, "id": number, "reason": reason} for number, reason in enumerate(reasons)),
            {**event, "id": 3, "kind": "train.not_connected", "reason": "the 2 replicas train alone"},
        ),
    )
    shown = " ".join(cli("show", "mnist").stdout.split())
    assert f"Launcher `launcher: torchrun`; {reasons[1]} Warning the 2 replicas train alone" in shown


@pytest.mark.parametrize(
    ("generation", "reported"),
    [(1, "1; the newest resumed from"), (2, "1; the processes started last resumed from")],
)
def test_a_checkpoint_that_a_lone_replica_resumed_from_is_not_its_attempts(
    cli: Invoke, server: Any, job_json: Any, generation: int, reported: str
) -> None:
    attempt = {
        "id": "a1", "number": 1, "state": "running", "executor": "fake", "created_at": "2026-11-21T07:00:00Z",
        "resume_from": "/data/output/checkpoints/step-3",
        "replicas": [{"role": "worker", "index": 0, "rank": 0, "state": "running", "generation": generation,
        "node": "n1"}],
    }  # fmt: skip
    server.on("GET", "/jobs/mnist", job_json(attempt=attempt, attempt_count=1))
    server.on("GET", "/jobs/job_1/checkpoints", {"items": []})

    assert f"{reported} /data/output/checkpoints/step-3" in " ".join(cli("show", "mnist").stdout.split())


def test_show_asks_only_for_the_last_attempts(cli: Invoke, server: Any, job_json: Any, page: Any) -> None:
    attempts = [
        {"id": f"a{n}", "number": n, "state": "ended", "executor": "fake", "created_at": "2026-11-21T07:00:00Z"}
        for n in range(30, 41)
    ]
    server.on("GET", "/jobs/mnist", job_json(attempt=attempts[-1], attempt_count=40))
    server.on("GET", "/jobs/job_1/attempts", page(*attempts))
    server.on("GET", "/jobs/job_1/checkpoints", {"items": []})
    done = cli("show", "mnist")
    assert done.exit_code == 0, done.output
    assert [r.url.params["after"] for r in server.requests if r.url.path.endswith("/attempts")] == ["29"]
    assert [line.split()[0] for line in done.stdout.splitlines() if line[:2].isdigit()] == [
        str(n) for n in range(30, 40)
    ]
    assert "Attempts 1 to 29 are not shown" in done.output


def test_show_spec_is_yaml_to_submit_again(cli: Invoke, server: Any, job_json: Any) -> None:
    server.on("GET", "/jobs/mnist", job_json())
    done = cli("show", "mnist", "--spec")
    assert done.stdout.startswith("name: mnist\n")
    assert "priority" not in done.stdout


def test_job_names_complete_and_a_dead_server_completes_nothing(
    cli: Invoke, server: Any, page: Any, job_json: Any
) -> None:
    from trainmaster.cli.terminal.options import complete_job

    server.on("GET", "/jobs", page(job_json(), job_json(name="mnist-2"), job_json(name="other"), job_json()))
    assert complete_job("mn") == ["mnist", "mnist-2"]
    server.on("GET", "/jobs", httpx.ConnectError("refused"))
    assert complete_job("mn") == []


def test_the_runtime_is_that_of_the_attempts_without_the_pauses(
    cli: Invoke, server: Any, job_json: Any, page: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {"started_at": "2026-11-21T07:00:00Z", "ran_s": 40.0}
    paused = job_json(name="paused", state="paused", **times)
    running = job_json(name="running", **times, running_since="2026-11-21T09:59:55Z")
    never = job_json(name="never", state="queued")
    monkeypatch.setattr(output, "now", lambda: datetime(2026, 11, 21, 10, tzinfo=UTC))
    server.on("GET", "/jobs", page(paused, running, never))
    reported = dict(line.split(maxsplit=1) for line in cli("list", "--columns", "name,runtime").stdout.splitlines())
    assert reported == {"NAME": "RUNTIME", "paused": "40 s", "running": "45 s", "never": "–"}


def test_an_empty_list_says_which_filter_hides_the_jobs(cli: Invoke, server: Any, page: Any) -> None:
    server.on("GET", "/jobs", page())
    reported = cli("list", "--state", "paused", "--state", "failed", "--role", "ps", "-A").stderr
    assert reported == "No jobs in state paused or failed, with role ps.\n"
    assert cli("list", "--name", "x").stderr == "No jobs named x in project default.\n"


def test_the_jobs_of_a_study_are_looked_for_in_its_own_project(cli: Invoke, server: Any, page: Any) -> None:
    server.on("GET", "/jobs", page())
    assert cli("list", "--study", "study-1").stderr == "No jobs of study study-1.\n"
    assert dict(server.requests[0].url.params) == {"study": "study-1", "limit": "50"}


def test_states_and_contracts_complete() -> None:
    assert complete_state("ca") == ["cancelling", "cancelled"]
    assert complete_contract("") == ["default", "uai", "mxnet", "serving"]


def test_what_others_wrote_moves_no_cursor(cli: Invoke, server: Any, job_json: Any, page: Any) -> None:
    end = {"kind": "user_error", "sentence": "Its last line was: \x1b]0;owned\x07\x1b[2Jboom"}
    server.on("GET", "/jobs", page(job_json(state="failed", exit=end)))
    server.on("GET", "/jobs/mnist", job_json(state="failed", exit=end))
    server.on("GET", "/jobs/job_1/checkpoints", {"items": []})
    for done in (cli("list"), cli("show", "mnist")):
        assert "Its last line was: boom" in done.stdout
        assert "\x1b" not in done.stdout


def test_a_job_that_cannot_run_is_no_waiting_one(cli: Invoke, server: Any, job_json: Any, page: Any) -> None:
    reason = {"code": "never_fits", "sentence": "needs 100 CPUs.", "numbers": {"cpu_milli": 100_000}}
    job = job_json(state="queued", wait_reason=reason)
    server.on("GET", "/jobs", page(job))
    server.on("GET", "/jobs/mnist", {**job, "queue_position": 1})
    server.on("GET", "/jobs/job_1/checkpoints", page())
    assert "cannot run on the present nodes: needs 100 CPUs." in cli("list").stdout
    shown = cli("show", "mnist").stdout
    assert "cannot run on the present nodes: needs 100 CPUs.\n" in shown
    assert "position" not in shown


def test_show_tells_that_a_job_that_was_stopped_has_nothing_to_go_on_from(
    cli: Invoke, server: Any, page: Any, job_json: Any
) -> None:
    attempt = {"id": "a1", "number": 1, "state": "ended", "executor": "process", "created_at": "2026-11-21T07:00:00Z"}
    server.on("GET", "/jobs/job_1/checkpoints", page())
    for state, given, is_reported in (
        ("queued", None, True),
        ("queued", "/data/output/checkpoints/step-7", False),
        ("succeeded", None, False),
    ):
        one = {**attempt, "replicas": [], "resume_from": given}
        server.on("GET", "/jobs/mnist", job_json(state=state, attempt=one, attempt_count=1))
        advice = "it will restart from the beginning (`trainmaster checkpoints job_1 --incomplete` shows the others)"
        assert (advice in cli("show", "mnist").stdout) is is_reported
    server.on("GET", "/jobs/mnist", job_json(state="queued"))
    assert "anew" not in cli("show", "mnist").stdout


def test_show_tells_what_a_waiting_job_could_ask_for_to_start_now(
    cli: Invoke, server: Any, page: Any, job_json: Any
) -> None:
    waits = {"code": "no_room", "sentence": "needs 8 GPUs", "numbers": {}}
    server.on("GET", "/jobs/mnist", job_json(state="queued", wait_reason=waits, queue_position=3))
    server.on("GET", "/jobs/job_1/checkpoints", page())
    option = {"code": "fewer_gpus", "sentence": "With 4 GPUs it would start now.", "field": "gpus", "value": 4}
    server.on(
        "GET", "/jobs/job_1/forecast", {"places": [], "wait_reason": waits, "queue_position": 3, "options": [option]}
    )
    shown = cli("show", "mnist").stdout
    assert "needs 8 GPUs (position 3 in the queue)" in shown
    assert "With 4 GPUs it would start now." in shown
    server.on("GET", "/jobs/mnist", job_json(state="queued", wait_reason={**waits, "code": "scheduler_away"}))
    assert "With 4 GPUs" not in cli("show", "mnist").stdout
