"""nodes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from typer.testing import Result

Invoke = Callable[..., Result]


@pytest.fixture(autouse=True)
def no_reservations(server: Any) -> None:
    server.on("GET", "/reservations", {"items": []})


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
    server.on("GET", "/nodes", {"items": [node]})
    server.on("POST", "/nodes/n1/cordon", {**node, "is_cordoned": True, "cordon_reason": "dust"})
    assert "1.5 / 8  1.0 GiB / 16.0 GiB  1 / 4 H200" in cli("nodes").stdout
    assert json.loads(cli("nodes", "--json").stdout)[0]["name"] == "n1"
    assert cli("nodes", "cordon", "n1", "--reason", "dust").stdout == "n1: cordoned: dust\n"
    assert server.bodies("POST", "/nodes/n1/cordon") == [{"reason": "dust"}]


def test_a_node_that_is_reserved_says_so(cli: Invoke, server: Any) -> None:
    server.on("GET", "/nodes", {"items": [node_json(), node_json(name="n2"), node_json(name="n3")]})
    server.on("GET", "/nodes/n2", node_json(name="n2"))
    times = {"begins_at": "2026-11-21T07:00:00Z", "ends_at": "2026-11-22T07:00:00Z"}
    now = {"id": "reservation-1", "name": "demo", "project": "vision", "nodes": ["n1"], **times, "is_active": True}
    theirs = {**now, "id": "reservation-2", "name": None, "project": None, "nodes": ["n2"]}
    later = {**now, "id": "reservation-3", "name": "paper", "nodes": ["n2", "n3"], "is_active": False}
    server.on("GET", "/reservations", {"items": [now, theirs, later]})
    lines = cli("nodes").stdout.splitlines()
    assert "ready, reserved for vision " in lines[1]
    assert "ready, reserved for another project " in lines[2]
    assert "reserved" not in lines[3]
    reported = [line for line in cli("nodes", "show", "n2").stdout.splitlines() if line.startswith("Reserved")]
    assert "for another project until 2026-11-22" in reported[0]
    assert "for vision, from 2026-11-21" in reported[1]
    assert reported[1].endswith("(paper)")


def test_a_quarantined_node_says_why_until_when_and_how_it_is_released(cli: Invoke, server: Any) -> None:
    job = {"job_id": "job-7", "job": "x", "at": "2026-11-21T07:00:00Z", "error": "uncorrectable ECC error"}
    why = "uncorrectable ECC error in job x"
    reported = {"since": "2026-11-21T07:00:00Z", "until": "2026-11-22T07:00:00Z", "why": why, "jobs": [job], "count": 1}
    server.on("GET", "/nodes", {"items": [node_json(quarantine=reported)]})
    server.on("GET", "/nodes/n1", node_json(quarantine={**reported, "until": None}))
    server.on("POST", "/nodes/n1/release", node_json())
    assert f": {why}" in cli("nodes").stdout
    assert "quarantined until 2026-11-22" in cli("nodes").stdout
    shown = cli("nodes", "show", "n1").stdout
    assert "until it is released" not in shown.splitlines()[1]
    assert "trainmaster nodes release n1" in shown
    assert "x (job-7), 2026-11-21" in shown
    assert cli("nodes", "release", "n1", "--reason", "new board").stdout == "n1: ready\n"
    assert server.bodies("POST", "/nodes/n1/release") == [{"reason": "new board"}]
    suspected = node_json(suspicion={"why": why, "why_not": "it is the last node", "jobs": []})
    server.on("GET", "/nodes/n1", suspected)
    assert f"ready, suspected: {why}" in cli("nodes", "show", "n1").stdout


def test_a_node_is_drained(cli: Invoke, server: Any) -> None:
    drained = node_json(is_cordoned=True, is_draining=True, cordon_reason="dust")
    server.on("POST", "/nodes/n1/drain", {**drained, "replicas": 2})
    assert cli("nodes", "drain", "n1", "--reason", "dust").stdout == "n1: draining: dust\n"
    assert server.bodies("POST", "/nodes/n1/drain") == [{"reason": "dust"}]
    server.on("GET", "/nodes", {"items": [drained]})
    assert "drained: dust" in cli("nodes").stdout


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
        (["arch-"], "is set by the executor"),
        (["ghost-"], "is not a label of the node"),
        (["pool"], "is not KEY=VALUE"),
        (["pool=a", "pool-"], "is both set and removed"),
        (["po ol=a"], "is not a label key"),
        ([], "is missing"),
    ],
)
def test_a_label_that_cannot_be_changed_is_reported(
    cli: Invoke, server: Any, changes: list[str], sentence: str
) -> None:
    server.on("GET", "/nodes/n1", node_json(labels={"arch": "x86", "pool": "a"}, admin_labels={"pool": "a"}))
    done = cli("nodes", "label", "n1", *changes)
    assert done.exit_code == 2
    assert sentence in " ".join(done.stderr.replace("│", " ").split())
    assert server.bodies("PUT", "/nodes/n1/labels") == []


def test_a_node_that_is_gone_is_removed(cli: Invoke, server: Any) -> None:
    server.on("DELETE", "/nodes/n1", httpx.Response(204))
    assert cli("nodes", "remove", "n1").stdout == "n1 removed\n"
