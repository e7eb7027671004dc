"""What of a cluster's nodes may be given out."""

from __future__ import annotations

import pytest

from executors.kubernetes.nodes import NodeRules, gpu_id, gpu_resource, parse_tolerations, read_node, why_closed
from executors.kubernetes.pod_usage import NodeUsage, excess_usage, milli, pod_usage, units

RULES = NodeRules(
    gpu_resources=("nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-*"),
    rack_labels=("topology.kubernetes.io/rack", "example.org/rack"),
    tolerations=parse_tolerations("team=vision:NoSchedule", ("nvidia.com/gpu",)),
)
READY = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-11-21T07:00:00Z"}


def node(*, labels=None, taints=(), conditions=(READY,), **allocatable):
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110", **{k.replace("__", "/"): v for k, v in allocatable.items()}}
    return {
        "metadata": {"name": "node-0", "resourceVersion": "1", "labels": labels or {}},
        "spec": {"taints": list(taints)},
        "status": {"allocatable": amounts, "conditions": list(conditions)},
    }


def box(cpu="0", memory="0", **more):
    return {"name": more.pop("name", "c"), "resources": {"requests": {"cpu": cpu, "memory": memory}}, **more}


def pod(*containers, phase="Running", **spec):
    return {"spec": {"nodeName": "node-0", "containers": list(containers), **spec}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("2", 2),
        ("1500m", 2),
        ("1Ki", 1024),
        ("1.5Gi", 3 * 2**29),
        ("2e3", 2000),
        ("12E", 12 * 10**18),
        ("0.1", 1),
        (3, 3),
    ],
)
def test_quantities_are_read_exactly_and_rounded_up(text, whole):
    assert units(text) == whole


def test_a_text_that_is_no_quantity_is_refused():
    with pytest.raises(ValueError, match="no quantity"):
        milli("a lot")


def test_containers_add_up():
    assert pod_usage(pod(box("500m", "1Gi"), box("1", "1Gi"))) == NodeUsage(1500, 2 * 2**30, {}, 1)


def test_the_largest_init_container_counts_where_it_needs_more_than_all_others_together():
    item = pod(box("500m", "1Gi"), initContainers=[box("2", "64Mi"), box("1", "128Mi")])
    assert (pod_usage(item).cpu_milli, pod_usage(item).memory_bytes) == (2000, 2**30)


def test_a_sidecar_runs_beside_what_starts_after_it():
    sidecar = box("300m", restartPolicy="Always")
    assert pod_usage(pod(box("1"), initContainers=[sidecar, box("900m")])).cpu_milli == 1300
    assert pod_usage(pod(box("1"), initContainers=[sidecar, box("2")])).cpu_milli == 2300
    assert pod_usage(pod(box("1"), initContainers=[box("2"), sidecar])).cpu_milli == 2000


def test_overhead_is_on_top_and_requests_of_the_pod_replace_those_of_its_containers():
    assert pod_usage(pod(box("1"), overhead={"cpu": "250m"})).cpu_milli == 1250
    assert pod_usage(pod(box("1"), box("1"), resources={"requests": {"cpu": "1500m"}})).cpu_milli == 1500


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_has_ended_takes_nothing(phase):
    assert pod_usage(pod(box("1"), phase=phase)) == NodeUsage()


def test_of_our_own_pods_only_what_the_planner_does_not_know_of_is_counted():
    item = pod(box("2", "1Gi", name="main"), box("100m", "64Mi", name="istio-proxy"), initContainers=[box("2", "1Gi")])
    assert excess_usage(item, "main") == NodeUsage(100, 64 * 2**20, {}, 1)


def test_free_is_what_others_leave_and_all_devices_keep_their_names():
    info = read_node(
        node(nvidia__x="1", **{"nvidia.com/gpu": "4"}), NodeUsage(500, 2**30, {"nvidia.com/gpu": 1}, 3), RULES
    )
    assert (info.allocatable.cpu_milli, info.allocatable.memory_bytes) == (7500, 31 * 2**30)
    assert info.allocatable.gpus == {"gpu": 3}
    assert [gpu.id for gpu in info.gpus] == ["0", "1", "2", "3"]
    assert (info.is_ready, info.condition) == (True, "")


def test_gpus_get_model_and_memory_from_feature_discovery():
    labels = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"}
    info = read_node(node(labels=labels, **{"nvidia.com/gpu": "1"}), NodeUsage(), RULES)
    assert (info.gpus[0].model, info.gpus[0].memory_bytes) == ("NVIDIA-A100-SXM4-80GB", 80 * 2**30)


def test_other_vendors_are_known_by_their_labels_and_an_admins_label_wins():
    amd = {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "192G"}
    info = read_node(node(labels=amd, **{"amd.com/gpu": "2"}), NodeUsage(), RULES)
    assert (info.gpus[0].model, info.gpus[0].memory_bytes) == ("AMD_Instinct_MI300X_OAM", 192 * 10**9)
    assert [gpu.id for gpu in info.gpus] == ["amd.com/gpu:0", "amd.com/gpu:1"]
    own = {**amd, "trainmaster/gpu-model": "mi300x", "trainmaster/gpu-memory": "192Gi"}
    info = read_node(node(labels=own, **{"amd.com/gpu": "2"}), NodeUsage(), RULES)
    assert (info.gpus[0].model, info.gpus[0].memory_bytes) == ("mi300x", 192 * 2**30)


def test_slices_of_a_gpu_are_counted_under_their_profiles_and_their_devices_names():
    labels = {"nvidia.com/mig-1g.5gb.product": "A100-SXM4-40GB-MIG-1g.5gb", "nvidia.com/mig-1g.5gb.memory": "4864"}
    info = read_node(node(labels=labels, **{"nvidia.com/mig-1g.5gb": "7"}), NodeUsage(), RULES)
    assert info.allocatable.gpus == {"A100-SXM4-40GB-MIG-1g.5gb": 7}
    assert info.gpus[0].memory_bytes == 4864 * 2**20
    of_device = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB"}
    info = read_node(
        node(labels=of_device, **{"nvidia.com/mig-2g.10gb": "3", "nvidia.com/gpu": "1"}), NodeUsage(), RULES
    )
    assert info.allocatable.gpus == {"NVIDIA-A100-SXM4-40GB-mig-2g.10gb": 3, "NVIDIA-A100-SXM4-40GB": 1}
    info = read_node(node(**{"nvidia.com/mig-1g.5gb": "7"}), NodeUsage(), RULES)
    assert info.allocatable.gpus == {"mig-1g.5gb": 7}


def test_a_devices_name_leads_back_to_its_resource():
    for resource in ("nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.5gb"):
        assert gpu_resource(gpu_id(resource, 3, RULES), RULES) == resource


def test_rack_and_zone_become_the_planners_labels():
    labels = {"example.org/rack": "r7", "topology.kubernetes.io/zone": "z1"}
    found = read_node(node(labels=labels), NodeUsage(), RULES).labels
    assert (found["topology/rack"], found["topology/zone"]) == ("r7", "z1")
    assert found["example.org/rack"] == "r7"


def test_a_kubelet_that_is_silent_makes_a_node_unready_and_says_since_when():
    silent = {**READY, "status": "Unknown"}
    info = read_node(node(conditions=[silent]), NodeUsage(), RULES)
    assert not info.is_ready
    assert "has not reported since 2026-11-21T07:00:00Z" in info.condition


def test_a_cordon_closes_a_node_but_what_runs_there_stays():
    item = node()
    item["spec"]["unschedulable"] = True
    info = read_node(item, NodeUsage(), RULES)
    assert (info.is_ready, info.condition) == (True, "It is cordoned in the cluster.")


@pytest.mark.parametrize(
    ("taint", "is_closed"),
    [
        ({"key": "team", "value": "vision", "effect": "NoSchedule"}, False),
        ({"key": "team", "value": "vision", "effect": "NoExecute"}, True),
        ({"key": "team", "value": "speech", "effect": "NoSchedule"}, True),
        ({"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}, False),
        ({"key": "node.kubernetes.io/disk-pressure", "effect": "NoSchedule"}, True),
        ({"key": "spot", "effect": "PreferNoSchedule"}, False),
    ],
)
def test_a_taint_that_jobs_do_not_tolerate_closes_a_node(taint, is_closed):
    info = read_node(node(taints=[taint]), NodeUsage(), RULES)
    assert info.is_ready
    assert bool(info.condition) is is_closed


def test_a_taint_is_reported_in_words():
    assert why_closed([{"key": "a", "value": "b", "effect": "NoSchedule"}], ()) == (
        "It has the taint a=b:NoSchedule, which jobs do not tolerate."
    )


@pytest.mark.parametrize("text", ["=x", "a:Never", ":NoSchedule"])
def test_a_toleration_that_makes_no_sense_is_refused(text):
    with pytest.raises(ValueError, match="is no toleration"):
        parse_tolerations(text)


def test_a_node_that_is_full_of_pods_or_runs_something_else_is_closed():
    assert read_node(node(), NodeUsage(pods=110), RULES).condition == "It runs as many pods as it may (110)."
    assert "needs Linux" in read_node(
        node(labels={"kubernetes.io/os": "windows"}), NodeUsage(), RULES
    ).condition.replace("jobs need", "needs")
