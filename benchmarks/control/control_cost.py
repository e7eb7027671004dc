"""CPU of the control loop alone, per replica: tick, the reconciles until the gang runs, and those that cancel it.

    python3 dev.py bench control_cost [--gangs 40] [--gang 8] [--nodes 500] [--rounds 3] [--database URL] [--json]

No processes, no messages and no engine but the fake one: what is counted is this process's CPU time, so that it can be
compared on a busy machine, too. Gangs come five at a time, as under load, and are looked at side by side. The database
(its tables are made, and dropped again) must be empty; without ``--database`` it is SQLite in a temporary folder.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import structlog
from sqlalchemy import func, insert, select, update
from trainmaster.spec import parse_spec

from benchmarks.support.database import add_project, fresh_database, waiting_job
from benchmarks.support.embedded import command_line, show
from core.db.engine import SessionFactory, make_sessions, unit_of_work
from core.db.tables import Job
from core.domain.ids import AttemptId
from core.domain.sharing.resources import Amounts
from executors.base import Gpu, NodeInfo
from executors.fake import FakeEngine, FakeExecutor
from scheduler.control.attempts.reconciler import Reconciler
from scheduler.control.context import ControlContext
from scheduler.control.maintenance.nodes import sync_nodes
from scheduler.control.planning.tick import Ticker

GPUS_PER_NODE = 16
GIB = 2**30
AT_ONCE = 5
PARTS = ("tick", "start", "cancel")


def main() -> None:
    parser = command_line(__doc__, rounds=3)
    parser.add_argument("--gangs", type=int, default=40)
    parser.add_argument("--gang", type=int, default=8)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--database", default="", help="empty: SQLite")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    rounds = [measure(options) for _ in range(options.rounds)]
    rows = {part: [costs[part] for costs in rounds] for part in PARTS}
    replicas = options.gangs * options.gang
    per_replica = {part: round(1000 * statistics.median(values) / replicas, 2) for part, values in rows.items()}
    title = f"CPU for {options.gangs} gangs of {options.gang} on {options.nodes} nodes"
    show(title, rows, {"ms per replica": per_replica}, as_json=options.json)


class RecordingWakeup:
    """Remembers which attempts were rung for."""

    def __init__(self) -> None:
        self.keys: list[str] = []

    def notify(self, topic: str, key: str = "") -> None:  # noqa: ARG002 (the bell's interface)
        if key:
            self.keys.append(key)


def measure(options: argparse.Namespace) -> dict[str, float]:
    """CPU seconds of each part, on a new database."""
    with fresh_database(options.database) as (engine, folder):
        return cost(make_sessions(engine), options, folder)


def cost(sessions: SessionFactory, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    engine, wakeup = FakeEngine(tuple(node(number) for number in range(options.nodes))), RecordingWakeup()
    with unit_of_work(sessions) as session:
        add_project(session, engine.now, folder)
    control = ControlContext(
        sessions, FakeExecutor(engine), wakeup, lambda: engine.now, "bench", b"k" * 32, "http://api"
    )
    sync_nodes(control)
    ticker, reconciler = Ticker(control), Reconciler(control)
    spent = dict.fromkeys(PARTS, 0.0)
    attempts: list[str] = []

    def count(part: str, work: Callable[[], object]) -> None:
        begin_s = time.process_time()
        work()
        spent[part] += time.process_time() - begin_s

    def reconcile(keys: list[str]) -> None:
        for begin in range(0, len(keys), AT_ONCE):
            reconciler.reconcile_all([AttemptId(key) for key in keys[begin : begin + AT_ONCE]])

    for first in range(0, options.gangs, AT_ONCE):
        with unit_of_work(sessions) as session:
            numbers = range(first, min(first + AT_ONCE, options.gangs))
            session.execute(insert(Job), [job(number, engine, options.gang) for number in numbers])
        count("tick", ticker.tick)
        fresh, wakeup.keys = wakeup.keys, []
        attempts += fresh
        count("start", partial(reconcile, fresh))
    with unit_of_work(sessions) as session:
        running = session.scalar(select(func.count()).select_from(Job).where(Job.state == "running"))
        session.execute(update(Job).values(desired_state="cancel", generation=Job.generation + 1))
    if running != options.gangs:
        raise SystemExit(f"{running} of {options.gangs} gangs run: the figures mean nothing")
    count("cancel", lambda: reconcile(attempts))
    engine.advance(timedelta(seconds=40))
    count("cancel", lambda: reconcile(attempts))
    return spent


def node(number: int) -> NodeInfo:
    gpus = tuple(Gpu(f"nvidia.com/gpu/{device}", "a100", 40 * GIB) for device in range(GPUS_PER_NODE))
    amounts = Amounts(64_000, 512 * GIB, {"a100": GPUS_PER_NODE})
    return NodeInfo(f"node-{number:04}", {"kubernetes.io/hostname": f"node-{number:04}"}, amounts, gpus)


def job(number: int, engine: FakeEngine, replicas: int) -> dict[str, object]:
    resources = {"cpu": "100m", "memory": "128Mi", "gpus": 1}
    roles = {"worker": {"replicas": replicas, "resources": resources}}
    spec = parse_spec({"name": f"gang-{number}", "command": ["sleep", "3600"], "roles": roles})
    return waiting_job(f"job-{number:06}", spec, engine.now + timedelta(milliseconds=number))


if __name__ == "__main__":
    main()
