"""The platform dies and comes back at another port: running jobs find it there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("e2e"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

COUNTS = """
import json, os, sys, time
step = 0
while not os.path.exists(sys.argv[1]):
    step += 1
    with open(os.environ["TRAINMASTER_REPORT_FILE"], "a") as stream:
        stream.write(json.dumps({"kind": "progress", "step": step}) + "\\n")
    time.sleep(0.2)
"""


def test_an_adopted_job_reports_to_the_new_port(
    own_platform: Any, launch: Any, eventually: Any, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    job = own_platform.client.submit(
        {"name": "moved", "command": [sys.executable, "-c", COUNTS, str(done)], "workers": 1}
    ).id
    eventually(lambda: own_platform.client.get_job(job).progress.get("step"), within_s=30, what="it reports")
    own_platform.process.kill()
    own_platform.process.wait()
    again = launch(own_platform.home)
    try:
        assert again.url != own_platform.url, "another port, or this test tells nothing"
        before = again.client.get_job(job).progress["step"]
        eventually(
            lambda: again.client.get_job(job).progress["step"] > before + 5, within_s=40, what="it reports again"
        )
        done.touch()
        eventually(lambda: again.client.get_job(job).state == "succeeded", within_s=30, what="it ends")
        assert again.client.get_job(job).attempt_count == 1
    finally:
        done.touch()
        again.stop()
