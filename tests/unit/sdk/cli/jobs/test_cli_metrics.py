"""metrics and resources."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
from typer.testing import Result

Invoke = Callable[..., Result]

SERIES = {"job": "job_1", "attempt": 1, "role": "worker", "index": 0, "name": "loss", "kind": "scalar", "count": 3}


def test_the_newest_of_each_metric_is_a_line(cli: Invoke, server: Any, page: Any) -> None:
    reported = {**SERIES, "last_step": 2, "last_value": "NaN", "low": 0.25, "high": 1.5}
    server.on("GET", "/jobs/mnist/metrics", page(reported))
    done = cli("metrics", "mnist")
    assert done.stdout.splitlines()[1].split() == ["loss", "worker-0", "1", "NaN", "2", "0.25", "1.5", "3"]
    assert server.requests[0].url.params["system"] == "false"
    assert json.loads(cli("metrics", "mnist", "--json").stdout)[0]["last_value"] == "NaN"


def test_a_job_without_metrics_prints_pattern_suggestions(cli: Invoke, server: Any, page: Any) -> None:
    server.on("GET", "/jobs/mnist/metrics", page())
    found = {"suggestions": [{"line": 'the "loss" 0.5\x1b[2J', "pattern": 'the "loss" {loss}'}]}
    server.on("GET", "/jobs/mnist/metrics/suggestions", httpx.Response(200, json=found))
    done = cli("metrics", "mnist")
    assert "No metrics yet." in done.output
    assert 'the "loss" 0.5' in done.stderr
    assert "\x1b" not in done.stderr
    assert '    - "the \\"loss\\" {loss}"' in done.stderr.splitlines()
    assert json.loads(cli("metrics", "mnist", "--json").stdout) == []


def test_a_names_points_or_runs_of_points_are_shown(cli: Invoke, server: Any) -> None:
    points = {"steps": [1, 2], "times_s": [1.0, 2.0], "values": [0.5, "Infinity"]}
    runs = {
        "steps": [0, 10], "steps_to": [9, 10], "times_s": [1.0, 2.0], "times_to_s": [2.0, 2.0], "counts": [10, 1],
        "lows": [0.1, None], "highs": [9, None], "means": [1, None], "firsts": [1, 1], "lasts": [2, "NaN"],
        "not_finite": [0, 1],
    }  # fmt: skip
    chart = {"series": [{**SERIES, "points": points}, {**SERIES, "name": "long", "buckets": runs}]}
    server.on("GET", "/jobs/mnist/metrics/chart", httpx.Response(200, json=chart))
    output = [line.split() for line in cli("metrics", "mnist", "--name", "loss", "--points", "2").stdout.splitlines()]
    assert ["1", "0.5"] in output
    assert ["2", "Infinity"] in output
    assert ["0–9", "0.1", "1", "9", "2"] in output
    assert server.requests[0].url.params["buckets"] == "2"


def test_new_points_are_reported_as_they_come(cli: Invoke, server: Any, sse: Any, job_json: Any) -> None:
    server.on("GET", "/jobs/mnist", job_json())
    new = {**SERIES, "points": {"steps": [7], "times_s": [1.0], "values": [0.125]}}
    machine = {**new, "name": "system/cpu_percent"}
    server.on(
        "GET",
        "/jobs/job_1/metrics/stream",
        httpx.Response(200, content=sse(("points", new), ("points", machine), ("end", {}))),
    )
    assert cli("metrics", "mnist", "-f").stdout == "worker-0  7  loss 0.125\n"


def test_resources_say_what_stands_out(cli: Invoke, server: Any) -> None:
    gpu = {"index": 0, "utilisation_percent": 2.0, "is_idle": True}
    use = {"attempt": 1, "role": "worker", "index": 0, "cpu_percent": 150.0, "memory_bytes": 2**30, "gpus": [gpu]}
    answer = {"window_s": 300, "replicas": [use], "notes": ["worker-0: its GPU idles."]}
    server.on("GET", "/jobs/mnist/resources", httpx.Response(200, json=answer))
    done = cli("resources", "mnist")
    assert all(part in done.stdout for part in ("worker-0", "150 %", "1.0 GiB", "2 %"))
    assert "its GPU idles" in done.stderr
