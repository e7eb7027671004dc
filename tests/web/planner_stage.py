"""The real planner next to the stage: it answers questions of the API, and starts nothing."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

from core.db.engine import unit_of_work
from core.db.repositories.questions import ERROR
from core.db.tables import Job
from core.ids import new_id
from core.wakeups import NoWakeup
from scheduler.control.context import ControlContext
from scheduler.control.planning.plan_log import PlanLogWriter
from scheduler.control.planning.snapshot import SnapshotCache, load_snapshot
from scheduler.control.questions.answers import QuestionAnswerer
from scheduler.control.questions.simulations import SimulationRunner
from scheduler.control.questions.what_if import load_what_if, run_what_if
from scheduler.planning.planner import plan
from tests.web.queue_stage import Stage, _job

_LOOK_S = 0.03
# What ended lately: name, project, user, GPUs, hours ago that it was submitted, hours that it ran.
ENDED = [
    (
        f"night-{n:02d}",
        "vision" if n % 3 else "speech",
        "ada" if n % 3 else "emmy",
        (1, 4, 8, 2)[n % 4],
        46 - n,
        1 + n % 5,
    )
    for n in range(40)
]


@contextmanager
def answering(stage: Stage) -> Iterator[None]:
    """A scheduler that only answers. Its last plan was made five minutes before the stage's now."""
    with unit_of_work(stage.sessions) as session:
        for ended in ENDED:
            _ended(session, stage.now, *ended)
        seen = load_snapshot(session, SnapshotCache(), stage.now - timedelta(minutes=5)).snapshot
        PlanLogWriter(new_id).record(session, seen, plan(seen))
    executor = cast("Any", object())  # nothing is started
    control = ControlContext(stage.sessions, executor, NoWakeup(), lambda: datetime.now(UTC), "stage", b"k" * 40)
    forecaster, simulations = QuestionAnswerer(control), SimulationRunner(control, partial(_in_this_thread, stage))
    is_over = threading.Event()

    def answer() -> None:
        while not is_over.wait(_LOOK_S):
            forecaster.answer()
            simulations.work()

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(timeout=20)


def _in_this_thread(stage: Stage, ask: Mapping[str, Any]) -> Generator[dict[str, Any]]:
    try:
        with unit_of_work(stage.sessions, read_only=True) as session:
            trial = load_what_if(session, ask, stage.now)
    except ValueError as error:
        field, _, _ = str(error).partition(":")
        yield {"answer": {ERROR: {"code": "invalid_request", "sentence": str(error), "field": field}}}
        return
    yield {"answer": run_what_if(trial)}


def _ended(session: Any, now: datetime, name: str, project: str, user: str, gpus: int, ago: int, ran: int) -> None:
    created = now - timedelta(hours=ago)
    began = created + timedelta(minutes=20)
    job: Job = _job(
        session,
        now,
        name,
        project,
        user,
        {"gpus": gpus, "gpu_type": "a100", "cpu": 4, "memory": "32Gi"},
        state="succeeded",
        attempt_count=1,
        created_at=created,
        queued_at=created,
        started_at=began,
        finished_at=min(now, began + timedelta(hours=ran)),
    )
    job.run_s = ran * 3600.0
