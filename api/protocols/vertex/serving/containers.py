"""What serves a model: its ``containerSpec``, mapped to an image or the platform's model server, and its resources.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/ModelContainerSpec
https://cloud.google.com/vertex-ai/docs/reference/rest/v1/DedicatedResources
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from trainmaster.wire.serving import MAX_SERVING_REPLICAS

from api.protocols.kit.vertex_table import Table
from api.protocols.vertex.proto import Message
from api.protocols.vertex.training.specs import read_env, read_machine
from core.domain.errors import InvalidRequest

_SERVED: Final = {
    "imageUri",
    "command",
    "args",
    "env",
    "ports",
    "predictRoute",
    "healthRoute",
    "deploymentTimeout",
    "sharedMemorySizeMb",
}
_ABSENT: Final = {
    "grpcPorts": "gRPC ports of containers are",
    "invokeRoutePrefix": "routes below a prefix are",
    "startupProbe": "probes of one's own are (the health route is asked)",
    "healthProbe": "probes of one's own are (the health route is asked)",
    "livenessProbe": "probes of one's own are (the health route is asked)",
}
_ROUTE: Final = re.compile(r"/[!-~]{0,500}")
# Google's pre-built prediction containers, by framework:
# https://cloud.google.com/vertex-ai/docs/predictions/pre-built-containers
_PREBUILT: Final = re.compile(
    r"(?:[a-z]+-docker\.pkg\.dev/vertex-ai/prediction|gcr\.io/cloud-aiplatform/prediction)/"
    r"(?P<kind>sklearn|xgboost|tf2?|tf_opt|pytorch)[-.:]?(?:[\w.:@-]*)"
)
_FRAMEWORKS: Final = {"sklearn": "sklearn", "xgboost": "xgboost", "pytorch": "torch"}
_LOW_PRIORITY: Final = 25  # priority of spot replicas, as of spot custom jobs
_NORMAL_PRIORITY: Final = 50
_NO_SCALING: Final = {
    "autoscalingMetricSpecs": "scaling by load is",
    "scaleToZeroSpec": "scaling by load is",
    "flexStart": "flex-start is",
    "initialReplicaCount": "scaling by load is",
}


@dataclass(frozen=True, slots=True)
class ModelContainer:
    """``port``: 0 if unset. ``timeout_s``: until it must be ready."""

    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    port: int = 0
    predict_route: str = ""
    health_route: str = ""
    timeout_s: float | None = None
    shm_mib: int = 0


@dataclass(frozen=True, slots=True)
class ServerChoice:
    """How a model is served. ``image``: ``None``: the platform's own server loads the model by ``framework``."""

    image: str | None
    framework: str = "auto"
    container: ModelContainer | None = None
    is_trusted: bool = False


def read_container(model: Message) -> ModelContainer | None:
    """``None``: the model names no container. Raises ``InvalidRequest`` or ``NotServed``."""
    spec = model.message("containerSpec")
    if spec is None:
        return None
    spec.refuse_unknown_fields(_SERVED, absent=_ABSENT)
    image = spec.text("imageUri", 1024).strip()
    if not image:
        raise spec.missing("imageUri")
    return ModelContainer(
        image,
        spec.texts("command"),
        spec.texts("args"),
        read_env(spec),
        _port(spec),
        _route(spec, "predictRoute"),
        _route(spec, "healthRoute"),
        spec.seconds("deploymentTimeout"),
        spec.whole("sharedMemorySizeMb"),
    )


def framework_of(image: str) -> str | None:
    """The framework of one of Google's pre-built containers; ``None`` for other images."""
    match = _PREBUILT.fullmatch(image)
    return None if match is None else _FRAMEWORKS.get(match["kind"], "tensorflow")


def server_of(container: ModelContainer | None, table: Table, *, is_plain: bool) -> ServerChoice:
    """Choose the server of a model. ``is_plain``: jobs are plain processes, without images.

    Raises:
        InvalidRequest: the container cannot run here.
    """
    if container is None:
        return ServerChoice(None)
    framework = framework_of(container.image)
    is_named, own = table.serving_image(container.image)
    if is_named and own is not None and not is_plain:
        return ServerChoice(own, container=container)
    if is_named or framework is not None:
        # Google's containers unpickle, too: the pickles are the model author's own.
        return ServerChoice(None, framework or "auto", is_trusted=table.trusts_pickles)
    if is_plain and not container.command:
        raise InvalidRequest(
            f"model.container_spec: plain processes have no images, so {container.image[:200]} cannot run here. "
            "Upload the model with serving_container_command, with one of Google's pre-built containers, or have an "
            "administrator name the image under serving_images in the table (`trainmaster vertex-table`).",
            field="container_spec",
        )
    return ServerChoice(None if is_plain else container.image, container=container)


def _port(spec: Message) -> int:
    """The first port; Vertex AI also sends requests to no other."""
    ports = [Message(item, path) for path, item in spec.items("ports")]
    for port in ports:
        port.refuse_unknown_fields({"containerPort"})
        if not 1 <= port.whole("containerPort") <= 65535:
            raise port.fault("containerPort", "must be a port from 1 to 65535.")
    return ports[0].whole("containerPort") if ports else 0


def _route(spec: Message, name: str) -> str:
    route = spec.text(name)
    if route and not _ROUTE.fullmatch(route):
        raise spec.fault(
            name, f"must begin with a slash, and have no blanks and at most 500 characters, not '{route[:100]}'."
        )
    return route


@dataclass(frozen=True, slots=True)
class ReplicaResources:
    """``requested``: of one replica, as in a job spec."""

    requested: dict[str, Any]
    node_selector: dict[str, str]
    replicas: int = 1
    priority: int = _NORMAL_PRIORITY


def read_dedicated(model: Message, table: Table, location: str) -> ReplicaResources:
    """Resources of a deployed model. Raises ``InvalidRequest`` or ``NotServed``."""
    served = {"machineSpec", "minReplicaCount", "maxReplicaCount", "requiredReplicaCount", "spot"}
    message = model.part("dedicatedResources", served, _NO_SCALING)
    replicas = message.whole("minReplicaCount") or 1
    _demand_no_scaling(message, "minReplicaCount", replicas)
    required = message.whole("requiredReplicaCount")
    if not 0 <= required <= replicas:
        raise message.fault("requiredReplicaCount", f"must be from 0 to min_replica_count, not {required}.")
    return _resources(message, table, location, replicas)


def read_batch(job: Message, table: Table, location: str) -> ReplicaResources:
    """Resources of a batch prediction. Raises ``InvalidRequest`` or ``NotServed``."""
    served = {"machineSpec", "startingReplicaCount", "maxReplicaCount", "spot"}
    message = job.part("dedicatedResources", served, {"flexStart": "flex-start is"})
    # maxReplicaCount is ignored: the SDK always sends one (10 by default), and there is no autoscaling here.
    replicas = message.whole("startingReplicaCount") or 1
    if not 1 <= replicas <= MAX_SERVING_REPLICAS:
        raise message.fault("startingReplicaCount", f"must be from 1 to {MAX_SERVING_REPLICAS}, not {replicas}.")
    return _resources(message, table, location, replicas)


def _demand_no_scaling(message: Message, name: str, replicas: int) -> None:
    most, where = message.whole("maxReplicaCount"), message.at("maxReplicaCount")
    if replicas < 1:
        raise message.fault(name, f"must be at least 1, not {replicas}.")
    if most and most != replicas:
        message.refuse_unknown_fields(
            {"machineSpec", "minReplicaCount", "requiredReplicaCount", "spot"},
            absent={"maxReplicaCount": f"scaling by load (more than the {replicas} of min_replica_count) is"},
        )
        raise InvalidRequest(f"{where}: must be that of min_replica_count, {replicas}, not {most}.", field=where)


def _resources(message: Message, table: Table, location: str, replicas: int) -> ReplicaResources:
    requested, selector = read_machine(message).resources(table) if message.has("machineSpec") else ({}, {})
    priority = _LOW_PRIORITY if message.flag("spot") else _NORMAL_PRIORITY
    return ReplicaResources(requested, {**table.node_selector(location), **selector}, replicas, priority)
