"""Answering what would become of a job now: the planner's own look at the cluster as the tick sees it."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from core.db.engine import unit_of_work
from core.db.repositories import questions
from core.db.repositories.questions import Ask
from core.domain.ids import JobId
from core.domain.resources import Gang
from executors.base import ChangesWorlds
from scheduler.control.context import Control
from scheduler.control.snapshot import TickCache, load_snapshot, reason_to_json
from scheduler.planning.forecast import Forecast, forecast
from scheduler.planning.model import QueuedGang

# Each answer plans the whole queue twice; between two rounds the thread is free for what else was rung for.
_AT_ONCE: Final = 4
# No job has such an id: those of one that is only thought of sort behind all others of its moment.
_NOT_SUBMITTED: Final = JobId("~")


class Forecaster:
    """Answers; one per process. Two processes may answer the same: the answers are equally good."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._cache = TickCache()

    def answer(self) -> None:
        """Answer everybody who waits for it now. Harmless to repeat; without a question it costs one look.

        Raises:
            Unavailable: the database is away.
        """
        control = self._control
        while True:
            with unit_of_work(control.sessions, read_only=True) as session:
                now = control.clock()
                asked = questions.unanswered(session, now, _AT_ONCE)
                if not asked:
                    return
                can_grow = isinstance(control.executor, ChangesWorlds)
                snapshot = load_snapshot(session, self._cache, now, can_grow=can_grow).snapshot
            answers = {question_id: to_json(forecast(snapshot, _gang_of(ask))) for question_id, ask in asked}
            with unit_of_work(control.sessions) as session:
                questions.answer(session, answers, control.clock())


def to_json(found: Forecast) -> dict[str, Any]:
    """Replicas of a role that go to the same place are counted: a gang may have thousands."""
    places = Counter((p.role, p.node, p.gpu_model) for p in found.placements)
    return {
        "places": [
            {"role": role, "node": node, "gpu_model": model, "replicas": count}
            for (role, node, model), count in places.items()
        ],
        "reason": None if found.reason is None else reason_to_json(found.reason),
        "position": found.position,
        "options": [
            {
                "code": option.code.value,
                "sentence": option.sentence,
                "roles": list(option.roles),
                "field": option.field,
                "value": option.value,
            }
            for option in found.options
        ],
    }


def _gang_of(ask: Ask) -> QueuedGang:
    gang = Gang.from_json(ask.gang)
    return QueuedGang(
        JobId(ask.job_id) if ask.job_id else _NOT_SUBMITTED,
        ask.name, ask.project, ask.user, ask.priority, ask.queued_at, gang, gang.shape(), ask.max_run_time_s,
    )  # fmt: skip
