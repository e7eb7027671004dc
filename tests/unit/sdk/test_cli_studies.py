"""``study``: what the command line asks of the server about studies."""

from __future__ import annotations

from typing import Any

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
    asked = server.requests[0].url.params
    assert asked.get_list("state") == ["failed", "paused"]
    assert (asked["user"], asked["search"], asked["limit"]) == ("ann", "digits", "3")
    assert cli("study").exit_code == 0
    assert not {"state", "user", "search"} & set(server.requests[1].url.params)


def test_a_state_that_no_study_has_is_refused_in_words(cli: Any, server: Any) -> None:
    refused = cli("study", "list", "--state", "done")
    assert refused.exit_code != 0
    assert "'done' is none of running, paused, stopping, succeeded, failed, cancelled" in refused.stderr
    assert server.requests == []
