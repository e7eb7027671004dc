from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from trainmaster.cli.planner.queue import bar, start_text
from trainmaster.wire.forecasts import ExpectedStartView

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
STARTS = Path(__file__).parents[4] / "web/src/lib/time/startsForTest.json"
ACCURACY = "Of the last 200 expected starts, 91 % fell into their interval; median error 4 min."
QUOTA = {
    "project": "vision",
    "weight": 2.0,
    "max_priority": 75,
    "lines": [
        {"what": "gpus", "used": 14, "limit": 16, "guaranteed": 8, "user_limit": 4, "capacity": 32},
        {"what": "gpus/h100", "used": 0, "capacity": 16},
        {"what": "memory", "used": 2**34, "capacity": 2**40},
        {"what": "jobs", "used": 3, "limit": 20},
        {"what": "storage", "used": 9 * 2**30, "limit": 10 * 2**30},
    ],
    "storage": {
        "used": 9 * 2**30,
        "limit": 10 * 2**30,
        "percent": 90.0,
        "parts": {"outputs": 8 * 2**30, "archives": 0, "models": 2**30},
        "measured_at": NOW.isoformat(),
    },
    "users": [{"user": "ann", "used": {"gpus": 4}, "limit": {"gpus": 8}, "weight": 1.0}],
    "warnings": ["No node has the GPU model b200; the nodes have h100."],
}
SETTING = {
    "name": "time_slice",
    "kind": "duration",
    "value": 600.0,
    "text": "10m",
    "default_text": "off",
    "can_be_off": True,
    "meaning": "Jobs take turns.",
}
RESERVATION = {
    "id": "reservation-1",
    "name": "demo",
    "project": "vision",
    "nodes": ["a", "b"],
    "begins_at": NOW.isoformat(),
    "ends_at": (NOW + timedelta(days=1)).isoformat(),
    "is_active": False,
    "warnings": ["a is cordoned now."],
}


def _waiting(position: int, **more: Any) -> dict[str, Any]:
    return {"position": position, "priority": 50, "priority_class": "normal", "queued_at": NOW.isoformat(), **more}


@pytest.fixture
def queue_server(server: Any, page: Callable[..., Any]) -> Any:
    known = _waiting(
        1,
        job_id="job-1",
        name="digits",
        project="vision",
        user="ann",
        gpus=8,
        reason={"code": "no_room", "sentence": "Needs 8 GPUs.", "numbers": {}},
    )
    items = [known, _waiting(2, gpus=1), _waiting(3, gpus=2)]
    accuracy = {"forecasts": 200, "inside": 182, "median_error_s": 240, "sentence": ACCURACY}
    server.on("GET", "/queue", {"items": items, "next_cursor": None, "waiting": 3, "accuracy": accuracy})
    running = {"job_id": "job-0", "name": "big", "project": "vision", "user": "ann", "state": "running", "priority": 50}
    server.on(
        "GET",
        "/queue/running",
        page({**running, "gpus": 4}, {"state": "running", "priority": 50, "gpus": 1, "cpus": 4}),
    )
    share = {
        "weight": 1.0,
        "allocated": 0.5,
        "wanted": 1.0,
        "entitlement": 0.25,
        "usage": 0.1,
        "running": 1,
        "waiting": 1,
    }
    others = {**share, "project": None, "allocated": 0.25, "usage": None}
    projects = [{**share, "project": "vision", "gpus": {"h100": 4}}, others]
    return server.on("GET", "/shares", {"projects": projects, "gpus": {"h100": 8}})


def test_the_queue_tells_shares_running_and_waiting_jobs(cli: Any, queue_server: Any) -> None:
    reported = cli("queue").stdout
    assert "vision" in reported
    assert "4/8 h100" in reported
    assert "2 running jobs" in reported
    assert "and 1 of other projects, using 1 GPU and 4 CPUs" in reported
    assert "3 waiting jobs:" in reported
    assert "Needs 8 GPUs." in reported
    assert ACCURACY in reported
    assert "2–3  (2 of other projects)  –        –     3     –     normal" in reported


@pytest.mark.parametrize(
    "reason",
    [
        {"code": "never_fits", "sentence": "Needs 99 GPUs.", "numbers": {}},
        {"code": "quota", "sentence": "Needs 99 GPUs.", "numbers": {"is_never": True}},
    ],
)
def test_a_job_that_can_never_start_has_no_place_in_the_queue(
    cli: Any, queue_server: Any, reason: dict[str, Any]
) -> None:
    def waits(position: int, why: dict[str, Any]) -> dict[str, Any]:
        known = {"job_id": f"job-{position}", "name": f"job-{position}", "project": "vision", "user": "ann"}
        return {**_waiting(position, gpus=1), **known, "reason": why}

    fits = {"code": "no_room", "sentence": "Needs 8 GPUs.", "numbers": {}}
    queue_server.on("GET", "/queue", {"items": [waits(1, fits), waits(2, reason)], "next_cursor": None, "waiting": 2})
    lines = cli("queue").stdout.splitlines()
    assert "1 waiting job, and 1 that can never start on the present cluster:" in lines
    (row,) = [line.split() for line in lines if "Needs 99 GPUs." in line]
    assert row[:2] == ["–", "job-2"]
    assert "never" in row


def test_in_a_pipe_the_queue_has_all_its_columns(cli: Any, queue_server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    reported = cli("queue").stdout
    heads = [line.split() for line in reported.splitlines() if "PROJECT" in line]
    assert heads[0][-1] == "CPUS"
    assert heads[1][:3] == ["JOB", "PROJECT", "USER"]
    assert heads[2] == ["#", "JOB", "PROJECT", "USER", "GPUS", "CPUS", "PRIORITY", "EXPECTED", "START", "REASON"]


def test_the_queue_as_json_is_what_the_server_stated(cli: Any, queue_server: Any) -> None:
    reported = json.loads(cli("queue", "--json", "--project", "vision").stdout)
    assert reported["waiting"] == 3
    assert [job["position"] for job in reported["jobs"]] == [1, 2, 3]
    assert [job["name"] for job in reported["running"]] == ["big"]
    assert reported["shares"]["projects"][0]["entitlement"] == 0.25


def test_a_bar_shows_what_is_held_and_marks_what_is_due() -> None:
    assert bar(0.5, 0.25, 8) == "█│██····"
    assert bar(0.0, 0.0, 4) == "····"
    assert bar(2.0, 2.0, 4, is_fancy=False) == "###|"


@pytest.mark.parametrize("case", json.loads(STARTS.read_text()), ids=lambda case: case["about"])
def test_an_expected_start_reads_as_on_the_web_pages(case: dict[str, Any]) -> None:
    """The cases are those of ``timeScale.test.ts``, in local time."""
    local = {
        key: value and datetime.fromisoformat(value).astimezone()
        for key, value in case["start"].items()
        if key != "code"
    }
    start = ExpectedStartView(code=case["start"]["code"], sentence="", **local)
    now = datetime.fromisoformat("2026-11-21T12:00:00").astimezone()
    between = f" ({case['between']})" if case["between"] else ""
    assert start_text(start, now) == ((case["about"] or "–") + between)
    assert start_text(None, now) == "–"


def test_a_quota_is_shown_with_what_is_used_and_warned_about(cli: Any, server: Any) -> None:
    server.on("GET", "/projects/vision/quota", QUOTA)
    shown = cli("quota", "vision")
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert ["vision", "(weight", "2)", "gpus", "14", "16", "8", "4", "32"] in rows
    assert "gpus/h100  0" in shown.stdout
    assert "16.0 GiB" in shown.stdout
    assert "ann" in shown.stdout
    assert next(row for row in rows if row[:1] == ["storage"])[:5] == ["storage", "9.0", "GiB", "10.0", "GiB"]
    assert "Storage: outputs 8.0 GiB, models 1.0 GiB, measured" in shown.stderr
    assert "Warning: vision: No node has the GPU model b200" in shown.stderr
    assert json.loads(cli("quota", "show", "vision", "--json").stdout)["max_priority"] == 75


def test_after_setting_a_quota_only_its_own_warnings_are_reported(cli: Any, server: Any) -> None:
    others = [
        "memory: the limit is above what all nodes have.",
        "gpus/h100: all projects together are guaranteed 9 h100.",
    ]
    server.on("PATCH", "/projects/vision/quota", {**QUOTA, "warnings": [*QUOTA["warnings"], *others]})
    reported = cli("quota", "set", "vision", "gpus/B200=4").stderr
    assert "GPU model b200" in reported
    assert "memory" not in reported
    assert "2 other warnings: `trainmaster quota vision`" in reported
    assert "9 h100" not in cli("quota", "set", "vision", "gpus=16").stderr
    assert "9 h100" in cli("quota", "set", "vision", "-g", "gpus/H100=4").stderr


def test_a_storage_quota_is_set_and_its_own_warning_reported(cli: Any, server: Any) -> None:
    full = "storage: Project vision uses 9.0 GiB of its storage quota of 10.0 GiB (90 %)."
    server.on("PATCH", "/projects/vision/quota", {**QUOTA, "warnings": [*QUOTA["warnings"], full]})
    reported = cli("quota", "set", "vision", "storage=10Gi").stderr
    assert "(90 %)" in reported
    assert "GPU model" not in reported
    assert server.bodies("PATCH", "/projects/vision/quota")[0]["limit"] == {"storage": "10Gi"}
    server.on("GET", "/projects/vision/quota", {**QUOTA, "storage": {}})
    assert "Storage: not measured yet." in cli("quota", "vision").stderr


def test_setting_a_quota_sends_what_was_written(cli: Any, server: Any) -> None:
    server.on("PATCH", "/projects/vision/quota", QUOTA)
    given = ["gpus=16", "gpus/H100=8", "--guaranteed", "gpus=8", "--user-limit", "gpus=4", "--user", "ann:gpus=8"]
    given += ["--user-guaranteed", "ann:gpus=2"]
    assert cli("quota", "set", "vision", *given, "--weight", "2", "--max-priority", "high").exit_code == 0
    assert server.bodies("PATCH", "/projects/vision/quota") == [
        {
            "limit": {"gpus": "16", "gpus/H100": "8"},
            "guaranteed": {"gpus": "8"},
            "user_limit": {"gpus": "4"},
            "users": {"ann": {"gpus": "8"}},
            "user_guaranteed": {"ann": {"gpus": "2"}},
            "weight": 2.0,
            "max_priority": "high",
        }
    ]
    server.on("GET", "/projects/vision/quota", QUOTA)
    taken = ["gpus", "--guaranteed", "gpus", "--user-guaranteed", "ann", "--max-priority"]
    done = cli("quota", "unset", "vision", *taken)
    assert done.exit_code == 0
    assert "nothing was guaranteed to ann before" in done.stderr
    assert "gpus was" not in done.stderr
    assert "gpus were" not in done.stderr
    assert server.bodies("PATCH", "/projects/vision/quota")[1] == {
        "limit": {"gpus": None},
        "guaranteed": {"gpus": None},
        "user_guaranteed": {"ann": None},
        "max_priority": None,
    }


def test_after_a_change_of_users_the_users_are_shown(cli: Any, server: Any) -> None:
    server.on("PATCH", "/projects/vision/quota", QUOTA)
    assert "ann   gpus 4  gpus 8" in cli("quota", "set", "vision", "--user", "ann:gpus=8").stdout
    assert "ann" not in cli("quota", "set", "vision", "gpus=8").stdout


def test_what_is_taken_away_and_was_not_there_is_reported(cli: Any, server: Any) -> None:
    server.on("PATCH", "/projects/vision/quota", QUOTA).on("GET", "/projects/vision/quota", QUOTA)
    given = ["memory", "jobs", "--user", "ann", "--user", "nosuch", "--user-weight", "ann", "--user-limit", "jobs"]
    reported = cli("quota", "unset", "vision", *given)
    assert reported.exit_code == 0
    notes = [line for line in reported.stderr.splitlines() if "before." in line]
    assert notes == [
        f"vision: {sentence} before."
        for sentence in (
            "no limit on memory was set",
            "no limit on jobs of each user was set",
            "no limits of nosuch were set",
            "no weight of ann was set",
        )
    ]


@pytest.mark.parametrize(
    ("given", "reported"),
    [
        ([], "say what to set"),
        (["cpu=1", "cpu=2"], "cpu is given twice, as 1 and as 2"),
        (["--user", "ann:cpu=1", "--user", "ann:cpu=2"], "ann:cpu is given twice"),
        (["gpus"], "is not KEY=VALUE"),
        (["--user", "ann=4"], "is not USER:WHAT=AMOUNT"),
        (["--user-guaranteed", "ann=4"], "is not USER:WHAT=AMOUNT"),
        (["--user-weight", "ann=much"], "is not a number"),
    ],
)
def test_a_quota_that_is_written_wrongly_is_reported_before_anything_is_sent(
    cli: Any, server: Any, given: list[str], reported: str
) -> None:
    wrong = cli("quota", "set", "vision", *given)
    assert wrong.exit_code == 2
    assert reported in wrong.stderr
    assert server.requests == []


def test_settings_are_shown_with_their_meaning_and_sent_as_written(cli: Any, server: Any) -> None:
    view = {"settings": [SETTING], "updated_at": NOW.isoformat(), "updated_by": "root", "warnings": ["It is short."]}
    server.on("GET", "/policy", view).on("PATCH", "/policy", view)
    shown = cli("policy")
    assert "time_slice  10m    off      Jobs take turns." in shown.stdout
    assert "Changed by root" in shown.stderr
    assert "Warning: It is short." in shown.stderr
    was = {**view, "settings": [{**SETTING, "text": "off"}]}
    server.on("GET", "/policy", was, view)
    done = cli("policy", "set", "time_slice=10m", "order=shortest-first")
    assert done.stdout == "time_slice: off → 10m\n"
    assert "Warning: It is short." in done.stderr
    assert "No changes." in cli("policy", "set", "time_slice=10m").stderr
    assert "time_slice is given twice" in cli("policy", "set", "time_slice=10m", "time_slice=1h").stderr
    assert server.bodies("PATCH", "/policy")[0] == {"settings": {"time_slice": "10m", "order": "shortest-first"}}


def test_reservations_are_made_listed_and_deleted(cli: Any, server: Any, page: Callable[..., Any]) -> None:
    server.on("POST", "/reservations", RESERVATION).on("GET", "/reservations", page(RESERVATION))
    server.on("DELETE", "/reservations/reservation-1", {})
    made = cli(
        "reservation", "create", "demo", "a", "b", "--project", "vision", "--from", "2026-11-21T12:00:00+00:00",
        "--for", "1d"
    )  # fmt: skip
    assert "reservation-1: a, b for vision" in made.stdout
    assert "Warning: a is cordoned now." in made.stderr
    (body,) = server.bodies("POST", "/reservations")
    assert (body["name"], body["project"], body["nodes"]) == ("demo", "vision", ["a", "b"])
    assert datetime.fromisoformat(body["ends_at"]) - datetime.fromisoformat(body["begins_at"]) == timedelta(days=1)
    assert "demo" in cli("reservation").stdout
    assert cli("reservation", "delete", "reservation-1").exit_code == 0
    for given, reported in (
        (["--for", "1d"], "name nodes, or give --select"),
        (["a", "--select", "pool=x", "--for", "1d"], "one of the two"),
        (["a", "--count", "1", "--for", "1d"], "named nodes are all reserved"),
        (["a", "--for", "4000d"], "'4000d' is not between 0 and ten years"),
        (["a", "--for", "soon"], "'soon' is not a duration"),
        (["a", "--until", "soon"], "'soon' is neither a date nor a duration"),
    ):
        refused = cli("reservation", "create", "demo", *given)
        assert (refused.exit_code, reported in " ".join(refused.stderr.split())) == (2, True), refused.stderr
    wrong = cli("reservation", "create", "demo", "a")
    assert "--until" in wrong.stderr
