"""What pods show, and what is made of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from core.domain.jobs.exits import ExitCause, ExitFacts, ExitKind, classify
from executors.base import Phase
from executors.kubernetes.pods.observe import Patience, has_started, has_stopped, is_beginning, read_pod, waits_since
from executors.kubernetes.pods.phrases import registry_of

NOW = datetime(2026, 1, 2, 12, 0, 0, tzinfo=UTC)
LABELS = {
    "trainmaster/instance": "tm",
    "trainmaster/job": "job-1",
    "trainmaster/attempt": "att-1",
    "trainmaster/role": "worker",
    "trainmaster/index": "0",
    "trainmaster/generation": "1",
}
RECORD = {"cause": "exited", "exit_code": 3, "sentence": "It said 3.", "at": "2026-01-02T11:59:58.5Z", "log_tail": "x"}


def at(seconds_ago):
    return (NOW - timedelta(seconds=seconds_ago)).isoformat().replace("+00:00", "Z")


def pod(*, main=None, init=None, node="node-a", deleted=False, requested="", conditions=(), **status):
    metadata = {
        "name": "att-1-worker-0-g1",
        "namespace": "jobs",
        "labels": LABELS,
        "annotations": {"trainmaster/stop": requested},
        "creationTimestamp": at(100),
        "resourceVersion": "1",
        "uid": "u",
    }
    if deleted:
        metadata |= {"deletionTimestamp": at(1), "deletionGracePeriodSeconds": 30}
    here = {"key": "metadata.name", "operator": "In", "values": ["node-a"]}
    affinity = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": [here]}]}}
    container = {"name": "main", "image": "image:1", "resources": {"limits": {"memory": "64Mi"}}}
    spec = {"containers": [container], "affinity": {"nodeAffinity": affinity}}
    if node:
        spec["nodeName"] = node
    full = {"phase": "Pending", "conditions": list(conditions), **status}
    if main is not None:
        full["containerStatuses"] = [{"name": "main", "image": "image:1", "state": main}]
    if init is not None:
        full["initContainerStatuses"] = [{"name": "runtime", "image": "runtime:1", "state": init}]
    return {"metadata": metadata, "spec": spec, "status": full}


def seen_of(item, *, warning="", is_draining=False):
    observation = read_pod(item, NOW, Patience(), warning=warning, is_draining=is_draining)
    assert observation is not None
    return observation


def ended(code=1, *, message="", reason="Error"):
    return {
        "terminated": {
            "exitCode": code,
            "reason": reason,
            "message": message,
            "startedAt": at(20),
            "finishedAt": at(2),
        }
    }


def waiting(reason, message=""):
    return {"waiting": {"reason": reason, "message": message}}


def test_a_foreign_pod_is_no_replica():
    item = pod()
    item["metadata"]["labels"] = {"app": "web"}
    assert read_pod(item, NOW, Patience()) is None


def test_a_running_container_is_running_since_its_start():
    observation = seen_of(pod(phase="Running", main={"running": {"startedAt": at(20)}}))
    assert (observation.phase, observation.started_at, observation.exit) == (
        Phase.RUNNING,
        NOW - timedelta(seconds=20),
        None,
    )
    assert observation.facts == {"pod": "att-1-worker-0-g1", "namespace": "jobs"}
    addressed = pod(phase="Running", main={"running": {"startedAt": at(20)}})
    addressed["status"]["podIP"] = "10.1.2.3"
    assert seen_of(addressed).facts["address"] == "10.1.2.3"


def test_the_record_is_the_best_witness():
    observation = seen_of(pod(phase="Failed", main=ended(3, message=json.dumps(RECORD))))
    assert observation.phase is Phase.FAILED
    assert (observation.exit.cause, observation.exit.exit_code, observation.exit.sentence) == (
        ExitCause.EXITED,
        3,
        "It said 3.",
    )
    assert observation.exit.at == datetime(2026, 1, 2, 11, 59, 58, 500_000, tzinfo=UTC)


@pytest.mark.parametrize(
    ("main", "cause", "words"),
    [
        (ended(137, reason="OOMKilled"), ExitCause.OUT_OF_MEMORY, "its limit of 64 MiB"),
        (ended(137), ExitCause.SIGNALLED, "SIGKILL"),
        (ended(2, message="the last lines"), ExitCause.EXITED, "exit code 2"),
        (ended(137, reason="ContainerStatusUnknown"), ExitCause.NODE_LOST, "node-a lost the container"),
        (
            ended(128, reason="StartError", message='exec: "/x": executable file not found in $PATH'),
            ExitCause.COMMAND_NOT_FOUND,
            "could not be started",
        ),
        (ended(128, reason="StartError", message="permission denied"), ExitCause.START_FAILED, "permission denied"),
    ],
)
def test_without_a_record_the_engine_has_the_word(main, cause, words):
    observation = seen_of(pod(phase="Failed", main=main))
    assert observation.phase is Phase.FAILED
    assert observation.exit.cause is cause
    assert words in observation.exit.sentence


def test_the_end_of_the_log_is_preserved_where_the_runtime_left_no_record():
    assert seen_of(pod(phase="Failed", main=ended(2, message="Error: no GPU"))).exit.log_tail == "Error: no GPU"


def test_a_success_without_a_record_is_one():
    assert seen_of(pod(phase="Succeeded", main=ended(0, reason="Completed"))).phase is Phase.SUCCEEDED


@pytest.mark.parametrize(
    ("reason", "message", "cause", "words"),
    [
        ("OutOfcpu", "Node didn't have enough resource: cpu", ExitCause.ENGINE_REFUSED, "OutOfcpu"),
        ("OutOfnvidia.com/gpu", "", ExitCause.ENGINE_REFUSED, "OutOfnvidia.com/gpu"),
        ("NodeAffinity", "Predicate NodeAffinity failed", ExitCause.ENGINE_REFUSED, "placed again"),
        ("UnexpectedAdmissionError", "no such device", ExitCause.ENGINE_REFUSED, "no such device"),
        ("Evicted", "The node was low on resource: memory.", ExitCause.EVICTED, "low on resource: memory"),
        ("Evicted", 'Usage of EmptyDir volume "shm" exceeds the limit "8Mi".', ExitCause.OUT_OF_MEMORY, "`shm`"),
        (
            "Evicted",
            "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi.",
            ExitCause.DISK_LIMIT,
            "/data/output",
        ),
        ("Terminated", "Pod was terminated in response to imminent node shutdown.", ExitCause.MAINTENANCE, "shut down"),
        ("NodeLost", "", ExitCause.NODE_LOST, "was lost"),
    ],
)
def test_a_pod_that_its_node_ended_says_why(reason, message, cause, words):
    observation = seen_of(pod(phase="Failed", reason=reason, message=message, startTime=at(5)))
    assert observation.phase is Phase.FAILED
    assert observation.exit.cause is cause
    assert words in observation.exit.sentence
    assert observation.exit.at == NOW - timedelta(seconds=5)


def test_an_evicted_runtime_that_only_saw_sigterm_was_evicted():
    record = json.dumps({**RECORD, "cause": "node_lost"})
    item = pod(phase="Failed", reason="Evicted", message="low on memory", main=ended(143, message=record))
    assert seen_of(item).exit.cause is ExitCause.EVICTED


def test_a_runtime_that_could_not_be_put_in_is_the_platforms_fault():
    observation = seen_of(pod(phase="Failed", init=ended(1, message="cp: no space"), main=waiting("PodInitializing")))
    assert observation.exit.cause is ExitCause.ENGINE_REFUSED
    assert "cp: no space" in observation.exit.sentence


# Pending


def test_a_new_pod_waits_for_the_scheduler():
    observation = seen_of(pod(node=""))
    assert (observation.phase, observation.detail) == (Phase.PENDING, "It waits for Kubernetes' scheduler.")


def unscheduled(seconds):
    message = "0/2 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) didn't match."
    return pod(
        node="",
        conditions=[
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": message,
                "lastTransitionTime": at(seconds),
            }
        ],
    )


def test_what_does_not_fit_says_so_and_is_placed_again_after_a_while():
    observation = seen_of(unscheduled(5))
    assert observation.phase is Phase.PENDING
    assert observation.detail.startswith(
        "Kubernetes does not let it onto node-a: 0/2 nodes are available: 1 Insufficient nvidia"
    )
    late = seen_of(unscheduled(61))
    assert (late.phase, late.exit.cause) == (Phase.FAILED, ExitCause.ENGINE_REFUSED)
    assert late.exit.at == NOW - timedelta(seconds=1)


def test_what_waits_for_a_node_that_was_cordoned_meanwhile_is_placed_again_at_once():
    observation = seen_of(unscheduled(1), is_draining=True)
    assert (observation.phase, observation.exit.cause) == (Phase.FAILED, ExitCause.MAINTENANCE)
    assert "node-a was cordoned" in observation.exit.sentence


def on_node(seconds, reason, message="", **more):
    return pod(main=waiting(reason, message), init={}, startTime=at(seconds), **more)


def test_a_missing_image_waits_a_little_and_fails_as_the_users():
    message = 'rpc error: code = NotFound desc = failed to pull and unpack image "x:1": not found'
    assert seen_of(on_node(5, "ErrImagePull", message)).phase is Phase.PENDING
    late = seen_of(on_node(46, "ErrImagePull", message))
    assert (late.phase, late.exit.cause) == (Phase.FAILED, ExitCause.START_REFUSED)  # no other attempt is made
    assert late.exit.sentence.startswith("Image image:1 cannot be pulled: rpc error")


def test_a_registry_that_is_away_is_waited_for():
    message = "dial tcp 10.0.0.1:443: connect: connection refused"
    pending = seen_of(on_node(300, "ErrImagePull", message))
    assert pending.phase is Phase.PENDING
    assert pending.detail == (
        f"Image image:1 cannot be pulled: registry docker.io does not deliver it since 11:55 UTC: {message}. "
        "The node tries again until 12:05 UTC, at most 5 minutes apart."
    )
    late = seen_of(on_node(601, "ErrImagePull", message))
    assert (late.phase, late.exit.cause) == (Phase.FAILED, ExitCause.IMAGE_UNREACHABLE)
    verdict = classify(ExitFacts("worker-0", "worker", late.exit.cause, None, NOW, late.exit.sentence))
    assert (verdict.kind, verdict.fault) == (ExitKind.PLATFORM, None)


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("python:3.11", "docker.io"),
        ("user/image", "docker.io"),
        ("registry.example:5000/a/b:1", "registry.example:5000"),
        ("localhost/b", "localhost"),
    ],
)
def test_the_registry_is_named_as_engines_read_it(image, registry):
    assert registry_of(image) == registry


def test_a_back_off_is_judged_by_what_was_reported_before():
    item = on_node(46, "ImagePullBackOff", 'Back-off pulling image "x:1"')
    assert seen_of(item).phase is Phase.PENDING
    assert seen_of(item, warning='Failed to pull image "x:1": manifest unknown').phase is Phase.FAILED


def test_a_name_that_is_none_fails_at_once():
    assert seen_of(on_node(0, "InvalidImageName", "couldn't parse")).phase is Phase.FAILED


def test_an_image_without_any_command_is_reported_and_ends_it_after_a_while():
    log_text = "Error: failed to create containerd container: no command specified"
    for seconds, phase in ((5, Phase.PENDING), (46, Phase.FAILED)):
        observation = seen_of(on_node(seconds, "CreateContainerError", log_text))
        assert observation.phase is phase
        assert "no command specified" in (observation.exit.sentence if observation.exit else observation.detail)


def test_the_platforms_own_image_is_no_fault_of_the_job():
    item = pod(init=waiting("ErrImagePull", "not found"), main=waiting("PodInitializing"), startTime=at(601))
    observation = seen_of(item)
    assert observation.exit.cause is ExitCause.IMAGE_UNREACHABLE
    assert "runtime:1" in observation.exit.sentence
    assert "the platform's runtime image: tell the administrator" in observation.exit.sentence


@pytest.mark.parametrize(
    ("states", "seconds", "words"),
    [
        ({"init": waiting("PodInitializing")}, 5, "is making its container ready"),
        ({"init": waiting("PodInitializing")}, 20, "still mounting its volumes or pulling image runtime:1"),
        ({"init": ended(0, reason="Completed")}, 20, "still pulling image image:1"),
        ({}, 20, "still mounting its volumes or pulling image image:1"),
    ],
)
def test_a_pod_that_takes_long_without_a_warning_says_what_it_may_be_at(states, seconds, words):
    observation = seen_of(pod(main=waiting("PodInitializing"), startTime=at(seconds), **states))
    assert observation.phase is Phase.PENDING
    assert words in observation.detail


def test_a_volume_that_cannot_be_mounted_is_reported():
    warning = 'MountVolume.SetUp failed for volume "mount-0" : mount failed: exit status 32'
    observation = seen_of(on_node(20, "ContainerCreating"), warning=warning)
    assert observation.phase is Phase.PENDING
    assert warning in observation.detail
    assert seen_of(on_node(700, "ContainerCreating"), warning=warning).exit.cause is ExitCause.ENGINE_REFUSED


def test_the_same_pod_always_shows_the_same_end():
    item = on_node(100, "InvalidImageName", "x")
    later = read_pod(item, NOW + timedelta(minutes=5), Patience())
    assert later == seen_of(item)


# Stopped and deleted


def test_a_stop_that_was_requested_is_no_loss():
    record = json.dumps({**RECORD, "cause": "node_lost"})
    requested = '{"grace_s": 30.0}'
    assert (
        seen_of(pod(phase="Failed", main=ended(143, message=record), requested=requested)).exit.cause
        is ExitCause.STOPPED
    )
    assert seen_of(pod(phase="Failed", main=ended(137), requested=requested)).exit.cause is ExitCause.STOPPED


def test_a_running_pod_that_is_deleted_from_outside_says_so():
    observation = seen_of(pod(phase="Running", main={"running": {"startedAt": at(5)}}, deleted=True))
    assert observation.phase is Phase.RUNNING
    assert (
        observation.detail == "Pod att-1-worker-0-g1 is gone: it was deleted in the cluster from outside the platform."
    )


def test_what_the_cluster_says_of_a_disruption_is_used():
    because = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]
    item = pod(phase="Running", main={"running": {"startedAt": at(5)}}, deleted=True, conditions=because)
    assert "higher priority" in seen_of(item).detail


DRAINED = "Pod att-1-worker-0-g1 was evicted: node node-a was drained (it is cordoned in the cluster)."
SHUT_DOWN = json.dumps({**RECORD, "cause": "node_lost", "exit_code": None})


@pytest.mark.parametrize(
    "state",
    [
        {"phase": "Running", "main": ended(143, message=SHUT_DOWN)},  # the runtime saw SIGTERM and no stop mark
        {"phase": "Running", "main": ended(137)},  # killed after its grace, or without the runtime
        {"phase": "Pending", "init": ended(137)},  # evicted before it began
        {"phase": "Running", "main": {"terminated": {"exitCode": 0}}},  # an old kubelet
    ],
)
def test_the_end_of_an_evicted_pod_is_maintenance_and_began_with_its_eviction(state):
    ended_exit = seen_of(pod(deleted=True, **state), is_draining=True).exit
    assert (ended_exit.cause, ended_exit.sentence) == (ExitCause.MAINTENANCE, DRAINED)
    assert ended_exit.at == NOW - timedelta(seconds=31)  # before the ends of its peers


def test_a_pod_that_was_deleted_by_hand_says_nothing_against_its_node():
    for state in (
        {"phase": "Running", "main": ended(143, message=SHUT_DOWN)},
        {"phase": "Pending", "init": ended(137)},
    ):
        assert seen_of(pod(deleted=True, **state)).exit.cause is ExitCause.UNKNOWN


def test_an_eviction_on_a_node_that_is_not_cordoned_is_known_by_its_condition():
    because = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]
    item = pod(phase="Running", main=ended(143, message=SHUT_DOWN), deleted=True, conditions=because)
    assert seen_of(item).exit.cause is ExitCause.MAINTENANCE


def test_a_program_that_failed_by_itself_while_its_pod_was_evicted_has_failed():
    item = pod(phase="Running", main=ended(3, message=json.dumps(RECORD)), deleted=True)
    assert seen_of(item, is_draining=True).exit.cause is ExitCause.EXITED


def test_a_container_that_is_gone_after_the_upgrade_of_its_drained_node_is_maintenance():
    lost = ended(137, reason="ContainerStatusUnknown")
    assert seen_of(pod(phase="Failed", main=lost), is_draining=True).exit.cause is ExitCause.MAINTENANCE
    assert seen_of(pod(phase="Failed", main=lost)).exit.cause is ExitCause.NODE_LOST


def test_a_running_pod_that_is_evicted_announces_it():
    item = pod(phase="Running", main={"running": {"startedAt": at(5)}}, deleted=True)
    assert seen_of(item, is_draining=True).eviction == DRAINED
    requested = pod(
        phase="Running", main={"running": {"startedAt": at(5)}}, deleted=True, requested='{"grace_s": 30.0}'
    )
    assert seen_of(requested, is_draining=True).eviction == ""


def test_a_deleted_pod_whose_end_was_never_reported_is_lost():
    """Kubelets before 1.22 clear what they knew, and an exit code of 0 would read as success."""
    observation = seen_of(pod(phase="Running", main={"terminated": {"exitCode": 0}}, deleted=True))
    assert (observation.phase, observation.exit) == (Phase.LOST, None)


def test_a_deleted_pod_whose_command_had_finished_has_finished():
    record = json.dumps({**RECORD, "exit_code": 0})
    assert seen_of(pod(phase="Succeeded", main=ended(0, message=record), deleted=True)).phase is Phase.SUCCEEDED


# What a removal asks


def test_only_what_kubelet_says_is_over_runs_nothing():
    assert not has_stopped(pod(phase="Running", main={"running": {"startedAt": at(5)}}, deleted=True))
    assert not has_stopped(pod(main=waiting("PodInitializing"), init={"running": {}}, deleted=True))
    assert not has_stopped(pod())
    assert has_stopped(pod(phase="Failed"))
    assert has_stopped(pod(phase="Running", main={"terminated": {}}, init={"terminated": {}}, deleted=True))


def test_a_pod_is_beginning_while_nothing_went_wrong():
    assert is_beginning(on_node(3, "PodInitializing"), NOW)
    assert not is_beginning(on_node(30, "PodInitializing"), NOW)
    assert not is_beginning(on_node(3, "ErrImagePull"), NOW)
    assert not is_beginning(pod(phase="Running", main={"running": {"startedAt": at(5)}}), NOW)
    assert has_started(pod(phase="Running", main={"running": {"startedAt": at(5)}}))
    assert waits_since(pod(node="")) is None
