"""A study of some hundred trials, fifty at once, from its first to its last; the benchmark `study_whole` does so with
10,000.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from sqlalchemy import event, func, select

from core.db.engine import unit_of_work
from core.db.tables import Attempt, Job, Trial
from core.domain.ids import AttemptId
from executors.fake import Script
from tests.integration.control.studies.study_lab import Lab

TRIALS, AT_ONCE = 300, 50


def test_no_trial_is_lost_or_doubled_and_later_ones_cost_no_more(plane: Any) -> None:
    lab = Lab(plane)
    lab.script = lambda point: Script(run_for=timedelta(seconds=3 + 4 * point["x"]))
    lab.curve = lambda point: [(step, point["x"] * step) for step in range(1, 4)]
    lab.create(
        template={"command": "train", "cpu": "100m"}, algorithm="tpe", stopping="median",
        budget={"trials": TRIALS, "parallel": AT_ONCE},
    )  # fmt: skip
    work = _Work(plane.sessions.kw["bind"])
    costs: list[tuple[int, int]] = []  # after each turn: trials that are over, what the study's looks took up to then
    most = 0
    is_restarted = False
    for _ in range(200):
        with work.counted():
            lab.study_loop.reconcile("study-1")
        _settle(lab)
        lab.report()
        plane.engine.advance(timedelta(seconds=1))
        with unit_of_work(plane.sessions, read_only=True) as session:
            running = session.scalar(select(func.count()).where(Trial.state == "running")) or 0
        most = max(most, running)
        costs.append((lab.study.trial_count - running, work.done))
        if lab.study.state != "running":
            break
        if not is_restarted and costs[-1][0] > TRIALS // 3:
            lab.restart()
            is_restarted = True
    assert lab.study.state == "succeeded"
    assert is_restarted
    assert most == AT_ONCE
    trials = lab.trials
    assert [trial.number for trial in trials] == list(range(1, TRIALS + 1))
    assert {trial.state for trial in trials} <= {"succeeded", "stopped"}
    assert all(trial.result for trial in trials)
    assert len({json.dumps(trial.parameters) for trial in trials}) == TRIALS
    jobs = plane.all(Job)
    assert {trial.job_id for trial in trials} == {job.id for job in jobs}
    assert {job.attempt_count for job in jobs} == {1}
    assert len(jobs) == TRIALS == len({start.job_id for _, start in plane.engine.starts}) == len(plane.engine.starts)
    assert not plane.engine.violations
    assert not plane.engine.live()
    # A look reads what is new, however many trials are over.
    early, late = _cost(costs, 20, 95), _cost(costs, 200, 275)
    assert late <= 1.1 * early, (early, late)


class _Work:
    """What a database of ours is asked to do: on SQLite its own steps, of which it takes some for each row that it
    looks at.
    """

    def __init__(self, engine: Any) -> None:
        self.done = 0
        self._engine = engine
        self._is_counting = False

    @contextmanager
    def counted(self) -> Iterator[None]:
        if self._engine.dialect.name != "sqlite":
            yield
            return
        event.listen(self._engine, "checkout", self._follow)
        self._is_counting = True
        try:
            yield
        finally:
            self._is_counting = False
            event.remove(self._engine, "checkout", self._follow)

    def _follow(self, connection: Any, *_: Any) -> None:
        connection.set_progress_handler(self._count, 100)

    def _count(self) -> int:
        self.done += self._is_counting
        return 0


def _settle(lab: Lab) -> None:
    """As a scheduler's process does it: attempts side by side."""
    plane = lab.plane
    for _ in range(10):
        plane.ticker.tick()
        plane.wakeups.clear()
        with unit_of_work(plane.sessions, read_only=True) as session:
            live = list(session.scalars(select(Attempt.id).where(Attempt.ended_at.is_(None))))
        plane.reconciler.reconcile_all([AttemptId(attempt) for attempt in live])
        if not plane.wakeups:
            return


def _cost(costs: list[tuple[int, int]], begin: int, end: int) -> float:
    """The work for each trial, from when ``begin`` trials were over until ``end`` were."""
    first = next(one for one in costs if one[0] >= begin)
    last = next(one for one in costs if one[0] >= end)
    return (last[1] - first[1]) / (last[0] - first[0])
