"""What ``JobSpec(…)`` takes in a program: each field as a user writes it, and the shorthands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Required, TypeAlias, TypedDict

if TYPE_CHECKING:
    from trainmaster.spec.model import Contract, Grace, Mount, RoleSpec, Topology, Warm

Word: TypeAlias = str | int | float | bool


class SpecKeywords(TypedDict, total=False):
    """A test proves that these are the fields of ``JobSpec`` and ``Shorthands``."""

    name: Required[str]
    project: str
    image: str | None
    code: str | None
    command: str | Sequence[Word] | None
    args: Sequence[Word]
    env: Mapping[str, Word]
    secrets: Sequence[str]
    roles: Mapping[str, RoleSpec | Mapping[str, Any] | int | None]
    input: str | None
    output: str | None
    mounts: Sequence[Mount | Mapping[str, Any]]
    priority: int | str
    preemptible: bool
    max_run_time: str | float | None
    max_wait: str | float | None
    max_restarts: int
    grace: Grace | Mapping[str, str | float]
    ttl: str | float | None
    labels: Mapping[str, Word]
    metric_patterns: str | Sequence[str]
    contract: Contract | str
    warm: Warm | str
    sparse: bool
    node_selector: Mapping[str, Word]
    topology: Topology | Mapping[str, Any] | None
    # shorthands
    workers: int | Mapping[str, int] | None
    ps: int | None
    chief: int | bool | None
    evaluator: int | bool | None
    evaluators: int | bool | None
    gpus: float | None
    gpu_type: str | Sequence[str] | None
    cpu: str | float | None
    memory: str | int | None
    shm: str | int | None
    processes_per_replica: int | None
