"""cancel, pause, resume, clone, delete."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from trainmaster.cli.terminal import output
from typer.testing import Result

Invoke = Callable[..., Result]


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


def test_a_terminal_is_queried_before_a_job_is_forgotten(
    cli: Invoke, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "is_interactive", lambda: True)
    server.on("DELETE", "/jobs/mnist", httpx.Response(204))
    assert cli("delete", "mnist", stdin="n\n").exit_code == 1
    assert server.requests == []
    assert cli("delete", "mnist", stdin="y\n").exit_code == 0
    assert cli("delete", "mnist", "--yes").exit_code == 0
    assert server.count("DELETE", "/jobs/mnist") == 2


@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_each_job_is_reported_whatever_became_of_the_others(
    verb: str, cli: Invoke, server: Any, job_json: Any, problem: Any
) -> None:
    method, suffix = ("DELETE", "") if verb == "delete" else ("POST", "/cancel")
    answer = httpx.Response(204) if verb == "delete" else None
    for name in "ac":
        server.on(method, f"/jobs/{name}{suffix}", answer or job_json(name=name, id=f"job_{name}", state="queued"))
    server.on(method, f"/jobs/b{suffix}", problem(404, "not_found", "There is no job 'b'."))
    done = cli(verb, "a", "b", "c")
    assert done.exit_code == 5
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["a", "c"]
    assert done.stderr == "Error: There is no job 'b'.\n"
    both = cli(verb, "b", "a", "b")
    assert both.exit_code == 5
    assert len(both.stderr.splitlines()) == 2
    as_json = cli(verb, "a", "b", "--json")
    assert "a" in as_json.stdout
    assert json.loads(as_json.stderr)["code"] == "not_found"


def test_a_server_that_is_gone_is_not_requested_every_job(cli: Invoke, server: Any, job_json: Any) -> None:
    server.on("POST", "/jobs/a/cancel", job_json(name="a", id="job_a"))
    server.on("POST", "/jobs/b/cancel", httpx.ConnectError("refused"))
    done = cli("cancel", "a", "b", "c", "d")
    assert done.exit_code == 3
    assert done.stdout.startswith("a (job_a)")
    assert done.stderr.splitlines()[-1] == "Error: Not tried: c, d."
    assert server.count("POST", "/jobs/c/cancel") == 0


@pytest.mark.parametrize(
    ("command", "path"),
    [
        (["secrets", "delete", "KEY"], "/projects/default/secrets/KEY"),
        (["reservation", "delete", "demo"], "/reservations/demo"),
        (["volumes", "remove", "data"], "/volumes/data"),
    ],
)
def test_a_terminal_confirms_before_an_administrators_object_is_deleted(
    command: list[str], path: str, cli: Invoke, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.on("DELETE", path, httpx.Response(204))
    assert cli(*command).exit_code == 0
    monkeypatch.setattr(output, "is_interactive", lambda: True)
    assert cli(*command, stdin="n\n").exit_code == 1
    assert server.count("DELETE", path) == 1
    assert cli(*command, stdin="y\n").exit_code == 0
    assert cli(*command, "-y").exit_code == 0
    assert server.count("DELETE", path) == 3
