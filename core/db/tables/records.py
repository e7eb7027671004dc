"""Records of Vertex AI's clients in metadata stores and TensorBoards."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, Integer, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from core.db.tables.base import Base


class VertexRecord(Base):
    """A resource that only its clients define: a context, an artifact, an execution; a TensorBoard, one of its
    experiments, runs
    or time series.

    ``collection``: its path below the location, such as ``metadataStores/default/contexts``; followed by ``name`` it is
    the prefix
    of its child collections. ``body``: the fields in camelCase as returned, without those that have a column.
    ``job_id``: the job
    that created it. The points of a run's time series are stored like all metrics, under its ``id``.
    """

    __tablename__ = "vertex_records"
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str] = mapped_column(ForeignKey("projects.id"))
    location: Mapped[str]
    collection: Mapped[str]
    name: Mapped[str]
    display_name: Mapped[str] = mapped_column(Text, default="")
    schema_title: Mapped[str] = mapped_column(default="")
    body: Mapped[dict[str, Any]] = mapped_column(default=dict)
    job_id: Mapped[str | None] = mapped_column(ForeignKey("jobs.id"), index=True)
    generation: Mapped[int] = mapped_column(Integer, default=1)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    __table_args__ = (
        UniqueConstraint("project_id", "location", "collection", "name"),
        Index("ix_vertex_records_project_id_created_at", "project_id", "location", "collection", "created_at", "id"),
    )


class VertexLink(Base):
    """A record belongs to another. ``kind``: child (a context of a context), member (an artifact or an execution of a
    context),
    input or output (an artifact of an execution).
    """

    __tablename__ = "vertex_links"
    parent_id: Mapped[str] = mapped_column(ForeignKey("vertex_records.id", ondelete="CASCADE"), primary_key=True)
    child_id: Mapped[str] = mapped_column(
        ForeignKey("vertex_records.id", ondelete="CASCADE"), primary_key=True, index=True
    )
    kind: Mapped[str] = mapped_column(primary_key=True)
    created_at: Mapped[datetime]
