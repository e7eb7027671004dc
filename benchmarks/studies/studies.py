"""What a large study costs: a round of the control loop with 200 trials that run and thousands that are over.

``studies.py [--finished 2000] [--parallel 200]``: an empty SQLite database in a temporary folder, the fake engine, no
processes. Prints seconds per round, with the processor's time beside it, which other work on the machine changes
little; the memory. What asking takes is for ``study_asking.py``, the whole of a large study for ``study_whole.py``.
"""

from __future__ import annotations

import argparse
import random
import resource
import statistics
import tempfile
import time
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from sqlalchemy import insert, select, update
from trainmaster.studies import parse_study

from core.db.bootstrap import prepare_home
from core.db.engine import make_engine, make_sessions, unit_of_work
from core.db.repositories.metrics.writes import StreamKey, add_metrics
from core.db.tables import Job, Project, Study, Trial, User
from core.domain.metrics import Points
from core.settings import Settings
from core.wakeups import NoWakeup
from executors.fake import FakeEngine, FakeExecutor
from migrations import upgrade
from scheduler.control.context import ControlContext
from scheduler.control.studies.study_loop import StudyLoop

SPACE = {
    "lr": {"type": "float", "min": 1e-5, "max": 0.1, "scale": "log"},
    "decay": {"type": "float", "min": 0, "max": 1},
    "layers": {"type": "integer", "min": 1, "max": 12},
    "kind": {"type": "categorical", "values": ["a", "b", "c"]},
}


def main() -> None:
    options = _options()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder), secret_key=SecretStr("k" * 40), executor="fake", test_fake_executor=True)
        upgrade(settings.resolved_database_url)
        engine = make_engine(settings.resolved_database_url)
        sessions = make_sessions(engine)
        world = FakeEngine()
        prepare_home(sessions, settings, world.now)
        control = ControlContext(sessions, FakeExecutor(world), NoWakeup(), lambda: world.now, "bench", b"k" * 32)
        rounds(sessions, control, world, options)
        print(
            f"memory at most: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB, all of it together"
        )
        engine.dispose()


def rounds(sessions: Any, control: ControlContext, world: FakeEngine, options: argparse.Namespace) -> None:
    """Collecting, judging and beginning in a study with many trials."""
    study = add_study(sessions, world.now, "large", options.finished, template=True, parallel=options.parallel)
    study_loop = StudyLoop(control)
    print(f"{options.finished:,} trials over, {options.parallel} at once, TPE, asha:")
    tell("begin all of them (a cold study_loop)", lambda: study_loop.reconcile(study))
    with unit_of_work(sessions) as session:
        session.execute(update(Job).values(state="running", started_at=world.now))
        jobs = list(session.scalars(select(Job.id)))
        for job in jobs:
            points = Points(range(1, 51), [0] * 50, [random.random() for _ in range(50)])
            add_metrics(session, StreamKey(job, 1, "worker", 0), {"score": points}, now=world.now)
    with unit_of_work(sessions) as session:
        session.execute(update(Job).values(desired_state="cancel"))  # nothing is stopped twice: judging alone is timed
    tell("look at what runs, judge every curve", lambda: study_loop.reconcile(study))
    times_s = []
    for job in jobs[:10]:
        with unit_of_work(sessions) as session:
            session.execute(update(Job).where(Job.id == job).values(state="succeeded", finished_at=world.now))
        begin, worked = time.perf_counter(), time.process_time()
        study_loop.reconcile(study)
        times_s.append((time.perf_counter() - begin, time.process_time() - worked))
    wall, cpu = zip(*times_s, strict=True)
    print(
        f"  one trial ends, the next is submitted        {statistics.median(wall):.3f} s (median of 10), "
        f"{max(wall):.3f} s at most;"
        f" CPU {statistics.median(cpu):.3f} s, {max(cpu):.3f} s at most"
    )


def by_optuna(finished: int, asks: int) -> None:
    """What asking and telling Optuna's own TPE takes in process, without any service around it."""
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = {
        "lr": FloatDistribution(1e-5, 0.1, log=True),
        "decay": FloatDistribution(0, 1),
        "layers": IntDistribution(1, 12),
        "kind": CategoricalDistribution(["a", "b", "c"]),
    }
    chance = random.Random(finished)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=1, constant_liar=True))
    for _ in range(finished):
        point = {
            "lr": 10 ** chance.uniform(-5, -1),
            "decay": chance.random(),
            "layers": chance.randint(1, 12),
            "kind": chance.choice("abc"),
        }
        study.add_trial(optuna.trial.create_trial(params=point, distributions=space, value=chance.random()))
    times_s, cpu = [], []
    for _ in range(min(asks, 50)):
        begin, worked = time.perf_counter(), time.process_time()
        trial = study.ask(space)
        times_s.append(time.perf_counter() - begin)
        cpu.append(time.process_time() - worked)
        study.tell(trial, chance.random())
    print(f"Optuna's TPE, {finished:>6,} trials over: {percentiles(times_s)}; CPU {percentiles(cpu)}")


def percentiles(times_s: list[float]) -> str:
    times_s.sort()
    return f"p50 {1000 * times_s[len(times_s) // 2]:.1f} ms, p99 {1000 * times_s[int(len(times_s) * 0.99)]:.1f} ms"


def add_study(sessions: Any, now: datetime, name: str, finished: int, *, template: bool, parallel: int) -> str:
    chance = random.Random(finished)
    raw: dict[str, Any] = {
        "name": name,
        "parameters": SPACE,
        "metric": "score",
        "goal": "maximize",
        "algorithm": "tpe",
        "budget": {"trials": 10_000, "parallel": parallel},
        "seed": 1,
    }
    if template:
        raw |= {"template": {"command": "train", "cpu": "1"}, "stopping": "asha"}
    else:
        raw["budget"] = {"max_time": "2000d", "parallel": parallel}
    spec = parse_study(raw)
    study_id = f"study-{name}"
    with unit_of_work(sessions) as session:
        project = session.scalars(select(Project.id)).first()
        user = session.scalars(select(User.id)).first()
        session.add(
            Study(
                id=study_id,
                project_id=project,
                user_id=user,
                name=name,
                spec=spec.model_dump(mode="json"),
                seed=1,
                state="running",
                output_volume="output",
                trial_count=finished,
                proposed_count=finished,
                created_at=now,
                started_at=now,
                updated_at=now,
            )
        )
        session.flush()
        rows = []
        for number in range(1, finished + 1):
            point = {
                "lr": 10 ** chance.uniform(-5, -1),
                "decay": chance.random(),
                "layers": chance.randint(1, 12),
                "kind": chance.choice("abc"),
            }
            curve = {"steps": list(range(1, 51)), "values": [chance.random() for _ in range(50)]}
            rows.append(
                {
                    "study_id": study_id,
                    "number": number,
                    "job_id": None,
                    "state": "succeeded",
                    "parameters": point,
                    "memo": {},
                    "result": {"score": chance.random()},
                    "curve": curve,
                    "reason": "",
                    "gpu_s": 1.0,
                    "created_at": now,
                    "ended_at": now + timedelta(seconds=number),
                }
            )
        if rows:
            session.execute(insert(Trial), rows)
    return study_id


def tell(what: str, work: Any) -> None:
    begin, worked = time.perf_counter(), time.process_time()
    work()
    print(
        f"  {what:<44} {time.perf_counter() - begin:.3f} s; CPU {time.process_time() - worked:.3f} s",
        flush=True,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--finished", type=int, default=2000)
    parser.add_argument("--parallel", type=int, default=200)
    return parser.parse_args()


if __name__ == "__main__":
    main()
