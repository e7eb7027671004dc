"""What a serving replica or a batch prediction asks for, in our own words.

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

_LOW: Final = 25  # priority of those that take what is left, as custom jobs of that kind
_NORMAL: Final = 50
_NO_SCALING: Final = {
    "autoscalingMetricSpecs": "scaling by load is",
    "scaleToZeroSpec": "scaling by load is",
    "flexStart": "flex-start is",
    "initialReplicaCount": "scaling by load is",
}


@dataclass(frozen=True, slots=True)
class Resources:
    """``asked``: of one replica, as in a job spec."""

    asked: dict[str, Any]
    node_selector: dict[str, str]
    replicas: int = 1
    priority: int = _NORMAL


def read_dedicated(told: Message | None, table: Table, location: str) -> Resources:
    """Of a deployed model. Raises ``InvalidRequest`` or ``NotServed``."""
    if told is None:
        return Resources({}, table.node_selector(location))
    told.demand_known(
        {"machineSpec", "minReplicaCount", "maxReplicaCount", "requiredReplicaCount", "spot"}, absent=_NO_SCALING
    )
    replicas = told.whole("minReplicaCount") or 1
    _demand_no_scaling(told, "minReplicaCount", replicas)
    required = told.whole("requiredReplicaCount")
    if not 0 <= required <= replicas:
        where = told.at("requiredReplicaCount")
        raise InvalidRequest(f"{where}: must be from 0 to min_replica_count, not {required}.", field=where)
    asked, selector = _machine(told, table, location)
    return Resources(asked, selector, replicas, _LOW if told.flag("spot") else _NORMAL)


def read_batch(told: Message | None, table: Table, location: str) -> Resources:
    """Of a batch prediction. Raises ``InvalidRequest`` or ``NotServed``."""
    if told is None:
        return Resources({}, table.node_selector(location))
    told.demand_known(
        {"machineSpec", "startingReplicaCount", "maxReplicaCount", "spot"}, absent={"flexStart": "flex-start is"}
    )
    # The SDK always sends a bound for scaling by load, 10 unless it is told: so many are not begun with, and none is
    # added.
    replicas = told.whole("startingReplicaCount") or 1
    if not 1 <= replicas <= MAX_SERVING_REPLICAS:
        where = told.at("startingReplicaCount")
        raise InvalidRequest(f"{where}: must be from 1 to {MAX_SERVING_REPLICAS}, not {replicas}.", field=where)
    asked, selector = _machine(told, table, location)
    return Resources(asked, selector, replicas, _LOW if told.flag("spot") else _NORMAL)


def _demand_no_scaling(told: Message, name: str, replicas: int) -> None:
    most, where = told.whole("maxReplicaCount"), told.at("maxReplicaCount")
    if replicas < 1:
        raise InvalidRequest(f"{told.at(name)}: must be at least 1, not {replicas}.", field=told.at(name))
    if most and most != replicas:
        told.demand_known(
            {"machineSpec", "minReplicaCount", "requiredReplicaCount", "spot"},
            absent={"maxReplicaCount": f"scaling by load (more than the {replicas} of min_replica_count) is"},
        )
        raise InvalidRequest(f"{where}: must be that of min_replica_count, {replicas}, not {most}.", field=where)


def _machine(told: Message, table: Table, location: str) -> tuple[dict[str, Any], dict[str, str]]:
    spec = told.message("machineSpec")
    if spec is None:
        return {}, table.node_selector(location)
    spec.demand_known({"machineType", "acceleratorType", "acceleratorCount"}, absent=NO_MACHINE)
    machine = table.machine(spec.text("machineType", 200), path=spec.at("machineType"))
    asked: dict[str, Any] = machine.model_dump(exclude_none=True, include={"cpu", "memory", "shm"})
    count, kind = spec.whole("acceleratorCount"), spec.enum("acceleratorType", ACCELERATORS)
    is_none = kind == ACCELERATORS[0]
    if bool(count) == is_none or count < 0:
        raise InvalidRequest(
            f"{spec.path}: accelerator_type and accelerator_count go together, each needs the other.", field=spec.path
        )
    if count:
        asked["gpus"] = count
        asked["gpu_type"] = list(table.gpu_models(kind, path=spec.at("acceleratorType")))
    return asked, {**table.node_selector(location), **machine.node_selector}
