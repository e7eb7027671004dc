"""Values at the steps of checkpoints: whose word counts, and how little it takes."""

from __future__ import annotations

import math
from datetime import UTC, datetime

from core.db.engine import SessionFactory, unit_of_work
from core.db.repositories.metrics.steps import values_at
from core.db.repositories.metrics.writes import StreamKey, add_metrics
from core.domain.metrics import Points
from tests.databases import recorded_statements

NOW = datetime(2026, 11, 21, 7, 0, tzinfo=UTC)


def tell(sessions: SessionFactory, attempt: int, role: str, index: int, **values: dict[int, float]) -> None:
    with unit_of_work(sessions) as session:
        series = {name: Points(reported, reported, reported.values()) for name, reported in values.items()}
        add_metrics(session, StreamKey("job", attempt, role, index), series, now=NOW)


def test_the_newest_attempt_s_first_replica_has_the_word(sessions: SessionFactory) -> None:
    tell(sessions, 1, "worker", 0, loss={1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4})
    tell(sessions, 2, "worker", 1, loss={2: 0.7, 3: 0.8, 5: 0.9})
    tell(sessions, 2, "evaluator", 0, loss={3: 5.0, 6: 6.0})
    tell(sessions, 2, "worker", 0, loss={3: 0.5, 4: math.nan})
    with unit_of_work(sessions, read_only=True) as session:
        found = values_at(session, "job", [1, 2, 3, 4, 5, 6, 7], ["loss"])
        assert {step: of_step.get("loss") for step, of_step in found.items()} == {
            1: 0.1,
            2: 0.7,
            3: 0.5,
            4: None,  # it was no number the last time
            5: 0.9,
            6: 6.0,
            7: None,
        }
        assert values_at(session, "job", [5, 6], ["loss"], replicas=1) == {5: {}, 6: {"loss": 6.0}}
        assert values_at(session, "job", [], ["loss"]) == {}


def test_every_checkpoint_of_a_page_has_all_its_metrics_by_a_few_statements(sessions: SessionFactory) -> None:
    names = [f"m{number:02}" for number in range(24)]
    steps = range(0, 5000, 100)
    with unit_of_work(sessions) as session:
        for start in range(0, 5000, 500):  # some are in chunks, in two of each series, and some wait
            reported = range(start, start + 500)
            points = Points(reported, reported, map(float, reported))
            add_metrics(session, StreamKey("job", 1, "worker", 0), dict.fromkeys(names, points), now=NOW)
    with unit_of_work(sessions, read_only=True) as session:
        with recorded_statements(session.get_bind()) as statements:
            found = values_at(session, "job", steps, names)
        assert len(statements) < 10
        assert found == {step: dict.fromkeys(names, float(step)) for step in steps}
        # Where it were too much to read, all steps show the same fewer names.
        cut = values_at(session, "job", steps, names, chunks=15)
        shown = {tuple(of_step) for of_step in cut.values()}
        assert len(shown) == 1
        assert 0 < len(shown.pop()) < 24
