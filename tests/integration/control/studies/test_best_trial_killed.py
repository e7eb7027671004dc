"""A real kill -9 in the middle of, and right after, the transaction that ends a study and registers its best trial."""

from __future__ import annotations

import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import select

from core.db.engine import make_engine, make_sessions, unit_of_work
from core.db.tables import Base, Job, Lease, ModelVersion, Study
from scheduler.control.studies.study_loop import StudyLoop
from tests.integration.control.conftest import Plane
from tests.integration.control.studies.study_lab import Lab

# A control loop of its own on the same database, whose process kills itself at the point it is told.
_DIES = """
import os, signal, sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from core.wakeups import TOPIC_MODELS
from core.db.engine import make_engine, make_sessions
from executors.fake import FakeEngine, FakeExecutor
from scheduler.control.context import ControlContext
from scheduler.control.studies import study_loop
from scheduler.control.studies.study_loop import StudyLoop

url, folder, now, where = sys.argv[1:]


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class KillingWakeup:
    def notify(self, topic, key=""):
        if where == "committed" and topic == TOPIC_MODELS:
            die()


def register(*given):
    if where == "before":
        die()
    found = registered(*given)
    assert found is not None
    given[0].flush()
    if where == "registered":
        die()
    return found


def change_study(*given, **values):
    generation = changed(*given, **values)
    if where == "ended" and values.get("best_trial"):
        die()
    return generation


registered, study_loop.register_best_trial = study_loop.register_best_trial, register
changed, study_loop.studies.change_study = study_loop.studies.change_study, change_study
at = datetime.fromisoformat(now)
control = ControlContext(
    make_sessions(make_engine(url)), FakeExecutor(FakeEngine()), KillingWakeup(), lambda: at,
    "doomed", b"k" * 32, "http://api", Path(folder),
)
StudyLoop(control).reconcile("study-1")
"""


@pytest.mark.parametrize(
    ("where", "arguments"),
    [
        ("before", []),
        ("registered", []),
        ("ended", []),
        ("committed", []),
        ("registered", ["--final"]),
        ("committed", ["--final"]),
    ],
)
def test_a_kill_at_the_end_of_a_study_leaves_one_best_trial_and_one_version(
    where: str, arguments: list[str], tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/truth.sqlite3"
    engine = make_engine(url)
    Base.metadata.create_all(engine)
    lab = Lab(Plane(make_sessions(engine), tmp_path))
    lab.create(winner={"model": "digits", "arguments": arguments}, budget={"trials": 2, "parallel": 2})
    for _ in range(20):
        lab.study_loop.reconcile("study-1")
        lab.plane.settle()
        lab.report()
        lab.plane.advance(2)
        if all(job.state == "succeeded" for job in lab.plane.all(Job)):
            break
    assert lab.study.state == "running", "its trials' jobs have ended, and nobody has looked since"
    _let_go(lab)
    doomed = subprocess.run(
        [sys.executable, "-c", _DIES, url, str(tmp_path), lab.plane.engine.now.isoformat(), where],
        check=False,
        capture_output=True,
        text=True,
    )
    assert doomed.returncode == -signal.SIGKILL, doomed.stderr

    is_over = lab.study.state == "succeeded"
    assert is_over == (where == "committed"), "the end and the version come together, or not at all"
    assert len(lab.plane.all(ModelVersion)) == is_over
    lab.plane.engine.advance(timedelta(minutes=5))  # until the lease of the dead one is over
    lab.plane.start()
    lab.study_loop = StudyLoop(lab.plane.control)
    for _ in range(3):
        lab.study_loop.reconcile("study-1")
    ended = lab.study
    assert ended.state == "succeeded"
    (version,) = lab.plane.all(ModelVersion)
    assert ended.best_trial is not None
    assert (ended.best_trial["version"], version.number) == (version.id, 1)
    assert len(lab.plane.all(Job)) == 2 + bool(arguments)
    with unit_of_work(lab.plane.sessions) as session:
        assert len(session.scalars(select(Study.id)).all()) == 1
    engine.dispose()


def _let_go(lab: Lab) -> None:
    """Nobody holds the study's lease: the next one to look may be any process."""
    with unit_of_work(lab.plane.sessions) as session:
        for lease in session.scalars(select(Lease).where(Lease.name == "study:study-1")):
            session.delete(lease)
