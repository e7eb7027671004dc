"""Asking the planner from the command line."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

from trainmaster.cli.terminal.options import moment
from typer.testing import Result

from tests.unit.sdk.conftest import NOW, make_problem

Invoke = Callable[..., Result]

PLACE = {"role": "worker", "node": "a", "replicas": 2, "gpu_model": "H100"}
REASON = {"code": "no_room", "sentence": "Needs 2 GPUs; none is free.", "numbers": {}}
OPTION = {
    "code": "fewer_gpus",
    "sentence": "With 1 GPU it would start now, on a.",
    "roles": ["worker"],
    "field": "gpus",
}
START = {
    "code": "expected",
    "sentence": "It starts probably at about 14:20 UTC, between 13:50 UTC and 16:05 UTC.",
    "early_at": "2026-11-21T13:50:00Z",
    "likely_at": "2026-11-21T14:20:00Z",
    "late_at": "2026-11-21T16:05:00Z",
    "nodes": ["a"],
}
LATER = {**OPTION, "sentence": "With GPUs of A100 it would probably start at about 12:30 UTC.", "start": START}
EXPECTED = " ".join(
    text.format(datetime.fromisoformat(START[key]).astimezone())
    for text, key in (("{:%b %d %H:%M}", "likely_at"), ("({:%b %d %H:%M}–", "early_at"), ("{:%b %d %H:%M})", "late_at"))
).replace("– ", "–")
SPEC = "name: mnist\ncommand: train\ngpus: 2\n"


def waits(**more: Any) -> dict[str, Any]:
    return {
        "places": [],
        "wait_reason": REASON,
        "queue_position": 7,
        "start": START,
        "options": [],
        "later": [],
        **more,
    }


STARTS = {"places": [PLACE], "wait_reason": None, "queue_position": None, "options": []}


def test_whatif_tells_where_it_would_run_or_why_it_would_wait_until_when_and_what_would_start(
    cli: Invoke, server: Any
) -> None:
    server.on("POST", "/forecasts", STARTS, waits(options=[OPTION], later=[LATER]), waits())
    assert cli("whatif", "-", stdin=SPEC).stdout.split("\n")[:2] == [
        "Expected start  now",
        "Nodes           worker×2 on a (H100)",
    ]
    reported = cli("whatif", "-", "--project", "vision", stdin=SPEC).stdout
    assert f"Expected start      {EXPECTED}" in reported
    assert "Needs 2 GPUs; none is free (position 7 in the queue)" in reported
    assert "With 1 GPU it would start now, on a." in reported
    assert "Would start sooner  With GPUs of A100 it would probably start at about 12:30 UTC." in reported
    assert "no similar configuration" in cli("whatif", "-", stdin=SPEC).stdout
    assert server.bodies("POST", "/forecasts")[1]["spec"]["project"] == "vision"


def test_whatif_tells_the_cost(cli: Invoke, server: Any) -> None:
    cost = {"sentence": "At most 10.00 USD.", "currency": "USD", "per_hour": "2.50", "basis": "limit"}
    server.on("POST", "/forecasts", {**STARTS, "cost": cost})
    assert "Cost            At most 10.00 USD." in cli("whatif", "-", stdin=SPEC).stdout


def test_a_job_that_no_node_can_hold_has_no_place_in_the_queue(cli: Invoke, server: Any) -> None:
    reason = {"code": "never_fits", "sentence": "Needs 16 GPUs.", "numbers": {}}
    never = {"code": "never", "sentence": "It starts never on the nodes and with the settings as they are."}
    server.on("POST", "/forecasts", waits(wait_reason=reason, queue_position=None, start=never))
    reported = cli("whatif", "-", stdin=SPEC).stdout
    assert "position" not in reported
    assert "Expected start   never on the nodes and with the settings as they are" in reported


def test_a_waiting_job_may_be_queried_about_with_changes_beside_how_it_is(cli: Invoke, server: Any) -> None:
    server.on("GET", "/jobs/mnist/forecast", waits())
    server.on("POST", "/forecasts", STARTS)
    reported = cli("whatif", "mnist", "--set", "workers=16", "--set", "gpus=1", "--compare").stdout
    assert server.bodies("POST", "/forecasts") == [
        {"spec": None, "spec_text": None, "job": "mnist", "changes": {"workers": 16, "gpus": 1}, "cluster": None}
    ] or server.bodies("POST", "/forecasts")[0]["changes"] == {"workers": 16, "gpus": 1}
    assert reported.splitlines()[:2] == [
        f"Expected start     as it is  {EXPECTED}",
        "                   what if   now",
    ]
    nothing_else = cli("whatif", "mnist", "--compare")
    assert nothing_else.exit_code == 2
    assert "--compare needs a change" in nothing_else.stderr


def test_other_nodes_may_be_thought_of(cli: Invoke, server: Any) -> None:
    server.on("POST", "/forecasts", STARTS)
    assert cli("whatif", "mnist", "--more-nodes", "20", "--like", "gpu-07", "--without", "gpu-01").exit_code == 0
    assert server.bodies("POST", "/forecasts")[0]["cluster"] == {
        "more_nodes": 20,
        "like": "gpu-07",
        "without": ["gpu-01"],
    }
    missing = cli("whatif", "mnist", "--more-nodes", "20")
    assert missing.exit_code == 2
    assert "--like gpu-07" in missing.stderr


def test_explain_says_what_the_planner_saw_and_did(cli: Invoke, server: Any) -> None:
    answer = {
        "job_id": "job_1", "at": NOW.isoformat(), "verdict": "waits", "sentence": REASON["sentence"],
        "wait_reason": REASON,
        "queue_position": 3, "order": "2 jobs come before it.", "waiting": 9, "running": 4, "nodes": 2, "is_same": True,
    }  # fmt: skip
    server.on("GET", "/jobs/mnist/explanation", answer, {**answer, "is_same": False, "then": "Starts."})
    reported = cli("explain", "mnist", "--at", "2026-11-21T07:30:00+00:00").stdout
    assert "9 waiting, 4 running, 2 nodes" in reported
    assert "Needs 2 GPUs; none is free (position 3 in the queue)" in reported
    assert "Order    2 jobs come before it." in reported
    assert "2026-11-21" in str(server.requests[-1].url)
    assert "another version" in cli("explain", "mnist").stdout
    assert cli("explain", "mnist", "--at", "yesterdayish").exit_code == 2


def test_a_moment_is_a_date_a_time_of_today_or_a_span_ago() -> None:
    now = datetime(2026, 11, 21, 12, 0).astimezone()
    assert moment("09:07", now, "--at") == now.replace(hour=9, minute=7)
    assert moment("23:50", now, "--at") == now.replace(hour=23, minute=50) - timedelta(days=1)
    assert moment("10m", now, "--at") == moment("-10m", now, "--at") == now - timedelta(minutes=10)
    assert moment("2026-11-21T09:07", now, "--at") == now.replace(hour=9, minute=7)


def test_simulate_waits_for_the_result_and_shows_both_beside_each_other(
    cli: Invoke, server: Any, tmp_path: Any
) -> None:
    report = {
        "jobs": 3, "finished": 3, "wait_mean_s": 60, "wait_p50_s": 60, "wait_p99_s": 60, "jct_mean_s": 600,
        "jct_p50_s": 600,
        "jct_p99_s": 600, "makespan_s": 6000, "gpu_allocation": 0.5, "preemptions": 0, "worst_fairness": None,
    }  # fmt: skip
    result = {
        "since": NOW.isoformat(), "until": NOW.isoformat(), "jobs": 3, "before": report,
        "after": {**report, "wait_mean_s": 30}, "sentences": ["A job would have waited 30 s on the average."],
    }  # fmt: skip
    server.on("POST", "/simulations", {"id": "q1", "state": "waiting"})
    server.on(
        "GET", "/simulations/q1", {"id": "q1", "state": "running"}, {"id": "q1", "state": "done", "result": result}
    )
    file = tmp_path / "policy.yaml"
    file.write_text("order: fifo\n")
    reported = cli(
        "simulate", "--policy", str(file), "--set", "time_slice=1h", "--more-nodes", "20", "--like", "a"
    ).stdout
    assert server.bodies("POST", "/simulations")[0]["policy"] == {"order": "fifo", "time_slice": "1h"}
    assert any(
        line.split() == ["Waiting", "time,", "mean", "1", "m", "00", "s", "30", "s"] for line in reported.splitlines()
    ), reported
    assert reported.startswith("A job would have waited 30 s on the average.\n")
    nothing = dict.fromkeys(("wait_mean_s", "wait_p50_s", "wait_p99_s", "makespan_s", "cpu_allocation"))
    done = {"id": "q1", "state": "done", "result": {**result, "after": {**report, **nothing}}}
    server.on("GET", "/simulations/q1", done)
    rows = [line.split() for line in cli("simulate", "--id", "q1").stdout.splitlines()]
    assert ["Waiting", "time,", "mean", "1", "m", "00", "s", "–"] in rows
    assert ["Makespan", "1", "h", "40", "m", "–"] in rows
    assert cli("simulate").exit_code == 2
    file.write_text("- a list\n")
    assert "has no settings" in cli("simulate", "--policy", str(file)).stderr


def test_simulate_draws_both_into_a_file(cli: Invoke, server: Any, tmp_path: Any, monkeypatch: Any) -> None:
    report = {
        "jobs": 3, "finished": 3, "wait_mean_s": 60, "wait_p50_s": 60, "wait_p99_s": 60, "jct_mean_s": 600,
        "jct_p50_s": 600,
        "jct_p99_s": 600, "makespan_s": 6000, "gpu_allocation": 0.5, "preemptions": 0, "worst_fairness": None,
        "gpus_over_time": [[0, 1.0], [3000, 0.25]], "waiting_over_time": [[0, 2], [600, 0]],
    }  # fmt: skip
    nothing = dict.fromkeys(("wait_mean_s", "wait_p50_s", "wait_p99_s", "makespan_s", "gpu_allocation"))
    result = {
        "since": NOW.isoformat(), "until": NOW.isoformat(), "jobs": 3, "before": report,
        "after": {**report, **nothing, "gpus_over_time": [], "waiting_over_time": []}, "sentences": [],
    }  # fmt: skip
    server.on("GET", "/simulations/q1", {"id": "q1", "state": "done", "result": result})
    picture = tmp_path / "out.svg"
    drawn = cli("simulate", "--id", "q1", "--plot", str(picture))
    assert drawn.exit_code == 0, drawn.stderr
    words = picture.read_text(encoding="utf-8")
    assert all(word in words for word in ("GPUs in use", "waiting jobs", "as now", "what if", "completion time"))
    assert "CPUs in use" not in words  # nobody asked for any
    assert "does not end in .svg" in cli("simulate", "--id", "q1", "--plot", "out.txt").stderr
    assert "there is no folder" in cli("simulate", "--id", "q1", "--plot", str(tmp_path / "no" / "out.svg")).stderr
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    without = cli("simulate", "--id", "q1", "--plot", str(picture))
    assert without.exit_code == 2
    assert "trainmaster[plots]" in without.stderr


def test_a_question_that_cannot_be_answered_is_reported_in_words(cli: Invoke, server: Any) -> None:
    server.on(
        "POST", "/forecasts", make_problem(422, "invalid_request", "Like: there is no node x.", field="cluster.like")
    )
    refused = cli("whatif", "mnist", "--more-nodes", "2", "--like", "x")
    assert refused.exit_code != 0
    assert "there is no node x" in refused.stderr


def test_whoever_leaves_a_simulation_is_informed_how_to_come_back_to_it(
    cli: Invoke, server: Any, monkeypatch: Any
) -> None:
    doing = {"id": "q1", "state": "running", "sentence": "It reads the jobs that have ended."}
    server.on("POST", "/simulations", doing)
    server.on("GET", "/simulations/q1", doing)
    late = cli("simulate", "--set", "order=fifo", "--timeout", "0.1s")
    assert late.exit_code == 124
    assert "It reads the jobs that have ended. It continues; its result is available" in late.stderr
    missing = cli("simulate", "--policy", "nofile.yaml").stderr
    assert "nofile.yaml cannot be read: No such file or directory." in missing
    assert missing.count("nofile.yaml") == 1
    assert "trainmaster simulate --id q1" in late.stderr

    def interrupt(_seconds: float) -> None:
        raise KeyboardInterrupt

    # Of that module alone: threads of others sleep, too.
    monkeypatch.setattr(
        "trainmaster.cli.planner.whatif.time", SimpleNamespace(sleep=interrupt, monotonic=time.monotonic)
    )
    left = cli("simulate", "--id", "q1")
    assert (left.exit_code, len(server.bodies("POST", "/simulations"))) == (130, 1)
    assert "Traceback" not in left.stderr
    assert "trainmaster simulate --id q1" in left.stderr
    assert cli("simulate", "--id", "q1", "--set", "order=fifo").exit_code == 2
