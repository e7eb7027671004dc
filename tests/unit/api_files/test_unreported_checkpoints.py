"""Checkpoints in the output that no job told of: whose they are is seen by their time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from api.checkpoints.service import _AttemptWrites, _view_of
from core.inspection.discovery import CheckpointFiles

BEGAN = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
LAUNCHES = (
    _AttemptWrites(1, BEGAN, BEGAN + MINUTE, [{"step": 10, "metrics": {"loss": 0.5}}]),
    _AttemptWrites(2, BEGAN + 2 * MINUTE, None, [{"step": 20, "metrics": {"loss": 0.2}}]),
)


def found(step: int | None, at: datetime) -> CheckpointFiles:
    return CheckpointFiles("checkpoints/x.pt", "torch", step, 7, at, is_dir=False, parts=("checkpoints/x.pt",))


def test_the_attempt_that_ran_then_wrote_it_and_reported_the_steps_metrics() -> None:
    first = _view_of(found(10, BEGAN + MINUTE / 2), LAUNCHES)
    assert (first.attempt_number, first.metrics) == (1, {"loss": 0.5})
    second = _view_of(found(19, BEGAN + 3 * MINUTE), LAUNCHES)
    assert (second.attempt_number, second.metrics) == (2, {})


def test_what_was_written_while_nothing_ran_is_nobodys() -> None:
    between = _view_of(found(10, BEGAN + MINUTE * 1.5), LAUNCHES)
    assert (between.attempt_number, between.metrics) == (None, {})
