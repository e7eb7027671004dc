"""Nodes are drained and upgraded by Kubernetes' own means: no job is lost, and no node is quarantined for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kubernetes.conftest import run_command
from tests.e2e.stories import story_of

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.kubernetes,
    pytest.mark.xdist_group("kubernetes"),
    pytest.mark.timeout(420),
]

# Counts steps, saves its count when it is asked to stop, and goes on from there; it ends when the file "finish" exists.
COUNTER = """
import os, pathlib, signal, sys, time
output = pathlib.Path("/data/output")
saved = output / ("saved-" + os.environ["RANK"])
step = int(saved.read_text()) if saved.exists() else 0
def save(*_):
    saved.write_text(str(step))
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("starts at step", step, flush=True)
while not (output / "finish").exists():
    step += 1
    time.sleep(0.1)
"""


def kubectl(*args: str, within_s: float = 120) -> str:
    done = subprocess.run(["kubectl", *args], capture_output=True, text=True, timeout=within_s, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def drain(node: str, instance: str) -> str:
    # Only this platform's pods; those of another test's platform are none of this one's business.
    return kubectl(
        "drain", node, "--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=100s",
        f"--pod-selector=trainmaster/instance={instance}",
    )  # fmt: skip


def node_of(job: Any) -> str:
    """The node of the newest attempt, whose gang is on one node."""
    attempt = max(job.attempts(), key=lambda one: one.number)
    (node,) = {replica.node for replica in attempt.replicas}
    return str(node)


def test_a_rolling_upgrade_by_kubectl_loses_no_job_and_quarantines_no_node(
    platform: Any, cluster: Any, two_nodes: list[str], eventually: Any
) -> None:
    kill, start = (os.environ.get(f"TRAINMASTER_TEST_{verb}_NODE") for verb in ("KILL", "START"))
    if not (kill and start and shutil.which("kubectl")):
        pytest.skip("needs kubectl, TRAINMASTER_TEST_KILL_NODE and TRAINMASTER_TEST_START_NODE")
    cluster.ensure_ready(two_nodes)
    command = ["python3", "-u", "-c", COUNTER]
    job = platform.client.submit({"name": "counter", "command": command, "workers": 2, "gpus": 1, "max_restarts": 0})
    eventually(lambda: job.detail().state == "running", within_s=120, what="the gang runs")
    output = platform.now.home / "output" / Path(job.detail().output.partition("/")[2])

    for number in (1, 2):
        node = node_of(job)
        try:
            drain(node, cluster.instance)
            eventually(
                lambda number=number: (job.detail().state, job.detail().attempt_count) == ("running", number + 1),
                within_s=120,
                what=f"it runs elsewhere: {story_of(job)}",
            )
            run_command(kill, node)
            eventually(lambda node=node: node not in cluster.nodes, within_s=90, what="the node is down")
            run_command(start, node)
            cluster.ensure_ready(two_nodes)
        finally:
            kubectl("uncordon", node)
        eventually(
            lambda node=node: platform.client.get_node(node).condition == "",
            within_s=60,
            what="the node takes work again",
        )
        assert node_of(job) != node
        assert min(int((output / f"saved-{rank}").read_text()) for rank in (0, 1)) > 0, story_of(job)

    (output / "finish").touch()
    detail = job.wait(timeout_s=60)
    assert detail.state == "succeeded", story_of(job)
    assert (detail.attempt_count, detail.restart_count) == (3, 0), story_of(job)
    first, second, _ = sorted(job.attempts(), key=lambda attempt: attempt.number)
    for attempt in (first, second):
        assert not attempt.is_counted
        assert "drained" in attempt.end.sentence, attempt.end
    for node in platform.client.list_nodes():
        assert (node.quarantine, node.suspicion) == (None, None), node
    quarantines = [
        event for event in platform.client.list_events() if event.kind in ("node.quarantined", "node.suspected")
    ]
    assert quarantines == []
