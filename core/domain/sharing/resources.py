"""Amounts of CPU, memory and GPUs, and the requests of a gang."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from trainmaster.spec import JobSpec, Resources, ServerPlacement

# A replica without stated CPU or memory is unlimited and shares what is free; it still reserves this little, so that a
# node cannot be filled with any number of them.
UNSTATED_CPU_MILLI: Final = 100
UNSTATED_MEMORY_BYTES: Final = 128 * 2**20


def as_gpus(gpu_milli: int) -> int | float:
    """Thousandths as a number of GPUs: ``2``, ``0.5``."""
    return gpu_milli // 1000 if gpu_milli % 1000 == 0 else gpu_milli / 1000


@dataclass(frozen=True, slots=True)
class Amounts:
    """Amounts of all resources of a node. ``gpus``: model -> number of whole devices.

    ``shares``: model -> remainders (in thousandths) of devices shared by fractions, ascending; such devices do not
    count in ``gpus``.
    """

    cpu_milli: int = 0
    memory_bytes: int = 0
    gpus: Mapping[str, int] = field(default_factory=dict)
    shares: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def gpu_count(self) -> int:
        return sum(self.gpus.values())

    def to_json(self) -> dict[str, Any]:
        shares = {"shares": {model: list(left) for model, left in self.shares.items()}} if self.shares else {}
        return {"cpu_milli": self.cpu_milli, "memory_bytes": self.memory_bytes, "gpus": dict(self.gpus), **shares}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Amounts:
        shares = {model: tuple(left) for model, left in data.get("shares", {}).items()}
        return cls(int(data["cpu_milli"]), int(data["memory_bytes"]), dict(data.get("gpus", {})), shares)


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """Resources that one replica reserves on its node.

    ``gpu_models``: accepted models, best first, as the user wrote them (matched by
    :mod:`core.domain.sharing.gpus`); empty accepts any. All GPUs of one replica are of one model. ``gpu_milli``:
    a fraction of one device in thousandths, 1 to 999, which is shared with others; then ``gpu_count`` is 0.
    ``explicit``: ``cpu`` and ``memory``, if the user stated the same amount as the default.
    """

    cpu_milli: int = UNSTATED_CPU_MILLI
    memory_bytes: int = UNSTATED_MEMORY_BYTES
    gpu_count: int = 0
    gpu_models: tuple[str, ...] = ()
    gpu_milli: int = 0
    explicit: tuple[str, ...] = ()

    @property
    def uses_gpu(self) -> bool:
        """Whether it requests a GPU, or a fraction of one."""
        return bool(self.gpu_count or self.gpu_milli)

    @property
    def default_amounts(self) -> tuple[str, ...]:
        """Those of ``cpu`` and ``memory`` that are the default, since the user stated none."""
        defaults = {"cpu": self.cpu_milli == UNSTATED_CPU_MILLI, "memory": self.memory_bytes == UNSTATED_MEMORY_BYTES}
        return tuple(name for name, is_default in defaults.items() if is_default and name not in self.explicit)

    def times(self, members: int) -> ResourceRequest:
        """The reservation of ``members`` replicas together on one node; fractions of a GPU do not add up."""
        if members == 1:
            return self
        if self.gpu_milli:
            raise ValueError("parts of a GPU do not add up: each needs a device with room for it")
        return ResourceRequest(
            members * self.cpu_milli, members * self.memory_bytes, members * self.gpu_count, self.gpu_models
        )


@dataclass(frozen=True, slots=True)
class GangRole:
    """``replicas`` equal members of a gang. ``most``: up to as many may run if there is room (elastic role)."""

    role: str
    replicas: int
    request: ResourceRequest
    most: int | None = None


@dataclass(frozen=True, slots=True)
class Gang:
    """All replicas of an attempt, placed all or nothing. Roles are in rank order.

    ``servers``: placement of parameter servers: next to the workers if there is room (``None``), or only on nodes
    without other replicas of the gang (``"apart"``). ``spread_servers``: no two of them on one node (anti-affinity).
    """

    roles: tuple[GangRole, ...]
    node_selector: tuple[tuple[str, str], ...] = ()
    topology: str | None = None  # "node" | "rack" | "zone"
    topology_required: bool = False
    servers: str | None = None  # "apart"
    spread_servers: bool = False

    @property
    def size(self) -> int:
        """The number of replicas that must be placed together."""
        return sum(role.replicas for role in self.roles)

    @property
    def gpu_count(self) -> int:
        """GPUs of those replicas."""
        return sum(role.replicas * role.request.gpu_count for role in self.roles)

    @property
    def gpu_milli(self) -> int:
        """The same in thousandths, fractions included."""
        return sum(role.replicas * (1000 * role.request.gpu_count + role.request.gpu_milli) for role in self.roles)

    @property
    def elastic(self) -> GangRole | None:
        """The role that may have more than its minimum of replicas."""
        return next((role for role in self.roles if role.most is not None), None)

    def shape(self) -> str:
        """Equal for gangs that every planner treats alike, whatever their names: a short stable hash."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        return {
            "roles": [
                [
                    r.role,
                    r.replicas,
                    r.request.cpu_milli,
                    r.request.memory_bytes,
                    r.request.gpu_count,
                    list(r.request.gpu_models),
                    *_rare_values(r),
                ]
                for r in self.roles
            ],
            "select": [list(pair) for pair in self.node_selector],
            "topology": [self.topology, self.topology_required],
            **({"servers": [self.servers, self.spread_servers]} if self.servers or self.spread_servers else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Gang:
        return cls(
            roles=tuple(
                GangRole(
                    r[0],
                    r[1],
                    ResourceRequest(
                        r[2], r[3], r[4], tuple(r[5]), r[7] if len(r) > 7 else 0, tuple(r[8]) if len(r) > 8 else ()
                    ),
                    r[6] if len(r) > 6 else None,
                )
                for r in data["roles"]
            ),
            node_selector=tuple((key, value) for key, value in data["select"]),
            topology=data["topology"][0],
            topology_required=data["topology"][1],
            servers=data.get("servers", [None, False])[0],
            spread_servers=data.get("servers", [None, False])[1],
        )


def _rare_values(role: GangRole) -> list[Any]:
    """Left out from the end while unset, so that existing shapes stay the same."""
    values = [role.most, role.request.gpu_milli, list(role.request.explicit)]
    while values and not values[-1]:
        values.pop()
    return values


def gang_of(spec: JobSpec) -> Gang:
    """The gang to place for ``spec``."""
    servers = spec.roles.get("ps")
    return Gang(
        roles=tuple(
            GangRole(
                name,
                (role.min_replicas or role.replicas) if role.is_elastic else role.replicas,
                _request_of(role.resources),
                role.replicas if role.is_elastic else None,
            )
            for name, role in spec.ordered_roles()
        ),
        node_selector=tuple(sorted(spec.node_selector.items())),
        topology=spec.topology.level.value if spec.topology else None,
        topology_required=bool(spec.topology and spec.topology.required),
        servers="apart" if servers is not None and servers.placement is ServerPlacement.APART else None,
        spread_servers=servers is not None and servers.spread,
    )


def _request_of(resources: Resources) -> ResourceRequest:
    cpu_milli, memory_bytes = resources.cpu_milli, resources.memory_bytes
    explicit = (
        *(("cpu",) if cpu_milli == UNSTATED_CPU_MILLI else ()),
        *(("memory",) if memory_bytes == UNSTATED_MEMORY_BYTES else ()),
    )
    return ResourceRequest(
        UNSTATED_CPU_MILLI if cpu_milli is None else cpu_milli,
        UNSTATED_MEMORY_BYTES if memory_bytes is None else memory_bytes,
        0 if resources.gpu_milli else resources.device_count,
        resources.gpu_type,
        resources.gpu_milli,
        explicit,
    )
