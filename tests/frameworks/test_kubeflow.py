"""Kubeflow's TrainerClient, unmodified: its functions train here, on one node and on several."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.conftest import SCRIPTS

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("frameworks"), pytest.mark.timeout(1500)]


def test_the_trainer_client_trains_here(platform: Any, python_of: Any, tmp_path: Path) -> None:
    pytest.importorskip("torch")  # of the platform's own Python, which the jobs run with
    python = python_of("kubeflow")
    printed = platform.cli("kubeflow-config")
    assert printed.returncode == 0, printed.stderr
    config = tmp_path / "kubeconfig"
    config.write_text(printed.stdout)
    ran = subprocess.run(
        [python, str(SCRIPTS / "kubeflow_client.py")],
        env={**os.environ, "KUBECONFIG": str(config)},
        capture_output=True,
        text=True,
        timeout=1400,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout)
    assert seen["warnings"] == []
    assert seen["runtimes"] == {"torch-distributed": "torch", "python-distributed": "python"}
    assert seen["runtime"] == "torch-distributed"

    # Each process adds twice its rank plus one; two nodes have two processes each.
    for name, nodes, processes, total in (("alone", 1, 1, 2.0), ("pair", 2, 2, 20.0)):
        trained = seen["trained"][name]
        assert (trained["status"], trained["nodes"], trained["runtime"]) == ("Complete", nodes, "torch-distributed")
        assert trained["steps"] == [
            {"name": f"node-{node}", "status": "Succeeded", "device": "cpu", "devices": str(processes)}
            for node in range(nodes)
        ]
        world = nodes * processes
        output = {line for log in trained["logs"].values() for line in log if line.startswith("rank ")}
        assert output == {
            f"rank {rank} of {world}: {total} 'quoted' a name of the function's own" for rank in range(world)
        }
        for node in range(nodes):
            assert f"node {node}" in trained["logs"][f"node-{node}"]
        assert trained["followed"] == trained["logs"]["node-0"]
        reported = [reason for kind, reason in trained["events"] if kind == "TrainJob"]
        assert reported[0] == "JobQueued"
        assert reported[-1] == "JobSucceeded"

    assert {"alone", "pair"} <= {*seen["listed"]}
    assert seen["again"].startswith("409 Status AlreadyExists: ")
    assert seen["broken"] == "Failed"
    assert seen["traceback"] == "ValueError: no such learning rate"
    assert seen["asleep"] == "asleep"
    assert {"broken", "pair"} <= {*seen["left"]}
    assert not {"alone", "sleeper"} & {*seen["left"]}
    assert seen["gone"].startswith("404 Status NotFound: ")
    assert "spec.initializer is not served" in seen["initializer"]
    sleeper = platform.client.job("sleeper").wait(timeout_s=240)
    assert sleeper.state == "cancelled"
