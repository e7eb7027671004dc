"""Labels: by them a driver finds again what it made, and tells its own from another platform's."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Final

from core.domain.ids import AttemptId, JobId
from executors.base import ReplicaKey, ReplicaOrder

INSTANCE: Final = "trainmaster/instance"
PROJECT: Final = "trainmaster/project"
JOB: Final = "trainmaster/job"
ATTEMPT: Final = "trainmaster/attempt"
ROLE: Final = "trainmaster/role"
INDEX: Final = "trainmaster/index"
GENERATION: Final = "trainmaster/generation"
# The id of the database that knows the attempt: two of them under one instance do not take away each other's things.
DATABASE: Final = "trainmaster/database"

# https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set
_VALUE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


def replica_labels(instance: str, order: ReplicaOrder) -> dict[str, str]:
    """What is one replica's: its container, Pod, Secret."""
    key = order.key
    return {
        **attempt_labels(instance, order),
        ROLE: key.role,
        INDEX: str(key.index),
        GENERATION: str(key.generation),
    }


def attempt_labels(instance: str, order: ReplicaOrder) -> dict[str, str]:
    """What all replicas of an attempt share: its network, its Service."""
    labels = {INSTANCE: instance, JOB: order.key.job_id, ATTEMPT: order.key.attempt_id}
    if order.project:
        labels[PROJECT] = label_value(order.project)
    if order.database_id:
        labels[DATABASE] = order.database_id
    return labels


def key_of(labels: Mapping[str, str]) -> ReplicaKey | None:
    """Whose it is; ``None`` when it is no replica's (an attempt's network, or labels that are not ours)."""
    try:
        return ReplicaKey(
            JobId(labels[JOB]),
            AttemptId(labels[ATTEMPT]),
            labels[ROLE],
            int(labels[INDEX]),
            int(labels[GENERATION]),
        )
    except (KeyError, ValueError):
        return None


def databases(found: Iterable[Mapping[str, str] | None]) -> dict[AttemptId, str]:
    """By the labels of what an engine holds: attempt -> the database that knows it, empty where nothing of it says so."""
    held: dict[AttemptId, str] = {}
    for own in found:
        if own and own.get(ATTEMPT):
            attempt_id = AttemptId(own[ATTEMPT])
            held[attempt_id] = own.get(DATABASE) or held.get(attempt_id, "")
    return held


def is_of_another_database(own: Mapping[str, str], database_id: str) -> bool:
    """Whether labels say so; what says nothing of its database counts as of this one."""
    return bool(database_id) and own.get(DATABASE, "") not in ("", database_id)


def selector(instance: str, attempt_id: AttemptId | None = None) -> dict[str, str]:
    """Labels of all that is this platform's, or of one attempt of it."""
    own = {INSTANCE: instance}
    return own if attempt_id is None else {**own, ATTEMPT: attempt_id}


def label_value(text: str) -> str:
    """``text`` if it may be a label's value, else what is left of it with a hash that keeps it apart from others."""
    if _VALUE.fullmatch(text):
        return text
    clean = re.sub(r"[^A-Za-z0-9._-]", "-", text)[:46].strip("._-")
    return f"{clean or 'x'}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
