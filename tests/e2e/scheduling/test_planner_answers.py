"""The planner explains itself, on the whole embedded platform and from the command line."""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e")]

EVERY_CPU = os.cpu_count() or 1


def submit(platform: Any, name: str, seconds: float, **spec: Any) -> Any:
    command = [sys.executable, "-c", f"import time; time.sleep({seconds})"]
    return platform.client.submit({"name": name, "command": command, "cpu": EVERY_CPU, **spec})


def reported(platform: Any, *arguments: str) -> str:
    done = platform.cli(*arguments)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_when_why_what_if_and_what_would_have_been(own_platform: Any, eventually: Any, tmp_path: Path) -> None:
    platform = own_platform
    submit(platform, "sweep-1", 1.5).wait(timeout_s=60)
    node = next(iter(platform.client.list_nodes())).name
    hog = submit(platform, "hog", 3600, max_run_time="2h")
    eventually(lambda: hog.detail().state == "running", within_s=60, what="the hog runs")
    waits = submit(platform, "waits", 1)
    eventually(lambda: (waits.detail().wait_reason or hog).code == "no_room", within_s=60, what="a reason")
    seen_at = datetime.now(UTC)

    found = reported(platform, "whatif", "waits")
    assert "Expected start" in found
    assert "hog" in found
    assert "(position 1 in the queue)" in found
    compared = reported(platform, "whatif", "waits", "--more-nodes", "1", "--like", node, "--compare")
    assert ["what", "if", "now"] in [line.split() for line in compared.splitlines()], compared
    spec = tmp_path / "job.yaml"
    spec.write_text(f"name: other\ncommand: 'true'\ncpu: {EVERY_CPU}\n")
    assert "Waits" in reported(platform, "whatif", str(spec))

    now = json.loads(reported(platform, "explain", "waits", "--json"))
    assert (now["verdict"], now["queue_position"], now["wait_reason"]["code"]) == ("waits", 1, "no_room")
    hog.cancel()
    waits.wait(timeout_s=90)
    then = json.loads(reported(platform, "explain", "waits", "--at", seen_at.isoformat(), "--json"))
    assert (then["verdict"], then["is_same"]) == ("waits", True), then
    assert "hog" in then["sentence"]
    never = platform.cli("explain", "waits", "--at", "2020-01-01T00:00:00Z")
    assert never.returncode != 0
    assert "No plan of that time is kept" in never.stderr

    tried = reported(platform, "simulate", "--set", "order=fifo", "--more-nodes", "1", "--like", node, "--days", "1")
    assert "A job would have waited " in tried
    assert "WHAT IF" in tried
