"""Deterministic names, so that creation is idempotent. All are RFC 1123 labels that begin with a letter."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from core.domain.ids import AttemptId
from core.domain.jobs.layout import PORTS_PER_REPLICA, Ports
from executors.base import ReplicaKey

MAX_NAME: Final = 63
_LABEL: Final = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_HASH_CHARS: Final = 16
# Below Linux's ephemeral ports, and above the well-known ones.
_FIRST_PORT: Final = 20_000
_PORTS: Final = 9_000


def replica_name(key: ReplicaKey) -> str:
    """The container or Pod of one start, such as ``att-…-worker-0-g1``.

    Unique on an engine, for attempt ids are; the last two parts are numbers, so that no role can read like another.
    """
    return fit(f"{key.attempt_id}-{key.role}-{key.index}-g{key.generation}")


def attempt_name(attempt_id: AttemptId) -> str:
    """Name of an attempt's shared object: a network, a headless Service."""
    return fit(attempt_id)


def host_name(role: str, index: int) -> str:
    """A replica's host name and its alias in the network of its attempt, such as ``worker-0``."""
    return fit(f"{role}-{index}")


def ports_of_world(world: int, first: Ports) -> Ports:
    """The ports of a replica that has an address of its own: ``first``, the well-known ones, in its attempt's first
    world.

    Each later world has other ports, the same only after 2250 worlds: a process of an earlier world must neither find
    nor hinder the newest one.
    """
    if world <= 1:
        return first
    lowest = _FIRST_PORT + (world - 2) * PORTS_PER_REPLICA % _PORTS
    return Ports(*range(lowest, lowest + PORTS_PER_REPLICA))


def fit(text: str) -> str:
    """``text`` itself where it is a label, else one of at most 63 characters with a hash of all of it."""
    if _LABEL.fullmatch(text):
        return text
    clean = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")
    clean = clean if clean[:1].isalpha() else f"x-{clean}"
    head = clean[: MAX_NAME - _HASH_CHARS - 1].rstrip("-")
    return f"{head}-{hashlib.sha256(text.encode()).hexdigest()[:_HASH_CHARS]}"
