"""What judging the curves of running trials costs a round of the control loop: all read anew, and followed.

``study_curves.py [--trials 200] [--points 100000] [--rule asha]``: SQLite in memory, no engine, no processes. Each
trial has reported so many points of one metric, and ten more before each look. Prints the processor's time of a look
that reads and judges every curve whole (the newest 20,000 points of each), of the first look that follows them, which
reads all, and of a later one, which reads what is new; and the memory at most.
"""

from __future__ import annotations

import argparse
import random
import resource
import time
from collections.abc import Callable
from datetime import UTC, datetime

from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from trainmaster.studies import Goal, Stopping, StoppingRule

from core.db.repositories.metrics.writes import StreamKey, add_metrics
from core.db.tables import MetricStream
from core.domain.metrics import Points
from core.domain.studies.curves import make_curve
from core.domain.studies.trial_schedulers import decide_early_stops, decide_early_stops_of_traces
from scheduler.control.studies.follow import TraceFollower
from scheduler.control.studies.reported_metrics import read_metrics

NOW = datetime(2026, 11, 1, tzinfo=UTC)
NEW = 10


def main() -> None:
    options = _options()
    rule = Stopping(rule=StoppingRule(options.rule))
    jobs = {number: f"job-{number}" for number in range(options.trials)}
    engine = create_engine("sqlite://")
    MetricStream.metadata.create_all(engine)
    with Session(engine) as session:
        for job_id in jobs.values():
            for begin in range(0, options.points, 20_000):
                report(session, job_id, begin, min(20_000, options.points - begin))
        session.commit()
        print(f"{options.trials} trials of {options.points:,} points, rule {rule.rule.value}:", flush=True)
        tell("every curve read and judged whole", lambda: whole(session, jobs, rule))
        followers = TraceFollower()
        passed: dict[int, int] = {}
        tell("followed: the first look, which reads all", lambda: followed(session, jobs, followers, rule, passed))
        for turn in range(2):
            for job_id in jobs.values():
                report(session, job_id, options.points + turn * NEW, NEW)
            session.commit()
            tell(f"followed: {NEW} new points of each", lambda: followed(session, jobs, followers, rule, passed))
        tell("followed: nothing new", lambda: followed(session, jobs, followers, rule, passed))
    print(f"memory at most: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB, all of it together")


def report(session: Session, job_id: str, begin: int, count: int) -> None:
    values = [random.random() for _ in range(count)]
    points = Points(range(begin + 1, begin + count + 1), [0] * count, values)
    add_metrics(session, StreamKey(job_id, 1, "worker", 0), {"loss": points}, now=NOW)


def whole(session: Session, jobs: dict[int, str], rule: Stopping) -> None:
    metrics = read_metrics(session, list(jobs.values()), ["loss"])
    curves = [make_curve(number, metrics[job_id].points.get("loss", ())) for number, job_id in jobs.items()]
    decide_early_stops(rule, Goal.MINIMIZE, curves, [])


def followed(
    session: Session, jobs: dict[int, str], followers: TraceFollower, rule: Stopping, passed: dict[int, int]
) -> None:
    is_all = False
    while not is_all:
        traces, is_all = followers.look(session, jobs, "loss", Goal.MINIMIZE)
    decide_early_stops_of_traces(rule, list(traces.values()), [], passed)


def tell(what: str, work: Callable[[], None]) -> None:
    begin = time.process_time()
    work()
    print(f"  {what:<44} CPU {time.process_time() - begin:.3f} s", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--points", type=int, default=100_000)
    parser.add_argument("--rule", choices=[rule.value for rule in StoppingRule], default="asha")
    return parser.parse_args()


if __name__ == "__main__":
    main()
