"""``endpoint deploy``: what it asks for, and that it stays no longer than there is something to wait for."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
import typer.main
from trainmaster.cli.main import app
from trainmaster.cli.terminal import output
from trainmaster.wire.serving import BatchPredictRequest, DeployRequest

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


def test_a_replica_that_waits_is_distinguished_and_a_verdict_is_reported_once(server: Any, cli: Any) -> None:
    verdict = "Revision 2 never got ready, so revision 1 serves on: it ended."
    at = "2026-11-23T12:00:00Z"
    replica = {"revision": 1, "job": "job_1", "created_at": at, "state": "starting"}
    shown = detail(
        note=verdict,
        replica_list=[
            {**replica, "id": "a", "job_state": "queued", "words": "needs 2 CPUs"},
            {**replica, "id": "b", "job_state": "running", "words": "reads the model"},
        ],
        revision_list=[
            {"number": 2, "spec": {"model": "data/m"}, "user": "ann", "verdict": verdict, "created_at": at},
            {"number": 1, "spec": {"model": "data/m"}, "user": "ann", "reason": "the first", "created_at": at},
        ],
    )
    server.on("GET", AT, shown)
    printed = cli("endpoint", "show", "sums")
    assert printed.exit_code == 0, printed.stderr
    states = [line.split()[2:4] for line in printed.stdout.splitlines() if "job_1" in line]
    assert [["queued" in words, "starting" in words] for words in map(" ".join, states)] == [
        [True, False],
        [False, True],
    ]
    assert printed.stdout.count("never got ready") == 1
    assert "failed, see the note" in printed.stdout


def test_what_the_revision_before_had_and_the_new_one_has_not_is_reported(server: Any, cli: Any) -> None:
    about = {"user": "ann", "created_at": "2026-11-23T12:00:00Z"}
    had = {
        "model": "data/m", "resources": {"cpu": "200m", "memory": "1Gi"}, "env": {"KEY": "hidden", "MODE": "a"},
        "secrets": ["token"],
        "timeout_s": 5.0, "preemptible": False, "drain_s": 9.0,
    }  # fmt: skip
    has = {"model": "data/n", "resources": {"memory": "2Gi"}, "env": {"MODE": "b"}, "drain_s": 7.0, "priority": 75}
    revisions = [{"number": 2, "spec": has, **about}, {"number": 1, "spec": had, **about}]
    server.on("POST", f"{AT}/deployments", detail(revision_list=revisions, stable=1))
    printed = cli("endpoint", "deploy", "sums", "data/n")
    assert printed.exit_code == 0, printed.stderr
    assert " ".join(printed.stderr.split()) == (
        "Unlike revision 1, the new revision lacks: --env KEY, --secret, cpu 200m, --no-preemptible, --timeout "
        "5.0. Revisions do not "
        "inherit options; repeat them to keep them."
    )
    server.on("POST", f"{AT}/deployments", detail(revision_list=[revisions[1] | {"number": 2}, revisions[1]], stable=1))
    assert cli("endpoint", "deploy", "sums", "data/m").stderr == ""


def test_what_the_api_takes_for_updates_can_be_given(server: Any, cli: Any) -> None:
    server.on("POST", f"{AT}/deployments", detail())
    printed = cli(
        "endpoint", "deploy", "sums", "data/m", "--max-surge", "0", "--max-unavailable", "1", "--drain", "30",
        "--priority", "high", "--secret", "KEY", "--secret", "OTHER",
    )  # fmt: skip
    assert printed.exit_code == 0, printed.stderr
    (requested,) = [one for one in server.requests if one.method == "POST"]
    body = json.loads(requested.content)
    reported = {name: body[name] for name in ("max_surge", "max_unavailable", "drain_s", "priority", "secrets")}
    assert reported == {
        "max_surge": 0, "max_unavailable": 1, "drain_s": 30.0, "priority": 75, "secrets": ["KEY", "OTHER"]
    }  # fmt: skip


def test_arguments_resources_and_placement_can_be_given(server: Any, cli: Any) -> None:
    server.on("POST", f"{AT}/deployments", detail())
    printed = cli(
        "endpoint", "deploy", "sums", "data/m", "--args", "--workers 2 --name 'a b'", "--no-preemptible",
        "--node-selector", "zone=a", "--gpus", "1", "--gpu-type", "A100,H100", "--shm", "2Gi",
    )  # fmt: skip
    assert printed.exit_code == 0, printed.stderr
    (requested,) = [one for one in server.requests if one.method == "POST"]
    body = json.loads(requested.content)
    reported = {name: body[name] for name in ("args", "preemptible", "node_selector", "resources")}
    assert reported == {
        "args": ["--workers", "2", "--name", "a b"], "preemptible": False, "node_selector": {"zone": "a"},
        "resources": {"gpus": 1.0, "gpu_type": ["A100", "H100"], "shm": "2Gi"},
    }  # fmt: skip
    refused = cli("endpoint", "deploy", "sums", "data/m", "--args", "'open")
    assert refused.exit_code == 2
    assert "--args" in refused.stderr


@pytest.mark.timeout(60)
def test_a_revision_of_no_replicas_is_not_waited_for(server: Any, cli: Any) -> None:
    idle = detail(replicas=0, ready=0, stable=1)
    server.on("POST", f"{AT}/deployments", idle)
    server.on("GET", AT, idle)
    printed = cli("endpoint", "deploy", "sums", "data/m", "--wait")
    assert printed.exit_code == 0
    assert "default has 0 replicas" in printed.stdout
    assert "trainmaster endpoint scale sums 1" in printed.stdout


def test_a_person_is_queried_before_an_endpoint_that_serves_is_deleted(
    server: Any, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.on("GET", AT, detail(replicas=3, ready=2))
    server.on("DELETE", AT, httpx.Response(204))
    monkeypatch.setattr(output, "is_interactive", lambda: True)
    requested = cli("endpoint", "delete", "sums", stdin="n\n")
    assert requested.exit_code != 0
    assert "Delete endpoint sums with 2 ready replicas?" in requested.stderr
    assert server.count("DELETE", AT) == 0
    assert cli("endpoint", "delete", "sums", stdin="y\n").exit_code == 0
    assert cli("endpoint", "delete", "sums", "--yes").exit_code == 0
    assert server.count("DELETE", AT) == 2


def test_every_field_of_the_api_is_an_option() -> None:
    commands = typer.main.get_command(app)
    groups: Any = commands
    deploy = groups.commands["endpoint"].commands["deploy"]
    batch = groups.commands["batch-predict"]
    other = {"secrets": "secret", "timeout_s": "timeout", "ready_timeout_s": "ready_timeout", "drain_s": "drain"}
    for command, request in ((deploy, DeployRequest), (batch, BatchPredictRequest)):
        printed = {one.lstrip("-").replace("-", "_") for param in command.params for one in (*param.opts, param.name)}
        fields = {other.get(name, name) for name in request.model_fields} - {"resources", "labels"}
        assert fields <= printed
        assert {"cpu", "memory", "gpus", "gpu_type", "shm"} <= printed
