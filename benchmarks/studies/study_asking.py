"""Asking a study for points over REST, as a program does that tries them by itself: how long it waits.

    python3 dev.py bench study_asking [--database postgresql://…] [--asks 1000] [--asked 100 1000 10000] [--rate 8]
    [--json]

A running platform: the API serves over a socket, the scheduler draws points ahead in a process of its own.
``--database`` names a server that a database may be made on, and dropped; without it, it is SQLite. Of each study as
many trials are over as ``--asked`` says. Asked is one at a time, paced, and in bursts: eight programs in the same
moment; ``--rate`` a second either way. Four trials are open when one is asked for alone, and all eight of a burst end
before the next one.

Beside the wall clock: the processor's time of the API for one question, and what the question waited for a processor
that others had, which says how much of a figure is the machine's load. Optuna's TPE is asked in process, on as many
trials.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from benchmarks.studies.studies import add_study, by_optuna
from benchmarks.support.embedded import Embedded, command_line, embedded_platform, pids_of
from core.db.engine import make_engine, make_sessions

BURST = 8
OPEN = 4


@dataclass
class Figures:
    """Of one study and one way of asking, in milliseconds.

    ``waited``: the API's threads and the asker, while the question was answered, for a processor that others had.
    """

    wall: list[float] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    cpu: float = 0.0
    scheduler_cpu: float = 0.0
    empty: int = 0

    def line(self) -> dict[str, float]:
        own = [max(0.0, wall - waited) for wall, waited in zip(self.wall, self.waited, strict=True)]
        return {
            "p50": quantile(self.wall, 0.5),
            "p99": quantile(self.wall, 0.99),
            "max": max(self.wall),
            "p50 less waiting": quantile(own, 0.5),
            "p99 less waiting": quantile(own, 0.99),
            "API's CPU": self.cpu / len(self.wall),
            "scheduler's CPU": self.scheduler_cpu / len(self.wall),
            "unanswered": self.empty,
        }


def main() -> None:
    options = _options()
    with scratch_database(options.database) as url:
        if url:
            os.environ["TRAINMASTER_DATABASE_URL"] = url
        with embedded_platform() as platform:
            engine = make_engine(url or f"sqlite:///{platform.home / 'trainmaster.sqlite3'}")
            sessions = make_sessions(engine)
            found: dict[str, list[dict[str, float]]] = {}
            for turn in range(options.rounds):
                for finished in options.asked:
                    for way in options.ways:
                        study = add_study(
                            sessions,
                            datetime.now(UTC),
                            f"{way}-{finished}-{turn}",
                            finished,
                            template=False,
                            parallel=BURST,
                        )
                        figures = asyncio.run(ask(platform, study, way, options))
                        found.setdefault(f"{way}, {finished:,} trials over", []).append(figures.line())
                        if not options.json:
                            tell(f"{way}, {finished:,} over", figures.line())
            engine.dispose()
    load = " ".join(f"{average:.1f}" for average in os.getloadavg())
    summary = {
        name: {key: statistics.median(line[key] for line in lines) for key in lines[0]} for name, lines in found.items()
    }
    if options.json:
        print(json.dumps({"figures": summary, "rounds": options.rounds, "asks": options.asks, "load": load}, indent=2))
    else:
        print(f"medians of {options.rounds} rounds of {options.asks} questions; load {load}:")
        for name, line in summary.items():
            tell(name, line)
    for finished in options.asked if not options.json else ():
        by_optuna(finished, 50)


async def ask(platform: Embedded, study: str, way: str, options: argparse.Namespace) -> Figures:
    """Ask ``options.asks`` times; what each question took."""
    port = int(platform.url.rsplit(":", 1)[1])
    lines = [Line(*await asyncio.open_connection("127.0.0.1", port), platform.token) for _ in range(BURST)]
    (api,) = pids_of(platform, "api")
    (scheduler,) = pids_of(platform, "scheduler")
    path = f"/api/v1/studies/{study}"
    figures = Figures()
    first = await lines[0].post(
        f"{path}/suggestions", {"count": 1}
    )  # the first points of the study are drawn meanwhile
    number = first["trials"][0]["number"]
    # A connection's first request pays for it, and the first ones at once for the server's own to its database.
    for _ in range(3):
        await asyncio.gather(*(line.post(f"{path}/trials/{number}/heartbeat", {}) for line in lines))
    await lines[0].post(f"{path}/trials/{number}/complete", {"result": {"score": 0.5}})
    opened: deque[int] = deque()
    await asyncio.sleep(2.0)
    count = BURST if way == "bursts" else 1
    drawn = spent(scheduler)[0]
    next_s = time.perf_counter()
    for _ in range(options.asks // count):
        next_s += count / options.rate
        before, own = spent(api), spent(os.getpid())
        waits = await asyncio.gather(*(timed(line, f"{path}/suggestions") for line in lines[:count]))
        after, lacked = spent(api), spent(os.getpid())[1] - own[1]
        figures.cpu += after[0] - before[0]
        for wall, answer in waits:
            figures.wall.append(wall)
            figures.waited.append(after[1] - before[1] + lacked)
            figures.empty += not answer["trials"]
            opened += [trial["number"] for trial in answer["trials"]]
        most = 0 if way == "bursts" else OPEN
        while len(opened) > most:
            await asyncio.sleep(0.02)
            await lines[0].post(f"{path}/trials/{opened.popleft()}/complete", {"result": {"score": random.random()}})
        await asyncio.sleep(max(0.0, next_s - time.perf_counter()))
    figures.scheduler_cpu = spent(scheduler)[0] - drawn
    for line in lines:
        line.writer.close()
    return figures


async def timed(line: Line, path: str) -> tuple[float, Any]:
    begin = time.perf_counter()
    answer = await line.post(path, {"count": 1})
    return 1000 * (time.perf_counter() - begin), answer


class Line:
    """One connection that is kept open, without what a client library would add."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> None:
        self.reader, self.writer, self.token = reader, writer, token

    async def post(self, path: str, body: Any) -> Any:
        payload = json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {self.token}\r\nAccept-Encoding: "
            "identity\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
        )
        self.writer.write(head.encode() + payload)
        answer = await self.reader.readuntil(b"\r\n\r\n")
        length = next(int(line[15:]) for line in answer.split(b"\r\n") if line.lower().startswith(b"content-length"))
        body = await self.reader.readexactly(length)
        if answer[9:10] != b"2":
            sys.exit(f"{path}: {body.decode()}")
        return json.loads(body)


def spent(pid: int) -> tuple[float, float]:
    """Milliseconds that its threads had a processor, and waited for one."""
    ran = waited = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            running_ms, lacked, _ = (thread / "schedstat").read_text().split()
        except OSError:
            continue  # it has just ended
        ran, waited = ran + int(running_ms), waited + int(lacked)
    return ran / 1e6, waited / 1e6


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def tell(name: str, line: dict[str, float]) -> None:
    print(f"{name:>28}: " + ", ".join(f"{key} {value:.1f}" for key, value in line.items()), flush=True)


@contextmanager
def scratch_database(server: str) -> Iterator[str]:
    """The URL of a new, empty database on the server, dropped at the end; without a server, empty."""
    if not server:
        yield ""
        return
    url = make_url(server).set(drivername="postgresql+psycopg")
    name = f"bench_{uuid4().hex[:12]}"
    maintenance = create_engine(url, isolation_level="AUTOCOMMIT")
    with maintenance.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    try:
        yield make_url(server).set(database=name).render_as_string(hide_password=False)
    finally:
        with maintenance.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        maintenance.dispose()


def _options() -> argparse.Namespace:
    parser = command_line(__doc__, rounds=1)
    parser.add_argument("--database", default=os.environ.get("TRAINMASTER_TEST_DATABASE_URL", ""), help="empty: SQLite")
    parser.add_argument("--asks", type=int, default=1000)
    parser.add_argument("--asked", type=int, nargs="*", default=[100, 1_000, 10_000])
    parser.add_argument("--ways", nargs="*", choices=("paced", "bursts"), default=["paced", "bursts"])
    parser.add_argument("--rate", type=float, default=8.0, help="questions a second")
    return parser.parse_args()


if __name__ == "__main__":
    main()
