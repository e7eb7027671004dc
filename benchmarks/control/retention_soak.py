"""Size of the database, memory and disk while many small jobs come, end and expire by a retention policy.

Each round is a day: ``--per-day`` ended jobs are written with attempts, replicas, events, metrics, outputs and logs,
and the garbage collection runs. After ``--keep`` days as many jobs go as come, and all sizes should stay.

    python3 dev.py bench retention_soak --days 40
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sqlalchemy import func, insert, select, text
from trainmaster.spec import parse_spec

from core.db.engine import make_engine, make_sessions, unit_of_work
from core.db.repositories.events import append_events, event_row
from core.db.repositories.metrics.writes import StreamKey, add_metrics
from core.db.tables import Attempt, Job, Project, Replica, User, Volume
from core.domain.metrics import Points
from core.domain.sharing.resources import gang_of
from core.ids import new_id
from core.settings import Settings
from core.wakeups import NoWakeup
from executors.fake import FakeEngine, FakeExecutor
from migrations import upgrade
from scheduler.control.context import ControlContext
from scheduler.control.maintenance.gc import collect_garbage

EVENTS_PER_JOB = 8
POINTS = 200
FILE_BYTES = 4_096


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", default="", help="empty: SQLite")
    parser.add_argument("--per-day", type=int, default=500)
    parser.add_argument("--days", type=int, default=40)
    parser.add_argument("--keep", type=float, default=5, help="days that a job is kept")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def write_jobs(control: ControlContext, folder: Path, count: int, now: datetime) -> None:
    """A day's jobs, all ended now."""
    spec = parse_spec({"name": "small", "command": ["true"], "workers": 2})
    gang = gang_of(spec)
    plain = {"spec": spec.model_dump(mode="json"), "gang": gang.to_json(), "shape": gang.shape()}
    ids = [new_id("job") for _ in range(count)]
    common: dict[str, Any] = {"project_id": "project-1", "user_id": "user-1", "name": "small", **plain}
    times: dict[str, Any] = {"created_at": now, "queued_at": now, "updated_at": now, "finished_at": now}
    jobs = [
        {"id": job_id, **common, **times, "state": "succeeded", "priority": 0, "output_volume": "output",
         "output_path": f"default/{job_id}", "attempt_count": 1}
        for job_id in ids
    ]  # fmt: skip
    attempts = [
        {"id": f"att-{job_id}", "job_id": job_id, "number": 1, "state": "ended", "executor": "fake", "created_at": now,
         "started_at": now, "ended_at": now, "swept_at": now}
        for job_id in ids
    ]  # fmt: skip
    replicas = [
        {"id": f"{job_id}-{index}", "attempt_id": f"att-{job_id}", "job_id": job_id, "role": "worker", "index": index,
         "rank": index, "state": "succeeded", "node": "node-0", "gpus": [], "cpu_milli": 1, "memory_bytes": 1,
         "ended_at": now}
        for job_id in ids
        for index in range(2)
    ]  # fmt: skip
    events = [
        event_row(at=now, kind="job.changed", actor="scheduler", project_id="project-1", job_id=job_id, reason="a step")
        for job_id in ids
        for _ in range(EVENTS_PER_JOB)
    ]
    with unit_of_work(control.sessions) as session:
        session.execute(insert(Job), jobs)
        session.execute(insert(Attempt), attempts)
        session.execute(insert(Replica), replicas)
        append_events(session, events)
        points = {"loss": Points(list(range(POINTS)), [1_000] * POINTS, [0.5] * POINTS)}
        for job_id in ids:
            add_metrics(session, StreamKey(job_id, 1, "worker", 0), points, [], now=now)
    for job_id in ids:
        for path in ("model.pt", f".trainmaster/logs/{job_id}/1/worker-0.log"):
            file = folder / "default" / job_id / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"a" * FILE_BYTES)


def measure(control: ControlContext, folder: Path, day: int) -> dict[str, Any]:
    with unit_of_work(control.sessions, read_only=True) as session:
        jobs = session.execute(select(func.count()).select_from(Job)).scalar_one()
        is_postgres = session.get_bind().dialect.name == "postgresql"
        query = (
            "select pg_database_size(current_database())"
            if is_postgres
            else "select page_count * page_size from pragma_page_count(), pragma_page_size()"
        )
        size = session.execute(text(query)).scalar_one()
    files = sum(len(names) for _, _, names in os.walk(folder))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"day": day, "jobs": jobs, "database_mib": round(size / 2**20, 1), "files": files,
            "memory_mib": round(memory)}  # fmt: skip


def main() -> None:
    options = parse()
    now = datetime(2026, 1, 1, tzinfo=UTC)
    with tempfile.TemporaryDirectory() as home:
        settings = Settings(home=Path(home), database_url=options.database)
        folder = settings.home / "output"
        folder.mkdir()
        upgrade(settings.resolved_database_url)
        engine = make_engine(settings.resolved_database_url)
        control = ControlContext(
            make_sessions(engine), FakeExecutor(FakeEngine(())), NoWakeup(), lambda: now, "soak", b"k" * 32,
            "http://api", settings.archive_dir,
        )  # fmt: skip
        policy = {"jobs": options.keep * 86_400, "events": options.keep * 86_400}
        with unit_of_work(control.sessions) as session:
            session.add_all([
                Project(id="project-1", name="default", created_at=now, quota={}, retention=policy),
                User(id="user-1", name="ann", is_admin=False, created_at=now),
                Volume(id="volume-1", name="output", kind="local", root=str(folder), created_at=now),
            ])  # fmt: skip
        rows, spent_s = [], 0.0
        for day in range(1, options.days + 1):
            now += timedelta(days=1)
            write_jobs(control, folder, options.per_day, now)
            began_s = time.perf_counter()
            collect_garbage(control, settings)
            spent_s += time.perf_counter() - began_s
            rows.append(measure(control, folder, day))
            if not options.json:
                print(rows[-1], flush=True)
        engine.dispose()
    total = options.days * options.per_day
    steady = rows[int(options.keep) + 1 :]
    result = {
        "jobs": total,
        "first_steady": steady[0],
        "last": steady[-1],
        "gc_s_per_1000_jobs": round(spent_s / total * 1000, 2),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
