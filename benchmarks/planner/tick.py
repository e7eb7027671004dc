"""How long one tick takes with a long queue: snapshot, plan and apply over a real database.

    python3 dev.py bench tick [--database URL] [--jobs 10000] [--nodes 100] [--rounds 7] [--json]

The database (its tables are made and dropped again) must be empty; without --database it is SQLite in a temporary
folder. The cluster is full, so that a tick starts nothing: the first one, which fills it, is told apart.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from datetime import UTC, datetime, timedelta

import structlog
from sqlalchemy import insert
from trainmaster.spec import parse_spec

from benchmarks.support.database import add_project, fresh_database, waiting_job
from core.db.engine import SessionFactory, make_sessions, unit_of_work
from core.db.tables import Job, Node
from core.domain.sharing.resources import Amounts
from core.wakeups import NoWakeup
from executors.fake import FakeEngine, FakeExecutor
from scheduler.control.context import ControlContext
from scheduler.control.planning.tick import Ticker

TARGET_S = 0.5
GIB = 2**30


def main() -> int:
    """Exit code 1 when the median misses the figure."""
    options = _parse()
    print(f"seed {options.seed}", file=sys.stderr)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    with fresh_database(options.database) as (engine, folder):
        sessions = make_sessions(engine)
        with unit_of_work(sessions) as session:
            add_project(session, datetime.now(UTC), folder)
        _fill(sessions, random.Random(options.seed), options.jobs, options.nodes)
        figures = _measure(sessions, options.rounds)
    figures = {"database": engine.dialect.name, "jobs": options.jobs, "nodes": options.nodes, **figures}
    if options.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:>24}: {value}")
    return 0 if figures["is_reached"] else 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", default="")
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _measure(sessions: SessionFactory, rounds: int) -> dict[str, object]:
    control = ControlContext(
        sessions, FakeExecutor(FakeEngine()), NoWakeup(), lambda: datetime.now(UTC), "bench", b"k" * 32
    )
    ticker = Ticker(control)
    begin = time.perf_counter()
    first = ticker.tick()
    first_s = time.perf_counter() - begin
    ticker.tick()
    ticks, idle = [], []
    for number in range(rounds):
        with unit_of_work(sessions) as session:  # a new submission: nothing can be skipped
            row = _job(random.Random(number), 1_000_000 + number, datetime.now(UTC))
            session.execute(insert(Job).values(**row))
        begin = time.perf_counter()
        ticker.tick()
        ticks.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        ticker.tick()
        idle.append(time.perf_counter() - begin)
    return {
        "first tick s": round(first_s, 3),
        "started by it": first.started,
        "tick median s": round(statistics.median(ticks), 3),
        "tick range s": f"{min(ticks):.3f} – {max(ticks):.3f}",
        "nothing new, median s": round(statistics.median(idle), 4),
        "wanted at most s": TARGET_S,
        "is_reached": statistics.median(ticks) <= TARGET_S,
    }


def _fill(sessions: SessionFactory, random_: random.Random, jobs: int, nodes: int) -> None:
    now = datetime.now(UTC) - timedelta(hours=1)
    with unit_of_work(sessions) as session:
        gpus = [{"id": str(number), "model": "a100", "memory_bytes": 40 * GIB} for number in range(8)]
        for number in range(nodes):
            session.add(
                Node(
                    name=f"node-{number:04}",
                    executor="fake",
                    labels={"topology/rack": f"r{number // 16}"},
                    allocatable=Amounts(64_000, 512 * GIB, {"a100": 8}).to_json(),
                    gpus=gpus,
                    is_ready=True,
                    seen_at=now,
                )
            )
    rows = [_job(random_, number, now + timedelta(milliseconds=number)) for number in range(jobs)]
    with unit_of_work(sessions) as session:
        session.execute(insert(Job), rows)


def _job(random_: random.Random, number: int, at: datetime) -> dict[str, object]:
    gpus = random_.choice([1, 2, 4, 8])
    spec = parse_spec(
        {
            "name": f"job-{number}",
            "command": "python train.py",
            "workers": random_.choice([1, 1, 2, 4, 8]),
            "gpus": gpus,
            "cpu": str(gpus * 2),
            "memory": f"{gpus * 8}Gi",
            "priority": random_.choice([10, 50, 90]),
        }
    )
    return waiting_job(f"job-{number:08}", spec, at)


if __name__ == "__main__":
    sys.exit(main())
