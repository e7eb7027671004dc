"""Database effects of a reconcile pass, as values: the transaction batcher runs the effects of many passes at once.

A pass is a generator. It yields one of these where it needs a transaction, and is sent the result. Between two effects
it talks to the executor, and no transaction is open. An error of the transaction is thrown in at the ``yield``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from sqlalchemy.orm import Session

from core.domain.errors import TrainmasterError
from core.job_users import FolderOwners
from scheduler.control.attempts.attempt_snapshot import JobFacts
from scheduler.control.attempts.launching.replica_orders import Address, OrderVolume
from scheduler.control.attempts.storage.statement_batch import StatementBatch

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LoadAttempt:
    """Result: the attempt's rows; ``None``: it is not live. ``LeaseTaken`` is thrown where another process has the
    lease.

    ``acquires_lease``: acquire the lease first, as it is not held, or not any more.
    """

    acquires_lease: bool


@dataclass(frozen=True, slots=True)
class LoadStartInputs:
    """Result: the addresses on shared hosts that no other attempt may be given, written ones and those that are about
    to be written, as one set for all passes at once; and :class:`ResumeSources`.
    """

    job: JobFacts
    number: int  # of the attempt


@dataclass(frozen=True, slots=True)
class LoadOrderInputs:
    """Result: :class:`OrderInputs`."""

    job: JobFacts


@dataclass(frozen=True, slots=True)
class OrderInputs:
    """The inputs of replica orders. ``secrets``: or the error of reading them. ``owners``: where projects have user
    ids.
    """

    volumes: Mapping[str, OrderVolume]
    secrets: Mapping[str, str] | TrainmasterError
    database_id: str
    owners: FolderOwners | None = None


@dataclass(frozen=True, slots=True)
class RunRead:
    """Result: what ``work`` returns, in a read-only transaction."""

    work: Callable[[Session], Any]


@dataclass(frozen=True, slots=True)
class WriteStatements:
    """Result: ``None``, once all is written. ``addresses``: those that are allocated with it."""

    writes: StatementBatch
    addresses: frozenset[Address] = frozenset()


@dataclass(frozen=True, slots=True)
class RunWrite:
    """Result: what ``work`` returns, in a transaction of its own that is fenced like any write."""

    work: Callable[[Session], Any]


@dataclass(frozen=True, slots=True)
class RenewLease:
    """Extend the lease by its full time."""


DatabaseEffect: TypeAlias = (
    LoadAttempt | LoadStartInputs | LoadOrderInputs | RunRead | WriteStatements | RunWrite | RenewLease
)
Effects: TypeAlias = Generator[DatabaseEffect, Any, T]


class LeaseTaken(Exception):
    """Another process holds the attempt's lease."""
