"""automl: the leaderboard says of how many lines it shows some, and watching tells each trial's end."""

from __future__ import annotations

from typing import Any

NOTE = "Classification, since its values are words."
FOUND = {
    "id": "study-1", "name": "x", "project": "default", "state": "succeeded", "kind": "tabular",
    "task": "classification",
    "metric": "accuracy", "goal": "maximize", "data": "data/x.csv", "families": ["baseline", "linear"], "notes": [NOTE],
    "trials": {"succeeded": 12, "failed": 1},
}  # fmt: skip
STUDY = {
    "id": "study-1", "name": "x", "project": "default", "user": "ann", "state": "succeeded", "metrics": ["accuracy"],
    "trials": FOUND["trials"], "created_at": "2026-11-21T07:00:00Z", "seed": 1,
    "spec": {"name": "x", "parameters": {}, "metrics": [{"name": "accuracy", "goal": "maximize"}], "budget": {}},
}  # fmt: skip


def row(rank: int, family: str = "linear", **more: Any) -> dict[str, Any]:
    return {"rank": rank, "trial": rank, "family": family, "score": 1 - rank / 100, "parameters": {"c": rank}, **more}


def reported(server: Any, *board: dict[str, Any]) -> None:
    for ref in ("x", "study-1"):
        server.on("GET", f"/automl/{ref}", {**FOUND, "leaderboard": list(board)})


def test_a_part_of_the_leaderboard_says_so_and_has_the_baseline(cli: Any, server: Any) -> None:
    reported(server, *(row(rank) for rank in range(1, 11)), row(11, "baseline"), row(12, "baseline"))
    shown = cli("automl", "show", "x", "--limit", "3")
    lines = [line.split() for line in shown.stdout.splitlines()]
    assert [line[0] for line in lines[-4:]] == ["1", "2", "3", "11"]
    assert lines[-5][-1] == "PARAMETERS"  # nobody was stopped early: no column for it
    assert "4 of 12; --limit of `automl show` shows more." in shown.stderr
    assert " of 12" not in cli("automl", "show", "x").stderr


def test_who_was_stopped_early_is_reported_below_a_heading(cli: Any, server: Any) -> None:
    reported(server, row(1), row(2, is_whole=False))
    heading, whole, stopped = cli("automl", "show", "x").stdout.splitlines()[-3:]
    assert [line.split()[-1] for line in (heading, whole, stopped)] == ["END", "–", "early"]


def test_watching_tells_each_trials_end(cli: Any, server: Any) -> None:
    reported(server, row(1))
    server.on("GET", "/studies/study-1", STUDY)
    trial = {"parameters": {"family": "linear"}, "created_at": STUDY["created_at"]}
    trials = [
        {**trial, "number": 1, "state": "succeeded", "result": {"accuracy": 0.9}},
        {**trial, "number": 2, "state": "failed"},
    ]
    server.on("GET", "/studies/study-1/trials", {"items": trials})
    watched = cli("automl", "watch", "x")
    assert [line.split()[:3] for line in watched.stdout.splitlines() if line.startswith("trial ")] == [
        ["trial", "1", "succeeded"],
        ["trial", "2", "failed"],
    ]
    assert watched.stderr.count(NOTE) == 1


def test_what_was_informed_of_the_data_is_not_reported_again_at_the_end(cli: Any, server: Any) -> None:
    reported(server, row(1))
    server.on("POST", "/automl", {**FOUND, "state": "running"})
    server.on("GET", "/studies/study-1", STUDY)
    server.on("GET", "/studies/study-1/trials", {"items": []})
    assert cli("automl", "--data", "data/x.csv", "--target", "y", "--watch").stderr.count(NOTE) == 1
