"""``study``: what the command line asks of the server about studies."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.unit.sdk.conftest import NOW

STUDY: dict[str, Any] = {
    "id": "study-1", "name": "digits-search", "project": "default", "user": "ann", "state": "failed",
    "metrics": ["accuracy"], "trials": {"failed": 5}, "budget_trials": 20, "created_at": NOW.isoformat(),
}  # fmt: skip


def test_studies_are_listed_by_state_user_and_name(cli: Any, server: Any) -> None:
    server.on("GET", "/studies", {"items": [STUDY], "next_cursor": None})
    listed = cli(
        "study", "list", "--state", "failed", "-s", "paused", "--user", "ann", "--search", "digits", "--limit", "3"
    )
    assert listed.exit_code == 0, listed.stderr
    assert "5 of 20 ended (5 failed)" in listed.stdout
    requested = server.requests[0].url.params
    assert requested.get_list("state") == ["failed", "paused"]
    assert (requested["user"], requested["search"], requested["limit"]) == ("ann", "digits", "3")
    assert cli("study").exit_code == 0
    assert not {"state", "user", "search"} & set(server.requests[1].url.params)


def test_trials_whose_jobs_are_in_the_queue_are_reported_as_waiting(cli: Any, server: Any) -> None:
    waits = {**STUDY, "state": "running", "trials": {"running": 3, "succeeded": 1}, "waiting": 2}
    server.on("GET", "/studies", {"items": [waits], "next_cursor": None})
    assert "1 of 20 ended (1 running, 2 waiting)" in cli("study", "list").stdout


def test_a_state_that_no_study_has_is_refused_in_words(cli: Any, server: Any) -> None:
    refused = cli("study", "list", "--state", "done")
    assert refused.exit_code != 0
    assert "'done' is none of running, paused, stopping, succeeded, failed, cancelled" in refused.stderr
    assert server.requests == []


def test_watching_reads_a_page_whose_trials_have_all_ended_only_once(
    cli: Any, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainmaster.cli.tuning.study_views.time", SimpleNamespace(sleep=lambda _seconds: None))
    spec = {
        "name": "digits-search",
        "parameters": {},
        "metrics": [{"name": "accuracy", "goal": "maximize"}],
        "budget": {},
    }
    rounds = [{1: "succeeded", 2: "failed", 3: "running"}, {1: "succeeded", 2: "failed", 3: "stopped", 4: "succeeded"}]
    looks = 0

    def study(_: httpx.Request) -> httpx.Response:
        nonlocal looks
        looks += 1
        states = list(rounds[looks - 1].values())
        trials = {state: states.count(state) for state in states}
        state = "running" if looks == 1 else "succeeded"
        return httpx.Response(200, json={**STUDY, "state": state, "trials": trials, "spec": spec, "seed": 1})

    def trials(request: httpx.Request) -> httpx.Response:
        after = int(request.url.params.get("cursor", 0))
        made = {"parameters": {"x": 1}, "created_at": NOW.isoformat()}
        items = [{"number": n, "state": state, **made} for n, state in rounds[looks - 1].items() if n > after]
        return httpx.Response(200, json={"items": items[:2], "next_cursor": str(after + 2) if items[2:] else None})

    server.on("GET", "/studies/digits-search", study)
    server.on("GET", "/studies/study-1", study)  # from the second look on: the name may mean another one by then
    server.on("GET", "/studies/study-1/trials", trials)
    watched = cli("study", "watch", "digits-search")
    assert watched.exit_code == 0, watched.stderr
    reported = [line.split()[1:3] for line in watched.stdout.splitlines() if line.startswith("trial ")]
    assert reported == [["1", "succeeded"], ["2", "failed"], ["3", "stopped"], ["4", "succeeded"]]
    read = [one.url.params.get("cursor") for one in server.requests if one.url.path.endswith("/trials")]
    assert read == [None, "2", "2"]
