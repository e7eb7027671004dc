"""The RBAC manifests hold exactly the rights that the driver uses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import executors.kubernetes
from tests.integration.kubernetes.permissions import (
    CLUSTER_WIDE,
    IN_THE_NAMESPACE,
    PER_PROJECT,
    manifests,
    right_of,
    rights_of,
)


def role(file: str, name: str):
    return next(
        item for item in manifests(file) if item["kind"] in ("Role", "ClusterRole") and item["metadata"]["name"] == name
    )


def test_the_manifests_hold_what_the_driver_calls_and_nothing_else():
    assert rights_of(role("rbac.yaml", "trainmaster-read")) == CLUSTER_WIDE
    assert rights_of(role("rbac.yaml", "trainmaster-jobs")) == IN_THE_NAMESPACE
    assert rights_of(role("rbac-per-project.yaml", "trainmaster-projects")) == IN_THE_NAMESPACE | PER_PROJECT


def test_no_resource_is_named_in_the_driver_that_the_manifests_do_not_know():
    known = {resource for _, _, resource in CLUSTER_WIDE | IN_THE_NAMESPACE}
    named = set()
    for file in Path(executors.kubernetes.__file__).parent.rglob("*.py"):
        named |= set(re.findall(r'\bpath\(\s*"([a-z]+)"', file.read_text()))
    assert named - known == set()
    assert known - named == set()


@pytest.mark.parametrize(
    ("method", "url", "expected"),
    [
        ("GET", "/api/v1/pods?watch", (True, ("watch", "", "pods"))),
        ("GET", "/api/v1/namespaces/a", (False, ("get", "", "namespaces"))),
        ("POST", "/api/v1/namespaces", (True, ("create", "", "namespaces"))),
        ("DELETE", "/api/v1/namespaces/a/secrets", (False, ("deletecollection", "", "secrets"))),
        (
            "POST",
            "/apis/networking.k8s.io/v1/namespaces/a/networkpolicies",
            (False, ("create", "networking.k8s.io", "networkpolicies")),
        ),
    ],
)
def test_a_call_is_read_as_the_right_that_it_needs(method, url, expected):
    assert right_of(method, url) == expected
