"""From the end of a trial's process to the job of the next trial, on a running platform with real processes.

    python3 dev.py bench study_turnaround [--trials 40] [--parallel 1 4] [--database postgresql://…] [--json]

Each trial is a script that works for a moment, prints its metric and as its last statement writes down the time. Until
the next one's job stands in the database, which is asked every 10 ms, Python ends, the runtime sees that and reports,
the control loop looks at the attempt, and at the study. With several at once the trial that comes n-th after the first
ones belongs to the n-th end. Beside it: when its script begins, with as much of the way behind the job as any job has.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Engine, select
from trainmaster import Client

from benchmarks.studies.study_asking import scratch_database
from benchmarks.support.embedded import Embedded, embedded_platform
from core.db.engine import make_engine
from core.db.tables import Attempt, Job, Replica, Trial

SCRIPT = """
import time
begun = time.time()
import os, random
number = int(os.environ["TRAINMASTER_TRIAL"])
time.sleep({work_s} * random.uniform(0.7, 1.3))
print("step=1 score=%.6f" % random.random(), flush=True)
with open("{folder}/%d" % number, "w") as stream:
    stream.write("%r %r" % (begun, time.time()))
"""


def main() -> None:
    options = _options()
    with scratch_database(options.database) as url:
        if url:
            os.environ["TRAINMASTER_DATABASE_URL"] = url
        with embedded_platform() as platform:
            engine = make_engine(url or f"sqlite:///{platform.home / 'trainmaster.sqlite3'}")
            found = {parallel: turnaround(platform, engine, parallel, options) for parallel in options.parallel}
            engine.dispose()
    load = " ".join(f"{average:.1f}" for average in os.getloadavg())
    if options.json:
        print(
            json.dumps({"figures": {n: {k: numbers(v) for k, v in f.items()} for n, f in found.items()}, "load": load})
        )
        return
    for parallel, figures in found.items():
        print(
            f"{parallel} at once, {len(next(iter(figures.values())))} ends, seconds from the end of a trial's "
            f"script; load {load}:"
        )
        for name, values in figures.items():
            print(f"  {name:<40} " + ", ".join(f"{key} {value:.3f}" for key, value in numbers(values).items()))


def turnaround(
    platform: Embedded, engine: Engine, parallel: int, options: argparse.Namespace
) -> dict[str, list[float]]:
    """Run one study; seconds after the end of a trial's script, of each trial but the last ones."""
    client = Client(platform.url, platform.token)
    with tempfile.TemporaryDirectory() as folder:
        script = SCRIPT.format(work_s=options.work_s, folder=folder)
        spec = {
            "name": f"turnaround-{parallel}",
            "template": {"command": [sys.executable, "-c", script], "cpu": "400m"},
            "parameters": {
                "lr": {"type": "float", "min": 1e-5, "max": 0.1, "scale": "log"},
                "width": {"type": "integer", "min": 1, "max": 64},
            },
            "metric": "score",
            "goal": "maximize",
            "algorithm": options.algorithm,
            "budget": {"trials": options.trials + parallel, "parallel": parallel},
        }
        study = client.create_study(spec).id
        created = watch(engine, study, options.trials + parallel)
        while client.get_study(study).state in ("running", "stopping"):
            time.sleep(0.5)
        times = {int(path.name): path.read_text().split() for path in Path(folder).iterdir()}
    script_begins = {number: float(words[0]) for number, words in times.items()}
    ended = {number: float(words[1]) for number, words in times.items()}
    noted = _noted(engine, study)
    order = sorted(ended, key=ended.__getitem__)[: options.trials]
    pairs = [(number, parallel + place) for place, number in enumerate(order, 1)]
    return {
        "its process is gone, and that is written": [noted[old]["process"] - ended[old] for old, _ in pairs],
        "its attempt is known to have ended": [noted[old]["attempt"] - ended[old] for old, _ in pairs],
        "its trial is over": [noted[old]["trial"] - ended[old] for old, _ in pairs],
        "the next trial's job is in the database": [created[new] - ended[old] for old, new in pairs],
        "the next trial's script begins": [script_begins[new] - ended[old] for old, new in pairs],
    }


def watch(engine: Engine, study: str, until: int) -> dict[int, float]:
    """When each trial's job was first seen, by the trial's number."""
    created: dict[int, float] = {}
    query = select(Trial.number).join(Job, Job.id == Trial.job_id).where(Trial.study_id == study)
    while len(created) < until:
        with engine.connect() as connection:
            fresh = connection.scalars(query.where(Trial.number > max(created, default=0))).all()
        now = time.time()
        created.update(dict.fromkeys(fresh, now))
        threading.Event().wait(0.01)
    return created


def _noted(engine: Engine, study: str) -> dict[int, dict[str, float]]:
    """When the control loop says that each trial's attempt and the trial itself ended."""
    query = (
        select(Trial.number, Trial.ended_at, Job.finished_at, Replica.ended_at.label("gone_at"))
        .join(Job, Job.id == Trial.job_id)
        .join(Attempt, Attempt.job_id == Job.id)
        .join(Replica, Replica.attempt_id == Attempt.id)
        .where(Trial.study_id == study)
    )
    with engine.connect() as connection:
        return {
            row.number: {"trial": _s(row.ended_at), "attempt": _s(row.finished_at), "process": _s(row.gone_at)}
            for row in connection.execute(query)
        }


def _s(at: datetime) -> float:
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def numbers(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {
        "median": statistics.median(ordered),
        "p95": ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))],
        "slowest": ordered[-1],
    }


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", default="", help="a server to make a database on; empty: SQLite")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--parallel", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--work-s", type=float, default=0.5, help="what a trial takes by itself")
    parser.add_argument("--algorithm", default="auto")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
