"""Volumes, network policies and pod security levels as values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from core.domain.errors import ExecutorRefused
from executors.base import MountOrder, VolumeSource
from executors.kubernetes.namespaces import needed_level
from executors.kubernetes.policy import Peer, parse_egress, render_policy
from executors.kubernetes.volumes import render_volume
from tests.orders import bare_order

ORDER = bare_order(project="vision", api_url="http://192.0.2.7:8765")


def volume(kind, **config):
    return VolumeSource("sets", kind, config, "digits/train")


def rendered(source, *, read_only=True, host_paths=("/srv", "/mnt/data"), **more):
    return render_volume(source, name="v", target="/data/data", read_only=read_only, host_paths=host_paths, **more)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (volume("local", path="/srv/sets"), {"hostPath": {"path": "/srv/sets", "type": "Directory"}}),
        (volume("nfs", server="nfs", path="/export"), {"nfs": {"server": "nfs", "path": "/export"}}),
        (volume("pvc", claim="sets"), {"persistentVolumeClaim": {"claimName": "sets"}}),
        (
            volume("csi", driver="csi.example.org", attributes={"bucket": "sets"}, secret="keys", read_only=True),
            {
                "csi": {
                    "driver": "csi.example.org",
                    "readOnly": True,
                    "volumeAttributes": {"bucket": "sets"},
                    "nodePublishSecretRef": {"name": "keys"},
                }
            },
        ),
    ],
)
def test_each_kind_is_mounted_whole_with_the_path_as_sub_path(source, expected):
    found, mount = rendered(source)
    assert found == {"name": "v", **expected}
    assert mount == {"name": "v", "mountPath": "/data/data", "readOnly": True, "subPath": "digits/train"}


def test_a_whole_volume_has_no_sub_path():
    assert "subPath" not in rendered(VolumeSource("sets", "pvc", {"claim": "sets"}))[1]


@pytest.mark.parametrize("path", ["../other", "/etc", "a/../../b", "a\0b"])
def test_a_path_never_leaves_its_volume(path):
    with pytest.raises(ExecutorRefused, match="leads out of volume sets"):
        rendered(VolumeSource("sets", "pvc", {"claim": "sets"}, path))


@pytest.mark.parametrize(
    ("top", "is_allowed"),
    [("/srv/sets", True), ("/srv", True), ("/srv2/sets", False), ("/srv/../etc", False), ("/", False), ("srv", False)],
)
def test_a_local_volume_lies_where_the_administrator_allows(top, is_allowed):
    source = VolumeSource("sets", "local", {"path": top})
    if is_allowed:
        rendered(source)
        return
    with pytest.raises(ExecutorRefused, match="Volume sets"):
        rendered(source)


def test_no_folder_of_the_nodes_is_mounted_unless_the_administrator_says_so():
    source = VolumeSource("sets", "local", {"path": "/srv/sets"})
    with pytest.raises(ExecutorRefused, match=r"nowhere there; .*TRAINMASTER_HOST_PATHS=/srv/sets"):
        rendered(source, host_paths=())
    assert rendered(source, host_paths=("/",))[0]["hostPath"]["path"] == "/srv/sets"


def test_a_claim_of_another_namespace_is_refused_with_both_names():
    source = VolumeSource("sets", "pvc", {"claim": "sets", "namespace": "jobs-a"})
    rendered(source, namespace="jobs-a")
    with pytest.raises(ExecutorRefused, match=r"claim sets of namespace jobs-a, and this job runs in jobs-b"):
        rendered(source, namespace="jobs-b")


@pytest.mark.parametrize("kind", ["local", "nfs", "pvc", "csi"])
def test_a_volume_that_was_registered_incompletely_names_what_is_missing(kind):
    with pytest.raises(ExecutorRefused, match=r"config\.\w+"):
        rendered(VolumeSource("sets", kind, {}))


def policy(order=ORDER, **more):
    owner = {"apiVersion": "v1", "kind": "Service", "name": "att-1", "uid": "u"}
    return render_policy(order, "here", "jobs", owner, **more)


def test_a_gang_talks_to_itself_to_dns_and_to_the_api():
    spec = policy()["spec"]
    gang = {"podSelector": {"matchLabels": {"trainmaster/instance": "here", "trainmaster/attempt": "att-1"}}}
    assert spec["podSelector"] == gang["podSelector"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["ingress"] == [{"from": [gang]}]
    assert spec["egress"] == [
        {"to": [gang]},
        {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]},
        {"to": [{"ipBlock": {"cidr": "192.0.2.7/32"}}], "ports": [{"protocol": "TCP", "port": 8765}]},
    ]


def test_a_server_of_a_model_is_reached_by_the_platforms_own_pods_at_its_port_alone():
    _, rule = policy(replace(ORDER, env={**ORDER.env, "AIP_HTTP_PORT": "8080"}))["spec"]["ingress"]
    assert rule == {
        "from": [
            {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": "trainmaster"}}},
            {"ipBlock": {"cidr": "192.0.2.7/32"}},  # the API's, where it runs outside
        ],
        "ports": [{"protocol": "TCP", "port": 8080}],
    }
    inside = replace(ORDER, env={**ORDER.env, "AIP_HTTP_PORT": "8080"}, api_url="http://api.trainmaster.svc:8765")
    _, rule = policy(inside)["spec"]["ingress"]
    assert [next(iter(peer)) for peer in rule["from"]] == ["namespaceSelector"]


def test_a_port_that_is_none_opens_nothing():
    only = policy(replace(ORDER, env={**ORDER.env, "AIP_HTTP_PORT": "\u00b2"}))["spec"]["ingress"]
    assert len(only) == 1


def test_the_policy_goes_with_the_attempts_service():
    metadata = policy()["metadata"]
    assert metadata["name"] == "att-1"
    assert metadata["ownerReferences"][0]["uid"] == "u"
    assert metadata["labels"]["trainmaster/project"] == "vision"


@pytest.mark.parametrize(
    "url", ["http://api:8765", "http://api.trainmaster.svc.cluster.local:8765", "http://a.b.svc:8765"]
)
def test_an_api_behind_a_service_is_reached_by_its_pods_labels(url):
    rule = policy(replace(ORDER, api_url=url))["spec"]["egress"][2]
    assert rule["to"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "api"
    assert rule["ports"] == [{"protocol": "TCP", "port": 8765}, {"protocol": "TCP", "port": "http"}]


def test_a_name_of_two_parts_may_be_a_service_or_not():
    behind, outside = policy(replace(ORDER, api_url="https://example.com"))["spec"]["egress"][2:]
    assert behind["to"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "api"
    assert outside == {"ports": [{"protocol": "TCP", "port": 443}]}


def test_an_api_of_which_only_a_name_is_known_is_reached_by_its_port():
    rule = policy(replace(ORDER, api_url="https://train.example.org"))["spec"]["egress"][2]
    assert rule == {"ports": [{"protocol": "TCP", "port": 443}]}


def test_more_may_be_reached_by_setting():
    egress = parse_egress("10.0.0.0/8, 192.0.2.7:5432, [2001:db8::/32]:443, :80")
    assert egress == (
        Peer("10.0.0.0/8"),
        Peer("192.0.2.7/32", 5432),
        Peer("2001:db8::/32", 443),
        Peer("", 80),
    )
    assert policy(egress=egress)["spec"]["egress"][3:] == [
        {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]},
        {"to": [{"ipBlock": {"cidr": "192.0.2.7/32"}}], "ports": [{"protocol": "TCP", "port": 5432}]},
        {"to": [{"ipBlock": {"cidr": "2001:db8::/32"}}], "ports": [{"protocol": "TCP", "port": 443}]},
        {"ports": [{"protocol": "TCP", "port": 80}]},
    ]


@pytest.mark.parametrize("text", ["example.org", "10.0.0.0/99", "192.0.2.7:0", ":", "192.0.2.7:http"])
def test_an_address_that_makes_no_sense_is_refused(text):
    with pytest.raises(ValueError, match=r"is no address|ports are"):
        parse_egress(text)


@pytest.mark.parametrize(
    ("kinds", "uid", "level"),
    [
        (("pvc", "csi"), 1000, "restricted"),
        (("pvc",), 0, "baseline"),
        (("pvc", "nfs"), 1000, "baseline"),
        (("pvc", "local"), 1000, "privileged"),
    ],
)
def test_the_pod_security_level_is_the_strictest_that_admits_the_volumes(kinds, uid, level):
    mounts = tuple(MountOrder("/x", f"/mnt/{kind}", True, VolumeSource(kind, kind, {})) for kind in kinds)
    assert needed_level(replace(ORDER, mounts=mounts), uid) == level
