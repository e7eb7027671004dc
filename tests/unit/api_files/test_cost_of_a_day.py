"""The cost of a day with 10,000 jobs: the report's sums and those of a second implementation, equal to the cent.

The day is a list of events: a gang is placed, a replica leaves it, the attempt ends. The platform's rows are made of
them, and the report sums intervals of these rows. The second implementation walks through the same events in order of
their times and charges every span between two of them for what is held then, in fractions.
"""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

from sqlalchemy import insert, text

from core.db.engine import unit_of_work
from core.db.tables import Attempt, Job, Node, PriceRow, ReleasedAllocation, Replica

JOBS = 10_000
HOUR_US = 3_600_000_000
GIB = 2**30
# (resource, GPU model, label of nodes, hour of the day from which it counts, price): from the general to the special,
# and of equals the later ones.
PRICES = (
    ("gpu", "", {}, -100, "2.5"), ("cpu", "", {}, -100, "0.031"), ("memory", "", {}, -50, "0.0042"),
    ("gpu", "", {}, 13, "2.123457"), ("gpu", "H100", {}, 7, "9.80"), ("cpu", "", {"pool": "fast"}, 5, "0.05"),
)  # fmt: skip
NODES = {f"node-{number}": ("H100" if number % 3 else "L4", "fast" if number % 4 else "slow") for number in range(40)}


def a_day(begin: datetime) -> list[tuple[datetime, str, int, dict[str, Any]]]:
    """(time, kind, job, resources) of each event: ``placed`` and ``ended`` of a replica, its resources in both."""
    chance = random.Random(20)
    events = []
    for job in range(JOBS):
        # Some began the day before, and some end the day after.
        start = begin + timedelta(microseconds=chance.randrange(-2 * HOUR_US, 24 * HOUR_US))
        end = start + timedelta(microseconds=chance.randrange(1, chance.choice((10**6, 10**9, 4 * HOUR_US))))
        for index in range(chance.choice((1, 1, 1, 2))):
            node = chance.choice(list(NODES))
            milli = chance.choice((0, 250, 1000, 1000, 8000))
            amounts = {
                "index": index, "node": node, "gpu_model": NODES[node][0] if milli else None, "gpu_milli": milli,
                "cpu_milli": chance.randrange(1, 64_000), "memory_bytes": chance.randrange(1, 512 * GIB),
            }  # fmt: skip
            # An elastic gang gives the second replica back before its end.
            left = start + (end - start) / 3 if index and chance.random() < 0.5 else end
            events += [(start, "placed", job, amounts), (left, "left" if left < end else "ended", job, amounts)]
    return sorted(events, key=lambda event: event[0])


def write_rows(house: Any, events: list[tuple[datetime, str, int, dict[str, Any]]], begin: datetime) -> None:
    jobs, attempts, replicas, released = dict[int, Any](), dict[int, Any](), [], []
    placed = {(job, amounts["index"]): at for at, kind, job, amounts in events if kind == "placed"}
    common = {"spec": {}, "gang": {}, "shape": "", "output_volume": "output", "priority": 50, "attempt_count": 1}
    for at, kind, job, amounts in events:
        project = ("vision", "other")[job % 2]
        if kind == "placed":
            times = dict.fromkeys(("created_at", "queued_at", "updated_at"), at)
            ids = {"project_id": house.projects[project], "user_id": house.users["member"], "id": f"day-{job}"}
            jobs[job] = {**ids, "name": f"day-{job}", "state": "succeeded", "output_path": str(job), **times, **common}
            attempts[job] = {
                "id": f"of-{job}", "job_id": f"day-{job}", "number": 1, "state": "ended", "executor": "fake",
                "created_at": at, "ended_at": None, "end": {"kind": "success"},
            }  # fmt: skip
            continue
        row = {name: amounts[name] for name in ("node", "gpu_model", "gpu_milli", "cpu_milli", "memory_bytes")}
        row |= {"attempt_id": f"of-{job}", "job_id": f"day-{job}"}
        if kind == "left":
            released.append({**row, "start_at": placed[job, amounts["index"]], "end_at": at})
            continue
        attempts[job]["ended_at"] = at
        whole = amounts["gpu_milli"] >= 1000
        row["gpus"] = list(map(str, range(amounts["gpu_milli"] // 1000)))
        row["gpu_milli"] = 0 if whole else amounts["gpu_milli"]
        replicas.append(
            {**row, "id": f"r-{job}-{amounts['index']}", "role": "worker", "index": amounts["index"],
             "rank": amounts["index"], "state": "succeeded", "ended_at": at, "placed_at": None}
        )  # fmt: skip
    nodes = [
        {"name": name, "labels": {"pool": pool}, "executor": "fake", "seen_at": begin, "is_ready": True,
         "is_cordoned": False, "cordon_reason": "", "gpus": [],
         "allocatable": {"cpu_milli": 1, "memory_bytes": 1, "gpus": {}}}
        for name, (_, pool) in NODES.items()
    ]  # fmt: skip
    prices = [
        {"id": f"price-{number}", "resource": resource, "gpu_model": model, "node_selector": labels,
         "micros_per_hour": int(Decimal(price) * 10**6), "effective_from": begin + timedelta(hours=hour),
         "created_by": "user-root", "created_at": begin}
        for number, (resource, model, labels, hour, price) in enumerate(PRICES)
    ]  # fmt: skip
    with unit_of_work(house.sessions) as session:
        for table, rows in (
            (Job, list(jobs.values())), (Attempt, list(attempts.values())), (Replica, replicas),
            (ReleasedAllocation, released), (Node, nodes), (PriceRow, prices),
        ):  # fmt: skip
            session.execute(insert(table), rows)
        session.execute(text("analyze"))  # as a database does by itself, a while after so many rows


def cost_by_events(
    events: list[tuple[datetime, str, int, dict[str, Any]]], begin: datetime, end: datetime
) -> dict[str, Fraction]:
    """The second implementation: between two events, and two prices, the rate of each project is constant."""
    changes = [(at, kind, job, amounts) for at, kind, job, amounts in events]
    changes += [(begin + timedelta(hours=hour), "price", 0, {}) for *_, hour, _ in PRICES]
    changes += [(begin, "price", 0, {}), (end, "price", 0, {})]
    holding: dict[tuple[int, int], dict[str, Any]] = {}
    rates: dict[str, Fraction] = defaultdict(Fraction)
    costs: dict[str, Fraction] = defaultdict(Fraction)
    before = begin - timedelta(days=30)
    for at, kind, job, amounts in sorted(changes, key=lambda change: change[0]):
        span = max(timedelta(), min(at, end) - max(before, begin)) // timedelta(microseconds=1)
        if span:
            for project, rate in rates.items():
                costs[project] += rate * span
        before = at
        project = ("vision", "other")[job % 2]
        if kind == "price":
            rates = defaultdict(Fraction)
            for (other, _), each in holding.items():
                rates[("vision", "other")[other % 2]] += rate_of(each, at, begin)
        elif kind == "placed":
            holding[job, amounts["index"]] = amounts
            rates[project] += rate_of(amounts, at, begin)
        else:
            del holding[job, amounts["index"]]
            rates[project] -= rate_of(amounts, at, begin)
    return costs


def rate_of(amounts: dict[str, Any], at: datetime, begin: datetime) -> Fraction:
    """Money per microsecond."""
    parts = {
        "gpu": Fraction(amounts["gpu_milli"], 1000), "cpu": Fraction(amounts["cpu_milli"], 1000),
        "memory": Fraction(amounts["memory_bytes"], GIB),
    }  # fmt: skip
    pool, total = NODES[amounts["node"]][1], Fraction()
    for wanted, amount in parts.items():
        price = "0"
        for resource, model, labels, hour, candidate in PRICES:
            is_of_it = resource == wanted and model in ("", amounts["gpu_model"]) and labels.get("pool", pool) == pool
            if is_of_it and begin + timedelta(hours=hour) <= at:
                price = candidate
        total += amount * Fraction(price)
    return total / HOUR_US


def test_the_report_of_a_day_equals_a_second_implementation_to_the_cent(house: Any) -> None:
    begin = house.now.replace(hour=0) - timedelta(days=1)
    end = begin + timedelta(days=1)
    events = a_day(begin)
    write_rows(house, events, begin)
    window = {"since": begin.isoformat(), "until": end.isoformat()}
    report = house.call("root", "GET", "/usage", params=window).json()
    expected = cost_by_events(events, begin, end)
    assert {group["key"]: group["jobs"] for group in report["groups"]}.keys() == {"vision", "other"}
    assert sum(expected.values()) > 100_000
    for group in report["groups"]:
        # Sums are exact to the millionth of the currency, so surely to the cent.
        assert abs(Fraction(group["cost"]) - expected[group["key"]]) <= Fraction(1, 2_000_000), group
