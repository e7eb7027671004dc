"""A database of a benchmark's own: its tables, and the rows of jobs that wait."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.orm import Session
from trainmaster.spec import JobSpec

from core.db.engine import make_engine
from core.db.tables import Base, Project, User, Volume
from core.domain.sharing.resources import gang_of


@contextmanager
def fresh_database(url: str) -> Iterator[tuple[Engine, Path]]:
    """A database with new tables, dropped at the end, and a temporary folder, with SQLite if ``url`` is empty."""
    with tempfile.TemporaryDirectory() as folder:
        engine = make_engine(url or f"sqlite:///{folder}/bench.sqlite3")
        Base.metadata.create_all(engine)
        engine.dispose()  # no connection is open when a benchmark forks
        try:
            yield engine, Path(folder)
        finally:
            Base.metadata.drop_all(engine)
            engine.dispose()


def add_project(session: Session, now: datetime, folder: Path | str) -> None:
    """The project, the user and the volume that jobs refer to."""
    session.add(Project(id="project-1", name="default", created_at=now, quota={}))
    session.add(User(id="user-1", name="ann", is_admin=False, created_at=now))
    session.add(Volume(id="volume-1", name="output", kind="local", root=str(folder), created_at=now))


def waiting_job(job_id: str, spec: JobSpec, at: datetime, *, project: str = "project-1") -> dict[str, Any]:
    """The columns of a job that waits since ``at``."""
    gang = gang_of(spec)
    return {
        "id": job_id,
        "project_id": project,
        "user_id": "user-1",
        "name": spec.name,
        "spec": spec.model_dump(mode="json"),
        "gang": gang.to_json(),
        "shape": gang.shape(),
        "state": "queued",
        "priority": spec.priority,
        "output_volume": "output",
        "output_path": f"{project}/{job_id}",
        "created_at": at,
        "queued_at": at,
        "updated_at": at,
    }
