"""A control plane with a study, whose trials' jobs report what a test says."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from sqlalchemy import select
from trainmaster.studies import parse_study

from core.db.engine import unit_of_work
from core.db.repositories.metrics.writes import StreamKey, add_metrics
from core.db.tables import Job, Study, Trial
from core.domain.metrics import Points
from executors.base import ReplicaOrder
from executors.fake import Script
from scheduler.control.studies.study_loop import StudyLoop

SPEC: dict[str, Any] = {
    "name": "search",
    "template": {"command": "train", "cpu": "1"},
    "parameters": {"x": {"type": "float", "min": 0, "max": 1}},
    "metric": "score",
    "goal": "maximize",
    "algorithm": "random",
    "budget": {"trials": 4, "parallel": 2},
    "seed": 3,
}


class Lab:
    """A plane with studies: each trial's job reports what ``curve`` says of its parameters, then ends as ``script``
    says.
    """

    def __init__(self, plane: Any) -> None:
        self.plane = plane
        self.study_loop = StudyLoop(plane.control)
        self.curve: Callable[[dict[str, Any]], list[tuple[int, float]]] = lambda point: [(1, point["x"])]
        self.metrics: tuple[str, ...] = ("score",)
        self.script: Callable[[dict[str, Any]], Script] = lambda _point: Script(run_for=timedelta(seconds=5))
        self.orders: dict[str, ReplicaOrder] = {}
        self.reported: set[str] = set()
        plane.engine.script_for = self._scripted

    def _scripted(self, order: ReplicaOrder) -> Script:
        self.orders[order.key.job_id] = order
        return self.script(json.loads(order.env["TRAINMASTER_PARAMETERS"]))

    def create(self, **changes: Any) -> str:
        spec = parse_study({**SPEC, **changes})
        now = self.plane.engine.now
        with unit_of_work(self.plane.sessions) as session:
            session.add(
                Study(
                    id="study-1", project_id="project-1", user_id="user-1", name=spec.name,
                    spec=spec.model_dump(mode="json"), seed=spec.seed, state="running", output_volume="output",
                    created_at=now, started_at=now, updated_at=now,
                )
            )  # fmt: skip
        return "study-1"

    def restart(self) -> None:
        self.plane.start()
        self.study_loop = StudyLoop(self.plane.control)

    def report(self) -> None:
        """Every trial that runs tells its metric, once."""
        with unit_of_work(self.plane.sessions) as session:
            rows = session.execute(
                select(Trial.job_id, Trial.parameters)
                .join(Job, Job.id == Trial.job_id)
                .where(Job.state == "running", Job.id.not_in(self.reported))
            ).all()
            for job_id, point in rows:
                steps, values = zip(*self.curve(point), strict=True) if self.curve(point) else ((), ())
                points = Points(steps, [0] * len(steps), values)
                key = StreamKey(job_id, 1, "worker", 0)
                add_metrics(session, key, dict.fromkeys(self.metrics, points), now=self.plane.engine.now)
                self.reported.add(job_id)

    def tell(self, job_id: str, *points: tuple[int, float]) -> None:
        """One trial tells (step, value) of its metrics."""
        steps, values = zip(*points, strict=True)
        with unit_of_work(self.plane.sessions) as session:
            reported = dict.fromkeys(self.metrics, Points(steps, [0] * len(steps), values))
            add_metrics(session, StreamKey(job_id, 1, "worker", 0), reported, now=self.plane.engine.now)

    def turn(self, seconds: float = 2.0) -> None:
        self.study_loop.reconcile("study-1")
        self.plane.settle()
        self.report()
        self.plane.advance(seconds)

    def run(self, turns: int = 40, until: tuple[str, ...] = ("succeeded", "failed", "cancelled")) -> Study:
        for _ in range(turns):
            self.turn()
            if self.study.state in until:
                return self.study
        raise AssertionError(f"still {self.study.state}: {[(t.number, t.state, t.reason) for t in self.trials]}")

    @property
    def study(self) -> Study:
        found: Study = self.plane.one(Study, id="study-1")
        return found

    @property
    def trials(self) -> list[Trial]:
        return sorted(self.plane.all(Trial, study_id="study-1"), key=lambda trial: trial.number)
