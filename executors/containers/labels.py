"""Labels by which a driver finds its own objects on an engine, among those of other platforms."""

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
    """Labels of one replica's container, Pod or Secret."""
    key = order.key
    return {
        **attempt_labels(instance, order),
        ROLE: key.role,
        INDEX: str(key.index),
        GENERATION: str(key.generation),
    }


def attempt_labels(instance: str, order: ReplicaOrder) -> dict[str, str]:
    """Labels of what all replicas of an attempt share: its network, its Service."""
    labels = {INSTANCE: instance, JOB: order.key.job_id, ATTEMPT: order.key.attempt_id}
    if order.project:
        labels[PROJECT] = label_value(order.project)
    if order.database_id:
        labels[DATABASE] = order.database_id
    return labels


def key_of(labels: Mapping[str, str]) -> ReplicaKey | None:
    """The replica that the labels name; ``None`` for an attempt's network, or for labels of another program."""
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


def databases(label_sets: Iterable[Mapping[str, str] | None]) -> dict[AttemptId, str]:
    """Attempt -> id of its database, from the labels of an engine's objects; empty where no label says it."""
    by_attempt: dict[AttemptId, str] = {}
    for thing_labels in label_sets:
        if thing_labels and thing_labels.get(ATTEMPT):
            attempt_id = AttemptId(thing_labels[ATTEMPT])
            by_attempt[attempt_id] = thing_labels.get(DATABASE) or by_attempt.get(attempt_id, "")
    return by_attempt


def is_of_foreign_database(thing_labels: Mapping[str, str], database_id: str) -> bool:
    """Whether the labels name another database; an object without the label counts as this database's."""
    return bool(database_id) and thing_labels.get(DATABASE, "") not in ("", database_id)


def selector(instance: str, attempt_id: AttemptId | None = None) -> dict[str, str]:
    """Labels that select all objects of this platform, or those of one attempt."""
    thing_labels = {INSTANCE: instance}
    return thing_labels if attempt_id is None else {**thing_labels, ATTEMPT: attempt_id}


def label_value(text: str) -> str:
    """``text`` if it may be a label's value, else what is left of it with a hash that keeps it apart from others."""
    if _VALUE.fullmatch(text):
        return text
    clean = re.sub(r"[^A-Za-z0-9._-]", "-", text)[:46].strip("._-")
    return f"{clean or 'x'}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
