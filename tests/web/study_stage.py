"""Finished studies, written into a platform's database: hundreds of trials with jobs, quickly and reproducibly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import select
from trainmaster.studies import parse_study

from core.db.engine import make_engine, make_sessions, unit_of_work
from core.db.repositories.submission import JobSubmission, new_job, write_job
from core.db.tables import Job, Project, Study, Trial, User
from core.domain.studies.trials import trial_spec
from core.ids import new_id

TEMPLATE: dict[str, Any] = {"command": ["python", "train.py"], "max_restarts": 0}


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial that is over. ``result``: {metric: value}; ``curve``: (step, value) of the first metric."""

    parameters: Mapping[str, Any]
    result: Mapping[str, float] | None = None
    state: str = "succeeded"
    reason: str = ""
    curve: Iterable[tuple[int, float]] = field(default_factory=tuple)


def put_study(home: Path, spec: Mapping[str, Any], trials: Iterable[Tried], **fields: Any) -> str:
    """Create a study with these trials, numbered from 1, on the platform of ``home``. ``fields``: other columns."""
    parsed = parse_study({"template": TEMPLATE, **spec})
    now = datetime.now(UTC)
    engine = make_engine(f"sqlite:///{home / 'trainmaster.sqlite3'}")
    tried = list(trials)
    study_id = new_id("study")
    with unit_of_work(make_sessions(engine)) as session:
        project = session.scalars(select(Project).where(Project.name == (parsed.project or "default"))).one()
        user = session.scalars(select(User).where(User.name == "admin")).one()
        began = now - timedelta(minutes=len(tried) + 10)
        of_study = {
            "state": "succeeded",
            "reason": f"All {len(tried)} trials are done.",
            "seed": 1,
            "trial_count": len(tried),
            "proposed_count": len(tried),
            "created_at": began,
            "started_at": began,
            "finished_at": now,
            "updated_at": now,
            "spec": parsed.model_dump(mode="json"),
            **fields,
        }
        session.add(Study(id=study_id, project_id=project.id, user_id=user.id, name=parsed.name, **of_study))
        session.flush()
        for number, one in enumerate(tried, start=1):
            at = began + timedelta(minutes=number)
            order = JobSubmission(
                id=new_id("job"),
                spec=trial_spec(parsed, number, one.parameters),
                project_id=project.id,
                project=project.name,
                user_id=user.id,
                output_volume="output",
                output_path=None,
                trial={
                    "study_id": study_id,
                    "study": parsed.name,
                    "number": number,
                    "parameters": dict(one.parameters),
                },
            )
            write_job(session, new_job(order, now=at, actor="scheduler"), None)
            job = session.get_one(Job, order.id)
            job.state, job.finished_at = ("failed" if one.state == "failed" else "succeeded"), at + timedelta(minutes=5)
            curve = [*one.curve]
            points = {"steps": [step for step, _ in curve], "values": [value for _, value in curve]}
            session.add(
                Trial(
                    study_id=study_id,
                    number=number,
                    job_id=order.id,
                    state=one.state,
                    parameters=dict(one.parameters),
                    result=None if one.result is None else dict(one.result),
                    reason=one.reason,
                    curve={**points, "counted": curve[-1][0]} if curve else None,
                    created_at=at,
                    ended_at=job.finished_at,
                )
            )
    engine.dispose()
    return study_id
