"""POST latency with concurrent clients while a scheduler ticks over many queued jobs; first page of a list.

Starts its own API and scheduler on the given database and in a temporary home, fills the queue with jobs that fit
nowhere, then submits from ``--clients`` connections. Quoted: medians and ranges over ``--rounds`` rounds.

    TRAINMASTER_TEST_DATABASE_URL=postgresql://… python3 dev.py bench api_load
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", default=os.environ.get("TRAINMASTER_TEST_DATABASE_URL", ""), help="empty: SQLite")
    parser.add_argument("--queued", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--rate", type=float, default=0.0, help="requests/s over all clients; 0: as fast as they are answered"
    )
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def fill_queue(url: str, count: int) -> None:
    """Jobs of 30 shapes that no machine here can run, through the database: only the waiting itself is wanted."""
    from datetime import UTC, datetime, timedelta

    from trainmaster.spec import parse_spec

    from core.db.engine import make_engine, make_sessions, unit_of_work
    from core.db.tables import Job, Project, User
    from core.domain.sharing.resources import gang_of
    from core.ids import new_id

    engine = make_engine(url)
    now = datetime.now(UTC)
    shapes = []
    for number in range(30):
        spec = parse_spec(
            {"name": "waits", "command": ["true"], "workers": 1 + number % 3, "gpus": 8, "cpu": number + 1}
        )
        gang = gang_of(spec)
        shapes.append((spec.model_dump(mode="json"), gang.to_json(), gang.shape()))
    with unit_of_work(make_sessions(engine)) as session:
        project = session.query(Project).filter_by(name="default").one()
        user = session.query(User).filter_by(name="admin").one()
        for number in range(count):
            spec_json, gang_json, shape = shapes[number % len(shapes)]
            at = now - timedelta(seconds=count - number)
            session.add(
                Job(
                    id=new_id("job"),
                    project_id=project.id,
                    user_id=user.id,
                    name=f"waits-{number}",
                    spec=spec_json,
                    gang=gang_json,
                    shape=shape,
                    state="queued",
                    priority=number % 101,
                    output_volume="output",
                    output_path=f"default/{number}",
                    created_at=at,
                    queued_at=at,
                    updated_at=at,
                )
            )
    engine.dispose()


def request_bytes(host: str, token: str, method: str, path: str, body: Any = None) -> bytes:
    payload = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nAccept-Encoding: identity\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    return head.encode() + payload


async def request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, payload: bytes) -> tuple[int, float]:
    """Status and seconds of one request on an open connection."""
    started = time.perf_counter()
    writer.write(payload)
    head = await reader.readuntil(b"\r\n\r\n")
    status = int(head[9:12])
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    await reader.readexactly(length)
    return status, time.perf_counter() - started


async def load(port: int, token: str, options: argparse.Namespace) -> dict[str, Any]:
    spec = {"spec": {"name": "posted", "command": ["true"], "gpus": 8, "workers": 2, "labels": {"team": "bench"}}}
    payload = request_bytes("bench", token, "POST", "/api/v1/jobs", spec)
    stop_at = time.perf_counter() + options.seconds
    times: list[float] = []
    bad: list[int] = []
    pause_s = options.clients / options.rate if options.rate else 0.0

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        next_s = time.perf_counter() + pause_s * number / options.clients
        while time.perf_counter() < stop_at:
            if pause_s:
                await asyncio.sleep(max(0.0, next_s - time.perf_counter()))
                next_s += pause_s
            status, seconds = await request(reader, writer, payload)
            times.append(seconds)
            if status != 201:
                bad.append(status)
        writer.close()

    await asyncio.gather(*(client(number) for number in range(options.clients)))
    lists = []
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(30):
        status, seconds = await request(reader, writer, request_bytes("bench", token, "GET", "/api/v1/jobs?limit=50"))
        lists.append(seconds)
        if status != 200:
            bad.append(status)
    writer.close()
    times.sort()
    return {
        "requests_per_s": len(times) / options.seconds,
        "post_median_ms": statistics.median(times) * 1000,
        "post_p99_ms": times[int(len(times) * 0.99)] * 1000,
        "post_max_ms": times[-1] * 1000,
        "list_median_ms": statistics.median(lists) * 1000,
        "list_max_ms": max(lists) * 1000,
        "errors": len(bad),
    }


def main() -> None:
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        if options.database:
            os.environ["TRAINMASTER_DATABASE_URL"] = options.database
        platform = subprocess.Popen([sys.executable, "-m", "embedded", "up", "--home", folder, "--port", "0"])
        try:
            while not (home / "up.json").exists():
                if platform.poll() is not None:
                    sys.exit("the platform did not start")
                time.sleep(0.1)
            up = json.loads((home / "up.json").read_text())
            token = (home / "token").read_text().strip()
            fill_queue(options.database or f"sqlite:///{home / 'trainmaster.sqlite3'}", options.queued)
            port = int(up["url"].rsplit(":", 1)[1])
            rounds = [asyncio.run(load(port, token, options)) for _ in range(options.rounds)]
            summary = {key: statistics.median(r[key] for r in rounds) for key in rounds[0]}
            summary["range"] = {key: [min(r[key] for r in rounds), max(r[key] for r in rounds)] for key in rounds[0]}
            metrics = urllib.request.Request(up["url"] + "/metrics", headers={"Authorization": f"Bearer {token}"})
            with contextlib.suppress(OSError), urllib.request.urlopen(metrics) as answer:
                summary["tick"] = [
                    line for line in answer.read().decode().splitlines() if "tick" in line and line[0] != "#"
                ]
            print(json.dumps(summary, indent=2) if options.json else report(summary, options))
        finally:
            platform.terminate()
            platform.wait(60)


def report(summary: dict[str, Any], options: argparse.Namespace) -> str:
    lines = [
        f"{options.queued} queued jobs, {options.clients} clients, {options.rounds} rounds of {options.seconds:.0f} s"
    ]
    for key, (low, high) in summary["range"].items():
        lines.append(f"{key:>16}  median {summary[key]:9.1f}   range {low:9.1f} – {high:9.1f}")
    return "\n".join([*lines, *summary.get("tick", [])])


if __name__ == "__main__":
    main()
