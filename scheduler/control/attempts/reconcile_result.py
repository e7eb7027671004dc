"""The result of reconciling an attempt, and what this process caches about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto

from core.storage.spooled_reports import ReplicaStart
from core.storage.tree import Tree
from executors.base import Observation, ReplicaKey

# The observations of an attempt in a comparable form: a change is worth a reconcile.
Fingerprint = frozenset[tuple[str, int, int, str, str]]


class ReconcileOutcome(Enum):
    """How a reconcile ended."""

    IN_SYNC = auto()  # rows and executor agree for now
    REQUEUE = auto()  # there is more to do; reconcile again at ``recheck_at``
    BUSY = auto()  # another process holds the attempt's lease
    ENDED = auto()  # it has ended, or there is no such attempt


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """``fingerprint``: of the last observations. ``recheck_at``: when time alone will change something."""

    outcome: ReconcileOutcome
    recheck_at: datetime | None = None
    fingerprint: Fingerprint = frozenset()
    is_changing: bool = False  # starting or ending: changes are expected soon


@dataclass(slots=True)
class ReconcilerCache:
    """What this process remembers of an attempt. Losing it costs a repeated call, nothing else."""

    tries: int = 0
    refusal: str | None = None
    startup_status: str = ""  # the last one that was written for a starting gang
    is_removed: bool = False
    is_volume_full: bool = False
    stop_times: dict[ReplicaKey, datetime] = field(default_factory=dict)
    refused_joins: dict[tuple[str, int], str] = field(default_factory=dict)  # (id, generation) of a joining replica
    world_update_times: dict[tuple[str, int], datetime] = field(default_factory=dict)  # (id, world) -> last sent
    discard_times: dict[ReplicaKey, datetime] = field(default_factory=dict)
    joining: dict[tuple[str, int], datetime] = field(default_factory=dict)  # (id, generation) -> since when
    is_spool_drained: bool = False
    spool_tree: Tree | None = None  # the output, where its spool held reports,
    spool_starts: tuple[ReplicaStart, ...] = ()  # and the starts that wrote them
    volume_away_since: datetime | None = None  # the output's volume, when the end was to be written


def fingerprint(observations: Sequence[Observation]) -> Fingerprint:
    """The part of ``observations`` that matters to a decision."""
    return frozenset((o.key.role, o.key.index, o.key.generation, _stage(o), o.detail) for o in observations)


def _stage(observation: Observation) -> str:
    """Its phase, with its world and whether it is ready to join."""
    world = f" in world {observation.facts['world']}" if "world" in observation.facts else ""
    return f"{observation.phase.value}{world}{' and ready' if observation.facts.get('is_ready') else ''}"
