"""Nodes and their failures, leases, the database's identity, and orphaned attempts."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    ForeignKey,
    Integer,
    Text,
    false,
)
from sqlalchemy.orm import Mapped, mapped_column

from core.db.tables.base import Base, BigId


class Node(Base):
    """A machine. The cordon, the drain and ``admin_labels`` are the admin's; the rest is reported by the executor.

    ``labels``: as reported; :func:`core.db.repositories.nodes.labels_of` merges them with ``admin_labels``.
    ``quarantine``: null, or why it takes no new work, written by the control loop (format:
    :mod:`scheduler.control.planning.quarantine_updates`);
    ``quarantined_until`` null: until an admin releases it. ``quarantine_count``: the number of quarantines in a row.
    ``trusted_since``: earlier failures no longer count. ``suspicion``: null, or why a quarantine is withheld.
    """

    __tablename__ = "nodes"
    name: Mapped[str] = mapped_column(primary_key=True)
    executor: Mapped[str]
    labels: Mapped[dict[str, Any]]
    admin_labels: Mapped[dict[str, Any]] = mapped_column(default=dict)
    allocatable: Mapped[dict[str, Any]]
    gpus: Mapped[list[Any]]  # [{"id","model","memory_bytes"}]
    is_ready: Mapped[bool] = mapped_column(Boolean)
    condition: Mapped[str] = mapped_column(Text, default="")
    is_cordoned: Mapped[bool] = mapped_column(Boolean, default=False)
    is_draining: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())  # implies is_cordoned
    # As the executor reports it: it is cordoned in the engine, and its replicas are evicted soon.
    is_draining_in_engine: Mapped[bool] = mapped_column(Boolean, default=False, server_default=false())
    cordon_reason: Mapped[str] = mapped_column(Text, default="")
    seen_at: Mapped[datetime]
    quarantine: Mapped[dict[str, Any] | None]
    quarantined_at: Mapped[datetime | None]
    quarantined_until: Mapped[datetime | None]
    quarantine_count: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    trusted_since: Mapped[datetime | None]
    suspicion: Mapped[dict[str, Any] | None]


class NodeFailure(Base):
    """A replica that ended for a ``core.domain.jobs.machine_faults.MachineFault``, written with the replica's end.

    ``at``: when it happened there. ``replica``: its name, such as ``worker-0``.
    """

    __tablename__ = "node_failures"
    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    node: Mapped[str]
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    attempt_id: Mapped[str]
    replica: Mapped[str]
    at: Mapped[datetime] = mapped_column(index=True)
    error: Mapped[str] = mapped_column(Text)
    is_certain: Mapped[bool] = mapped_column(Boolean)
    is_loss: Mapped[bool] = mapped_column(Boolean)


class Lease(Base):
    """The current writer. ``token`` grows with every change of the holder; writes compare it (fencing)."""

    __tablename__ = "leases"
    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    token: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[datetime]


class DatabaseIdentity(Base):
    """One row, ``name`` "database": the random id by which engines tell this database's objects from another's.

    A copy of the database has the same id: see :mod:`core.db.bootstrap`.
    """

    __tablename__ = "identity"
    name: Mapped[str] = mapped_column(primary_key=True)
    id: Mapped[str]


class Orphan(Base):
    """An attempt in the engine that this database does not know (orphaned attempt). ``database_id``: its database
    according to the engine; empty if unknown. ``is_foreign``: it belongs to another database and is left alone.
    """

    __tablename__ = "orphans"
    attempt_id: Mapped[str] = mapped_column(primary_key=True)
    database_id: Mapped[str]
    is_foreign: Mapped[bool] = mapped_column(Boolean)
    found_at: Mapped[datetime]
