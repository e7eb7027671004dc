"""What the planner reads of its policy and the past, and what it has to say."""

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

    ``shape`` may also be that of one user's jobs in one project (``core.db.repositories.wait_reasons``).
    """

    __tablename__ = "wait_reasons"
    shape: Mapped[str] = mapped_column(primary_key=True)
    code: Mapped[str]
    sentence: Mapped[str] = mapped_column(Text)
    numbers: Mapped[dict[str, Any]]
    updated_at: Mapped[datetime]


class Question(Base):
    """What somebody asks the planner: put by the API, answered by the control loop, gone once the answer is read.

    ``kind``: what is asked; ``ask``: its arguments (``core.db.repositories.questions``). ``answer``: null until there is one.
    ``expires_at``: nobody waits for an answer any longer then.
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
    """The planner's settings: one row, ``name`` "policy", or none while nobody has changed them.

    ``settings``: those that were set (``core.domain.sharing.policy``). ``generation`` grows with each change.
    """

    __tablename__ = "policy"
    name: Mapped[str] = mapped_column(primary_key=True)
    settings: Mapped[dict[str, Any]]
    generation: Mapped[int] = mapped_column(Integer)
    updated_at: Mapped[datetime]
    updated_by: Mapped[str]


class BookingRow(Base):
    """Nodes that one project alone may use for a while. ``nodes``: their names."""

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
    """What a project, or a user of it, has had of the cluster lately: ``value`` is the decayed mean of the dominant share as
    of ``at``, and since then ``share`` is held. So time that passes needs no write, and none is counted twice.
    ``user_id``: empty for the project as a whole.
    """

    __tablename__ = "usage"
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"), primary_key=True)
    user_id: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[float] = mapped_column(Float)
    share: Mapped[float] = mapped_column(Float)
    at: Mapped[datetime]


class StartForecastRow(Base):
    """Where a waiting job stands in the line, and when it is expected to start: probably at ``likely``, between ``earliest``
    and ``latest``. Written for the first jobs in the line, now and then. ``code``: what is known of it, ``sentence``: in
    words that go on after "it starts" (``scheduler.planning.forecast.start_times``). ``nodes``: where, if all goes as is likely.
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
    at: Mapped[datetime]


class PlanRecord(Base):
    """What the planner saw and planned at one tick, so that it can be asked again.

    ``data``: compressed JSON, whole or what differs from the record ``after_id``. ``base_id``: the whole record that it goes
    back to, itself where it is whole; they are deleted together.
    """

    __tablename__ = "plan_records"
    id: Mapped[str] = mapped_column(primary_key=True)
    at: Mapped[datetime] = mapped_column(index=True)
    base_id: Mapped[str] = mapped_column(index=True)
    previous_id: Mapped[str | None]
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    data: Mapped[bytes] = mapped_column(LargeBinary)
