"""The load of Kueue's own performance test through the control loop: how long until all workloads have run?

    python3 dev.py bench kueue_load --generator FILE --database postgresql://… [--share 1.0] [--threads 4] [--json]

FILE is Kueue's ``test/performance/scheduler/configs/baseline/generator.yaml``: cohorts of queues, each with a quota
that it may borrow beyond, and workloads that come at a rate, run for a moment and have a priority. Here a queue is a
project with that quota as its guarantee, a cohort a set of nodes as large as its queues' quotas together, and a
workload a job of one replica. Jobs are submitted as the API writes them, by a process of their own; the scheduler
plans, starts and ends them over the real database and the fake engine, whose replicas end by themselves. Kueue's figure
for all 15,000 is 351 s; the last workload is created after about 60 s. ``--share 0.1`` takes only so much of each
queue's workloads.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import itertools
import json
import multiprocessing
import queue
import resource
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import structlog
import yaml
from sqlalchemy import func, select
from trainmaster.spec import parse_spec

from benchmarks.support.database import fresh_database, waiting_job
from core.db.engine import make_engine, make_sessions, unit_of_work
from core.db.repositories.events import event_row
from core.db.repositories.submission import NewJob, write_job
from core.db.tables import Job, Project, User, Volume
from core.domain.ids import AttemptId
from core.domain.sharing.resources import Amounts
from core.wakeups import TOPIC_RECONCILE, TOPIC_TICK
from executors.base import NodeInfo, ReplicaOrder
from executors.fake import FakeEngine, FakeExecutor, Script
from scheduler.control.attempts.reconciler import Reconciler
from scheduler.control.context import ControlContext
from scheduler.control.maintenance.nodes import sync_nodes
from scheduler.control.planning.tick import Ticker
from scheduler.tick_runner import DutyCycle

GIB = 2**30
PRIORITIES = {50: 25, 100: 50, 200: 100}  # ours go to 100
LOOK_S = 0.01
AT_ONCE = 200  # attempts that are reconciled together
PATIENCE_S = 900.0


@dataclass(frozen=True, slots=True)
class Workload:
    """One job to come: when, whose, and what it asks for. ``queue`` is its project's name."""

    at_s: float
    queue: str
    cohort: str
    kind: str
    runs_s: float
    priority: int
    cpus: int
    guaranteed_cpus: int  # to its queue
    max_cpus: int  # that its queue may have with what it borrows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generator", type=Path, required=True)
    parser.add_argument("--database", default="", help="empty: SQLite")
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    gc.set_threshold(50_000, 20, 100)  # as the scheduler's process does
    load = read(options.generator, options.share)
    with fresh_database(options.database) as (engine, folder):
        url = engine.url.render_as_string(hide_password=False)
        figures = run(load, url, folder, options.threads)
    print(json.dumps(figures) if options.json else "\n".join(f"{key:>28}: {value}" for key, value in figures.items()))


def read(path: Path, share: float) -> list[Workload]:
    """All workloads in the order in which they come."""
    found: list[Workload] = []
    for cohort in yaml.safe_load(path.read_text())["cohorts"]:
        for number in range(cohort["count"]):
            for made in cohort["queuesSets"]:
                for place in range(made["count"]):
                    found += of_queue(
                        f"{cohort['className']}-{number}", f"{made['className']}-{number}-{place}", made, share
                    )
    return sorted(found, key=lambda workload: (workload.at_s, workload.queue, workload.kind))


def of_queue(cohort: str, name: str, made: dict[str, Any], share: float) -> Iterator[Workload]:
    for of_a_kind in made["workloadsSets"]:
        for position in range(max(1, round(of_a_kind["count"] * share))):
            for work in of_a_kind["workloads"]:
                yield Workload(
                    position * of_a_kind["creationIntervalMs"] / 1000,
                    name,
                    cohort,
                    work["className"],
                    work["runtimeMs"] / 1000,
                    PRIORITIES.get(work["priority"], 50),
                    work["request"],
                    made["nominalQuota"],
                    made["nominalQuota"] + made["borrowingLimit"],
                )


class Clock:
    """Wall time for the control loop and the engine alike."""

    def __init__(self, engine: FakeEngine) -> None:
        self._engine, self._start, self._begin_s = engine, datetime.now(UTC), time.monotonic()

    def __call__(self) -> datetime:
        return self._start + timedelta(seconds=time.monotonic() - self._begin_s)

    def catch_up(self) -> None:
        self._engine.advance(max(timedelta(), self() - self._engine.now))


class Requests:
    """A queue of its own instead of a broker: what waits already is not queued twice."""

    def __init__(self) -> None:
        self.attempts: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.tick = threading.Event()
        self._waiting: set[str] = set()
        self._lock = threading.Lock()

    def notify(self, topic: str, key: str = "") -> None:
        if topic == TOPIC_TICK:
            self.tick.set()
        elif topic == TOPIC_RECONCILE:
            with self._lock:
                if key in self._waiting:
                    return
                self._waiting.add(key)
            self.attempts.put(key)

    def take(self) -> list[AttemptId]:
        """Whatever waits, but not more than is good for one batch."""
        keys: list[str] = []
        try:
            keys.append(self.attempts.get(timeout=0.1))
            while len(keys) < AT_ONCE:
                keys.append(self.attempts.get_nowait())
        except queue.Empty:
            pass
        with self._lock:
            self._waiting.difference_update(keys)
        return [AttemptId(key) for key in keys]


class Scheduler:
    """The control loop as threads: one ticks, some reconcile, one rings when a replica has ended."""

    def __init__(self, control: ControlContext, engine: FakeEngine, clock: Clock, requests: Requests) -> None:
        self.engine, self.clock, self.requests = engine, clock, requests
        self.ticker, self.reconciler = Ticker(control), Reconciler(control)
        self.over = threading.Event()
        self.tick_s: list[float] = []
        self.failures: list[str] = []
        self._later: list[tuple[datetime, str]] = []
        self._lock = threading.Lock()

    def at(self, when: datetime, attempt_id: str) -> None:
        with self._lock:
            heapq.heappush(self._later, (when, attempt_id))

    def keep_ticking(self) -> None:
        pace = DutyCycle()  # as the service does
        while not self.over.wait(pace.rest_s):
            self.requests.tick.wait(0.02)
            self.requests.tick.clear()
            begin_s = time.perf_counter()
            with pace.run():
                report = self.ticker.tick()
            if not report.is_skipped:
                self.tick_s.append(time.perf_counter() - begin_s)

    def keep_reconciling(self) -> None:
        while not self.over.is_set():
            keys = self.requests.take()
            for key, look in self.reconciler.reconcile_all(keys).items():
                if isinstance(look, Exception):
                    self.failures.append(repr(look))
                elif look.recheck_at is not None:
                    self.at(look.recheck_at, key)

    def keep_time(self) -> None:
        while not self.over.wait(LOOK_S):
            self.clock.catch_up()
            now = self.engine.now
            with self._lock:
                while self._later and self._later[0][0] <= now:
                    self.requests.notify(TOPIC_RECONCILE, heapq.heappop(self._later)[1])


def run(load: list[Workload], url: str, folder: Path, threads: int) -> dict[str, Any]:
    cohorts = {workload.cohort: None for workload in load}
    engine = FakeEngine(tuple(NodeInfo(name, {"cohort": name}, Amounts(120_000, 1024 * GIB)) for name in cohorts))
    clock, requests = Clock(engine), Requests()
    clock.catch_up()
    database = make_engine(url, pool_size=threads + 4)
    sessions = make_sessions(database)
    runs_s = {f"{workload.kind}-{position}": workload.runs_s for position, workload in enumerate(load)}
    fill(sessions, load, folder, clock())
    control = ControlContext(sessions, FakeExecutor(engine), requests, clock, "bench", b"k" * 32, "http://api")
    scheduler = Scheduler(control, engine, clock, requests)

    def script(order: ReplicaOrder) -> Script:
        runs = timedelta(seconds=runs_s[order.job_name])
        scheduler.at(engine.now + runs + timedelta(milliseconds=1), order.key.attempt_id)
        return Script(run_for=runs)

    engine.script_for = script
    sync_nodes(control)
    works = [scheduler.keep_ticking, scheduler.keep_time, *itertools.repeat(scheduler.keep_reconciling, threads)]
    crew = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in crew:
        thread.start()
    before = cpu_s()
    submitter = multiprocessing.get_context("spawn").Process(target=submit, args=(load, url))
    begin_s = time.perf_counter()
    submitter.start()
    finished = 0
    while finished < len(load) and time.perf_counter() - begin_s < PATIENCE_S:
        time.sleep(0.5)
        with unit_of_work(sessions, read_only=True) as session:
            states = dict(session.execute(select(Job.state, func.count()).group_by(Job.state)).all())
        finished = states.get("succeeded", 0)
        # The submitter rings by the database alone: a tick looks at it every 20 ms.
    wall_s = time.perf_counter() - begin_s
    spent_s = cpu_s() - before
    submitter.join()
    scheduler.over.set()
    for thread in crew:
        thread.join(5.0)
    waits = admissions(sessions)
    database.dispose()
    return {
        "jobs": len(load),
        "states": states,
        "wall_s": round(wall_s, 1),
        "last_created_s": round(max(workload.at_s for workload in load), 1),
        "scheduler_cpu_ms_per_job": round(1000 * spent_s / len(load), 2),
        "ticks": len(scheduler.tick_s),
        "tick_ms_median": round(1000 * statistics.median(scheduler.tick_s), 1),
        "mean_wait_s": waits,
        "failures": scheduler.failures[:3],
    }


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def admissions(sessions: Any) -> dict[str, float]:
    """Mean seconds from creation to start, by kind."""
    waits: dict[str, list[float]] = {}
    with unit_of_work(sessions, read_only=True) as session:
        for name, created_at, started_at in session.execute(select(Job.name, Job.created_at, Job.started_at)):
            if started_at is not None:
                waits.setdefault(name.split("-")[0], []).append((started_at - created_at).total_seconds())
    return {kind: round(statistics.fmean(values), 2) for kind, values in sorted(waits.items())}


def fill(sessions: Any, load: list[Workload], folder: Path, now: datetime) -> None:
    with unit_of_work(sessions) as session:
        session.add(User(id="user-1", name="ann", is_admin=False, created_at=now))
        session.add(Volume(id="volume-1", name="output", kind="local", root=str(folder), created_at=now))
        quotas = {
            workload.queue: {"guaranteed": {"cpu": workload.guaranteed_cpus}, "limit": {"cpu": workload.max_cpus}}
            for workload in load
        }
        for name, quota in quotas.items():
            session.add(Project(id=name, name=name, created_at=now, quota=quota))


def submit(load: list[Workload], url: str) -> None:
    """Write each job at its time."""
    engine = make_engine(url, pool_size=2)
    sessions = make_sessions(engine)
    begin_s = time.monotonic()
    for position, workload in enumerate(load):
        left_s = begin_s + workload.at_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
        with unit_of_work(sessions) as session:
            write_job(session, new_job(position, workload), None)
    engine.dispose()


def new_job(position: int, workload: Workload) -> NewJob:
    now = datetime.now(UTC)
    spec = parse_spec(
        {
            "name": f"{workload.kind}-{position}",
            "command": ["true"],
            "priority": workload.priority,
            "node_selector": {"cohort": workload.cohort},
            "roles": {"worker": {"replicas": 1, "resources": {"cpu": workload.cpus, "memory": "128Mi"}}},
        }
    )
    job_id = f"job-{position:06}"
    row = waiting_job(job_id, spec, now, project=workload.queue) | {
        "desired_state": "run",
        "max_run_time_s": None,
        "gpu_milli": 0,
        "resume_from": None,
        "cloned_from": None,
    }
    event = event_row(at=now, kind="job.queued", actor="user:ann", project_id=workload.queue, job_id=job_id)
    return NewJob(row, [], event)


if __name__ == "__main__":
    main()
