"""What the control plane costs while nothing happens: CPU seconds per minute and memory, with 1,000 running replicas.

    TRAINMASTER_TEST_DATABASE_URL=… TRAINMASTER_TEST_REDIS_URL=… \
        python3 dev.py bench reconcile_rest [--jobs 100] [--replicas 10] [--seconds 60] [--json]

API, scheduler and beat are the real processes on real PostgreSQL and Redis; the engine is the fake one, in the
scheduler's memory, whose replicas start at once and never end. ``--jobs 1000 --replicas 1`` is the dearest way to have
a thousand replicas: there are as many attempts to look at.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from sqlalchemy import create_engine, make_url, text
from trainmaster import Client

from benchmarks.support.embedded import ROOT, wait_for
from core.db.bootstrap import prepare_home, read_token
from core.db.engine import make_engine, make_sessions
from core.settings import Settings
from migrations import upgrade

TARGET_CPU_S_PER_MIN = 3.0
# After the last job runs: the processes' first looks are done then.
SETTLE_S = 20.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--replicas", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with ExitStack() as stack:
        figures = measure(stack, options.jobs, options.replicas, options.seconds)
    total = round(sum(part["cpu_s_per_min"] for part in figures.values()), 2)
    verdict = {
        "replicas": options.jobs * options.replicas,
        "cpu_s_per_min": total,
        "wanted_at_most": TARGET_CPU_S_PER_MIN,
        "is_reached": total <= TARGET_CPU_S_PER_MIN,
    }
    if options.json:
        print(json.dumps({"title": "the control plane at rest", "figures": figures, **verdict}, indent=2))
        return
    for name, part in figures.items():
        print(f"{name:10} {part['cpu_s_per_min']:6.2f} CPU s/min  {part['memory_mib']:6.0f} MiB")
    print(", ".join(f"{key.replace('_', ' ')}: {value}" for key, value in verdict.items()))


def measure(stack: ExitStack, jobs: int, replicas: int, seconds: float) -> dict[str, dict[str, float]]:
    home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trainmaster-bench-")))
    database_url, broker_url = own_servers(stack)
    upgrade(make_url(database_url).set(drivername="postgresql+psycopg").render_as_string(hide_password=False))
    engine = make_engine(database_url, pool_size=2)
    stack.callback(engine.dispose)
    settings = Settings(home=home, database_url=database_url)
    prepare_home(make_sessions(engine), settings, datetime.now(UTC))
    port = random.SystemRandom().randrange(30_000, 32_000)
    env = os.environ | {
        "TRAINMASTER_HOME": str(home),
        "TRAINMASTER_DATABASE_URL": database_url,
        "TRAINMASTER_BROKER_URL": broker_url,
        "TRAINMASTER_EXECUTOR": "fake",
        "TRAINMASTER_TEST_FAKE_EXECUTOR": "1",
        "TRAINMASTER_PORT": str(port),
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("", "sdk", "worker_images/runtime")),
    }
    parts = {"api": ["-m", "api"], "scheduler": ["-m", "scheduler"], "beat": ["-m", "scheduler", "beat"]}
    processes = {name: start(stack, home, name, command, env) for name, command in parts.items()}
    url = f"http://127.0.0.1:{port}"
    wait_for(lambda: answers(f"{url}/api/v1/ready"), "the API is ready")
    with Client(url, token=read_token(settings)) as client:
        for number in range(jobs):
            client.submit(
                {
                    "name": f"rest-{number}",
                    "command": "train",
                    "workers": replicas,
                    "cpu": "20m",
                    "memory": "64Mi",
                }
            )
    running = text("select count(*) from jobs where state = 'running'")

    def count() -> int:
        with engine.connect() as connection:
            return int(connection.execute(running).scalar_one())

    wait_for(lambda: count() == jobs, f"{jobs} jobs run", 600.0)
    time.sleep(SETTLE_S)
    before = {name: cpu_s(process.pid) for name, process in processes.items()}
    began = time.monotonic()
    time.sleep(seconds)
    minutes = (time.monotonic() - began) / 60
    figures = {
        name: {
            "cpu_s_per_min": round((cpu_s(process.pid) - before[name]) / minutes, 3),
            "memory_mib": round(memory_bytes(process.pid) / 2**20, 1),
        }
        for name, process in processes.items()
    }
    if count() != jobs:
        sys.exit("some jobs do not run any more: the figures mean nothing")
    return figures


def start(stack: ExitStack, home: Path, name: str, command: list[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
    with (home / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, *command], env=env, cwd=ROOT, stdout=log, stderr=log)

    def stop() -> None:
        process.kill()
        process.wait()

    stack.callback(stop)
    return process


def own_servers(stack: ExitStack) -> tuple[str, str]:
    """A database and a Redis number of our own."""
    import redis

    database, broker = (os.environ.get(f"TRAINMASTER_TEST_{name}_URL", "") for name in ("DATABASE", "REDIS"))
    if not database or not broker:
        sys.exit("set TRAINMASTER_TEST_DATABASE_URL and TRAINMASTER_TEST_REDIS_URL to servers that may be used")
    server = make_url(database).set(drivername="postgresql+psycopg")
    name = f"trainmaster_bench_{os.getpid()}"
    admin = create_engine(server, isolation_level="AUTOCOMMIT")
    stack.callback(admin.dispose)
    with admin.connect() as connection:
        connection.execute(text(f"create database {name}"))

    def drop() -> None:
        with admin.connect() as connection:
            connection.execute(text(f"drop database if exists {name} with (force)"))

    stack.callback(drop)
    for number in range(1, 16):
        url = urlsplit(broker)._replace(path=f"/{number}").geturl()
        numbered = redis.Redis.from_url(url)
        stack.callback(numbered.close)
        if numbered.dbsize() == 0 and numbered.set("trainmaster-bench", 1, nx=True, ex=900):
            stack.callback(numbered.flushdb)
            own = make_url(database).set(drivername="postgresql", database=name)
            return own.render_as_string(hide_password=False), url
    sys.exit("all databases of the Redis server are in use")


def answers(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(url, timeout=3, trust_env=False).status_code == 200
    return False


def cpu_s(pid: int) -> float:
    """User and system time of the process and its threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_bytes(pid: int) -> int:
    """Proportional set size: what is shared counts by its share."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main()
