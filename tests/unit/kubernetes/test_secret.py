"""Which replicas share a Secret, and that none reads another one's."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import pytest

from core.domain.errors import ExecutorRefused
from executors.kubernetes.pods.render import render_pod
from executors.kubernetes.pods.secret import SECRET_LIMIT_BYTES, bundle, own
from tests.unit.kubernetes.test_render import LABELS, OF_REPLICA, OPTIONS, ORDER, secret_of


def orders(count: int, **fields: object) -> list:
    return [replace(ORDER, key=replace(ORDER.key, index=index), **fields) for index in range(count)]


def mounted(pod: dict) -> dict[str, str]:
    """Where the pod finds what: the name in its folder -> the key in the Secret."""
    volume = next(volume["secret"] for volume in pod["spec"]["volumes"] if volume["name"] == "order")
    return {item["path"]: item["key"] for item in volume["items"]}


def test_a_gang_shares_one_secret_and_each_pod_mounts_its_own_files():
    gang = orders(3)
    (entry_,) = bundle(gang, OPTIONS, "jobs")
    assert entry_.secret["metadata"]["labels"] == LABELS
    assert entry_.secret["metadata"]["name"].startswith("att-1-orders-")
    assert entry_.secret["immutable"] is True
    for order in gang:
        pod = render_pod(order, OPTIONS, "jobs", entry_.location(order))
        files = mounted(pod)
        assert files.keys() == {"order.json", "order.sh", "token"}
        reported = json.loads(base64.b64decode(entry_.secret["data"][files["order.json"]]))
        assert reported["key"]["index"] == order.key.index
    assert len(entry_.secret["data"]) == 3 * 3


def test_the_runtime_counts_processes_itself():
    reported = json.loads(base64.b64decode(secret_of(ORDER)["data"]["order.json"]))
    assert reported["enforced"] == ["cpu", "memory"]


def test_the_same_replicas_meet_the_same_secret_and_others_another_one():
    gang = orders(3)
    (first,) = bundle(gang, OPTIONS, "jobs")
    (again,) = bundle(gang, OPTIONS, "jobs")
    (rest,) = bundle(gang[1:], OPTIONS, "jobs")
    assert again.secret == first.secret
    assert rest.secret["metadata"]["name"] != first.secret["metadata"]["name"]
    later = [replace(order, key=replace(order.key, generation=9)) for order in gang]
    assert bundle(later, OPTIONS, "jobs")[0].secret["metadata"]["name"] != first.secret["metadata"]["name"]


def test_one_replica_has_a_secret_like_its_pod():
    (entry_,) = bundle([ORDER], OPTIONS, "jobs")
    assert entry_.secret["metadata"]["labels"] == OF_REPLICA
    assert entry_.location(ORDER) == own(ORDER)


def test_what_is_too_large_for_one_secret_is_spread():
    gang = orders(10, env={"BIG": "x" * 80_000})
    made = bundle(gang, OPTIONS, "jobs")
    assert len(made) > 1
    assert [order for entry_ in made for order in entry_.orders] == gang
    for entry_ in made:
        assert sum(len(base64.b64decode(value)) for value in entry_.secret["data"].values()) < SECRET_LIMIT_BYTES / 2
    assert len({entry_.secret["metadata"]["name"] for entry_ in made}) == len(made)


def test_one_that_fits_into_no_secret_is_refused():
    with pytest.raises(ExecutorRefused, match="at most 1 MiB"):
        bundle(orders(2, env={"BIG": "x" * 2**20}), OPTIONS, "jobs")


def test_an_images_own_command_reads_its_environment_out_of_its_part():
    gang = orders(2, command=None)
    (entry_,) = bundle(gang, OPTIONS, "jobs")
    pod = render_pod(gang[1], OPTIONS, "jobs", entry_.location(gang[1]))
    keys = [entry["valueFrom"]["secretKeyRef"]["key"] for entry in pod["spec"]["containers"][0]["env"][1:]]
    assert keys == ["worker-1.RANK", "worker-1.SECRET"]
    assert mounted(pod) == {"token": "worker-1.trainmaster.token"}


def test_without_files_nothing_of_the_secret_is_mounted():
    order = replace(ORDER, command=None, token=None)
    pod = render_pod(order, OPTIONS, "jobs")
    assert all(volume["name"] != "order" for volume in pod["spec"]["volumes"])
