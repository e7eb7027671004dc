"""torch's own end: a DistributedDataParallel module that outlives its process group may dead-lock or abort."""

from __future__ import annotations

import sys
from typing import Any

import pytest

pytest.importorskip("torch")

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e")]

# As people write it: the model is a global, and is freed when the interpreter is torn down.
TRAIN = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(4, 4))
model(torch.ones(2, 4)).sum().backward()
dist.destroy_process_group()
print("work done", flush=True)
"""


def test_a_model_that_outlives_its_process_group_neither_hangs_nor_fails_the_job(platform: Any) -> None:
    job = platform.client.submit(
        {
            "name": "teardown",
            "command": [sys.executable, "-c", TRAIN],
            "workers": 2,
            "processes_per_replica": 2,
            "max_restarts": 0,
            "grace": {"exit": 2},
        }
    )
    detail = job.wait(timeout_s=240)
    log = [line.text for line in job.logs()]
    assert detail.state == "succeeded", f"{detail.exit}\n{log}"
    assert sum("work done" in text for text in log) == 4
