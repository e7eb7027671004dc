"""The planner's settings, inputs from the past, and results."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Float,
    ForeignKey,
    Integer,
    LargeBinary,
    Text,
)
from sqlalchemy.orm import Mapped, mapped_column

from core.db.tables.base import Base


class WaitReason(Base):
    """Why jobs of one shape wait. Equal gangs wait for equal reasons, so a tick writes a few rows, not thousands.

    ``shape`` may also be that of one user's jobs in one project (``core.db.repositories.planning``).
    """

    __tablename__ = "wait_reasons"
    shape: Mapped[str] = mapped_column(primary_key=True)
    code: Mapped[str]
    sentence: Mapped[str] = mapped_column(Text)
    numbers: Mapped[dict[str, Any]]
    updated_at: Mapped[datetime]


class Question(Base):
    """A question to the planner: submitted by the API, answered by the control loop, deleted once the answer is read.

    ``kind`` and ``arguments``: see ``core.db.repositories.questions``. ``answer``: null until answered. ``expires_at``:
    no process waits for an answer after this.
    """

    __tablename__ = "questions"
    id: Mapped[str] = mapped_column(primary_key=True)
    user_id: Mapped[str] = mapped_column(ForeignKey("users.id"))
    created_at: Mapped[datetime] = mapped_column(index=True)
    kind: Mapped[str] = mapped_column(default="forecast", server_default="forecast")
    arguments: Mapped[dict[str, Any]]
    answer: Mapped[dict[str, Any] | None]
    expires_at: Mapped[datetime] = mapped_column(index=True)


class PolicyRow(Base):
    """The planner's settings: one row, ``name`` "policy", or none while all are defaults.

    ``settings``: those that were set (``core.domain.sharing.policy``). ``generation`` grows with each change.
    """

    __tablename__ = "policy"
    name: Mapped[str] = mapped_column(primary_key=True)
    settings: Mapped[dict[str, Any]]
    generation: Mapped[int] = mapped_column(Integer)
    updated_at: Mapped[datetime]
    updated_by: Mapped[str]


class BookingRow(Base):
    """Nodes reserved for one project for a time. ``nodes``: their names."""

    __tablename__ = "bookings"
    id: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str]
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), index=True)
    nodes: Mapped[list[Any]]
    begins_at: Mapped[datetime]
    ends_at: Mapped[datetime] = mapped_column(index=True)
    created_by: Mapped[str]
    created_at: Mapped[datetime]


class Usage(Base):
    """Recent usage of a project, or of a user in it: ``value`` is the decayed mean of the dominant share as of ``at``,
    and ``share`` is held since. So passing time needs no write, and no usage is counted twice. ``user_id``: empty for
    the project as a whole.
    """

    __tablename__ = "usage"
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    user_id: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[float] = mapped_column(Float)
    share: Mapped[float] = mapped_column(Float)
    at: Mapped[datetime]


class StartForecastRow(Base):
    """Queue position and start forecast of a waiting job: probably at ``likely``, between ``earliest`` and ``latest``.
    Written for the first jobs in the queue, periodically. ``code``: kind of the forecast, ``sentence``: continues "it
    starts" (``scheduler.planning.forecast.start_times``). ``nodes``: the likely nodes. ``promise``: what the job's
    readers rely on (``scheduler.control.planning.promises``).
    """

    __tablename__ = "start_forecasts"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    position: Mapped[int] = mapped_column(Integer, index=True)  # from 1
    earliest: Mapped[datetime | None]
    likely: Mapped[datetime | None]
    latest: Mapped[datetime | None]
    code: Mapped[str] = mapped_column(default="expected", server_default="expected")
    sentence: Mapped[str] = mapped_column(Text, default="", server_default="")
    nodes: Mapped[list[Any]] = mapped_column(default=list)
    promise: Mapped[dict[str, Any] | None]
    at: Mapped[datetime]


class ForecastRecord(Base):
    """A start forecast (``core.domain.sharing.recorded_forecasts``) of the wait that ends with attempt ``attempt``.
    ``started_at``: when that attempt was placed; null while the job waits.
    """

    __tablename__ = "forecast_records"
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True)
    step: Mapped[int] = mapped_column(Integer, primary_key=True)
    made_at: Mapped[datetime]
    early_s: Mapped[float] = mapped_column(Float)
    likely_s: Mapped[float] = mapped_column(Float)
    late_s: Mapped[float | None] = mapped_column(Float)
    early: Mapped[datetime]
    likely: Mapped[datetime]
    late: Mapped[datetime]
    started_at: Mapped[datetime | None] = mapped_column(index=True)


class PlanRecord(Base):
    """The planner's input and result of one tick, for replay.

    ``data``: compressed JSON, complete or the difference to the record ``previous_id``. ``base_id``: the complete
    record of the chain, itself if it is complete; a chain is deleted together.
    """

    __tablename__ = "plan_records"
    id: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[datetime] = mapped_column(index=True)
    base_id: Mapped[str] = mapped_column(index=True)
    previous_id: Mapped[str | None]
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    data: Mapped[bytes] = mapped_column(LargeBinary)
