"""Points of metrics per second over HTTP, against MLflow's server on the same machine and kind of database; and how
long a chart of a million points takes.

Both servers run side by side and take the same points in turns: requests of 1,000 points (MLflow's most) of 10 metrics,
from ``--clients`` connections, prepared before the clock starts. ``--mlflow`` is the ``mlflow`` of an environment of
its own:

    python -m venv /tmp/mlflow && /tmp/mlflow/bin/pip install mlflow psycopg2-binary
    python3 dev.py bench metrics_ingest --mlflow /tmp/mlflow/bin/mlflow [--database postgresql://…]
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.support.embedded import Embedded, command_line, embedded_platform, wait_for

METRICS = 10
REQUEST_POINTS = 1_000
CHART_POINTS = 1_000_000


def parse() -> argparse.Namespace:
    parser = command_line(__doc__, rounds=3)
    parser.add_argument("--mlflow", default="", help="MLflow's program; without it only ours is measured")
    parser.add_argument("--database", default="", help="PostgreSQL server where two databases are made; empty: SQLite")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--charts", type=int, default=200)
    return parser.parse_args()


class Client:
    """One connection."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
        self._headers = {**headers, "Content-Type": "application/json"}

    def renew(self) -> None:
        """Connect anew with the next request: servers close connections that idle."""
        self._connection.close()

    def ask(self, method: str, path: str, body: bytes | None = None) -> Any:
        self._connection.request(method, path, body, self._headers)
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status >= 300:
            sys.exit(f"{method} {path}: {answer.status} {data[:500]!r}")
        return json.loads(data or b"{}")


def points_per_s(clients: list[Client], path: str, body: Callable[[int, int], bytes], seconds: float) -> float:
    """Points of whole requests per second. ``body(client, number)``: the request, made before the clock starts."""
    prepared = 400
    bodies = [[body(number, request) for request in range(prepared)] for number in range(len(clients))]
    taken = [0] * len(clients)
    for client in clients:
        client.renew()
    stop_at = time.perf_counter() + seconds

    def send(number: int) -> None:
        for request in range(10**9):
            if time.perf_counter() >= stop_at:
                return
            clients[number].ask("POST", path, bodies[number][request % prepared])
            taken[number] += REQUEST_POINTS

    started = time.perf_counter()
    threads = [threading.Thread(target=send, args=(number,)) for number in range(len(clients))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(taken) / (time.perf_counter() - started)


def platform_body(index: int, request: int) -> bytes:
    count = REQUEST_POINTS // METRICS
    steps = list(range(request * count, (request + 1) * count))
    series = [
        {
            "name": f"metric-{number}",
            "steps": steps,
            "times_s": [1_795_000_000 + step / 10 for step in steps],
            "values": [random.random() for _ in steps],
        }
        for number in range(METRICS)
    ]
    return json.dumps({"role": "worker", "index": index, "series": series}).encode()


def mlflow_body(run: str, request: int) -> bytes:
    count = REQUEST_POINTS // METRICS
    points = [
        {
            "key": f"metric-{number}",
            "value": random.random(),
            "timestamp": 1_795_000_000_000 + step * 100,
            "step": step,
        }
        for number in range(METRICS)
        for step in range(request * count, (request + 1) * count)
    ]
    return json.dumps({"run_id": run, "metrics": points}).encode()


def start_job(running: Embedded, workers: int) -> tuple[str, str]:
    """(job, its attempt's token) of a job that only holds its places; it hands its token out."""
    client = Client(running.url, {"Authorization": f"Bearer {running.token}"})
    command = "cat $TRAINMASTER_TOKEN_FILE > $TRAINMASTER_OUTPUT_DIR/token.$TRAINMASTER_INDEX; sleep 3600"
    spec = {"name": "measured", "command": command, "workers": workers}
    job = client.ask("POST", "/api/v1/jobs", json.dumps({"spec": spec}).encode())
    folder = running.home / "output" / job["output"].partition("/")[2]
    file = wait_for(
        lambda: next((file for file in folder.glob("token.*") if file.stat().st_size), None), "the job's start"
    )
    return job["id"], file.read_text().strip()


@contextmanager
def mlflow_server(program: str, database: str) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        store = database or f"sqlite:///{folder}/mlflow.db"
        command = [program, "server", "--host", "127.0.0.1", "--port", str(port), "--backend-store-uri", store]
        with Path(folder, "log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "--artifacts-destination", folder],
                cwd=folder,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            wait_for(lambda: process.poll() is not None or _answers(port), "MLflow's server", 500)
            if process.poll() is not None:
                sys.exit(f"MLflow's server did not start: {Path(folder, 'log').read_text()[-1000:]}")
            yield f"http://127.0.0.1:{port}"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 15)
                process.wait(60)


def _answers(port: int) -> bool:
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        time.sleep(0.2)
        return False


def databases(server: str) -> tuple[str, str]:
    """One for each, made anew."""
    if not server:
        return "", ""
    import psycopg

    base = server.rpartition("/")[0]
    with psycopg.connect(server, autocommit=True) as connection:
        for name in ("bench_ours", "bench_mlflow"):
            connection.execute(f"drop database if exists {name} with (force)")
            connection.execute(f"create database {name}")
    # MLflow's driver is the one that the environment above has.
    return f"{base}/bench_ours", f"{base}/bench_mlflow".replace("postgresql://", "postgresql+psycopg2://")


def chart_times(running: Embedded, job: str, token: str, count: int) -> list[float]:
    """Seconds of charts of a series of a million points: the whole, and windows of it."""
    sender = Client(running.url, {"Authorization": f"Bearer {token}"})
    chance = random.Random(1)
    for start in range(0, CHART_POINTS, 20_000):
        steps = list(range(start, start + 20_000))
        series = {"name": "long", "steps": steps, "values": [chance.gauss(0, 1) for _ in steps]}
        sender.ask(
            "POST", "/api/v1/runtime/metrics", json.dumps({"role": "worker", "index": 0, "series": [series]}).encode()
        )
    reader = Client(running.url, {"Authorization": f"Bearer {running.token}"})
    times = []
    for number in range(count):
        low, high = (0, CHART_POINTS) if number % 2 else sorted(chance.randrange(CHART_POINTS) for _ in range(2))
        started = time.perf_counter()
        path = f"/api/v1/jobs/{job}/metrics/chart?name=long&buckets=1000&from={low}&to={high}"
        (series,) = reader.ask("GET", path)["series"]
        times.append(time.perf_counter() - started)
        if series["count"] != CHART_POINTS:
            sys.exit(f"{series['count']} points instead of {CHART_POINTS}")
    return times


def main() -> None:
    options = parse()
    platform_url, mlflow_url = databases(options.database)
    if platform_url:
        os.environ["TRAINMASTER_DATABASE_URL"] = platform_url
    with ExitStack() as stack:
        running = stack.enter_context(embedded_platform())
        job, token = start_job(running, options.clients)
        platform = [Client(running.url, {"Authorization": f"Bearer {token}"}) for _ in range(options.clients)]
        mlflow: list[Client] = []
        runs: list[str] = []
        if options.mlflow:
            url = stack.enter_context(mlflow_server(options.mlflow, mlflow_url))
            mlflow = [Client(url, {}) for _ in range(options.clients)]
            path = "/api/2.0/mlflow/runs/create"
            made = [client.ask("POST", path, b'{"experiment_id": "0"}') for client in mlflow]
            runs = [answer["run"]["info"]["run_id"] for answer in made]
        rates: dict[str, list[float]] = {"ours": [], "mlflow": []}
        for _ in range(options.rounds):
            rates["ours"].append(points_per_s(platform, "/api/v1/runtime/metrics", platform_body, options.seconds))
            if mlflow:
                path = "/api/2.0/mlflow/runs/log-batch"
                rate = points_per_s(mlflow, path, lambda n, request: mlflow_body(runs[n], request), options.seconds)
                rates["mlflow"].append(rate)
        charts = sorted(chart_times(running, job, token, options.charts))
    figures: dict[str, Any] = {
        name: {"median": round(statistics.median(values)), "range": [round(min(values)), round(max(values))]}
        for name, values in rates.items()
        if values
    }
    if rates["mlflow"]:
        figures["times_mlflow"] = round(statistics.median(rates["ours"]) / statistics.median(rates["mlflow"]), 1)
    figures["chart_of_1M_points_ms"] = {
        "median": round(1000 * statistics.median(charts), 1),
        "p95": round(1000 * charts[int(len(charts) * 0.95)], 1),
        "max": round(1000 * charts[-1], 1),
    }
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    for name, figure in figures.items():
        print(f"{name:>24}  {figure}")


if __name__ == "__main__":
    main()
