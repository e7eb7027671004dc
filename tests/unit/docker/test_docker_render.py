"""The exact requests to the engine."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from core.domain.errors import ExecutorRefused
from core.domain.ids import AttemptId, JobId
from core.domain.sharing.resources import ResourceRequest
from executors.base import MountOrder, ReplicaKey, ReplicaOrder, VolumeSource
from executors.docker.render import ContainerSettings, check, render_container, render_network

RULES = ContainerSettings("lab", uid=1000, gid=1000, shm_bytes=2**33)
LABELS = {
    "trainmaster/instance": "lab",
    "trainmaster/job": "job-1",
    "trainmaster/attempt": "att-1",
    "trainmaster/project": "vision",
}
OUTPUT = MountOrder("/srv/out/job-1", "/data/output", read_only=False)
ORDER = ReplicaOrder(
    key=ReplicaKey(JobId("job-1"), AttemptId("att-1"), "worker", 1),
    job_name="digits",
    attempt_number=1,
    node="box",
    command=("python", "train.py"),
    args=(),
    env={"SECRET": "hidden"},
    process_env=({},),
    request=ResourceRequest(cpu_milli=2000, memory_bytes=2**30),
    project="vision",
    mounts=(OUTPUT,),
    stop_grace=timedelta(seconds=12.5),
    token="also hidden",
)


def test_a_container_is_this_request_and_nothing_else():
    assert render_container(ORDER, "pytorch:2", RULES) == {
        "Image": "pytorch:2",
        "Hostname": "worker-1",
        "User": "1000:1000",
        "Entrypoint": ["/trainmaster/runtime/busybox", "sh", "/trainmaster/runtime/start"],
        "Cmd": [],
        "Env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "Labels": {
            **LABELS,
            "trainmaster/role": "worker",
            "trainmaster/index": "1",
            "trainmaster/generation": "1",
            "trainmaster/memory": str(2**30),
        },
        "StopSignal": "SIGTERM",
        "StopTimeout": 13,
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "NetworkMode": "att-1",
            "Mounts": [{"Type": "bind", "Source": "/srv/out/job-1", "Target": "/data/output", "ReadOnly": False}],
            "CpuShares": 2048,
            "PidsLimit": 32_768,
            "ShmSize": 2**33,
            "SecurityOpt": ["no-new-privileges"],
            "RestartPolicy": {"Name": "no"},
            "Init": False,
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "1m", "max-file": "1"}},
            "CapDrop": ["ALL"],
        },
        "NetworkingConfig": {"EndpointsConfig": {"att-1": {"Aliases": ["worker-1"]}}},
    }


def test_limits_are_the_engines_to_keep_and_nothing_is_swapped():
    order = replace(ORDER, cpu_limit_milli=1500, memory_limit_bytes=2**30, shm_bytes=2**28, pids_limit=64)
    config = render_container(order, "i", RULES)["HostConfig"]
    wanted = {"NanoCpus": 1_500_000_000, "Memory": 2**30, "MemorySwap": 2**30, "ShmSize": 2**28, "PidsLimit": 64}
    assert config.items() >= wanted.items()


def test_shared_memory_is_half_of_the_memory_by_default():
    assert render_container(replace(ORDER, memory_limit_bytes=2**30), "i", RULES)["HostConfig"]["ShmSize"] == 2**29


def test_a_part_of_a_gpu_is_the_whole_device_to_the_engine():
    order = replace(ORDER, gpus=("GPU-a",), request=replace(ORDER.request, gpu_count=0, gpu_milli=250))
    body = render_container(order, "i", RULES)
    assert body["HostConfig"]["DeviceRequests"][0]["DeviceIDs"] == ["GPU-a"]
    assert body["Env"] == []


def test_gpus_are_requested_by_what_they_are_called():
    body = render_container(replace(ORDER, gpus=("GPU-a", "GPU-b")), "i", RULES)
    assert body["Env"] == []
    assert body["HostConfig"]["DeviceRequests"] == [
        {"Driver": "", "Count": 0, "DeviceIDs": ["GPU-a", "GPU-b"], "Capabilities": [["gpu"]], "Options": {}}
    ]


def test_without_a_uid_the_images_own_user_keeps_what_it_may():
    body = render_container(ORDER, "i", replace(RULES, uid=0))
    assert "User" not in body
    assert "CapDrop" not in body["HostConfig"]


def test_code_gets_an_empty_folder_of_its_own():
    body = render_container(replace(ORDER, code_digest="sha256:0"), "i", RULES)
    assert body["HostConfig"]["Mounts"][0] == {
        "Type": "volume",
        "Target": "/data",
        "VolumeOptions": {"NoCopy": True, "Labels": LABELS},
    }


def test_a_network_share_is_mounted_by_the_engine():
    volume = VolumeSource("team", "nfs", {"server": "10.0.0.2", "path": "/export/team"}, "digits")
    order = replace(ORDER, mounts=(MountOrder("/export/team/digits", "/data/data", True, volume),))
    (mount,) = render_container(order, "i", RULES)["HostConfig"]["Mounts"]
    assert (mount["Type"], mount["Target"], mount["ReadOnly"]) == ("volume", "/data/data", True)
    assert mount["VolumeOptions"] == {
        "NoCopy": True,
        "Labels": LABELS,
        "DriverConfig": {
            "Name": "local",
            "Options": {"type": "nfs", "o": "addr=10.0.0.2,ro", "device": ":/export/team/digits"},
        },
    }
    check(order, "box", RULES)


def test_the_network_has_an_interface_that_no_other_attempt_has():
    body = render_network(ORDER, RULES)
    assert body == {
        "name": "att-1",
        "driver": "bridge",
        "options": {"com.docker.network.bridge.name": body["options"]["com.docker.network.bridge.name"]},
        "check_duplicate": True,
        "labels": LABELS,
    }
    name = body["options"]["com.docker.network.bridge.name"]
    assert len(name) <= 15
    other = replace(ORDER, key=replace(ORDER.key, attempt_id=AttemptId("att-2")))
    assert render_network(other, RULES)["options"]["com.docker.network.bridge.name"] != name


def test_no_secret_is_in_a_request():
    text = repr(render_container(ORDER, "i", RULES))
    assert "hidden" not in text


@pytest.mark.parametrize(
    ("changes", "rules", "sentence"),
    [
        ({"node": "other"}, RULES, "was placed on other"),
        (
            {"mounts": (MountOrder("/x", "/data/data", True, VolumeSource("v", "pvc", {"claim": "c"})),)},
            RULES,
            "kind pvc cannot be mounted",
        ),
        ({}, replace(RULES, host_paths=("/mnt", "/srv/other")), "TRAINMASTER_HOST_PATHS"),
        ({"mounts": (MountOrder("/mnt/../etc", "/x", True),)}, replace(RULES, host_paths=("/mnt",)), "is not among"),
    ],
)
def test_what_the_engine_cannot_do_is_refused_with_a_sentence(changes, rules, sentence):
    with pytest.raises(ExecutorRefused, match=sentence):
        check(replace(ORDER, **changes), "box", rules)


def test_folders_that_the_administrator_allows_are_mounted():
    check(ORDER, "box", replace(RULES, host_paths=("/srv/out",)))
