"""A study from its first trial to its last: 10,000 trials, 200 at once, through the real control loop.

    python3 dev.py bench study_whole [--trials 10000] [--parallel 200] [--database postgresql://…] [--algorithm tpe]
        [--stopping asha] [--step-s 1.0] [--run-s 20] [--json]

Keeper, planner and reconciler over a database of its own, as in a scheduler's process, and the fake engine, in virtual
time: trials last from half of ``--run-s`` to one and a half of it and report ten values on the way; each ``--step-s``
the loop is rung for what has ended. So what is counted is the processor's time of the control loop for a trial (the
database's own and the clients' are not among it), and whether it grows with the trials that are over. At the end: was
each trial run once, with a job of its own, and was the budget kept to at every moment?
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import heapq
import json
import math
import os
import pstats
import random
import resource
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import structlog
from sqlalchemy import func, select
from trainmaster.studies import parse_study

from benchmarks.studies.studies import SPACE
from benchmarks.studies.study_asking import scratch_database
from benchmarks.support.database import add_project
from core.db.engine import make_engine, make_sessions, unit_of_work
from core.db.repositories.metrics.writes import StreamKey, add_metrics
from core.db.tables import Attempt, Job, Membership, Study, Trial
from core.domain.ids import AttemptId
from core.domain.metrics import Points
from core.domain.sharing.resources import Amounts
from core.wakeups import TOPIC_RECONCILE, TOPIC_STUDY, TOPIC_TICK
from executors.base import NodeInfo, ReplicaOrder
from executors.fake import FakeEngine, FakeExecutor, Script
from migrations import upgrade
from scheduler.control.attempts.reconciler import Reconciler
from scheduler.control.context import ControlContext
from scheduler.control.maintenance.nodes import sync_nodes
from scheduler.control.planning.tick import Ticker
from scheduler.control.studies.study_loop import StudyLoop

STUDY = "study-1"
POINTS = 10
CPUS = 64


class Whole:
    """The platform and its one study."""

    def __init__(self, sessions: Any, options: argparse.Namespace) -> None:
        self.sessions, self.options = sessions, options
        nodes = math.ceil(options.parallel / CPUS)
        self.engine = FakeEngine(tuple(NodeInfo(f"node-{n}", {}, Amounts(CPUS * 1000, 2**40)) for n in range(nodes)))
        self.engine.script_for = self._script
        self.control = ControlContext(
            sessions, FakeExecutor(self.engine), self, lambda: self.engine.now, "bench", b"k" * 32, "http://api"
        )
        self.study_loop, self.ticker = StudyLoop(self.control), Ticker(self.control)
        self.reconciler = Reconciler(self.control)
        self.chance = random.Random(1)
        self.spent: Counter[str] = Counter()
        self.sent: dict[str, dict[str, None]] = {TOPIC_RECONCILE: {}, TOPIC_STUDY: {}, TOPIC_TICK: {}}
        self.due: list[tuple[float, str]] = []  # when each attempt is worth a look, in virtual seconds
        # Of those that have not told all: begin, duration, and how good it is.
        self.jobs: dict[str, tuple[float, float, float]] = {}
        self.reported: Counter[str] = Counter()
        self.most = 0
        self.rounds: list[float] = []
        _fill(sessions, self.engine.now, options)

    def notify(self, topic: str, key: str = "") -> None:
        self.sent.setdefault(topic, {})[key] = None

    def _script(self, order: ReplicaOrder) -> Script:
        runs_s = self.options.run_s * self.chance.uniform(0.5, 1.5)
        begin_s = self.now_s
        heapq.heappush(self.due, (begin_s + runs_s, order.key.attempt_id))
        self.jobs[order.key.job_id] = (begin_s, runs_s, self.chance.random())
        return Script(run_for=timedelta(seconds=runs_s))

    @property
    def now_s(self) -> float:
        return self.engine.now.timestamp()

    def timed(self, name: str, work: Callable[[], Any]) -> Any:
        begin = time.process_time()
        try:
            return work()
        finally:
            self.spent[name] += time.process_time() - begin

    def step(self) -> None:
        """What happens in one moment, until nothing moves any more."""
        self.timed("reports", self._report)
        self.engine.advance(timedelta(seconds=self.options.step_s))
        while self.due and self.due[0][0] <= self.now_s:  # as the watch would
            self.notify(TOPIC_RECONCILE, heapq.heappop(self.due)[1])
        self.notify(TOPIC_STUDY, STUDY)  # beat does, too
        self.notify(TOPIC_TICK)
        while any(self.sent.values()):
            if keys := list(self.sent[TOPIC_RECONCILE]):
                self.sent[TOPIC_RECONCILE].clear()
                looks = self.timed("attempts", lambda keys=keys: self.reconciler.reconcile_all(map(AttemptId, keys)))
                for attempt, look in looks.items():
                    if isinstance(look, Exception):
                        raise look
                    if look.recheck_at is not None:
                        heapq.heappush(self.due, (look.recheck_at.timestamp(), attempt))
            if self.sent[TOPIC_STUDY]:
                self.sent[TOPIC_STUDY].clear()
                begin = time.process_time()
                self.timed("study", lambda: self.study_loop.reconcile(STUDY))
                self.rounds.append(time.process_time() - begin)
            if self.sent[TOPIC_TICK]:
                self.sent[TOPIC_TICK].clear()
                self.timed("tick", self.ticker.tick)

    def _report(self) -> None:
        """What the API would write: each trial that runs tells its metric ten times."""
        now_s, chance = self.now_s + self.options.step_s, self.chance
        with unit_of_work(self.sessions) as session:
            for job_id, (begin_s, runs_s, quality) in list(self.jobs.items()):
                due = min(POINTS, int((now_s - begin_s) / runs_s * POINTS))
                if (old := self.reported[job_id]) < due:
                    steps = range(old + 1, due + 1)
                    values = [quality + 0.02 * step + 0.05 * chance.random() for step in steps]

                    add_metrics(
                        session,
                        StreamKey(job_id, 1, "worker", 0),
                        {"score": Points(steps, [0] * len(steps), values)},
                        now=self.engine.now,
                    )
                    self.reported[job_id] = due
                if due == POINTS:
                    del self.jobs[job_id], self.reported[job_id]

    def counts(self) -> tuple[str, int, int]:
        """The study's state, and how many of its trials run and are over."""
        with unit_of_work(self.sessions, read_only=True) as session:
            state, made = session.execute(select(Study.state, Study.trial_count)).one()
            running = session.scalar(select(func.count()).where(Trial.state == "running")) or 0
        self.most = max(self.most, running)
        return state, running, made - running


def run(sessions: Any, options: argparse.Namespace) -> dict[str, Any]:
    whole = Whole(sessions, options)
    sync_nodes(whole.control)
    slices: list[dict[str, Any]] = []
    begin, before, over_before, virtual = time.perf_counter(), Counter(), 0, whole.now_s
    every = max(1, options.trials // 10)
    while True:
        whole.step()
        state, _, over = whole.counts()
        assert over or whole.now_s - virtual < 60 * options.run_s, "nothing runs"
        if over - over_before >= every or state not in ("running", "stopping"):
            count = max(1, over - over_before)
            parts = {name: 1000 * (spent - before[name]) / count for name, spent in whole.spent.items()}
            rounds, whole.rounds = sorted(whole.rounds), []
            slices.append(
                {
                    "over": over,
                    **{name: round(value, 1) for name, value in sorted(parts.items())},
                    "ms of the control loop for a trial": round(sum(parts.values()) - parts["reports"], 1),
                    "a look at the study, median s": round(statistics.median(rounds), 3),
                    "slowest s": round(rounds[-1], 3),
                    "MiB at most": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
                }
            )
            before, over_before = Counter(whole.spent), over
            if not options.json:
                print("  " + ", ".join(f"{key} {value}" for key, value in slices[-1].items()), flush=True)
        if state not in ("running", "stopping"):
            break
    check(whole)
    spent_s = sum(whole.spent.values()) - whole.spent["reports"]
    return {
        "trials": options.trials,
        "parallel": options.parallel,
        "state": state,
        "at once at most": whole.most,
        "s of the processor": round(spent_s, 1),
        "ms of the processor for a trial": round(1000 * spent_s / options.trials, 1),
        "wall s": round(time.perf_counter() - begin),
        "virtual s": round(whole.now_s - virtual),
        "load": " ".join(f"{average:.1f}" for average in os.getloadavg()),
        "slices": slices,
    }


def check(whole: Whole) -> None:
    """Each trial once, with one job that had one attempt; never too many at once."""
    options = whole.options
    with unit_of_work(whole.sessions, read_only=True) as session:
        rows = session.execute(
            select(Trial.number, Trial.state, Trial.job_id, Trial.parameters).order_by(Trial.number)
        ).all()
        jobs = dict(session.execute(select(Job.id, Job.attempt_count)).all())
        attempts = session.scalar(select(func.count()).select_from(Attempt))
    assert [row.number for row in rows] == list(range(1, options.trials + 1))
    assert {row.state for row in rows} <= {"succeeded", "stopped"}, Counter(row.state for row in rows)
    assert {row.job_id for row in rows} == set(jobs)
    assert len(jobs) == options.trials == attempts
    assert set(jobs.values()) == {1}
    assert whole.most <= options.parallel
    assert not whole.engine.violations
    assert not whole.engine.live()
    assert len({json.dumps(row.parameters, sort_keys=True) for row in rows}) == options.trials


def _fill(sessions: Any, now: Any, options: argparse.Namespace) -> None:
    raw: dict[str, Any] = {
        "name": "whole",
        "parameters": SPACE,
        "metric": "score",
        "goal": "maximize",
        "algorithm": options.algorithm,
        "budget": {"trials": options.trials, "parallel": options.parallel},
        "seed": 1,
        "template": {"command": "train", "cpu": "1"},
    }
    raw |= {"stopping": options.stopping} if options.stopping != "none" else {}
    spec = parse_study(raw)
    with unit_of_work(sessions) as session:
        add_project(session, now, options.folder)
        session.flush()
        session.add(Membership(project_id="project-1", user_id="user-1", role="member"))
        session.add(
            Study(
                id=STUDY,
                project_id="project-1",
                user_id="user-1",
                name=spec.name,
                spec=spec.model_dump(mode="json"),
                seed=spec.seed,
                state="running",
                output_volume="output",
                created_at=now,
                started_at=now,
                updated_at=now,
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--parallel", type=int, default=200)
    parser.add_argument("--run-s", type=float, default=20.0, help="how long a trial lasts, in the middle")
    parser.add_argument("--step-s", type=float, default=1.0)
    parser.add_argument("--algorithm", default="tpe")
    parser.add_argument("--stopping", default="asha", help="or none")
    parser.add_argument("--database", default="", help="a server to make a database on; empty: SQLite")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    gc.set_threshold(50_000, 20, 100)  # as the scheduler's process does
    with scratch_database(options.database) as server, tempfile.TemporaryDirectory() as folder:
        url = server or f"sqlite:///{folder}/whole.sqlite3"
        upgrade(url)
        options.folder = folder
        engine = make_engine(url)
        profile = cProfile.Profile()
        if options.profile:
            profile.enable()
        found = run(make_sessions(engine), options)
        if options.profile:
            profile.disable()
            pstats.Stats(profile).sort_stats("cumtime").print_stats(70)
        engine.dispose()
    print(
        json.dumps(found, indent=2) if options.json else {key: value for key, value in found.items() if key != "slices"}
    )


if __name__ == "__main__":
    main()
