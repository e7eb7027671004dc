"""Objects against literals: what is here is what the cluster gets."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from core.domain.errors import ExecutorRefused
from core.domain.ids import AttemptId, JobId
from core.domain.sharing.resources import ResourceRequest
from executors.base import MountOrder, ReplicaKey, ReplicaOrder, VolumeSource
from executors.kubernetes.nodes import NodeRules
from executors.kubernetes.options import KubernetesOptions
from executors.kubernetes.pods.render import check, owned, render_pod, render_service, render_tombstone
from executors.kubernetes.pods.secret import bundle

OPTIONS = KubernetesOptions("tm", "jobs", "runtime:1", "default:1", host_paths=("/srv",))
OUTPUT = VolumeSource("output", "local", {"path": "/srv/output"}, "alice/job-1")
ORDER = ReplicaOrder(
    key=ReplicaKey(JobId("job-1"), AttemptId("att-1"), "worker", 2, 3),
    job_name="mnist",
    attempt_number=1,
    node="node-a",
    command=("python", "train.py"),
    args=("--fast",),
    env={"SECRET": "hunter2"},
    process_env=({"RANK": "2"},),
    request=ResourceRequest(500, 1024, 0),
    project="vision",
    mounts=(MountOrder("/srv/output/alice/job-1", "/data/output", False, OUTPUT),),
    token="token-of-the-attempt",
    api_url="http://api",
    stop_grace=timedelta(seconds=29.5),
)
LABELS = {
    "trainmaster/instance": "tm",
    "trainmaster/job": "job-1",
    "trainmaster/attempt": "att-1",
    "trainmaster/project": "vision",
}
OF_REPLICA = {**LABELS, "trainmaster/role": "worker", "trainmaster/index": "2", "trainmaster/generation": "3"}


def secret_of(order: ReplicaOrder, options: KubernetesOptions = OPTIONS) -> dict[str, Any]:
    (part,) = bundle([order], options, "jobs")
    return part.secret


def test_the_service_names_replicas_before_they_are_ready():
    assert render_service(ORDER, OPTIONS, "jobs") == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "att-1", "namespace": "jobs", "labels": LABELS},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"trainmaster/instance": "tm", "trainmaster/attempt": "att-1"},
        },
    }


def test_a_pod_is_all_this():
    assert render_pod(ORDER, OPTIONS, "jobs") == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "att-1-worker-2-g3",
            "namespace": "jobs",
            "labels": OF_REPLICA,
            "annotations": {"trainmaster/stop": ""},
        },
        "spec": {
            "restartPolicy": "Never",
            "hostname": "worker-2",
            "subdomain": "att-1",
            "terminationGracePeriodSeconds": 35,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-a"]}]}
                        ]
                    }
                }
            },
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"},
            ],
            "securityContext": {
                "seccompProfile": {"type": "RuntimeDefault"},
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "runAsGroup": 1000,
                "fsGroup": 1000,
                "fsGroupChangePolicy": "OnRootMismatch",
            },
            "initContainers": [
                {
                    "name": "runtime",
                    "image": "runtime:1",
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["/trainmaster/runtime/busybox", "cp", "-r", "/trainmaster/runtime/.", "/into/"],
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "resources": {"requests": {"cpu": "500m", "memory": "1024"}},
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    "volumeMounts": [{"name": "runtime", "mountPath": "/into"}],
                }
            ],
            "containers": [
                {
                    "name": "main",
                    "image": "default:1",
                    "imagePullPolicy": "IfNotPresent",
                    "command": ["/trainmaster/runtime/busybox", "sh", "/trainmaster/runtime/start"],
                    "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "resources": {"requests": {"cpu": "500m", "memory": "1024"}},
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    "volumeMounts": [
                        {"name": "shm", "mountPath": "/dev/shm"},
                        {"name": "order", "mountPath": "/trainmaster/order", "readOnly": True},
                        {"name": "runtime", "mountPath": "/trainmaster/runtime", "readOnly": True},
                        {"name": "asked", "mountPath": "/trainmaster/asked", "readOnly": True},
                        {"name": "scratch-0", "mountPath": "/trainmaster/state"},
                        {"name": "scratch-1", "mountPath": "/data/.trainmaster"},
                        {
                            "name": "mount-0",
                            "mountPath": "/data/output",
                            "readOnly": False,
                            "subPath": "alice/job-1",
                        },
                    ],
                }
            ],
            "volumes": [
                {"name": "shm", "emptyDir": {"medium": "Memory"}},
                {"name": "order", "secret": {"secretName": "att-1-worker-2-g3", "defaultMode": 0o440}},
                {"name": "runtime", "emptyDir": {}},
                {
                    "name": "asked",
                    "downwardAPI": {
                        "items": [
                            {"path": "stop", "fieldRef": {"fieldPath": "metadata.annotations['trainmaster/stop']"}}
                        ]
                    },
                },
                {"name": "scratch-0", "emptyDir": {}},
                {"name": "scratch-1", "emptyDir": {}},
                {"name": "mount-0", "hostPath": {"path": "/srv/output", "type": "Directory"}},
            ],
        },
    }


def test_what_is_secret_is_in_the_secret_alone():
    secret = secret_of(ORDER)
    files = {name: base64.b64decode(content) for name, content in secret.pop("data").items()}
    assert secret == {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "att-1-worker-2-g3", "namespace": "jobs", "labels": OF_REPLICA},
        "type": "Opaque",
        "immutable": True,
    }
    assert files.keys() == {"order.json", "order.sh", "token"}
    assert files["token"] == b"token-of-the-attempt"
    assert json.loads(files["order.json"])["env"]["SECRET"] == "hunter2"
    reported = json.dumps([render_pod(ORDER, OPTIONS, "jobs"), render_service(ORDER, OPTIONS, "jobs")])
    assert "hunter2" not in reported
    assert "token-of-the-attempt" not in reported


def test_the_limit_of_a_log_reaches_the_runtime():
    secret = secret_of(ORDER, replace(OPTIONS, log_limit_bytes=2**20))
    assert json.loads(base64.b64decode(secret["data"]["order.json"]))["log_limit_bytes"] == 2**20


def test_limits_are_the_users_and_gpus_are_requested_as_limits_too():
    order = replace(
        ORDER,
        request=ResourceRequest(2000, 2**30, 2),
        gpus=("amd.com/gpu:0", "amd.com/gpu:3"),
        cpu_limit_milli=2000,
        memory_limit_bytes=2**30,
        shm_bytes=2**20,
    )
    rules = NodeRules(("nvidia.com/gpu", "amd.com/gpu"), tolerations=({"key": "amd.com/gpu", "operator": "Exists"},))
    spec = render_pod(order, replace(OPTIONS, rules=rules), "jobs")["spec"]
    plain = {"cpu": "2000m", "memory": "1073741824"}
    assert spec["containers"][0]["resources"] == {
        "requests": {**plain, "amd.com/gpu": "2"},
        "limits": {**plain, "amd.com/gpu": "2"},
    }
    # Nobody's quota counts devices for the copying of files.
    assert spec["initContainers"][0]["resources"] == {"requests": plain, "limits": plain}
    assert "env" not in spec["containers"][0]
    assert spec["tolerations"][-1] == {"key": "amd.com/gpu", "operator": "Exists"}
    assert spec["volumes"][0] == {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1048576"}}
    unstated = render_pod(replace(order, shm_bytes=None), replace(OPTIONS, rules=rules), "jobs")["spec"]
    assert unstated["volumes"][0]["emptyDir"]["sizeLimit"] == "1073741824", "its pages count against the memory limit"


def test_uid_0_means_what_the_image_says():
    spec = render_pod(ORDER, replace(OPTIONS, uid=0, gid=0), "jobs")["spec"]
    assert spec["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert spec["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["NET_RAW"]},
    }
    secret = next(volume["secret"] for volume in spec["volumes"] if volume["name"] == "order")
    assert secret["defaultMode"] == 0o444


def test_one_volume_mounted_twice_is_one_volume_of_the_pod():
    claim = {"claim": "data"}
    mounts = (
        MountOrder("", "/data/output", False, VolumeSource("a", "pvc", claim, "out")),
        MountOrder("", "/data/data", True, VolumeSource("a", "pvc", claim, "in")),
    )
    spec = render_pod(replace(ORDER, mounts=mounts), OPTIONS, "jobs")["spec"]
    assert [v for v in spec["volumes"] if "persistentVolumeClaim" in v] == [
        {"name": "mount-0", "persistentVolumeClaim": {"claimName": "data"}}
    ]
    assert spec["containers"][0]["volumeMounts"][-2:] == [
        {"name": "mount-0", "mountPath": "/data/data", "readOnly": True, "subPath": "in"},
        {"name": "mount-0", "mountPath": "/data/output", "readOnly": False, "subPath": "out"},
    ]


def test_pull_secrets_are_named():
    spec = render_pod(ORDER, replace(OPTIONS, pull_secrets=("registry",)), "jobs")["spec"]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]


def test_with_code_the_work_folder_is_empty_at_first():
    spec = render_pod(replace(ORDER, code_digest="0" * 64), OPTIONS, "jobs")["spec"]
    assert {"name": "scratch-1", "mountPath": "/data"} in spec["containers"][0]["volumeMounts"]


def test_only_a_job_with_requirements_gets_uv():
    def installed(**environment):
        (installer,) = render_pod(replace(ORDER, environment=environment), OPTIONS, "jobs")["spec"]["initContainers"]
        return " ".join(installer["command"])

    assert "/trainmaster/tools" not in installed(venv="/opt/venv")
    assert installed(requirements=["einops"]).endswith("cp -r /trainmaster/tools/. /into/; fi")


def test_an_images_own_command_gets_its_environment_out_of_the_secret():
    order = replace(ORDER, command=None)
    secret = secret_of(order)
    assert {name: base64.b64decode(content).decode() for name, content in secret["data"].items()} == {
        "SECRET": "hunter2",
        "RANK": "2",
        "trainmaster.token": "token-of-the-attempt",
    }
    pod = render_pod(order, OPTIONS, "jobs")
    assert pod["metadata"]["annotations"] == {"trainmaster/stop": "", "trainmaster/plain": "true"}
    assert "initContainers" not in pod["spec"]
    container = pod["spec"]["containers"][0]
    assert "command" not in container
    assert container["args"] == ["--fast"]
    assert container["env"] == [
        {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"},
        {"name": "RANK", "valueFrom": {"secretKeyRef": {"name": "att-1-worker-2-g3", "key": "RANK"}}},
        {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "att-1-worker-2-g3", "key": "SECRET"}}},
    ]
    assert {"name": "order", "mountPath": "/data/.trainmaster", "readOnly": True} in container["volumeMounts"]


@pytest.mark.parametrize(
    ("changes", "options", "sentence"),
    [
        ({}, {"default_image": ""}, "names no image"),
        ({"command": None, "code_digest": "0"}, {}, "code but no command"),
        ({"command": None, "environment": {"venv": "/v"}}, {}, "set `command`, or remove `environment`"),
        ({"command": None, "process_env": ({}, {})}, {}, "several processes"),
        ({"command": None, "files": {"/etc/hosts": ""}}, {}, "writes files"),
    ],
)
def test_what_cannot_run_is_refused_with_the_field(changes, options, sentence):
    with pytest.raises(ExecutorRefused, match=sentence) as refused:
        check(replace(ORDER, **changes), replace(OPTIONS, **options))
    assert refused.value.field.startswith("roles.worker.")


def test_an_environment_larger_than_a_secret_is_refused():
    with pytest.raises(ExecutorRefused, match="at most 1 MiB"):
        secret_of(replace(ORDER, env={"BIG": "x" * 2**20}))


def test_owners_are_named_by_their_uid():
    service = {"metadata": {"name": "att-1", "uid": "u-1"}}
    pod = owned(render_pod(ORDER, OPTIONS, "jobs"), "Service", service)
    assert pod["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Service", "name": "att-1", "uid": "u-1"}
    ]


def test_a_tombstone_does_not_look_like_something_that_is_held():
    tombstone = render_tombstone(AttemptId("att-1"), OPTIONS)
    assert tombstone["metadata"]["labels"] == {"trainmaster/instance": "tm", "trainmaster/removed": "att-1"}
