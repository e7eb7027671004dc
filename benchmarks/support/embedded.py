"""What the benchmarks over a running platform share: the platform itself, options, and figures as a table or JSON."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainmaster import Job

ROOT = Path(__file__).resolve().parents[2]
READY_WITHIN_S = 90.0


@dataclass(frozen=True)
class Embedded:
    home: Path
    url: str
    token: str


@contextmanager
def embedded_platform(host: str = "127.0.0.1", env: Mapping[str, str] | None = None) -> Iterator[Embedded]:
    """A platform in a folder of its own, gone at the end. ``env`` is laid over this process's environment."""
    home = Path(tempfile.mkdtemp(prefix="trainmaster-bench-"))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    command = [sys.executable, "-m", "embedded", "up", "--home", str(home), "--host", host, "--port", "0"]
    with (home / "up.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "PATH": path, **(env or {})}, stdout=log, stderr=log
        )
    try:
        deadline_s = time.monotonic() + READY_WITHIN_S
        while not (home / "up.json").exists():
            if process.poll() is not None or time.monotonic() > deadline_s:
                sys.exit(f"the platform did not start: {(home / 'up.log').read_text()[-2000:]}")
            time.sleep(0.05)
        up = json.loads((home / "up.json").read_text())
        yield Embedded(home, up["url"], (home / "token").read_text().strip())
    finally:
        down = [sys.executable, "-m", "embedded", "down", "--home", str(home), "--jobs", "cancel"]
        subprocess.run(down, cwd=ROOT, capture_output=True, check=False, timeout=180)
        process.terminate()
        process.wait(60)
        shutil.rmtree(home, ignore_errors=True)


def pids_of(running: Embedded, module: str) -> list[int]:
    """The platform's processes that were started as ``python -m <module>``, without those that they forked."""
    found = []
    mark = f"TRAINMASTER_HOME={running.home}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                is_child = mark in (entry / "environ").read_bytes().split(b"\0")
                is_leader = os.getsid(int(entry.name)) == int(entry.name)  # the supervisor gives each its session
                if is_child and is_leader and words[1:3] == [b"-m", module.encode()]:
                    found.append(int(entry.name))
    return found


def cpu_s(pid: int) -> float:
    """User and system time of the process and its threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for(condition: Any, what: str, within_s: float = 120.0) -> Any:
    """The first true value of ``condition()``; the benchmark ends when there is none in time."""
    deadline_s = time.monotonic() + within_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline_s:
            sys.exit(f"not within {within_s:.0f} s: {what}")
        time.sleep(0.01)


def run_to_end(job: Job, within_s: float) -> None:
    """Wait until the job has succeeded; the benchmark ends if it does not."""
    job.wait(timeout_s=within_s)
    if not job.has_succeeded:
        sys.exit(f"the job {job.state}: {job.exit.sentence if job.exit else ''}")


def command_line(doc: str | None, *, rounds: int) -> argparse.ArgumentParser:
    """The options of a benchmark with ``--rounds`` that prints a table or, with ``--json``, figures for programs."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json", action="store_true")
    return parser


def summary(values: Sequence[float]) -> dict[str, Any]:
    return {
        "median_s": round(statistics.median(values), 3),
        "min_s": round(min(values), 3),
        "max_s": round(max(values), 3),
        "rounds": len(values),
        "values_s": [round(value, 3) for value in values],
    }


def show(title: str, rows: Mapping[str, Sequence[float]], verdict: Mapping[str, Any], *, as_json: bool) -> None:
    """The figures for people, or for programs. ``verdict``: what the figures are held against."""
    if as_json:
        print(json.dumps({"title": title, "figures": {k: summary(v) for k, v in rows.items()}, **verdict}, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("", "median", "range", "rounds", title=title, title_justify="left")
    for name, values in rows.items():
        table.add_row(
            name, f"{statistics.median(values):.3f} s", f"{min(values):.3f} – {max(values):.3f} s", str(len(values))
        )
    console = Console(highlight=False)
    console.print(table)
    for name, value in verdict.items():
        lines = {name: value} if not isinstance(value, dict) else {f"{name}, {k}": v for k, v in value.items()}
        for label, figure in lines.items():
            console.print(f"  {label.replace('_', ' ')}: {figure}", soft_wrap=True)
