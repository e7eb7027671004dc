"""Metrics: streams, series, and stored points and objects."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from core.db.tables.base import Base, BigId


class MetricStream(Base):
    """The metrics of one replica in one attempt; its row is locked during writes.

    ``owner_id``: a job's id, or that of another owner of metrics. ``writers``: the last batch number of each sender,
    for deduplication, and the names claimed by a client such as MLflow's. ``pending_points``: points in segments;
    ``compactions`` grows with each compaction, by which a reader notices an inconsistent read.
    ``gpu_samples``: samples of its GPUs' utilisation, of which ``idle_gpu_samples`` showed an idle one.
    """

    __tablename__ = "metric_streams"
    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    owner_id: Mapped[str]
    attempt: Mapped[int] = mapped_column(Integer)
    role: Mapped[str]
    index: Mapped[int] = mapped_column("replica_index", Integer)
    series_count: Mapped[int] = mapped_column(Integer, default=0)
    points: Mapped[int] = mapped_column(BigInteger, default=0)
    pending_points: Mapped[int] = mapped_column(Integer, default=0)
    pending_segments: Mapped[int] = mapped_column(Integer, default=0)
    compactions: Mapped[int] = mapped_column(BigInteger, default=0)
    objects: Mapped[int] = mapped_column(BigInteger, default=0)  # total written
    object_bytes: Mapped[int] = mapped_column(BigInteger, default=0)  # currently stored
    gpu_samples: Mapped[int] = mapped_column(BigInteger, default=0)
    idle_gpu_samples: Mapped[int] = mapped_column(BigInteger, default=0)
    writers: Mapped[dict[str, Any]] = mapped_column(default=dict)
    updated_at: Mapped[datetime]
    __table_args__ = (UniqueConstraint("owner_id", "attempt", "role", "replica_index"),)


class MetricSeries(Base):
    """A series. ``count`` and the following columns cover its points in chunks; those in segments are not included.

    ``last_value``, ``low`` and ``high`` are null for NaN, which SQLite cannot store, and without any point.
    """

    __tablename__ = "metric_series"
    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    stream_id: Mapped[int] = mapped_column(ForeignKey("metric_streams.id", ondelete="CASCADE"))
    name: Mapped[str]
    kind: Mapped[str]  # scalar | histogram | image | text
    count: Mapped[int] = mapped_column(BigInteger, default=0)
    last_step: Mapped[int | None] = mapped_column(BigInteger)
    last_time: Mapped[int | None] = mapped_column(BigInteger)  # milliseconds since 1970
    last_value: Mapped[float | None] = mapped_column(Float)
    low: Mapped[float | None] = mapped_column(Float)
    high: Mapped[float | None] = mapped_column(Float)
    __table_args__ = (UniqueConstraint("stream_id", "name", "kind"),)


class MetricSegment(Base):
    """The points of one batch, of many series, until compaction moves them into chunks."""

    __tablename__ = "metric_segments"
    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    stream_id: Mapped[int] = mapped_column(ForeignKey("metric_streams.id", ondelete="CASCADE"), index=True)
    data: Mapped[bytes] = mapped_column(LargeBinary)


class MetricChunk(Base):
    """Points of one series, 4,096 each except in the last chunk. ``fine`` and ``coarse``: digests of every 64 and 512
    points, empty while the chunk is not full.
    """

    __tablename__ = "metric_chunks"
    series_id: Mapped[int] = mapped_column(ForeignKey("metric_series.id", ondelete="CASCADE"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)  # from 0
    count: Mapped[int] = mapped_column(Integer)
    step_min: Mapped[int] = mapped_column(BigInteger)
    step_max: Mapped[int] = mapped_column(BigInteger)
    time_min: Mapped[int] = mapped_column(BigInteger)
    time_max: Mapped[int] = mapped_column(BigInteger)
    data: Mapped[bytes] = mapped_column(LargeBinary)
    fine: Mapped[bytes] = mapped_column(LargeBinary)
    coarse: Mapped[bytes] = mapped_column(LargeBinary)


class MetricObject(Base):
    """A histogram (JSON), an image or a text of a series."""

    __tablename__ = "metric_objects"
    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    series_id: Mapped[int] = mapped_column(ForeignKey("metric_series.id", ondelete="CASCADE"))
    step: Mapped[int] = mapped_column(BigInteger)
    time: Mapped[int] = mapped_column(BigInteger)  # milliseconds since 1970
    media_type: Mapped[str]
    data: Mapped[bytes] = mapped_column(LargeBinary)
    __table_args__ = (Index("ix_metric_objects_series_id", "series_id", "id"),)
