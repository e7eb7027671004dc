"""Sentences for users about the states of pods, kubelet and kube-scheduler. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

# https://github.com/kubernetes/kubernetes/blob/master/pkg/kubelet/images/types.go
PULL_ERRORS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable",
     "ImageInspectError", "SignatureValidationFailed"}
)  # fmt: skip
# Of these no later try can come to another end.
HOPELESS_PULLS: Final = frozenset({"InvalidImageName", "ErrImageNeverPull"})
# kubelet could not make the container from its description.
CONFIG_ERRORS: Final = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})

# kubelet removed the pod to save its node: status.reason of a failed pod.
EVICTIONS: Final = frozenset({"Evicted", "Preempting", "Preempted", "OutOfmemoryEviction"})
SHUTDOWNS: Final = frozenset({"NodeShutdown", "Shutdown", "Terminated"})
LOST_NODES: Final = frozenset({"NodeLost", "NodeAffinityLost"})
# Reasons of the condition DisruptionTarget (from 1.26) that say nothing against the node.
_DISRUPTIONS: Final = {
    "PreemptionByScheduler": "kube-scheduler removed it for a pod of higher priority",
    "EvictionByEvictionAPI": "it was evicted, as by a drain of its node",
    "DeletionByTaintManager": "its node was tainted",
    "TerminationByKubelet": "its node removed it, as when it shuts down",
}

_POD_LIMITS: Final = (
    (re.compile(r'[Uu]sage of EmptyDir volume "shm" exceeds'), "shm"),
    (re.compile(r"ephemeral[- ](?:local )?storage usage exceeds|[Uu]sage of EmptyDir volume .* exceeds"), "disk"),
)
# The registry answered, and its answer is no.
_NO_SUCH_IMAGE: Final = re.compile(
    r"not found|manifest unknown|does not exist|denied|unauthorized|authentication required|no basic auth|forbidden"
    r"|no match for platform|invalid reference",
    re.IGNORECASE,
)
_LONGEST: Final = 600


def is_no_such_image(message: str) -> bool:
    """Whether the registry reported it, rather than being away."""
    return bool(_NO_SUCH_IMAGE.search(message))


def image_not_pulled(image: str, reason: str, message: str) -> str:
    if reason == "InvalidImageName":
        return f"{image!r} is no name of an image: {_clip(message)}"
    return (
        f"Image {image} cannot be pulled: {_clip(message)} See that its name and tag are right, and that the "
        "platform has a pull secret if it is private."
    )


def registry_away(image: str, message: str, since: datetime | None, until: datetime | None) -> str:
    """Something that mends itself keeps the image away. ``until``: when the attempt ends for it."""
    when = f" since {since.astimezone(UTC):%H:%M} UTC" if since is not None else ""
    end = f" until {until.astimezone(UTC):%H:%M} UTC" if until is not None else ""
    explanation = f": {_clip(message)}" if message else "."
    return (
        f"Image {image} cannot be pulled: registry {registry_of(image)} does not deliver it{when}{explanation} "
        f"The node tries again{end}, at most 5 minutes apart."
    )


def registry_of(image: str) -> str:
    """The host of the registry, as container engines read the names of images."""
    host, slash, _ = image.partition("/")
    return host if slash and (host == "localhost" or "." in host or ":" in host) else "docker.io"


def of_platform(sentence: str) -> str:
    """``sentence`` about the runtime's image, which the job did not choose."""
    return f"{sentence} It is the platform's runtime image: tell the administrator."


def not_scheduled(node: str, message: str) -> str:
    return (
        f"Kubernetes does not let it onto {node}: {_clip(message)}" if message else f"It waits for a place on {node}."
    )


def refused_by_node(node: str, reason: str, message: str) -> str:
    """The kubelet refused the pod: the node had less room, or another shape, than the schedulers knew."""
    explanation = _clip(message) if message else f"{reason}."
    return f"Node {node} did not take it ({reason}): {explanation} It is placed again."


def evicted(node: str, message: str) -> str:
    explanation = f": {_clip(message)}" if message else "."
    return f"Node {node} ran short and Kubernetes removed it{explanation} It is placed again."


def own_limit(message: str) -> str | None:
    """Which limit of its own an evicted pod went beyond: ``shm``, ``disk``, or ``None`` when the node was short."""
    return next((name for pattern, name in _POD_LIMITS if pattern.search(message)), None)


def too_much_shm(message: str) -> str:
    return (
        "It needed more shared memory than it may use: raise `shm`, or use fewer data loader workers. "
        f"({_clip(message)})"
    )


def too_much_disk(message: str) -> str:
    return f"It wrote more to its node's disk than it may: write to /data/output instead. ({_clip(message)})"


def shut_down(node: str, message: str) -> str:
    explanation = f": {_clip(message)}" if message else "."
    return f"Node {node} was shut down{explanation}"


def lost(node: str, message: str) -> str:
    explanation = f": {_clip(message)}" if message else "."
    return f"Node {node} was lost{explanation}"


def is_maintenance(disruption: str) -> bool:
    """Whether ``disruption``, the reason of the condition DisruptionTarget, says nothing against the node."""
    return disruption in _DISRUPTIONS


def cordoned(node: str) -> str:
    return f"Node {node} was cordoned in the cluster before it could start there; it is placed again."


def drained(name: str, node: str) -> str:
    return f"Pod {name} was evicted: node {node} was drained (it is cordoned in the cluster)."


def deleted(name: str, disruption: str) -> str:
    """Deleted from outside the platform. ``disruption``: reason of the condition DisruptionTarget, or empty."""
    unknown = "it was deleted in the cluster from outside the platform"
    by = {**_DISRUPTIONS, "DeletionByPodGC": "its node is gone"}.get(disruption, unknown)
    return f"Pod {name} is gone: {by}."


def not_installed(code: int | None, message: str) -> str:
    explanation = f" {_clip(message)}" if message else ""
    return (
        f"The platform's runtime could not be put into the container (exit code {code}); tell the "
        f"administrator.{explanation}"
    )


def not_created(reason: str, message: str) -> str:
    return f"The container cannot be made ({reason}): {_clip(message) if message else 'Kubernetes does not say why.'}"


def not_started(message: str) -> str:
    """The container was made, and its first process could not be executed."""
    return f"The container could not be started: {_clip(message) if message else 'Kubernetes does not say why.'}"


def making_ready(node: str) -> str:
    return f"Node {node} is making its container ready."


def mounting_or_pulling(node: str, image: str) -> str:
    return f"Node {node} is still mounting its volumes or pulling image {image}."


def pulling(node: str, image: str) -> str:
    return f"Node {node} is still pulling image {image}, or is slow to make its container."


def not_mounted(node: str, message: str) -> str:
    explanation = f": {_clip(message)}" if message else "."
    return f"Node {node} cannot make it ready{explanation}"


def rebooted(node: str) -> str:
    return f"Node {node} lost the container, as after a restart of the machine."


def unkillable(name: str, node: str, late_s: float) -> str:
    """A pod that outlives its deletion on a node that reports."""
    return (
        f"Pod {name} was given up {late_s:.0f} s after its grace: node {node} does not end it, for its container "
        "runtime is down or a process hangs in the kernel, as on a file server that is away. It may still hold its "
        "GPUs and memory; look at the node."
    )


def _clip(message: str) -> str:
    """One line, of a length that can be read, that ends as a sentence does."""
    text = " ".join(message.split())
    if len(text) > _LONGEST:
        return f"{text[: _LONGEST - 1].rstrip()}…"
    return text if text.endswith((".", "!", "?", "…")) else f"{text}."
