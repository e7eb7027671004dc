"""Deliveries of webhooks while processes are killed: each arrives at least once, in order for each object.

A platform of its own runs, with its API and its scheduler. 10,000 events are written, 50 of each of 200 objects, as the
platform writes them. While they are delivered to an endpoint on this machine, the API and the scheduler are killed by
turns with SIGKILL.

    python -m benchmarks.control.webhook_kills --events 10000 --kills 20
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sqlalchemy import func, select
from trainmaster import Client

from benchmarks.support.embedded import Embedded, embedded_platform, pids_of, wait_for
from core.db.engine import SessionFactory, make_engine, make_sessions, unit_of_work
from core.db.repositories.events import append_events, event_row
from core.db.tables import OutboxEvent, Project, WebhookDelivery

OBJECTS = 200
ANSWER_S = 0.003  # of the endpoint
WITHIN_S = 900.0


class Receiver:
    """Counts what arrives; ``first`` has the numbers of events of each object in order of their first arrival."""

    def __init__(self) -> None:
        self.count = 0
        self.first: dict[str, dict[int, None]] = {}
        self._lock = threading.Lock()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                message = json.loads(self.rfile.read(int(self.headers["content-length"])))
                time.sleep(ANSWER_S)
                receiver.note(message["data"]["job"]["id"], message["data"]["details"]["number"])
                self.send_response(204)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def note(self, key: str, number: int) -> None:
        with self._lock:
            self.count += 1
            self.first.setdefault(key, {})[number] = None


def write_events(sessions: SessionFactory, count: int) -> None:
    """By turns of the objects; 500 in a transaction."""
    with unit_of_work(sessions, read_only=True) as session:
        project_id = session.execute(select(Project.id).where(Project.name == "default")).scalar_one()
    for begin in range(0, count, 500):
        rows = [
            event_row(
                at=datetime.now(UTC),
                kind="job.delayed",
                actor="benchmark",
                project_id=project_id,
                job_id=f"job-bench-{number % OBJECTS}",
                data={"number": number},
            )
            for number in range(begin, min(begin + 500, count))
        ]
        with unit_of_work(sessions) as session:
            append_events(session, rows)


def kill_by_turns(running: Embedded, kills: int, is_done: threading.Event) -> dict[str, int]:
    """Kill one process after another, each as soon as its successor runs; returns how many of each."""
    killed = {"scheduler": 0, "api": 0}
    while sum(killed.values()) < kills and not is_done.is_set():
        name = min(killed, key=lambda each: killed[each])
        time.sleep(random.uniform(0.5, 1.5))
        pids = wait_for(lambda name=name: pids_of(running, name), f"no {name} runs")
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        killed[name] += 1
    return killed


def measure(running: Embedded, options: argparse.Namespace) -> dict[str, Any]:
    receiver = Receiver()
    url = os.environ.get("TRAINMASTER_DATABASE_URL") or f"sqlite:///{running.home / 'trainmaster.sqlite3'}"
    sessions = make_sessions(make_engine(url))
    with Client(running.url, running.token) as client:
        webhook = client.create_webhook(
            f"http://127.0.0.1:{receiver.server.server_port}/", ["job.delayed"], project="default"
        )
    begin_s = time.monotonic()
    write_events(sessions, options.events)
    is_done = threading.Event()
    result: dict[str, Any] = {}
    killer = threading.Thread(target=lambda: result.update(kill_by_turns(running, options.kills, is_done)))
    killer.start()

    def states() -> dict[str, int]:
        query = select(WebhookDelivery.state, func.count()).group_by(WebhookDelivery.state)
        with unit_of_work(sessions, read_only=True) as session:
            found: dict[str, int] = {row[0]: row[1] for row in session.execute(query)}
            found["outbox"] = session.execute(select(func.count()).select_from(OutboxEvent)).scalar_one()
        return found

    def is_over() -> bool:
        time.sleep(0.2)
        return states() == {"delivered": options.events, "outbox": 0}

    wait_for(is_over, f"all delivered to {webhook.id}", WITHIN_S)
    is_done.set()
    killer.join()
    arrived = sum(len(numbers) for numbers in receiver.first.values())
    return {
        "events": options.events,
        "killed": result,
        "lost": options.events - arrived,
        "objects out of order": sum(list(numbers) != sorted(numbers) for numbers in receiver.first.values()),
        "sent twice": receiver.count - arrived,
        "seconds": round(time.monotonic() - begin_s, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    os.environ["TRAINMASTER_OUTBOUND_NETWORKS"] = "127.0.0.0/8"
    with embedded_platform() as running:
        figures = measure(running, options)
    print(json.dumps(figures, indent=2) if options.json else "\n".join(f"{k}: {v}" for k, v in figures.items()))
    sys.exit(1 if figures["lost"] or figures["objects out of order"] else 0)


if __name__ == "__main__":
    main()
