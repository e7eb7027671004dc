from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from trainmaster.cli import session
from trainmaster.cli.main import app
from trainmaster.contexts import load_contexts
from typer.testing import CliRunner, Result

Invoke = Callable[..., Result]
STREAM = "/jobs/job_1/logs/stream"


@pytest.fixture
def cli(server: Any, no_config: Path, monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> Invoke:
    """``cli("list", "--json")`` against the fake server."""
    monkeypatch.setenv("TRAINMASTER_API_URL", "http://server.test:8765")
    monkeypatch.setenv("TRAINMASTER_TOKEN", "tm_secret")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(session, "http_transport", httpx.MockTransport(server))

    def invoke(*arguments: str, stdin: str | bytes | None = None) -> Result:
        return CliRunner().invoke(app, list(arguments), input=stdin, prog_name="trainmaster")

    return invoke


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "My Digits"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(folder)
    return folder


def page(*items: Any) -> dict[str, Any]:
    return {"items": list(items), "next_cursor": None}


# --- looking --------------------------------------------------------------------------------------------------------


def test_list_tells_why_a_job_waits(cli: Invoke, server: Any, job_json: Any) -> None:
    waits = {"code": "gpus", "sentence": "needs 8 GPUs, the largest node has 4", "numbers": {}}
    server.on("GET", "/jobs", page(job_json(state="queued", wait_reason=waits), job_json(name="other", id="job_2")))
    done = cli("list", "--state", "queued", "--label", "team=vision", "--limit", "5")
    assert done.exit_code == 0
    assert "needs 8 GPUs, the largest node has 4" in done.stdout
    assert done.stdout.splitlines()[0].split() == ["ID", "NAME", "STATE", "ROLES", "GPUS", "AGE", "RUNTIME", "DETAIL"]
    asked = server.requests[0].url.params
    assert asked["project"] == "default"
    assert (asked.get_list("state"), asked.get_list("label")) == (["queued"], ["team=vision"])


def test_list_as_json_is_json_alone(cli: Invoke, server: Any, job_json: Any) -> None:
    server.on("GET", "/jobs", page(job_json()))
    done = cli("list", "--json", "--all-projects")
    assert json.loads(done.stdout)[0]["name"] == "mnist"
    assert done.stderr == ""
    assert "project" not in server.requests[0].url.params


def test_an_empty_list_says_what_to_do(cli: Invoke, server: Any) -> None:
    server.on("GET", "/jobs", page())
    done = cli("list")
    assert done.stdout == ""
    assert "trainmaster run" in done.stderr


def test_a_line_in_a_pipe_is_never_cut(
    cli: Invoke, server: Any, job_json: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    server.on("GET", "/jobs", page(job_json(name="a-" + "very-" * 10 + "long-name")))
    assert "a-" + "very-" * 10 + "long-name" in cli("list").stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["list", "--state", "runing"], "is none of queued"),
        (["list", "--columns", "id,colour"], "'colour' is none of"),
        (["list", "--since", "yesterdayish"], "neither a date nor a span"),
        (["wait", "mnist", "--timeout", "soon"], "is not a duration"),
        (["run", "--env", "novalue", "--", "python"], "is not KEY=VALUE"),
        (["clone", "mnist", "--set", "env.LR"], "is not PATH=VALUE"),
        (["cp", "mnist/model.pt", "."], "is not JOB:PATH"),
        (["token", "create", "ci", "--scope", "root"], "none of read, write, admin"),
        (["delete", "mnist", "--files"], "--yes"),
        (["login", "ftp://host"], "is not an address"),
        (["frobnicate"], "No such command"),
    ],
)
def test_wrong_use_is_told_with_code_2(arguments: list[str], sentence: str, cli: Invoke) -> None:
    done = cli(*arguments)
    assert done.exit_code == 2
    assert sentence in " ".join(done.stderr.replace("│", " ").split())


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
    reason = {"code": "cpu", "sentence": "needs 16 CPUs, 4 are free", "numbers": {"needed": 16, "free": 4}}
    server.on(
        "GET",
        "/jobs/mnist",
        job_json(state="queued", wait_reason=reason, queue_position=3, attempt=attempt, attempt_count=2, exit=end),
    )
    checkpoint = {"path": "checkpoints/step-100", "step": 100, "created_at": "2026-11-21T07:00:00Z"}
    server.on("GET", "/jobs/job_1/checkpoints", [checkpoint])
    done = cli("show", "mnist")
    assert done.exit_code == 0, done.output
    for part in (
        "needs 16 CPUs, 4 are free (position 3 in the queue)",
        "needed=16  free=4",
        "127.0.0.1:20001",
        "n1",
        "GPU-1",
        "checkpoints/step-100 (of 1)",
        "The kernel ended it for memory; ask for more. [out_of_memory, exit code 137]",
    ):
        assert part in done.stdout


def test_show_spec_is_yaml_to_submit_again(cli: Invoke, server: Any, job_json: Any) -> None:
    server.on("GET", "/jobs/mnist", job_json())
    done = cli("show", "mnist", "--spec")
    assert done.stdout.startswith("name: mnist\n")
    assert "priority" not in done.stdout


def node_json(**more: Any) -> dict[str, Any]:
    node = {
        "name": "n1",
        "executor": "process",
        "labels": {},
        "allocatable": {"cpu_milli": 8000, "memory_bytes": 2**34, "gpus": {"H200": 4}},
        "used": {"cpu_milli": 1500, "memory_bytes": 2**30, "gpus": {"H200": 1}},
        "is_ready": True,
        "seen_at": "2026-11-21T07:00:00Z",
    }
    return {**node, **more}


def test_nodes_are_listed_and_cordoned(cli: Invoke, server: Any) -> None:
    node = node_json()
    server.on("GET", "/nodes", [node])
    server.on("POST", "/nodes/n1/cordon", {**node, "is_cordoned": True, "cordon_reason": "dust"})
    assert "1.5 / 8  1.0 GiB / 16.0 GiB  1 / 4 H200" in cli("nodes").stdout
    assert json.loads(cli("nodes", "--json").stdout)[0]["name"] == "n1"
    assert cli("nodes", "cordon", "n1", "--reason", "dust").stdout == "n1: cordoned: dust\n"
    assert server.bodies("POST", "/nodes/n1/cordon") == [{"reason": "dust"}]


def test_a_node_is_labelled_as_with_kubectl(cli: Invoke, server: Any) -> None:
    mine = {"pool": "slow", "old": "1"}
    server.on("GET", "/nodes/n1", node_json(labels={"arch": "x86", **mine}, admin_labels=mine))
    server.on("PUT", "/nodes/n1/labels", node_json(labels={"arch": "x86", "pool": "fast", "rack": "r-1"}))
    done = cli("nodes", "label", "n1", "pool=fast", "old-", "rack=r-1")
    assert done.stdout == "n1: arch=x86  pool=fast  rack=r-1\n"
    assert server.bodies("PUT", "/nodes/n1/labels") == [{"labels": {"pool": "fast", "rack": "r-1"}}]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["arch-"], "is reported by the node's executor"),
        (["ghost-"], "is no label of it"),
        (["pool"], "is not KEY=VALUE"),
        (["pool=a", "pool-"], "is set and taken away at once"),
        (["po ol=a"], "is not a label key"),
        ([], "Missing argument"),
    ],
)
def test_a_label_that_cannot_be_changed_is_told(cli: Invoke, server: Any, changes: list[str], sentence: str) -> None:
    server.on("GET", "/nodes/n1", node_json(labels={"arch": "x86", "pool": "a"}, admin_labels={"pool": "a"}))
    done = cli("nodes", "label", "n1", *changes)
    assert done.exit_code == 2
    assert sentence in " ".join(done.stderr.replace("│", " ").split())
    assert server.bodies("PUT", "/nodes/n1/labels") == []


def test_a_node_that_is_gone_is_removed(cli: Invoke, server: Any) -> None:
    server.on("DELETE", "/nodes/n1", httpx.Response(204))
    assert cli("nodes", "remove", "n1").stdout == "n1 removed\n"


# --- moving ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
def test_verbs_take_many_jobs_and_a_reason(verb: str, cli: Invoke, server: Any, job_json: Any) -> None:
    server.on("POST", f"/jobs/a/{verb}", job_json(name="a", id="job_a", state="queued"))
    server.on("POST", f"/jobs/b/{verb}", job_json(name="b", id="job_b", state="queued"))
    done = cli(verb, "a", "b", "--reason", "lunch")
    assert done.stdout == "a (job_a) queued\nb (job_b) queued\n"
    assert server.bodies("POST", f"/jobs/a/{verb}") == [{"reason": "lunch"}]


def test_clone_lays_changes_over_the_spec(cli: Invoke, server: Any, job_json: Any) -> None:
    server.on("POST", "/jobs/mnist/clone", job_json(id="job_2", name="again"))
    done = cli("clone", "mnist", "--name", "again", "-s", "env.LR=0.1", "-s", "roles.worker.replicas=4", "-s", "image=")
    assert done.stdout == "again (job_2)\n"
    assert server.bodies("POST", "/jobs/mnist/clone")[0]["changes"] == {
        "name": "again",
        "env": {"LR": 0.1},
        "roles": {"worker": {"replicas": 4}},
        "image": None,
    }


def test_delete_forgets(cli: Invoke, server: Any) -> None:
    server.on("DELETE", "/jobs/mnist", httpx.Response(204))
    assert cli("delete", "mnist").stdout == "mnist deleted\n"
    cli("delete", "mnist", "--files", "--yes")
    assert [request.url.query for request in server.requests] == [b"", b"files=true"]


# --- running --------------------------------------------------------------------------------------------------------


def archive_routes(server: Any) -> None:
    def started(request: httpx.Request) -> httpx.Response:
        query = request.url.params
        view = {"digest": query["digest"], "size_bytes": int(query["size"]), "received_bytes": 0, "is_complete": True}
        return httpx.Response(200, json=view)

    server.on("POST", "/archives", started)


def submit_routes(server: Any, job: dict[str, Any]) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        return httpx.Response(200, json=job["spec"]) if body["dry_run"] else httpx.Response(201, json=job)

    archive_routes(server)
    server.on("POST", "/jobs", answer)


def test_run_packs_submits_streams_and_ends_with_0(
    cli: Invoke, server: Any, code: Path, sse: Any, line_json: Any, job_json: Any
) -> None:
    submit_routes(server, job_json())
    server.on("GET", STREAM, httpx.Response(200, content=sse(("line", line_json("hello", offset=6)), ("end", {}))))
    server.on("GET", "/jobs/job_1", job_json(state="succeeded"))
    done = cli(
        *("run", "--workers", "2", "--ps", "1", "--gpus", "1", "--cpu", "500m", "--env", "LR=0.1", "--label", "team=a"),
        *("--processes", "2", "--secret", "KEY", "--priority", "70", "--max-run-time", "1h", "--contract", "uai"),
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
        "contract": "uai",
    }


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


def test_run_tells_why_it_waits(
    cli: Invoke, server: Any, sse: Any, line_json: Any, job_json: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainmaster.cli import follow

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


def test_run_detached_prints_the_id_alone(cli: Invoke, server: Any, code: Path, job_json: Any) -> None:
    submit_routes(server, job_json())
    done = cli("run", "--detach", "--", "python", "train.py")
    assert done.stdout == "job_1\n"
    assert "trainmaster logs -f job_1" in done.stderr


def test_ctrl_c_without_a_terminal_detaches_and_says_how_to_cancel(
    cli: Invoke, server: Any, sse: Any, job_json: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainmaster.cli import follow

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


def test_ctrl_c_and_c_cancels_and_stays_to_the_end(
    cli: Invoke, server: Any, sse: Any, job_json: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainmaster.cli import follow, output

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


def test_submit_reads_stdin_and_dry_run_prints_the_canonical_spec(cli: Invoke, server: Any, job_json: Any) -> None:
    server.on("POST", "/jobs", job_json()["spec"])
    done = cli(
        "submit", "-", "--dry-run", "--name", "other", stdin="name: mnist\nworkers: 2\ncommand: python train.py\n"
    )
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("name: mnist\n")
    sent = server.bodies("POST", "/jobs")[0]
    assert sent == {
        "spec": {"name": "other", "workers": 2, "command": "python train.py"},
        "dry_run": True,
    }


def test_all_mistakes_of_a_spec_are_listed_with_paths_and_hints(
    cli: Invoke, server: Any, problem: Any, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text("name: x\nwrokers: 2\n")
    errors = [
        {"path": "wrokers", "message": "is not a field", "hint": "did you mean workers?"},
        {"path": "command", "message": "is missing", "hint": None},
    ]
    server.on("POST", "/jobs", problem(422, "invalid_spec", "The spec has 2 mistakes.", errors=errors))
    done = cli("submit", str(tmp_path / "job.yaml"))
    assert done.exit_code == 2
    assert done.stderr.splitlines() == [
        "Error: The job spec has 2 mistakes:",
        "  wrokers  is not a field",
        "           → did you mean workers?",
        "  command  is missing",
    ]


@pytest.mark.parametrize("text", ["name: [", "- a\n- b\n", "just text", ""])
def test_a_file_that_is_no_spec_is_told(text: str, cli: Invoke, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(text)
    done = cli("submit", str(tmp_path / "job.yaml"))
    assert done.exit_code == 2
    assert "job.yaml" in done.stderr
    assert cli("submit", str(tmp_path / "absent.yaml")).exit_code == 1


# --- reading --------------------------------------------------------------------------------------------------------


def test_logs_name_each_line_and_json_is_one_object_per_line(
    cli: Invoke, server: Any, sse: Any, line_json: Any
) -> None:
    lines = [("line", line_json("one", offset=4)), ("line", line_json("two", offset=4, index=10)), ("end", {})]
    server.on("GET", "/jobs/mnist/logs/stream", httpx.Response(200, content=sse(*lines)))
    done = cli("logs", "mnist", "--role", "worker", "--search", "o", "--tail", "10")
    assert done.stdout == "worker-0 | one\nworker-10 | two\n"
    assert dict(server.requests[0].url.params) == {
        "role": "worker",
        "search": "o",
        "follow": "false",
        "tail_lines": "10",
    }
    told = [json.loads(line)["text"] for line in cli("logs", "mnist", "--json").stdout.splitlines()]
    assert told == ["one", "two"]


def test_events_tell_when_what_who_and_why(cli: Invoke, server: Any) -> None:
    event = {"id": 1, "at": "2026-11-21T07:00:00Z", "kind": "job.paused", "actor": "user:ann", "reason": "lunch"}
    server.on("GET", "/jobs/mnist/events", page(event))
    done = cli("events", "mnist")
    assert all(part in done.stdout for part in ("job.paused", "user:ann", "lunch"))


def test_cp_copies_a_folder_as_cp_does(cli: Invoke, server: Any, tmp_path: Path, job_json: Any) -> None:
    at = "2026-11-21T07:00:00Z"

    def listing(request: httpx.Request) -> httpx.Response:
        tree = {
            "": [{"path": "model", "is_dir": True, "size_bytes": 0, "modified_at": at}],
            "model": [
                {"path": "model/a.bin", "is_dir": False, "size_bytes": 3, "modified_at": at},
                {"path": "model/deep", "is_dir": True, "size_bytes": 0, "modified_at": at},
                {"path": "model/loop", "is_dir": True, "is_link": True, "size_bytes": 0, "modified_at": at},
            ],
            "model/deep": [{"path": "model/deep/b.bin", "is_dir": False, "size_bytes": 3, "modified_at": at}],
        }
        return httpx.Response(200, json=page(*tree[request.url.params.get("path", "")]))

    server.on("GET", "/jobs/mnist", job_json())
    server.on("GET", "/jobs/job_1/files", listing)
    server.on("GET", "/jobs/job_1/files/content", lambda request: httpx.Response(200, text=request.url.params["path"]))
    copied = cli("cp", "mnist:model", str(tmp_path))
    assert copied.exit_code == 0
    assert "1 link to a folder was left out" in copied.stderr
    assert (tmp_path / "model" / "deep" / "b.bin").read_text() == "model/deep/b.bin"
    assert cli("cp", "mnist:model/a.bin", str(tmp_path / "renamed")).exit_code == 0
    assert (tmp_path / "renamed").read_text() == "model/a.bin"
    absent = cli("cp", "mnist:model/nope", str(tmp_path))
    assert absent.exit_code == 5
    assert "The output of job_1 has no model/nope" in absent.stderr


# --- access ---------------------------------------------------------------------------------------------------------


def test_login_keeps_a_context_after_trying_the_token(
    cli: Invoke, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRAINMASTER_API_URL")
    monkeypatch.delenv("TRAINMASTER_TOKEN")
    server.on("GET", "/me", {"user": "ann", "is_admin": False, "scopes": ["read"]})
    done = cli("login", "http://lab:8765/", "--token", "-", stdin="tm_lab\n")
    assert done.exit_code == 0, done.output
    assert server.requests[0].headers["Authorization"] == "Bearer tm_lab"
    assert load_contexts().current == "lab-8765"
    assert "tm_lab" not in done.output
    assert "* " in cli("contexts", "list").stdout
    assert cli("token", "show").stdout == "tm_lab\n"
    assert cli("contexts", "use", "nope").exit_code == 5
    assert cli("logout").exit_code == 0
    assert load_contexts().servers == {}


def test_login_never_sends_one_servers_token_to_another(cli: Invoke, server: Any) -> None:
    # TRAINMASTER_TOKEN is set, for the server of TRAINMASTER_API_URL.
    done = cli("login", "http://evil:8765")
    assert done.exit_code == 2
    assert server.requests == []


def test_login_by_a_one_time_link_keeps_the_token_it_gives(cli: Invoke, server: Any) -> None:
    token = {"id": "t", "user": "ann", "name": "login", "scopes": ["read"], "created_at": "2026-11-21T07:00:00Z"}
    server.on("POST", "/login", {**token, "token": "tm_new"})
    server.on("GET", "/me", {"user": "ann", "is_admin": True, "scopes": ["admin"]})
    assert cli("login", "http://127.0.0.1:8765/api/v1/login?code=abc", "--name", "here").exit_code == 0
    assert server.bodies("POST", "/login") == [{"code": "abc"}]
    assert load_contexts().servers["here"].url == "http://127.0.0.1:8765"
    assert load_contexts().servers["here"].token == "tm_new"


def test_a_bad_token_is_not_kept(cli: Invoke, server: Any, problem: Any) -> None:
    server.on("GET", "/me", problem(401, "unauthenticated", "This token is not known."))
    done = cli("login", "http://lab:8765", "--token", "tm_bad")
    assert done.exit_code == 4
    assert load_contexts().servers == {}


def test_a_secret_comes_from_stdin_and_is_never_printed(cli: Invoke, server: Any) -> None:
    server.on("PUT", "/projects/default/secrets/KEY", {"name": "KEY", "updated_at": "2026-11-21T07:00:00Z"})
    done = cli("secrets", "set", "KEY", stdin="hush hush\n")
    assert done.exit_code == 0
    assert "hush" not in done.output
    assert server.bodies("PUT", "/projects/default/secrets/KEY") == [{"value": "hush hush"}]
    assert cli("secrets", "set", "KEY", "hush", stdin="").exit_code == 2


# --- failing --------------------------------------------------------------------------------------------------------


def test_no_server_is_one_sentence_and_code_3(cli: Invoke, server: Any) -> None:
    server.on("GET", "/jobs", httpx.ConnectError("refused"))
    done = cli("list")
    assert done.exit_code == 3
    assert done.stderr == (
        "Error: No Trainmaster server at http://server.test:8765 – start one with `trainmaster up` or "
        "`trainmaster login URL`.\n"
    )


def test_no_context_is_code_3_too(cli: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINMASTER_API_URL")
    assert cli("list").exit_code == 3


@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (401, "token_expired", 4),
        (403, "forbidden", 4),
        (404, "not_found", 5),
        (409, "conflict", 6),
        (500, "internal", 1),
    ],
)
def test_each_family_of_errors_has_its_exit_code(
    status: int, code: str, exit_code: int, cli: Invoke, server: Any, problem: Any
) -> None:
    server.on("GET", "/jobs/mnist", problem(status, code, "A sentence.", request_id="r7"))
    done = cli("show", "mnist")
    assert done.exit_code == exit_code
    assert "A sentence." in done.stderr
    assert "Traceback" not in done.output
    as_json = cli("show", "mnist", "--json")
    assert as_json.exit_code == exit_code
    assert as_json.stdout == ""
    assert json.loads(as_json.stderr)["code"] == code


def test_a_bug_is_no_traceback_unless_asked(cli: Invoke, monkeypatch: pytest.MonkeyPatch, server: Any) -> None:
    server.on("GET", "/jobs", RuntimeError("surprise"))
    done = cli("list")
    assert done.exit_code == 1
    assert "RuntimeError: surprise" in done.stderr
    assert "TRAINMASTER_DEBUG=1" in done.stderr
    assert "Traceback" not in done.stderr
    monkeypatch.setenv("TRAINMASTER_DEBUG", "1")
    assert isinstance(cli("list").exception, RuntimeError)


def test_job_names_complete_and_a_dead_server_completes_nothing(cli: Invoke, server: Any, job_json: Any) -> None:
    from trainmaster.cli.completion import complete_job

    server.on("GET", "/jobs", page(job_json(), job_json(name="mnist-2"), job_json(name="other"), job_json()))
    assert complete_job("mn") == ["mnist", "mnist-2"]
    server.on("GET", "/jobs", httpx.ConnectError("refused"))
    assert complete_job("mn") == []


# --- as a process ---------------------------------------------------------------------------------------------------


def start(*arguments: str, home: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("TRAINMASTER_")}
    environ |= {"TRAINMASTER_HOME": str(home), "TRAINMASTER_CONFIG": str(home / "contexts.json"), **more}
    return subprocess.run(
        [sys.executable, "-m", "trainmaster.cli.main", *arguments],
        env=environ,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_start_loads_no_http_no_models_and_no_rich(tmp_path: Path) -> None:
    program = (
        "import sys; sys.argv[1:] = ['version']\n"
        "import trainmaster.cli.main as main\n"
        "heavy = {'httpx', 'pydantic', 'rich.console', 'yaml', 'pathspec', 'trainmaster.wire'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "main.run()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0.1.0\n"


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m trainmaster.cli.main schema | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, cwd="/")
    assert done.stderr == ""
    assert done.stdout == "141\n"


def test_without_the_platforms_package_up_says_what_to_install(
    cli: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    done = cli("up", "--home", str(tmp_path))
    assert done.exit_code == 1
    assert "trainmaster-server" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_down_without_a_platform_is_one_sentence(tmp_path: Path) -> None:
    done = start("down", "--home", str(tmp_path), home=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: ")
    assert len(done.stderr.splitlines()) == 1
