"""``endpoint deploy``: what it asks for, and that it stays no longer than there is something to wait for."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from trainmaster.cli import output

AT = "/projects/default/endpoints/sums"


def detail(**changes: Any) -> dict[str, Any]:
    deployment = {
        "id": "deployment_1", "name": "default", "state": "ready", "traffic": 100, "replicas": 1, "ready": 1,
        "wanted": 2, "stable": 2, "model": "data/m", "created_at": "2026-11-23T12:00:00Z", **changes,
    }  # fmt: skip
    return {
        "id": "endpoint_1", "name": "sums", "project": "default", "user": "ann", "deployments": [deployment],
        "created_at": "2026-11-23T12:00:00Z",
    }  # fmt: skip


def test_what_the_api_takes_for_updates_can_be_said(server: Any, cli: Any) -> None:
    server.on("POST", f"{AT}/deployments", detail())
    said = cli(
        "endpoint", "deploy", "sums", "data/m", "--max-surge", "0", "--max-unavailable", "1", "--drain", "30",
        "--priority", "high", "--secret", "KEY", "--secret", "OTHER",
    )  # fmt: skip
    assert said.exit_code == 0, said.stderr
    (asked,) = [one for one in server.requests if one.method == "POST"]
    body = json.loads(asked.content)
    told = {name: body[name] for name in ("max_surge", "max_unavailable", "drain_s", "priority", "secrets")}
    assert told == {
        "max_surge": 0, "max_unavailable": 1, "drain_s": 30.0, "priority": 75, "secrets": ["KEY", "OTHER"]
    }  # fmt: skip


@pytest.mark.timeout(60)
def test_a_revision_of_no_replicas_is_not_waited_for(server: Any, cli: Any) -> None:
    idle = detail(replicas=0, ready=0, stable=1)
    server.on("POST", f"{AT}/deployments", idle)
    server.on("GET", AT, idle)
    said = cli("endpoint", "deploy", "sums", "data/m", "--wait")
    assert said.exit_code == 0
    assert "default has 0 replicas" in said.stdout
    assert "trainmaster endpoint scale sums 1" in said.stdout


def test_a_person_is_asked_before_an_endpoint_that_serves_is_deleted(
    server: Any, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.on("GET", AT, detail(replicas=3, ready=2))
    server.on("DELETE", AT, httpx.Response(204))
    monkeypatch.setattr(output, "is_interactive", lambda: True)
    asked = cli("endpoint", "delete", "sums", stdin="n\n")
    assert asked.exit_code != 0
    assert "Delete endpoint sums; 2 replicas of it serve now?" in asked.stderr
    assert server.count("DELETE", AT) == 0
    assert cli("endpoint", "delete", "sums", stdin="y\n").exit_code == 0
    assert cli("endpoint", "delete", "sums", "--yes").exit_code == 0
    assert server.count("DELETE", AT) == 2
