"""Which of kubelet's warnings still say why a pod waits."""

from __future__ import annotations

import pytest

from executors.kubernetes.executor import PodWarnings
from tests.unit.kubernetes.conftest import Answer
from tests.unit.kubernetes.test_observe import NOW, at, pod

MOUNT = "MountVolume.SetUp failed for volume data: no such file"


def event(kind, reason, message, seconds_ago):
    about = {"kind": "Pod", "uid": "u"}
    return {
        "type": kind,
        "reason": reason,
        "message": message,
        "lastTimestamp": at(seconds_ago),
        "involvedObject": about,
    }


def reported(server, cluster, *events, waits_s=100):
    def answer(requested):
        key, value = requested.query["fieldSelector"].split(",")[1].split("=")
        return Answer(200, {"metadata": {}, "items": [item for item in events if item[key] == value]})

    server.otherwise = answer
    return PodWarnings(cluster).about(pod(startTime=at(waits_s)), NOW)


def test_a_warning_of_this_wait_is_reported(server, cluster):
    assert reported(server, cluster, event("Warning", "FailedMount", MOUNT, 50)) == MOUNT


def test_a_warning_from_before_the_wait_is_over(server, cluster):
    assert reported(server, cluster, event("Warning", "FailedMount", MOUNT, 101)) == ""


@pytest.mark.parametrize(("pulls_ago_s", "words"), [(40, ""), (60, MOUNT)])
def test_a_volume_is_no_trouble_any_more_when_kubelet_pulls(server, cluster, pulls_ago_s, words):
    pulls = event("Normal", "Pulling", "Pulling image i", pulls_ago_s)
    assert reported(server, cluster, event("Warning", "FailedMount", MOUNT, 50), pulls) == words


def test_another_try_to_pull_does_not_mend_an_image(server, cluster):
    failed = event("Warning", "Failed", "Failed to pull image i: not found", 50)
    assert reported(server, cluster, failed, event("Normal", "Pulling", "Pulling image i", 40)) == failed["message"]
