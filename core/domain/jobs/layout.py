"""The layout of an attempt: every replica's host, ports and devices, known before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Ports:
    """One set per replica. The defaults apply if each replica has an address of its own.

    Source: the well-known port of each framework (TensorFlow 2222, torch 29500, ps-lite 9091).
    """

    framework: int = 2222
    torch: int = 29500
    dmlc: int = 9091
    gloo: int = 29600


PS_PORT: Final = 2223
PORTS_PER_REPLICA: Final = 4


@dataclass(frozen=True, slots=True)
class ReplicaAddress:
    """The address of a replica. ``gpus``: indices (or UUIDs) of its devices on the node, empty for none."""

    role: str
    index: int
    host: str
    ports: Ports
    node: str
    gpus: tuple[str, ...] = ()
    processes: int = 1


@dataclass(frozen=True, slots=True)
class Layout:
    """All replicas of one attempt in rank order (chief, worker, ps, evaluator, own roles by name)."""

    replicas: tuple[ReplicaAddress, ...]

    def of_role(self, role: str) -> tuple[ReplicaAddress, ...]:
        return tuple(r for r in self.replicas if r.role == role)

    def find(self, role: str, index: int) -> ReplicaAddress:
        return next(r for r in self.replicas if r.role == role and r.index == index)

    def to_json(self) -> list[dict[str, Any]]:
        return [
            {
                "role": r.role,
                "index": r.index,
                "host": r.host,
                "ports": [r.ports.framework, r.ports.torch, r.ports.dmlc, r.ports.gloo],
                "node": r.node,
                "gpus": list(r.gpus),
                "processes": r.processes,
            }
            for r in self.replicas
        ]

    @classmethod
    def from_json(cls, data: list[Mapping[str, Any]]) -> Layout:
        return cls(
            tuple(
                ReplicaAddress(
                    d["role"], d["index"], d["host"], Ports(*d["ports"]), d["node"], tuple(d["gpus"]), d["processes"]
                )
                for d in data
            )
        )
