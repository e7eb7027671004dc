"""The engine's messages, as they really are, in sentences."""

from __future__ import annotations

import pytest

from core.domain.errors import ExecutorRefused, ExecutorTryAgain
from core.domain.ids import AttemptId, JobId
from core.domain.sharing.resources import ResourceRequest
from executors.base import MountOrder, ReplicaKey, ReplicaOrder, VolumeSource
from executors.docker.engine import EngineError, EngineObjectMissing
from executors.docker.error_messages import not_created, not_pulled
from executors.docker.files import Owner, owner_of
from executors.docker.nodes import describe, node_name, parse_gpus

ORDER = ReplicaOrder(
    key=ReplicaKey(JobId("job-1"), AttemptId("att-1"), "worker", 0),
    job_name="j",
    attempt_number=1,
    node="box",
    command=("true",),
    args=(),
    env={},
    process_env=({},),
    request=ResourceRequest(),
    mounts=(MountOrder("/srv/data", "/data/data", True, VolumeSource("datasets", "local", {}, "")),),
)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            EngineError(400, 'invalid mount config for type "bind": bind source path does not exist: /srv/data'),
            ExecutorRefused,
            "/data/data: the folder /srv/data of volume datasets does not exist",
        ),
        (
            EngineError(500, "mkdir /var/lib/docker/overlay2/x: no space left on device"),
            ExecutorTryAgain,
            "disk of the Docker engine's machine is full",
        ),
        (
            EngineError(
                500,
                "could not find an available, non-overlapping IPv4 address pool among the defaults to assign to the "
                "network",
            ),
            ExecutorTryAgain,
            "default-address-pools",
        ),
        (
            EngineError(500, 'could not select device driver "" with capabilities: [[gpu]]'),
            ExecutorRefused,
            "NVIDIA container toolkit",
        ),
        (
            EngineError(500, "nvidia-container-cli: device error: GPU-1: unknown device: unknown"),
            ExecutorTryAgain,
            "does not answer",
        ),
        (EngineError(400, "exec /x: exec format error: unknown"), ExecutorRefused, "another kind of processor"),
        (
            EngineError(400, "unable to find user app: no matching entries in passwd file"),
            ExecutorRefused,
            "has the USER app",
        ),
        (
            EngineError(400, "Range of CPUs is from 0.01 to 2.00, as there are only 2 CPUs available"),
            ExecutorRefused,
            "only 2 CPUs available",
        ),
        (EngineObjectMissing(404, "No such image: gone:1"), ExecutorTryAgain, "taken away"),
        (EngineError(500, "something new"), ExecutorTryAgain, "something new"),
    ],
)
def test_why_a_replica_was_not_created(error, kind, words):
    found = not_created(error, ORDER, "gone:1")
    assert isinstance(found, kind)
    assert words in found.sentence
    assert found.sentence.endswith(".")


@pytest.mark.parametrize(
    ("message", "kind", "words"),
    [
        (
            "pull access denied for nope, repository does not exist or may require 'docker login': denied",
            ExecutorRefused,
            "docker login",
        ),
        ("manifest for python:3.77 not found: manifest unknown: manifest unknown", ExecutorRefused, "name and tag"),
        ("unauthorized: authentication required", ExecutorRefused, "does not let this platform in"),
        ("dial tcp 127.0.0.1:1: connect: connection refused", ExecutorTryAgain, "cannot be reached"),
        ("Get https://x/v2/: dial tcp: lookup x: no such host", ExecutorTryAgain, "cannot be reached"),
        ("net/http: TLS handshake timeout", ExecutorTryAgain, "cannot be reached"),
        ("toomanyrequests: You have reached your pull rate limit", ExecutorTryAgain, "asks us to wait"),
        ("write /var/lib/docker/tmp/x: no space left on device", ExecutorTryAgain, "is full"),
        ("no matching manifest for linux/arm64/v8 in the manifest list entries", ExecutorRefused, "processor"),
        ("invalid reference format", ExecutorRefused, "no image's name"),
        ("something new", ExecutorTryAgain, "something new"),
    ],
)
def test_why_an_image_was_not_pulled(message, kind, words):
    found = not_pulled("python:3.77", message)
    assert isinstance(found, kind)
    assert words in found.sentence
    assert "python:3.77" in found.sentence


@pytest.mark.parametrize(
    ("uid", "user", "owner"),
    [
        (1000, "root", Owner(1000, 7)),
        (0, "", Owner(0)),
        (0, "0:0", Owner(0)),
        (0, "1001", Owner(1001)),
        (0, "1001:50", Owner(1001, 50)),
        (0, "app", Owner(None)),
        (0, "1001:staff", Owner(None)),
    ],
)
def test_files_belong_to_whoever_runs_in_the_container(uid, user, owner):
    assert owner_of(uid, 7, user) == owner


def test_files_of_an_unknown_user_are_open_to_all_in_the_container():
    assert Owner(None).mode(0o400) == 0o444
    assert Owner(1000).mode(0o400) == 0o400


def test_an_administrator_lists_gpus_by_hand():
    first, second = parse_gpus("GPU-8d2c=NVIDIA A100-SXM4-80GB:80, 1=H100:94")
    assert (first.id, first.memory_bytes) == ("GPU-8d2c", 80 * 2**30)
    assert (second.id, second.memory_bytes) == ("1", 94 * 2**30)
    assert parse_gpus("") == ()
    with pytest.raises(ValueError, match="such as"):
        parse_gpus("two")


def test_the_engines_machine_is_a_node():
    info = {"Name": "Big_Box.Lab", "NCPU": 8, "MemTotal": 64 * 2**30, "Labels": ["rack=r1"], "Architecture": "x86_64"}
    node = describe(info, parse_gpus("0=H100:94,1=H100:94"))
    assert node.name == node_name(info) == "big-box-lab"
    assert node.labels["rack"] == "r1"
    assert node.allocatable.cpu_milli == 8000
    assert node.allocatable.memory_bytes == 63 * 2**30
    assert sum(node.allocatable.gpus.values()) == 2
