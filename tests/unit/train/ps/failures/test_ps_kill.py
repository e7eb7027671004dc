"""A synchronous worker that is killed, as processes: the others say who is missing, or go on, and it may come back."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable

import pytest

pytest.importorskip("torch")
pytest.importorskip("zmq")

from tests.unit.train.ps.processes import Gang


def kill_worker_1(job: Gang) -> None:
    job.until(lambda: job.own_steps(1) >= 2, "two steps together")
    assert job.send("worker-1", signal.SIGKILL) == -signal.SIGKILL
    job.until(lambda: "worker 1 is gone" in job.log("ps-0"), "the ps notices")


def test_the_others_go_on_without_a_killed_worker_until_it_is_back(gang: Callable[..., Gang]) -> None:
    job = gang(2, mode="sync", lost_timeout_s=1.0)
    kill_worker_1(job)
    before = job.own_steps(0)
    job.until(lambda: job.own_steps(0) >= before + 3, "steps without worker 1")

    job.start("worker-1")
    job.until(lambda: job.own_steps(1) >= 2, "steps of the worker that is back")
    job.end_training()

    assert [job.ended("worker-0"), job.ended("worker-1")] == [0, 0]
    assert "joined at update" in job.log("worker-1")
    assert re.search(r"ps 0: worker 1 is back \d+ s after it was lost, at update \d+\.", job.log("ps-0"))
    assert "Traceback" not in job.log("ps-0") + job.log("worker-0")
    assert job.processes["ps-0"].poll() is None, "a ps never ends by itself"


def test_a_worker_that_waited_too_long_names_the_missing_worker(gang: Callable[..., Gang]) -> None:
    job = gang(2, mode="sync", lost_timeout_s=3600.0, step_timeout_s=8.0)
    kill_worker_1(job)

    assert job.ended("worker-0") == 1
    assert re.search(
        r"ps 0 at 127.0.0.1:\d+ did not answer worker 0's step \d+ \(update \d+\) within 8 s; "
        r"it waits for worker 1 \(lost \d+ s ago\)",
        job.log("worker-0"),
    )
    assert "Traceback" not in job.log("worker-0")
