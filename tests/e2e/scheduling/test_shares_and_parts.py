"""Limits, shares, backfill and parts of GPUs, on an embedded platform whose machine tells of four GPUs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e import planner_stories
from tests.e2e.planner_stories import PLACES, Stage

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("e2e")]

# NVIDIA's library as it answers on such a machine, for programs that do not compute.
NVML = f"""
class NVMLError(Exception): ...
class Memory: total = 40 * 2**30
def nvmlInit(): ...
def nvmlShutdown(): ...
def nvmlDeviceGetCount(): return {PLACES}
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetName(index): return "NVIDIA A100-PCIE-40GB"
def nvmlDeviceGetUUID(index): return f"GPU-{{index}}"
def nvmlDeviceGetMemoryInfo(index): return Memory
"""


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, launch: Any) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "pynvml.py").write_text(NVML)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    platform = launch(tmp_path_factory.mktemp("shares"), env={"PYTHONPATH": os.pathsep.join(paths)})
    yield platform
    platform.end()


@pytest.fixture
def stage(alone: Any, eventually: Any) -> Iterator[Stage]:
    stage = Stage(alone.client, eventually, gpus=1, python=sys.executable)
    yield stage
    stage.clear()


def test_a_limit_holds_though_places_are_free(stage: Stage) -> None:
    planner_stories.a_limit_holds_though_places_are_free(stage)


def test_the_smaller_share_for_its_weight_comes_first(stage: Stage) -> None:
    planner_stories.the_smaller_share_for_its_weight_comes_first(stage)


def test_a_short_job_fills_the_hole_and_the_gang_starts_when_it_was_reported(stage: Stage) -> None:
    planner_stories.a_short_job_fills_the_hole_and_the_gang_starts_when_it_was_reported(stage, hole_s=12)


def test_halves_share_a_device_and_whole_ones_stay_away(stage: Stage) -> None:
    def devices(job: Any) -> tuple[str, ...]:
        return tuple(next(iter(job.attempts())).replicas[0].gpus)

    halves = [stage.submit(f"half-{n}", gpus=0.5) for n in range(2)]
    more = stage.submit("more", gpus=0.75)
    stage.runs(*halves, more)
    assert devices(halves[0]) == devices(halves[1]) != devices(more)
    (node,) = stage.client.list_nodes()
    assert sum(node.used["gpus"].values()) == 1.75

    whole = stage.submit("whole", gpus=3)
    stage.waits(whole, "no_room")
    for job in halves:
        job.cancel()
    stage.runs(whole)
    assert not {*devices(more)} & {*devices(whole)}
