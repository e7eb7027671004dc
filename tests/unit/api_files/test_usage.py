"""Usage and cost by the API: intervals of replicas, groups, periods, prices, budgets, and who sees what."""

from __future__ import annotations

import csv
import io
from datetime import datetime, timedelta
from typing import Any

import pytest

from core.db.engine import unit_of_work
from core.db.tables import Attempt, BudgetRow, Checkpoint, Job, JobLabel, MetricStream, ReleasedAllocation, Replica

H = timedelta(hours=1)
SPEC = {"spec": {"name": "next", "project": "vision", "command": "true"}}


def add_attempt(
    session: Any, job: str, number: int, start: datetime, end: datetime | None, *, kind: str = "success", **more: Any
) -> None:
    """An attempt of one replica with two H200, if nothing else is given."""
    attempt = f"{job}-attempt-{number}"
    session.add(
        Attempt(
            id=attempt,
            job_id=job,
            number=number + 10,
            state="running" if end is None else "ended",
            executor="fake",
            created_at=start,
            ended_at=end,
            end=None if end is None else {"kind": kind},
        )
    )
    session.flush()
    fields = {"node": "node-a", "gpus": ["0", "1"], "gpu_model": "H200", "cpu_milli": 1000, "memory_bytes": 2**30}
    session.add(
        Replica(
            id=f"{attempt}-replica",
            attempt_id=attempt,
            job_id=job,
            role="worker",
            index=0,
            rank=0,
            state="running" if end is None else "succeeded" if kind == "success" else "failed",
            ended_at=end,
            **{**fields, **more},
        )
    )


@pytest.fixture
def fleet(house: Any) -> Any:
    """Two hours ago job-1 began, which still runs; others of both projects have ended."""
    now = house.now
    with unit_of_work(house.sessions) as session:
        # What every test of this folder has would count, too.
        for replica in session.query(Replica).filter(Replica.attempt_id == "attempt-1"):
            replica.memory_bytes = 0
        session.get_one(Job, "job-1").created_at = now - 2 * H
        for name, project in (("old", "vision"), ("broken", "vision"), ("theirs", "other")):
            house.add_job(session, f"job-{name}", project=project, state="succeeded", name=name)
        session.flush()
        session.get_one(Job, "job-old").created_at = now - 30 * H
        session.add(JobLabel(job_id="job-old", key="team", value="blue"))
        add_attempt(session, "job-1", 1, now - 2 * H, None)
        add_attempt(session, "job-old", 1, now - 30 * H, now - 20 * H)
        add_attempt(session, "job-broken", 1, now - 10 * H, now - 6 * H, kind="hardware")
        add_attempt(session, "job-broken", 2, now - 6 * H, now - 5 * H, kind="success")
        add_attempt(session, "job-theirs", 1, now - 4 * H, now - 3 * H, gpus=["0"], gpu_milli=500)
        session.add(
            Checkpoint(
                id="saved", job_id="job-broken", attempt_id="job-broken-attempt-1", path="c", created_at=now - 9 * H
            )
        )
        session.add(
            ReleasedAllocation(
                attempt_id="job-1-attempt-1", job_id="job-1", node="node-b", gpu_model="H200", gpu_milli=1000,
                cpu_milli=1000, memory_bytes=2**30, start_at=now - H, end_at=now - H / 2,
            )
        )  # fmt: skip
    return house


def hours(report: Any, figure: str = "gpu_hours") -> dict[str, float]:
    return {group["key"]: group[figure] for group in report.json()["groups"]}


def test_usage_is_summed_to_the_second(fleet: Any) -> None:
    report = fleet.call("root", "GET", "/usage")
    assert report.status_code == 200, report.text
    # 2 h x 2 and half an hour of the released one; 10 h x 2; 5 h x 2. Half a GPU for an hour.
    assert hours(report) == {"vision": 4.5 + 20 + 10, "other": 0.5}
    assert hours(report, "jobs") == {"vision": 3, "other": 1}
    assert report.json()["total"]["gpu_hours"] == 35
    assert report.json()["currency"] == "USD"
    assert report.json()["since"] == "2026-11-01T00:00:00Z"
    # From the checkpoint to the end of the attempt that its machine ended.
    assert hours(report, "lost_gpu_hours") == {"vision": 6.0, "other": 0.0}


@pytest.mark.parametrize(
    ("group_by", "expected"),
    [
        ("user", {"member": 35}),
        ("job", {"old": 20, "broken": 10, "digits": 4.5, "theirs": 0.5}),
        ("gpu_model", {"H200": 35}),
        ("node", {"node-a": 34.5, "node-b": 0.5}),
        ("label:team", {"blue": 20, "": 15}),
        ("study", {"": 35}),
    ],
)
def test_it_is_grouped(fleet: Any, group_by: str, expected: dict[str, float]) -> None:
    assert hours(fleet.call("root", "GET", "/usage", params={"group_by": group_by})) == expected


def test_a_window_cuts_and_days_add_up(fleet: Any) -> None:
    window = {"since": (fleet.now - 25 * H).isoformat(), "until": (fleet.now - H).isoformat(), "interval": "day"}
    report = fleet.call("root", "GET", "/usage", params=window)
    assert hours(report) == {"vision": 2 + 10 + 10, "other": 0.5}
    periods = report.json()["periods"]
    assert [period["start"] for period in periods] == ["2026-11-20T06:00:00Z", "2026-11-21T00:00:00Z"]
    assert [{value["key"]: value["gpu_hours"] for value in period["values"]} for period in periods] == [
        {"vision": 10 + 2 * 3},  # the broken one began at 21:00
        {"vision": 2 + 2 * 2, "other": 0.5},
    ]


def test_prices_and_the_most_expensive_groups_first(fleet: Any) -> None:
    price = {"resource": "gpu", "per_hour": "2.5", "effective_from": "2026-01-01T00:00:00Z"}
    made = fleet.call("root", "POST", "/prices", json=price)
    assert (made.status_code, made.json()["per_hour"]) == (201, "2.50")
    half = {**price, "per_hour": "10", "gpu_model": "H200", "effective_from": (fleet.now - 4 * H).isoformat()}
    assert fleet.call("root", "POST", "/prices", json=half).status_code == 201
    report = fleet.call("root", "GET", "/usage", params={"group_by": "job", "limit": 2})
    assert hours(report, "cost") == {"old": "50.00", "digits": "45.00"}
    assert report.json()["others"]["cost"] == "30.00"  # 10 x 2.5 and 0.5 x 10
    assert report.json()["total"]["cost"] == "125.00"
    assert fleet.call("member", "GET", "/jobs/job-old/usage").json()["cost"] == "50.00"
    rows = list(csv.DictReader(io.StringIO(fleet.call("root", "GET", "/usage.csv?group_by=job").text)))
    assert [(row["job"], row["cost"]) for row in rows] == [
        ("old", "50.00"), ("digits", "45.00"), ("broken", "25.00"), ("theirs", "5.00"),
    ]  # fmt: skip
    listed = fleet.call("root", "GET", "/prices").json()["items"]
    assert {row["gpu_model"] for row in listed} == {"", "H200"}
    for row in listed:
        assert fleet.call("root", "DELETE", f"/prices/{row['id']}").status_code == 204
    assert fleet.call("root", "GET", "/usage").json()["total"]["cost"] == "0.00"


def test_idle_time_of_gpus_is_a_part_where_it_was_recorded(fleet: Any) -> None:
    price = {"resource": "gpu", "per_hour": "2", "effective_from": "2026-01-01T00:00:00Z"}
    assert fleet.call("root", "POST", "/prices", json=price).status_code == 201
    core = {**price, "resource": "cpu"}
    assert fleet.call("root", "POST", "/prices", json=core).status_code == 201
    with unit_of_work(fleet.sessions) as session:
        stream = {"owner_id": "job-old", "attempt": 11, "role": "worker", "index": 0, "updated_at": fleet.now}
        session.add(MetricStream(**stream, gpu_samples=4, idle_gpu_samples=1))
    report = fleet.call("root", "GET", "/usage", params={"group_by": "job"})
    assert hours(report, "idle_gpu_hours") == {"old": 5.0, "broken": 0.0, "digits": 0.0, "theirs": 0.0}
    # The quarter of what its GPUs cost, not of its core.
    assert hours(report, "idle_cost")["old"] == "10.00"
    assert hours(report, "cost")["old"] == "60.00"


def test_others_see_their_own_projects_alone(fleet: Any) -> None:
    assert list(hours(fleet.call("viewer", "GET", "/usage"))) == ["vision"]
    assert hours(fleet.call("stranger", "GET", "/usage")) == {"other": 0.5}
    assert hours(fleet.call("nobody", "GET", "/usage")) == {}
    assert fleet.call("stranger", "GET", "/usage", params={"project": "vision"}).status_code == 404
    assert hours(fleet.call("root", "GET", "/usage", params={"project": "other"})) == {"other": 0.5}
    assert hours(fleet.call("root", "GET", "/usage", params={"user": "owner"})) == {}


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({"group_by": "planet"}, "group_by"),
        ({"since": "2026-11-22T00:00:00Z"}, "since"),
        ({"since": "0001-01-01T00:00:00+23:00"}, "since"),
        ({"since": "2001-01-01T00:00:00Z", "interval": "day"}, "interval"),
        ({"user": "who"}, "user"),
    ],
)
def test_a_wrong_query_names_its_field(fleet: Any, params: dict[str, str], field: str) -> None:
    refused = fleet.call("root", "GET", "/usage", params=params)
    assert (refused.status_code, refused.json()["field"]) == (404 if field == "user" else 422, field)


def test_a_price_has_a_sense(fleet: Any) -> None:
    for wrong in ({"per_hour": "-1"}, {"per_hour": "NaN"}, {"per_hour": "0.0000001"}, {"gpu_model": "H100"}):
        body = {"resource": "cpu", "per_hour": "1", **wrong}
        assert fleet.call("root", "POST", "/prices", json=body).status_code == 422, wrong
    assert fleet.call("root", "DELETE", "/prices/none").status_code == 404


def test_a_spent_budget_warns_or_refuses(fleet: Any) -> None:
    fleet.call(
        "root", "POST", "/prices", json={"resource": "gpu", "per_hour": 1, "effective_from": "2026-11-01T00:00:00Z"}
    )
    budget = fleet.call("root", "PUT", "/projects/vision/budget", json={"per_month": "40"})
    assert (budget.json()["spent"], budget.json()["per_month"], budget.json()["action"]) == ("34.50", "40.00", "warn")
    dry = fleet.call("member", "POST", "/jobs", json={**SPEC, "dry_run": True})
    assert "Project vision has spent 34.50 of this month's budget of 40.00 USD." in dry.headers["warning"]
    fleet.call("root", "PUT", "/projects/vision/budget", json={"per_month": "34", "action": "refuse"})
    refused = fleet.call("member", "POST", "/jobs", json=SPEC)
    assert (refused.status_code, refused.json()["code"]) == (403, "budget_exceeded")
    assert "trainmaster budget set vision AMOUNT" in refused.json()["detail"]
    fleet.call("root", "PUT", "/projects/vision/budget", json={"per_month": "34", "action": "lower_priority"})
    behind = fleet.call("member", "POST", "/jobs", json={**SPEC, "dry_run": True})
    assert "its waiting jobs come behind those of all other projects" in behind.headers["warning"]
    with unit_of_work(fleet.sessions) as session:
        assert session.get_one(BudgetRow, "project-vision").is_spent
    assert [row["project"] for row in fleet.call("viewer", "GET", "/budgets").json()["items"]] == ["vision"]
    fleet.call("root", "PUT", "/projects/vision/budget", json={"per_month": "34", "action": "warn"})
    assert fleet.call("member", "POST", "/jobs", json=SPEC).status_code == 201
    assert fleet.call("root", "DELETE", "/projects/vision/budget").status_code == 204
    assert fleet.call("root", "DELETE", "/projects/vision/budget").status_code == 404
    assert "warning" not in fleet.call("member", "POST", "/jobs", json={**SPEC, "dry_run": True}).headers
