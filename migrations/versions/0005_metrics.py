"""Metrics: streams, series, what has just come in, and the chunks that it goes into.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

json_type = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
big_id = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    op.create_table(
        "metric_streams",
        sa.Column("id", big_id, autoincrement=True, nullable=False),
        sa.Column("owner_id", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("replica_index", sa.Integer(), nullable=False),
        sa.Column("series_count", sa.Integer(), nullable=False),
        sa.Column("points", sa.BigInteger(), nullable=False),
        sa.Column("pending_points", sa.Integer(), nullable=False),
        sa.Column("pending_segments", sa.Integer(), nullable=False),
        sa.Column("compactions", sa.BigInteger(), nullable=False),
        sa.Column("objects", sa.BigInteger(), nullable=False),
        sa.Column("object_bytes", sa.BigInteger(), nullable=False),
        sa.Column("writers", json_type, nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_metric_streams")),
        sa.UniqueConstraint(
            "owner_id",
            "attempt",
            "role",
            "replica_index",
            name=op.f("uq_metric_streams_owner_id_attempt_role_replica_index"),
        ),
    )
    op.create_table(
        "metric_series",
        sa.Column("id", big_id, autoincrement=True, nullable=False),
        sa.Column("stream_id", big_id, nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.Column("last_time", sa.BigInteger(), nullable=True),
        sa.Column("last_value", sa.Float(), nullable=True),
        sa.Column("low", sa.Float(), nullable=True),
        sa.Column("high", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(
            ["stream_id"],
            ["metric_streams.id"],
            name=op.f("fk_metric_series_stream_id_metric_streams"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_metric_series")),
        sa.UniqueConstraint("stream_id", "name", "kind", name=op.f("uq_metric_series_stream_id_name_kind")),
    )
    op.create_table(
        "metric_segments",
        sa.Column("id", big_id, autoincrement=True, nullable=False),
        sa.Column("stream_id", big_id, nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["stream_id"],
            ["metric_streams.id"],
            name=op.f("fk_metric_segments_stream_id_metric_streams"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_metric_segments")),
    )
    op.create_index(op.f("ix_metric_segments_stream_id"), "metric_segments", ["stream_id"], unique=False)
    op.create_table(
        "metric_chunks",
        sa.Column("series_id", big_id, nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("count", sa.Integer(), nullable=False),
        sa.Column("step_min", sa.BigInteger(), nullable=False),
        sa.Column("step_max", sa.BigInteger(), nullable=False),
        sa.Column("time_min", sa.BigInteger(), nullable=False),
        sa.Column("time_max", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.Column("fine", sa.LargeBinary(), nullable=False),
        sa.Column("coarse", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["series_id"],
            ["metric_series.id"],
            name=op.f("fk_metric_chunks_series_id_metric_series"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("series_id", "number", name=op.f("pk_metric_chunks")),
    )
    op.create_table(
        "metric_objects",
        sa.Column("id", big_id, autoincrement=True, nullable=False),
        sa.Column("series_id", big_id, nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("time", sa.BigInteger(), nullable=False),
        sa.Column("media_type", sa.String(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(
            ["series_id"],
            ["metric_series.id"],
            name=op.f("fk_metric_objects_series_id_metric_series"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_metric_objects")),
    )
    op.create_index("ix_metric_objects_series_id", "metric_objects", ["series_id", "id"], unique=False)


def downgrade() -> None:
    op.drop_table("metric_objects")
    op.drop_table("metric_chunks")
    op.drop_table("metric_segments")
    op.drop_table("metric_series")
    op.drop_table("metric_streams")
