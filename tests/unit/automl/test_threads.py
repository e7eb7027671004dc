"""How many threads a trial's libraries start: trials side by side must not take all CPUs each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from trainmaster_automl.options import VARIABLE as OPTIONS_VARIABLE
from trainmaster_automl.options import TrialOptions, limit_threads, usable_cpus

ROOT = Path(__file__).parents[3]
CPUS = len(os.sched_getaffinity(0))


def options(**changes: Any) -> TrialOptions:
    return TrialOptions(kind="tabular", task="classification", metric="accuracy", data="", output="", **changes)


@pytest.mark.parametrize(
    ("changes", "bound"), [({"parallel": 2}, 4), ({"parallel": 16}, 1), ({}, 8), ({"parallel": 2, "is_final": True}, 8)]
)
def test_trials_side_by_side_share_the_cpus(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], bound: int
) -> None:
    monkeypatch.setattr("trainmaster_automl.options.usable_cpus", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    assert limit_threads(options(**changes)) == bound
    assert os.environ["OMP_NUM_THREADS"] == str(bound)


def test_threads_that_are_set_already_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert limit_threads(options(parallel=2)) is None
    assert os.environ["OMP_NUM_THREADS"] == "3"


def test_an_imported_torch_gets_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    class Torch:
        given = 0

        def set_num_threads(self, number: int) -> None:
            self.given = number

    torch = Torch()
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr("trainmaster_automl.options.usable_cpus", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", "")
    limit_threads(options(parallel=4))
    assert torch.given == 2


@pytest.mark.parametrize(
    ("own", "files", "usable"),
    [
        ("0::/a/b\n", {"a/cpu.max": "150000 100000", "a/b/cpu.max": "max 100000"}, 1),
        ("0::/\n", {"cpu.max": "50000 100000"}, 1),
        ("0::/a b\n", {}, CPUS),
        ("4:cpu,cpuacct:/x\n0::/\n", {"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
        ("4:cpu,cpuacct:/x\n", {"cpu/x/cpu.cfs_quota_us": "-1\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, CPUS),
        (None, {}, CPUS),
    ],
)
def test_a_quota_bounds_the_cpus(tmp_path: Path, own: str | None, files: dict[str, str], usable: int) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    if own is not None:
        (tmp_path / "own").write_text(own)
    assert usable_cpus(tmp_path, tmp_path / "own") == usable


def test_they_are_set_before_anything_is_imported_that_reads_them() -> None:
    """What has been imported when they are set, of a trial that then ends for want of data."""
    program = (
        "import sys, trainmaster_automl.__main__ as main\n"
        "limit = main.limit_threads\n"
        "def show(options):\n"
        "    print(sorted({'numpy', 'sklearn', 'torch'} & set(sys.modules)), limit(options) is not None)\n"
        "    sys.exit(0)\n"
        "main.limit_threads = show\n"
        "main.main()\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    own = {"kind": "tabular", "task": "classification", "metric": "accuracy", "parallel": 2}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60,
        env={**environment, "PYTHONPATH": str(ROOT / "worker_images" / "serving"), OPTIONS_VARIABLE: json.dumps(own)},
    )  # fmt: skip
    assert done.stdout == "[] True\n"
