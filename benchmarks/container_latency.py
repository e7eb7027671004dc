"""Submit → first line of the user's code in a container, against starting the same container by hand. Interleaved.

    python3 dev.py bench container_latency [--engine docker] [--rounds 20] [--image python:3.11-slim] [--json]

The clock starts before the client's call and stops in the first line of the script, which writes the time down. Docker: by
hand is `docker run` with the same image, mount and user, on a network that exists; the platform also makes the attempt's
network. The runtime image is built from worker_images/runtime.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from _embedded import ROOT, embedded_platform, show
from trainmaster import Client

WANTED_S = 1.0  # at most this much more than by hand
SCRIPT = """import time; now = time.time()
import os, pathlib
name = "first-line-" + os.environ.get("TRAINMASTER_INDEX", "0")
pathlib.Path("/data/output", name).write_text(repr(now))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", choices=("docker",), default="docker")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--image", default="python:3.11-slim")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: dict[str, list[float]] = {"docker run": [], "1 worker": [], "2 workers, the later one": []}
    instance = f"bench-{uuid.uuid4().hex[:8]}"
    os.environ |= {
        "TRAINMASTER_EXECUTOR": options.engine,
        "TRAINMASTER_INSTANCE": instance,
        "TRAINMASTER_RUNTIME_IMAGE": build_runtime(),
        "TRAINMASTER_DEFAULT_IMAGE": options.image,
    }
    try:
        with embedded_platform() as running, Client(running.url, running.token) as client:
            for number in range(-1, options.rounds):  # the first round warms everything up and does not count
                found = (by_hand(options.image), by_submit(client, workers=1), by_submit(client, workers=2))
                for values, seconds in zip(rows.values(), found, strict=True):
                    if number >= 0:
                        values.append(seconds)
    finally:
        forget(instance)
    medians = {name: statistics.median(values) for name, values in rows.items()}
    more = {name: median - medians["docker run"] for name, median in medians.items() if name != "docker run"}
    verdict = {
        "more_than_by_hand_s": {name: round(value, 3) for name, value in more.items()},
        "wanted_at_most_s": WANTED_S,
        "is_reached": all(value <= WANTED_S for value in more.values()),
    }
    show("Submit → first line of the user's code in a container", rows, verdict, as_json=options.json)


def build_runtime() -> str:
    name = "trainmaster/runtime:bench"
    folder = str(ROOT / "worker_images" / "runtime")
    subprocess.run(["docker", "build", "-q", "--network", "host", "-t", name, folder], check=True, capture_output=True)
    return name


def forget(instance: str) -> None:
    """The marks of removed attempts, which the driver itself keeps for a day."""
    wanted = ["docker", "volume", "ls", "-q", "--filter", f"label=trainmaster/instance={instance}"]
    marks = subprocess.run(wanted, capture_output=True, text=True, check=True).stdout.split()
    if marks:
        subprocess.run(["docker", "volume", "rm", *marks], capture_output=True, check=False)


def by_hand(image: str) -> float:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        command = ["docker", "run", "--rm", "--user", "1000:1000", "-v", f"{folder}:/data/output", "-w", "/data"]
        started = time.time()
        subprocess.run([*command, image, "python", "-c", SCRIPT], check=True)
        return float(Path(folder, "first-line-0").read_text()) - started


def by_submit(client: Client, *, workers: int) -> float:
    """Seconds until all workers are in their first line."""
    spec = {"name": "first-line", "workers": workers, "command": ["python", "-c", SCRIPT], "max_restarts": 0}
    started = time.time()
    job = client.submit(spec)
    job.wait(timeout_s=120)
    if not job.has_succeeded:
        sys.exit(f"the job {job.state}: {job.exit.sentence if job.exit else ''}")
    return max(float(job.read_file(f"first-line-{index}")) for index in range(workers)) - started


if __name__ == "__main__":
    main()
