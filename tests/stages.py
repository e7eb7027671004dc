"""Runs the tests stage by stage, the quickest first, and says at the end what passed and what could not be tried here.

``python3 dev.py test`` runs this: without an option all stages but the slow files, ``--quick`` the first stage alone,
``--all`` with the slow files, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which

ROOT = Path(__file__).resolve().parents[1]
# They take two thirds of the time of all tests; `--all` and CI run them.
SLOW = Path(__file__).with_name("slow_files.txt")
QUICK, ALL = "--quick", "--all"
# More workers than this wait for each other: the platforms that they start have several processes each.
MOST_WORKERS = 8


@dataclass(frozen=True)
class Stage:
    title: str
    paths: tuple[str, ...]
    without: tuple[str, ...] = ()
    workers_per_processor: int = 2  # most tests wait for processes that they start


# They start processes for nearly every test, or try each route with everybody's rights.
_LONGER_UNITS = ("tests/unit/train", "tests/unit/api_files")


STAGES = (
    Stage(
        "House rules, pure functions and protocols",
        ("tests/architecture", "tests/unit", "tests/simulation"),
        without=_LONGER_UNITS,
        workers_per_processor=1,
    ),
    Stage(
        "Training, rights, properties, database and control loop",
        (*_LONGER_UNITS, "tests/properties", "tests/integration", "tests/faults"),
    ),
    Stage("Executors: processes, Docker, Kubernetes", ("tests/contracts",)),
    Stage("The whole platform, and its pages in a browser", ("tests/e2e", "tests/web")),
)


@dataclass
class Verdict:
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    def add(self, other: Verdict) -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped

    def __str__(self) -> str:
        return f"{self.passed:,} passed, {len(self.failed):,} failed, {self.skipped.total():,} skipped"


def main(arguments: list[str]) -> int:
    if unknown := [word for word in arguments if word not in (QUICK, ALL)]:
        print(
            f"{unknown[0]}: unknown. usage: python3 dev.py test [{QUICK} | {ALL} | arguments of pytest]",
            file=sys.stderr,
        )
        return 2
    stages = STAGES[:1] if QUICK in arguments else STAGES
    slow = () if ALL in arguments else tuple(SLOW.read_text().split())
    began_s = time.monotonic()
    total, broken = Verdict(), False
    for number, stage in enumerate(stages, start=1):
        print(f"[{number}/{len(stages)}] {stage.title}", flush=True)
        stage_began_s = time.monotonic()
        code, verdict = run(stage, slow)
        print(f"[{number}/{len(stages)}] {verdict} in {time.monotonic() - stage_began_s:.0f} s\n", flush=True)
        total.add(verdict)
        broken = broken or code != 0
    for name in total.failed:
        print(f"FAILED {name}")
    for line in untried(total, slow, is_quick=QUICK in arguments):
        print(f"Not tried here: {line}")
    print(f"{total} in {(time.monotonic() - began_s) / 60:.1f} min")
    return 1 if broken else 0


def run(stage: Stage, slow: tuple[str, ...]) -> tuple[int, Verdict]:
    """pytest's exit code and what its report says."""
    workers = min(stage.workers_per_processor * (os.cpu_count() or 2), MOST_WORKERS)
    ignored = [f"--ignore={path}" for path in (*stage.without, *slow)]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        options = ["-q", "-r", "fE", "-n", str(max(2, workers)), "--dist", "loadgroup", f"--junit-xml={report}"]
        command = [sys.executable, "-m", "pytest", *options, *ignored, *stage.paths]
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        return code, read_report(report) if report.exists() else Verdict()


def read_report(report: Path) -> Verdict:
    """Counts of a JUnit XML file."""
    verdict = Verdict()
    for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 (pytest's own file)
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            verdict.failed.append(name)
        elif skipped is not None:
            verdict.skipped[(skipped.get("message") or "without a reason").removeprefix("Skipped: ")] += 1
        else:
            verdict.passed += 1
    return verdict


def untried(total: Verdict, slow: tuple[str, ...], *, is_quick: bool) -> list[str]:
    """One line for each kind of test that did not run, with what would make it run."""
    lines = [f"{count} tests: {reason}" for reason, count in total.skipped.most_common()]
    if not os.environ.get("TRAINMASTER_TEST_DATABASE_URL"):
        lines.append("PostgreSQL, instead of SQLite: TRAINMASTER_TEST_DATABASE_URL=postgresql://USER@HOST/DATABASE")
    if not os.environ.get("TRAINMASTER_TEST_REDIS_URL"):
        lines.append("Redis, instead of the embedded broker: TRAINMASTER_TEST_REDIS_URL=redis://HOST/0")
    if which("chromium") is None and not is_quick:
        lines.append("the pages in a browser: apt-get install chromium")
    if is_quick:
        lines.append("training, database, executors, the whole platform: python3 dev.py test")
    elif slow:
        lines.append(f"{len(slow)} files of slow tests (kill -9 under load, whole clusters): python3 dev.py test {ALL}")
        lines.append("scripts of TensorFlow, MXNet, JAX, XGBoost and other systems' clients: tests/frameworks")
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
