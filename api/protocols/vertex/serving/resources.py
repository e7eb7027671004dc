"""Resources of serving replicas and batch predictions, mapped to a job spec's.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/DedicatedResources
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from trainmaster.wire.serving import MAX_SERVING_REPLICAS

from api.protocols.vertex.proto import Message
from api.protocols.vertex.table import Table
from api.protocols.vertex.training.specs import ACCELERATORS, NO_MACHINE
from core.domain.errors import InvalidRequest

_LOW: Final = 25  # priority of spot replicas, as of spot custom jobs
_NORMAL: Final = 50
_NO_SCALING: Final = {
    "autoscalingMetricSpecs": "scaling by load is",
    "scaleToZeroSpec": "scaling by load is",
    "flexStart": "flex-start is",
    "initialReplicaCount": "scaling by load is",
}


@dataclass(frozen=True, slots=True)
class ReplicaResources:
    """``asked``: of one replica, as in a job spec."""

    requested: dict[str, Any]
    node_selector: dict[str, str]
    replicas: int = 1
    priority: int = _NORMAL


def read_dedicated(message: Message | None, table: Table, location: str) -> ReplicaResources:
    """Resources of a deployed model. Raises ``InvalidRequest`` or ``NotServed``."""
    if message is None:
        return ReplicaResources({}, table.node_selector(location))
    message.refuse_unknown_fields(
        {"machineSpec", "minReplicaCount", "maxReplicaCount", "requiredReplicaCount", "spot"}, absent=_NO_SCALING
    )
    replicas = message.whole("minReplicaCount") or 1
    _demand_no_scaling(message, "minReplicaCount", replicas)
    required = message.whole("requiredReplicaCount")
    if not 0 <= required <= replicas:
        raise message.fault("requiredReplicaCount", f"must be from 0 to min_replica_count, not {required}.")
    requested, selector = _machine(message, table, location)
    return ReplicaResources(requested, selector, replicas, _LOW if message.flag("spot") else _NORMAL)


def read_batch(message: Message | None, table: Table, location: str) -> ReplicaResources:
    """Resources of a batch prediction. Raises ``InvalidRequest`` or ``NotServed``."""
    if message is None:
        return ReplicaResources({}, table.node_selector(location))
    message.refuse_unknown_fields(
        {"machineSpec", "startingReplicaCount", "maxReplicaCount", "spot"}, absent={"flexStart": "flex-start is"}
    )
    # maxReplicaCount is ignored: the SDK always sends one (10 by default), and there is no autoscaling here.
    replicas = message.whole("startingReplicaCount") or 1
    if not 1 <= replicas <= MAX_SERVING_REPLICAS:
        raise message.fault("startingReplicaCount", f"must be from 1 to {MAX_SERVING_REPLICAS}, not {replicas}.")
    requested, selector = _machine(message, table, location)
    return ReplicaResources(requested, selector, replicas, _LOW if message.flag("spot") else _NORMAL)


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


def _machine(message: Message, table: Table, location: str) -> tuple[dict[str, Any], dict[str, str]]:
    spec = message.message("machineSpec")
    if spec is None:
        return {}, table.node_selector(location)
    spec.refuse_unknown_fields({"machineType", "acceleratorType", "acceleratorCount"}, absent=NO_MACHINE)
    machine = table.machine(spec.text("machineType", 200), path=spec.at("machineType"))
    requested: dict[str, Any] = machine.model_dump(exclude_none=True, include={"cpu", "memory", "shm"})
    count, kind = spec.whole("acceleratorCount"), spec.enum("acceleratorType", ACCELERATORS)
    is_none = kind == ACCELERATORS[0]
    if bool(count) == is_none or count < 0:
        raise InvalidRequest(
            f"{spec.path}: accelerator_type and accelerator_count go together, each needs the other.", field=spec.path
        )
    if count:
        requested["gpus"] = count
        requested["gpu_type"] = list(table.gpu_models(kind, path=spec.at("acceleratorType")))
    return requested, {**table.node_selector(location), **machine.node_selector}
