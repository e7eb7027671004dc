"""What a look at an attempt asks of the database, as values: whoever drives many looks answers many at once.

A look is a generator. It yields one of these where it needs a transaction, and is sent the answer; between two of them it
talks with the executor, and no transaction is open. An error of the transaction is thrown in where it was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from sqlalchemy.orm import Session

from core.domain.errors import TrainmasterError
from scheduler.control.attempts.attempt_snapshot import JobFacts
from scheduler.control.attempts.launching.addresses import Address
from scheduler.control.attempts.launching.replica_orders import OrderVolume
from scheduler.control.attempts.storage.statement_batch import StatementBatch

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadAttempt:
    """Answered with the attempt's rows, or ``None`` where it is not live, or somebody else's (``Busy`` is thrown in).

    ``is_anew``: take the lease first, for it is not held, or not any more.
    """

    acquires_lease: bool


@dataclass(frozen=True, slots=True)
class LoadStartInputs:
    """Answered with what is :class:`Given` out on shared hosts, for all who ask at once, and the :class:`ResumeSources`."""

    job: JobFacts
    number: int  # of the attempt


@dataclass(frozen=True, slots=True)
class LoadOrderInputs:
    """Answered with :class:`Gathered`."""

    job: JobFacts


@dataclass(frozen=True, slots=True)
class OrderInputs:
    """What orders are made of. ``secrets``: or what stands against reading them."""

    volumes: Mapping[str, OrderVolume]
    secrets: Mapping[str, str] | TrainmasterError
    database_id: str


@dataclass(frozen=True, slots=True)
class RunRead:
    """Answered with what ``work`` returns, in a transaction that reads."""

    work: Callable[[Session], Any]


@dataclass(frozen=True, slots=True)
class WriteStatements:
    """Answered with ``None`` when all of it is written. ``addresses``: those that are given out with it."""

    writes: StatementBatch
    addresses: frozenset[Address] = frozenset()


@dataclass(frozen=True, slots=True)
class RunWrite:
    """Answered with what ``work`` returns: in a transaction of its own, fenced like any write."""

    work: Callable[[Session], Any]


@dataclass(frozen=True, slots=True)
class RenewLease:
    """Keep the lease for another full time."""


DatabaseEffect: TypeAlias = (
    LoadAttempt | LoadStartInputs | LoadOrderInputs | RunRead | WriteStatements | RunWrite | RenewLease
)
Effects: TypeAlias = Generator[DatabaseEffect, Any, T]


class LeaseTaken(Exception):
    """Another process holds the attempt."""
