"""The main job, watched: a platform on this machine, and two distributed training jobs through it.

    python3 dev.py demo            # in a throwaway folder, everything is stopped at the end
    python3 dev.py demo --keep     # leaves the platform up, to look around

The exit code is 0 when both jobs succeeded with at least 95 % accuracy.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from data.make_digits import make_digits
from rich.console import Console, Group
from rich.markup import escape
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text
from trainmaster import Client
from trainmaster.client import RetryPolicy
from trainmaster.errors import TrainmasterError
from trainmaster.wire.jobs import CheckpointView, EventView, LogLine

EXAMPLES = Path(__file__).resolve().parent
ROOT = EXAMPLES.parent
TARGET_ACCURACY = 0.95
READY_WITHIN_S = 90.0
COLOURS = {"worker": ("cyan", "green", "blue", "bright_cyan"), "ps": ("magenta", "bright_magenta")}
MARKS = {"succeeded": "[green]✓[/]", "failed": "[red]✗[/]", "cancelled": "[magenta]⊘[/]"}

console = Console(highlight=False, emoji=False)


class DemoFailed(Exception):
    """The demo cannot go on; the message is for the person who started it."""


@dataclass
class Platform:
    """A running platform. ``is_started_here``: this demo started it."""

    home: Path
    url: str
    token: str
    login_url: str | None
    is_started_here: bool


@dataclass
class Outcome:
    """All that the end of the demo tells of one job."""

    title: str
    name: str
    state: str
    sentence: str | None
    result: dict[str, Any] = field(default_factory=dict)
    attempts: int = 0
    output: str = ""
    wall_s: float = 0.0
    checkpoints: Sequence[CheckpointView] = ()
    events: Sequence[EventView] = ()

    @property
    def accuracy(self) -> float | None:
        return self.result.get("accuracy")

    @property
    def is_accurate(self) -> bool:
        return self.state == "succeeded" and self.accuracy is not None and self.accuracy >= TARGET_ACCURACY


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, help="data folder of the platform; unstated: a throwaway one")
    parser.add_argument("--keep", action="store_true", help="leave the platform up")
    options = parser.parse_args()
    home = (options.home or Path(tempfile.mkdtemp(prefix="trainmaster-demo-"))).expanduser().absolute()
    is_throwaway = options.home is None and not options.keep
    try:
        with platform(home, keep=options.keep) as running:
            outcomes = train_jobs(running)
            for outcome in outcomes:
                console.print(report(outcome))
            show_tour(running, outcomes, stays=options.keep or not running.is_started_here)
    except (DemoFailed, TrainmasterError) as error:
        console.print(f"\n[red]✗[/] {escape(str(error))}")
        return 1
    except KeyboardInterrupt:
        console.print("\nStopped.")
        return 130
    finally:
        if is_throwaway:
            shutil.rmtree(home, ignore_errors=True)
    return 0 if all(outcome.is_accurate for outcome in outcomes) else 1


# --- the platform ---------------------------------------------------------------------------------------------------


@contextmanager
def platform(home: Path, *, keep: bool) -> Iterator[Platform]:
    """The platform of ``home``: the one that runs already, or one that is started, and stopped at the end."""
    step("Starting a platform", f"API, scheduler and executor as processes of this machine; all it keeps is in {home}.")
    running = find_running(home)
    if running is not None:
        console.print(f"  One runs already, at {running.url}; it is used and left as it is.")
        yield running
        return
    started_s = time.monotonic()
    running = start(home)
    console.print(f"  Ready at [bold]{running.url}[/] after {time.monotonic() - started_s:.1f} s.")
    try:
        yield running
    except BaseException:
        stop(home)
        raise
    if not keep:
        stop(home)


def find_running(home: Path) -> Platform | None:
    try:
        up = json.loads((home / "up.json").read_text())
        token = (home / "token").read_text().strip()
        with Client(up["url"], token, retry=RetryPolicy(tries=1)) as client:
            client.get_me()
    except (OSError, ValueError, KeyError, TrainmasterError):
        return None
    return Platform(home, up["url"], token, up.get("login_url"), is_started_here=False)


def start(home: Path) -> Platform:
    """The same as ``trainmaster up``, in the background."""
    home.mkdir(parents=True, exist_ok=True)
    log = home / "demo-up.log"
    # The jobs' `python` is this one, wherever the demo was started from.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    command = [sys.executable, "-m", "embedded", "up", "--home", str(home), "--host", "127.0.0.1", "--port", "0"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, "PATH": path}, stdout=output, stderr=output, start_new_session=True
        )
    deadline_s = time.monotonic() + READY_WITHIN_S
    # A file of an earlier platform, which was killed, may lie there still.
    while (up := read_up(home)) is None or up.get("pid") != process.pid:
        if process.poll() is not None or time.monotonic() > deadline_s:
            process.terminate()
            raise DemoFailed(f"The platform did not start: {last_line(log)} (logs in {home / 'logs'})")
        time.sleep(0.05)
    return Platform(home, up["url"], (home / "token").read_text().strip(), up.get("login_url"), is_started_here=True)


def read_up(home: Path) -> dict[str, Any] | None:
    """What the platform of ``home`` tells of itself; ``None`` while it tells nothing whole."""
    try:
        up = json.loads((home / "up.json").read_text())
    except (OSError, ValueError):
        return None
    return up if isinstance(up, dict) else None


def stop(home: Path) -> None:
    command = [sys.executable, "-m", "embedded", "down", "--home", str(home), "--jobs", "cancel"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        console.print(f"[yellow]![/] {escape(done.stderr.strip())}")


def last_line(file: Path) -> str:
    lines = [line for line in file.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


# --- the jobs -------------------------------------------------------------------------------------------------------


def train_jobs(running: Platform) -> list[Outcome]:
    step(
        "Making the data", "scikit-learn's handwritten digits as files in the volume `data`, which every platform has."
    )
    train, test = make_digits(running.home / "data" / "digits")
    console.print(f"  {train} images to train on and {test} to test with, in data/digits.")
    with Client(running.url, running.token) as client:
        return [
            train_example(
                client,
                "allreduce",
                "Training with allreduce",
                "Two workers hold the whole model; torch's DistributedDataParallel averages their gradients (gloo).",
            ),
            train_example(
                client,
                "parameter_server",
                "Training with a parameter server",
                "One ps holds the parameters; two workers pull them and push gradients, none waits for the other.",
            ),
        ]


def train_example(client: Client, folder: str, title: str, explanation: str) -> Outcome:
    step(title, explanation)
    code = EXAMPLES / folder
    job = client.submit(code / "job.yaml", code=code)
    submitted_s = time.monotonic()
    console.print(f"  Submitted [bold]{job.name}[/] ({job.id}) with the code in examples/{folder}.\n")
    for item in client.watch_job(job.id):
        if isinstance(item, LogLine):
            console.print(log_line(item), soft_wrap=True)
        else:
            console.print(f"  [dim]{time.monotonic() - submitted_s:5.1f} s  job {item.state}[/]")
    detail = job.wait(timeout_s=60)
    wall_s = time.monotonic() - submitted_s
    try:
        result = json.loads(job.read_file("result.json"))
    except (TrainmasterError, ValueError):
        result = {}
    return Outcome(
        title=title,
        name=job.name,
        state=detail.state,
        sentence=detail.exit.sentence if detail.exit else None,
        result=result,
        attempts=detail.attempt_count,
        output=detail.output,
        wall_s=wall_s,
        checkpoints=list(job.checkpoints()),
        events=list(job.events()),
    )


def log_line(line: LogLine) -> Text:
    colours = COLOURS.get(line.role, ("white",))
    name = f"{line.role}-{line.index}"
    return Text.assemble("  ", (f"{name:>8}", colours[line.index % len(colours)]), (" │ ", "dim"), line.text)


# --- what the newcomer reads ----------------------------------------------------------------------------------------


def step(title: str, explanation: str) -> None:
    console.print()
    console.rule(f"[bold]{title}[/]", align="left")
    console.print(f"  [dim]{escape(explanation)}[/]")


def report(outcome: Outcome) -> Padding:
    """State, accuracy, checkpoints and time line of a job."""
    head = Table.grid(padding=(0, 2))
    head.add_row("job", f"[bold]{outcome.name}[/], output in {outcome.output}")
    head.add_row("state", f"{MARKS.get(outcome.state, '•')} {outcome.state} after {outcome.wall_s:.1f} s")
    if outcome.sentence and outcome.state != "succeeded":
        head.add_row("why", escape(outcome.sentence))
    accuracy = "unknown" if outcome.accuracy is None else f"{outcome.accuracy:.2%} of the test images read right"
    is_enough = outcome.accuracy is not None and outcome.accuracy >= TARGET_ACCURACY
    head.add_row("accuracy", f"[{'green' if is_enough else 'red'}]{accuracy}[/] (wanted: {TARGET_ACCURACY:.0%})")
    head.add_row("attempts", str(outcome.attempts))
    body = Group(
        head,
        Text("\nCheckpoints", "bold"),
        checkpoint_table(outcome.checkpoints),
        Text("\nTime line", "bold"),
        time_line(outcome.events),
    )
    colour = "green" if outcome.is_accurate else "red"
    return Padding(Panel(body, title=outcome.title, title_align="left", border_style=colour), (1, 0, 0, 0))


def checkpoint_table(checkpoints: Sequence[CheckpointView]) -> Table | Text:
    if not checkpoints:
        return Text("  none", "dim")
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("step", justify="right")
    table.add_column("size", justify="right")
    table.add_column("path", no_wrap=True)
    table.add_column("metrics")
    for found in sorted(checkpoints, key=lambda found: found.step or 0):
        size = "–" if found.size_bytes is None else f"{found.size_bytes / 1024:.0f} KiB"
        metrics = ", ".join(f"{name} {value:.3g}" for name, value in found.metrics.items() if isinstance(value, float))
        table.add_row(str(found.step), size, found.path, metrics)
    return table


def time_line(events: Sequence[EventView]) -> Table:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("event", no_wrap=True)
    table.add_column("what")
    for event in events:
        after_s = (event.at - events[0].at).total_seconds()
        table.add_row(f"+{after_s:.2f} s", event.kind, Text(event.reason or f"by {event.actor}"))
    return table


def show_tour(running: Platform, outcomes: Sequence[Outcome], *, stays: bool) -> None:
    step("Looking at it by hand", "The platform stays up." if stays else "The platform is stopped now.")
    if not stays:
        console.print("  [bold]python3 dev.py demo --keep[/] leaves it up and says how to look around.")
        console.print("  [bold]examples/README.md[/] shows how to run each example, and your own code, yourself.")
        return
    first = outcomes[0]
    lines = [
        f". {Path(sys.executable).parent}/activate",
        f"export TRAINMASTER_HOME={running.home}",
        "trainmaster list",
        f"trainmaster show {first.name}        # replicas, checkpoints, how it ended",
        f"trainmaster logs {first.name}",
        f"trainmaster events {first.name}",
        f"trainmaster cp {first.name}:checkpoints ./checkpoints",
        "trainmaster down            # when you have seen enough",
    ]
    for line in lines:
        command, _, comment = line.partition("#")
        console.print(
            Text.assemble("  ", (command, "bold"), (f"# {comment.strip()}" if comment else "", "dim")), soft_wrap=True
        )
    if running.login_url:
        console.print(f"\n  In a browser (the link works once): {running.login_url}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
