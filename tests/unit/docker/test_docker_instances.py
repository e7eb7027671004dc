"""What another platform made on the same engine is left alone, whatever its name."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, cast

import pytest

from core.domain.errors import AttemptRemoved, ExecutorTryAgain
from core.domain.ids import AttemptId, JobId
from core.domain.sharing.resources import ResourceRequest
from executors.base import Gpu, ReplicaKey, ReplicaOrder
from executors.docker import DockerExecutor
from executors.docker.engine import DockerEngine
from executors.docker.nodes import node_name
from executors.docker.render import ContainerSettings, render_container, tombstone_name

KEY = ReplicaKey(JobId("job-1"), AttemptId("att-1"), "worker", 0)
INFO = {"Name": "box", "ID": "engine-1", "MemTotal": 2**30}
ORDER = ReplicaOrder(
    key=KEY,
    job_name="j",
    attempt_number=1,
    node=node_name(INFO),
    command=("true",),
    args=(),
    env={},
    process_env=({},),
    request=ResourceRequest(),
    mounts=(),
)


class OneContainer:
    """An engine that holds one container, of ``instance``; it notes what is done to it."""

    is_local = True

    def __init__(self, instance: str, status: str, volumes: tuple[str, ...] = ()) -> None:
        self.done: list[str] = []
        self._volumes = volumes
        self._container = {
            "State": {"Status": status, "Running": status == "running"},
            "Config": {"Labels": {"trainmaster/instance": instance}},
        }

    def info(self) -> dict[str, Any]:
        return INFO

    def container(self, name: str) -> dict[str, Any]:
        return self._container

    def has_volume(self, name: str) -> bool:
        return name in self._volumes

    def start(self, name: str) -> None:
        self.done.append("start")

    def put(self, *_: object) -> None:
        self.done.append("put")

    def kill(self, *_: object) -> None:
        self.done.append("kill")


class TwoDatabases:
    """An engine with two GPUs and containers, each of a database and in a state, that hold one of them."""

    is_local = True

    def __init__(self, *containers: tuple[str, str, str]) -> None:
        self._containers: list[dict[str, Any]] = [
            {
                "Id": str(number),
                "State": state,
                "Labels": {"trainmaster/instance": "ours", "trainmaster/database": database},
                "Gpu": gpu,
            }
            for number, (database, state, gpu) in enumerate(containers)
        ]

    def info(self) -> dict[str, Any]:
        return {**INFO, "NCPU": 8, "MemTotal": 20 * 2**30}

    def containers(self, wanted: dict[str, str]) -> list[dict[str, Any]]:
        assert wanted == {"trainmaster/instance": "ours"}
        return self._containers

    def container(self, name: str) -> dict[str, Any]:
        order = replace(
            ORDER,
            request=ResourceRequest(cpu_milli=2000, memory_bytes=2**30),
            gpus=(self._containers[int(name)]["Gpu"],),
        )
        made = render_container(order, "i", ContainerSettings("ours"))
        return {"Config": {"Labels": made["Labels"]}, "HostConfig": made["HostConfig"]}


def free_beside(*containers: tuple[str, str, str]) -> tuple[list[str], int, int, int]:
    made = DockerExecutor(
        cast("DockerEngine", TwoDatabases(*containers)),
        ContainerSettings("ours"),
        runtime_image="r",
        gpus=lambda: (Gpu("GPU-a", "a100", 2**30, ("0",)), Gpu("GPU-b", "a100", 2**30, ("1",))),
    )
    (node,) = made.nodes(database_id="aa")
    whole = node.allocatable
    return [gpu.id for gpu in node.gpus], whole.gpus["a100"], whole.cpu_milli, whole.memory_bytes // 2**30


def test_what_another_database_holds_is_not_given_out_again() -> None:
    whole = (["GPU-a", "GPU-b"], 2, 8000, 19)
    assert free_beside() == whole
    assert free_beside(("aa", "running", "GPU-a"), ("", "running", "GPU-b")) == whole, "rows count these"
    assert free_beside(("bb", "exited", "GPU-a")) == whole
    assert free_beside(("bb", "running", "0")) == (["GPU-b"], 1, 6000, 18), "by its former name"
    assert free_beside(("bb", "created", "GPU-a"), ("cc", "paused", "GPU-b")) == ([], 0, 4000, 17)


def driver(engine: OneContainer) -> DockerExecutor:
    return DockerExecutor(cast("DockerEngine", engine), ContainerSettings("ours"), runtime_image="r", default_image="i")


def test_a_container_of_another_platform_is_neither_started_nor_stopped() -> None:
    waiting = OneContainer("theirs", "created")
    with pytest.raises(ExecutorTryAgain, match="TRAINMASTER_INSTANCE"):
        driver(waiting).create(ORDER)
    running = OneContainer("theirs", "running")
    driver(running).stop(KEY, grace=timedelta(seconds=1))
    assert waiting.done == running.done == []


def test_our_own_is() -> None:
    waiting, running = OneContainer("ours", "created"), OneContainer("ours", "running")
    driver(waiting).create(ORDER)
    driver(running).stop(KEY, grace=timedelta(seconds=1))
    assert (waiting.done, running.done) == (["start"], ["put", "kill"])


def test_a_tombstone_counts_for_its_own_platform_only() -> None:
    theirs = OneContainer("ours", "created", (tombstone_name(KEY.attempt_id, "theirs"),))
    driver(theirs).create(ORDER)
    assert theirs.done == ["start"]
    ours = OneContainer("ours", "created", (tombstone_name(KEY.attempt_id, "ours"),))
    with pytest.raises(AttemptRemoved):
        driver(ours).create(ORDER)
