"""From a job's print to a client that follows its log by server-sent events, at a steady rate of bytes.

A job on an embedded platform of its own prints lines that carry their time, ``--rate`` MB a second; a client follows
over HTTP and compares each line's time with when it came. What each part computes for a MB hangs less on what else runs
than the times.

    python3 dev.py bench log_follow [--rate 4] [--seconds 20] [--rounds 3]
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.support.embedded import Embedded, command_line, cpu_s, embedded_platform, pids_of, show

LINE_BYTES = 100
PRINTER = f"""
import os, time
rate, seconds = {{rate}} * 1e6, {{seconds}}
started = time.time()
sent = 0
while time.time() - started < seconds:
    due = int((time.time() - started) * rate) - sent
    count = max(0, due // {LINE_BYTES})
    if count:
        line = ("at=%.6f " % time.time()).ljust({LINE_BYTES} - 1, "x") + "\\n"
        data = line.encode() * count
        while data:
            data = data[os.write(1, data):]
        sent += count * {LINE_BYTES}
    time.sleep(0.01)
print("sent=%d" % sent, flush=True)
"""


def parse() -> argparse.Namespace:
    parser = command_line(__doc__, rounds=3)
    parser.add_argument("--rate", type=float, default=4.0, help="MB a second")
    parser.add_argument("--seconds", type=float, default=20.0)
    return parser.parse_args()


def ask(running: Embedded, method: str, path: str, body: Any = None) -> http.client.HTTPResponse:
    parts = urlsplit(running.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=120)
    headers = {"Authorization": f"Bearer {running.token}", "Content-Type": "application/json"}
    connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
    answer = connection.getresponse()
    if answer.status >= 300:
        sys.exit(f"{method} {path}: {answer.status} {answer.read(500)!r}")
    return answer


def runtime_of(running: Embedded) -> int:
    """The process beside the job's own, which keeps its log."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            if b"trainmaster_runtime" in words and bytes(running.home) in words:
                return int(entry.name)
    sys.exit("the job has no runtime")


def follow(running: Embedded, rate: float, seconds: float) -> tuple[list[float], float, dict[str, float]]:
    """Each line's seconds from the print to here, the MB a second that came, and CPU seconds for a MB."""
    printer = PRINTER.format(rate=rate, seconds=seconds)
    spec = {"name": "talks", "command": ["python3", "-u", "-c", printer]}
    job = json.loads(ask(running, "POST", "/api/v1/jobs", {"spec": spec}).read())["id"]
    stream = ask(running, "GET", f"/api/v1/jobs/{job}/logs/stream?follow=true")
    delays: list[float] = []
    (api,) = pids_of(running, "api")
    cpu = {"runtime": 0.0, "API": -cpu_s(api), "client": -time.process_time()}
    runtime, looked_at = 0, 0.0
    sent = 0
    first = last = 0.0
    for raw in stream:
        now = time.time()
        place = raw.find(b'"text":"at=') if raw.startswith(b"data:") else -1
        if place >= 0:
            delays.append(now - float(raw[place + 11 : place + 28]))
            first, last = first or now, now
            if now - looked_at > 0.5:  # it ends with the job
                runtime, looked_at = runtime or runtime_of(running), now
                with suppress(OSError):
                    cpu["runtime"] = cpu_s(runtime)
        elif b'"text":"sent=' in raw:
            sent = int(raw.partition(b'"text":"sent=')[2].split(b'"')[0])
        elif raw.startswith(b"event: end"):
            break
    if sent != len(delays) * LINE_BYTES:
        sys.exit(f"{len(delays)} lines came of {sent // LINE_BYTES}")
    cpu["API"] += cpu_s(api)
    cpu["client"] += time.process_time()
    return delays, sent / (last - first) / 1e6, {part: spent / (sent / 1e6) for part, spent in cpu.items()}


def main() -> None:
    options = parse()
    rows: dict[str, list[float]] = {"median line": [], "p99 line": [], "slowest line": []}
    rates = []
    parts: dict[str, list[float]] = {}
    with embedded_platform() as running:
        for _ in range(options.rounds):
            delays, rate, cpu = follow(running, options.rate, options.seconds)
            for part, spent in cpu.items():
                parts.setdefault(part, []).append(spent)
            delays.sort()
            rates.append(round(rate, 2))
            rows["median line"].append(delays[len(delays) // 2])
            rows["p99 line"].append(delays[int(len(delays) * 0.99)])
            rows["slowest line"].append(delays[-1])
    verdict = {
        "rates_MB_per_s": ", ".join(map(str, rates)),
        "CPU_ms_per_MB": {
            part: ", ".join(f"{1000 * milliseconds:.0f}" for milliseconds in spent) for part, spent in parts.items()
        },
        "goal": f"{options.rate:g} MB/s, every line within 1 s",
    }
    show("From a job's print to a follower", rows, verdict, as_json=options.json)


if __name__ == "__main__":
    main()
