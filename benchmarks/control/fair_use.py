"""What other users notice while one token opens streams without end and sends halves of bodies.

Starts the platform in a temporary home, with a job that prints all the time. A user of another project asks for its own
identity (``GET /me``) every 20 ms: alone, then while another user's program opens ``--streams`` log streams and leaves
``--bodies`` bodies unfinished. Quoted: the median of the rounds' 99th percentiles, and their ratio.

    python3 dev.py bench fair_use
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from trainmaster import Client

from benchmarks.control.api_load import request, request_bytes

EVERY_S = 0.02
# Until the kernel has closed what the round before left.
_PAUSE_S = 5.0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=5_000)
    parser.add_argument("--bodies", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rounds", type=int, default=3)
    # The process that does so, started by this one.
    parser.add_argument("--load", nargs=3, metavar=("PORT", "TOKEN", "JOB"), help=argparse.SUPPRESS)
    return parser.parse_args()


async def open_all(port: int, token: str, job: str, options: argparse.Namespace) -> None:
    """Open everything, say so on stdout, and hold it until stdin ends."""
    statuses: Counter[str] = Counter()
    writers = []
    stream = request_bytes("bench", token, "GET", f"/api/v1/jobs/{job}/logs/stream?follow=true")
    half = request_bytes("bench", token, "POST", "/api/v1/jobs", {"spec": {"name": "half"}})[:-4]

    async def read(reader: asyncio.StreamReader, kind: str) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        statuses[f"{kind} {head[9:12].decode()}"] += 1
        while await reader.read(2**16):
            pass

    readers = []
    for kind, payload, count in (("stream", stream, options.streams), ("body", half, options.bodies)):
        for _ in range(count):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(payload)
            writers.append(writer)
            readers.append(asyncio.create_task(read(reader, kind)))
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(json.dumps(statuses), flush=True)
    for task in readers:
        task.cancel()


async def p99_ms(port: int, token: str, seconds: float) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    payload = request_bytes("bench", token, "GET", "/api/v1/me")
    times = []
    await request(reader, writer, payload)  # the first one asks the database who it is
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        status, latency_s = await request(reader, writer, payload)
        if status != 200:
            sys.exit(f"GET /me: {status}")
        times.append(latency_s)
        await asyncio.sleep(EVERY_S)
    writer.close()
    return sorted(times)[int(len(times) * 0.99)] * 1000


def main() -> None:
    options = parse()
    if options.load:
        port, token, job = options.load
        asyncio.run(open_all(int(port), token, job, options))
        return
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        platform = subprocess.Popen([sys.executable, "-m", "embedded", "up", "--home", folder, "--port", "0"])
        try:
            while not (home / "up.json").exists():
                if platform.poll() is not None:
                    sys.exit("the platform did not start")
                time.sleep(0.1)
            url = json.loads((home / "up.json").read_text())["url"]
            token = (home / "token").read_text().strip()
            port = int(url.rsplit(":", 1)[1])
            with Client(url, token=token) as client:
                client.create_user("other")
                other = client.create_token(user="other", name="bench").token
                command = "i=0; while true; do echo step $i loss 0.5; i=$((i+1)); sleep 0.01; done"
                job = client.submit({"name": "prints", "command": ["sh", "-c", command], "max_restarts": 0})
                while not list(job.logs()):
                    time.sleep(0.2)
                idle, loaded = [], []
                for number in range(options.rounds):
                    time.sleep(_PAUSE_S)
                    idle.append(asyncio.run(p99_ms(port, other, options.seconds)))
                    loader = subprocess.Popen(
                        [sys.executable, "-m", "benchmarks.control.fair_use", "--streams", str(options.streams),
                         "--bodies", str(options.bodies), "--load", str(port), token, job.id],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                    )  # fmt: skip
                    assert loader.stdin is not None
                    assert loader.stdout is not None
                    loaded.append(asyncio.run(p99_ms(port, other, options.seconds)))
                    loader.stdout.readline()
                    loader.stdin.close()
                    print(f"round {number + 1}: idle {idle[-1]:.1f} ms, loaded {loaded[-1]:.1f} ms,", end=" ")
                    print(loader.stdout.read().strip(), flush=True)
                    loader.wait(60)
                job.cancel()
        finally:
            platform.terminate()
            platform.wait(60)
    quiet, loud = statistics.median(idle), statistics.median(loaded)
    print(f"p99 of another user's GET /me: {quiet:.1f} ms alone, {loud:.1f} ms meanwhile, {loud / quiet:.1f} ×")


if __name__ == "__main__":
    main()
