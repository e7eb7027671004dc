from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

TOTAL = {
    "jobs": 2,
    "gpu_hours": 12.5,
    "cpu_hours": 50.0,
    "memory_gib_hours": 100.0,
    "cost": "31.25",
    "lost_gpu_hours": 1.0,
    "lost_cost": "2.50",
    "idle_gpu_hours": 0.5,
    "idle_cost": "1.25",
}
PRICE = {
    "id": "price-1",
    "resource": "gpu",
    "gpu_model": "H100",
    "node_selector": {"pool": "fast"},
    "per_hour": "9.80",
    "currency": "EUR",
    "effective_from": "2026-12-01T00:00:00Z",
    "created_at": "2026-11-21T00:00:00Z",
}
BUDGET = {
    "project": "vision",
    "per_month": "5000.00",
    "action": "refuse",
    "spent": "4100.00",
    "currency": "EUR",
    "month": "2026-11-01T00:00:00Z",
}


@pytest.fixture
def usage_server(server: Any, page: Any) -> Any:
    groups = [{**TOTAL, "key": "vision"}, {**TOTAL, "key": ""}]
    values = [{"key": "vision", "gpu_hours": 2.0, "cpu_hours": 8.0, "cost": "5.00"}]
    report = {
        "since": "2026-11-01T00:00:00Z",
        "until": "2026-11-21T12:00:00Z",
        "currency": "EUR",
        "group_by": "label:team",
        "groups": groups,
        "others": TOTAL,
        "total": {**TOTAL, "cost": "93.75"},
        "periods": [{"start": "2026-11-01T00:00:00Z", "end": "2026-11-02T00:00:00Z", "values": values}],
    }
    server.on("GET", "/usage", report)
    server.on("GET", "/jobs/digits/usage", {**TOTAL, "currency": "EUR"})
    server.on("GET", "/prices", page(PRICE))
    server.on("POST", "/prices", PRICE)
    server.on("GET", "/budgets", page(BUDGET))
    server.on("PUT", "/projects/vision/budget", BUDGET)
    return server


def test_usage_has_a_line_for_each_group_and_day(cli: Any, usage_server: Any) -> None:
    shown = cli("usage", "--by", "label:team", "--daily", "--since", "2026-11-01").stdout
    lines = [line.split() for line in shown.splitlines() if line]
    assert " ".join(lines[0]) == "TEAM JOBS GPU-HOURS CORE-HOURS GIB-HOURS COST (EUR) IDLE COST LOST COST"
    assert [line[0] for line in lines[1:5]] == ["vision", "(none)", "(others)", "total"]
    assert lines[4][-3:] == ["93.75", "1.25", "2.50"]
    assert lines[-1] == ["2026-11-01", "2.00", "5.00"]
    query = usage_server.requests[-1].url.params
    assert (query["group_by"], query["interval"]) == ("label:team", "day")
    assert json.loads(cli("usage", "--json").stdout)["total"]["cost"] == "93.75"
    assert cli("usage", "--daily", "--monthly").exit_code == 2


def test_usage_of_a_job(cli: Any, usage_server: Any) -> None:
    shown = cli("usage", "digits").stdout
    assert "31.25 EUR" in shown
    assert "1.00 GPU-hours, 2.50 EUR" in shown


def test_prices_and_budgets_are_listed_and_set(cli: Any, usage_server: Any) -> None:
    assert "9.80 EUR" in cli("price").stdout
    price = cli("price", "set", "gpu", "9.80", "--model", "H100", "--select", "pool=fast", "--from", "2026-12-01")
    assert price.stdout.startswith("A H100 GPU costs 9.80 EUR an hour from ")
    sent = json.loads(usage_server.requests[-1].content)
    assert (sent["per_hour"], sent["node_selector"], sent["gpu_model"]) == ("9.80", {"pool": "fast"}, "H100")
    (row,) = [line.split() for line in cli("budget").stdout.splitlines() if "vision" in line]
    assert row == ["vision", "5000.00", "EUR", "4100.00", "900.00", "refuse"]
    cli("budget", "set", "vision", "5000", "--refuse")
    assert json.loads(usage_server.requests[-1].content) == {"per_month": "5000", "action": "refuse"}
    cli("budget", "set", "vision", "5000", "--lower-priority")
    assert json.loads(usage_server.requests[-1].content)["action"] == "lower_priority"
    assert cli("budget", "set", "vision", "5000", "--lower-priority", "--refuse").exit_code == 2


@pytest.mark.parametrize(
    "words", [("price", "set", "disk", "1"), ("price", "set", "gpu", "much"), ("budget", "set", "vision", "-1")]
)
def test_what_is_no_amount_is_refused(cli: Any, usage_server: Any, words: tuple[str, ...]) -> None:
    before = len(usage_server.requests)
    assert cli(*words).exit_code == 2
    assert len(usage_server.requests) == before


def test_csv_is_written_as_it_came(cli: Any, usage_server: Any, tmp_path: Path) -> None:
    usage_server.on("GET", "/usage.csv", httpx.Response(200, content=b"since,until\r\n1,2\r\n"))
    assert cli("usage", "--csv", str(tmp_path / "usage.csv")).exit_code == 0
    assert (tmp_path / "usage.csv").read_bytes() == b"since,until\r\n1,2\r\n"
