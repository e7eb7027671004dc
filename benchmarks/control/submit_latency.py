"""Submit → first line of the user's code, against starting the same script by hand. Interleaved, on this machine.

    python3 dev.py bench submit_latency [--rounds 15] [--json]

The clock starts before the client's call and stops in the first line of the script, which writes the time down.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from trainmaster import Client

from benchmarks.support.embedded import command_line, embedded_platform, run_to_end, show

TARGET_S = 0.5  # at most this much more than by hand
SCRIPT = """import time; now = time.time()
import os, pathlib, sys
folder = os.environ.get("TRAINMASTER_OUTPUT_DIR") or sys.argv[1]
name = "first-line-" + os.environ.get("TRAINMASTER_INDEX", "0")
pathlib.Path(folder, name).write_text(repr(now))
"""


def main() -> None:
    options = command_line(__doc__, rounds=15).parse_args()
    rows: dict[str, list[float]] = {
        "by hand": [],
        "1 worker, no code to upload": [],
        "1 worker, code uploaded anew": [],
        "2 workers, the later one": [],
    }
    with embedded_platform() as running, Client(running.url, running.token) as client:
        for number in range(-1, options.rounds):  # the first round warms everything up and does not count
            found = (
                by_hand(),
                by_submit(client, workers=1),
                by_submit(client, workers=1, code=f"# round {number}\n"),
                by_submit(client, workers=2),
            )
            for values, seconds in zip(rows.values(), found, strict=True):
                if number >= 0:
                    values.append(seconds)
    medians = {name: statistics.median(values) for name, values in rows.items()}
    more = {name: median - medians["by hand"] for name, median in medians.items() if name != "by hand"}
    verdict = {
        "more_than_by_hand_s": {name: round(value, 3) for name, value in more.items()},
        "wanted_at_most_s": TARGET_S,
        "is_reached": all(value <= TARGET_S for value in more.values()),
    }
    show("Submit → first line of the user's code", rows, verdict, as_json=options.json)


def by_hand() -> float:
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "script.py")
        script.write_text(SCRIPT)
        started = time.time()
        subprocess.run([sys.executable, str(script), folder], check=True)
        return float(Path(folder, "first-line-0").read_text()) - started


def by_submit(client: Client, *, workers: int, code: str | None = None) -> float:
    """Seconds until all workers are in their first line. ``code``: what makes the uploaded folder a new one."""
    spec = {"name": "first-line", "workers": workers, "command": [sys.executable, "-c", SCRIPT], "max_restarts": 0}
    with tempfile.TemporaryDirectory() as folder:
        if code is not None:
            Path(folder, "script.py").write_text(SCRIPT + code)
            spec["command"] = [sys.executable, "script.py"]
        started = time.time()
        job = client.submit(spec, code=None if code is None else folder)
    run_to_end(job, 60)
    return max(float(job.read_file(f"first-line-{index}")) for index in range(workers)) - started


if __name__ == "__main__":
    main()
