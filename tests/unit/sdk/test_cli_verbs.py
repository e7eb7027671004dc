"""cancel, pause, resume, clone, delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from trainmaster.cli import output
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


def test_a_terminal_is_asked_before_a_job_is_forgotten(
    cli: Invoke, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "is_interactive", lambda: True)
    server.on("DELETE", "/jobs/mnist", httpx.Response(204))
    assert cli("delete", "mnist", stdin="n\n").exit_code == 1
    assert server.requests == []
    assert cli("delete", "mnist", stdin="y\n").exit_code == 0
    assert cli("delete", "mnist", "--yes").exit_code == 0
    assert server.count("DELETE", "/jobs/mnist") == 2
