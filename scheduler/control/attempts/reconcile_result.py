"""One look at an attempt: how it ended, what was seen, and what this process remembers of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, auto

from core.storage.spooled_reports import Start
from core.storage.tree import Tree
from executors.base import Observation, ReplicaKey

# What the executor shows of an attempt, comparable: a change is worth a look.
Fingerprint = frozenset[tuple[str, int, int, str, str]]


class ReconcileOutcome(Enum):
    """How a look ended."""

    IN_SYNC = auto()  # rows and executor agree for now
    REQUEUE = auto()  # there is more to do; look again at ``next_look``
    BUSY = auto()  # somebody else holds the attempt
    GONE = auto()  # it has ended, or there is no such attempt


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """``seen``: what the executor showed last. ``next_look``: when time alone will change something."""

    outcome: ReconcileOutcome
    recheck_at: datetime | None = None
    fingerprint: Fingerprint = frozenset()
    is_changing: bool = False  # starting or ending: changes are expected soon


@dataclass(slots=True)
class ReconcilerCache:
    """What this process remembers of an attempt. Losing it costs a repeated call, nothing else."""

    tries: int = 0
    refusal: str | None = None
    startup_status: str = ""  # what was told of a gang that is being started
    is_removed: bool = False
    stop_times: dict[ReplicaKey, datetime] = field(default_factory=dict)
    refused_joins: dict[tuple[str, int], str] = field(
        default_factory=dict
    )  # one that was to join, by id and generation
    world_update_times: dict[tuple[str, int], datetime] = field(
        default_factory=dict
    )  # replica and world -> when it was told
    discard_times: dict[ReplicaKey, datetime] = field(
        default_factory=dict
    )  # when it was ended, the gang going on without
    joining: dict[tuple[str, int], datetime] = field(default_factory=dict)  # by id and generation -> since when
    is_spool_drained: bool = False  # the reports that were kept
    spool_tree: Tree | None = None  # the output, where there were any,
    spool_starts: tuple[Start, ...] = ()  # and whose
    volume_away_since: datetime | None = None  # the output's, as the end was to be written


def fingerprint(seen: Sequence[Observation]) -> Fingerprint:
    """What of ``seen`` matters to a decision."""
    return frozenset((o.key.role, o.key.index, o.key.generation, _stage(o), o.detail) for o in seen)


def _stage(seen: Observation) -> str:
    """Its phase, and how far it is on its way into a world."""
    world = f" in world {seen.facts['world']}" if "world" in seen.facts else ""
    return f"{seen.phase.value}{world}{' and ready' if seen.facts.get('is_ready') else ''}"
