"""Nodes that are taken out of use by themselves, and the ends of jobs that say so.

Revision ID: 0018
Revises: 0017
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_JSON = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    with op.batch_alter_table("nodes", schema=None) as batch_op:
        batch_op.add_column(sa.Column("quarantine", _JSON, nullable=True))
        batch_op.add_column(sa.Column("quarantined_at", _TIME, nullable=True))
        batch_op.add_column(sa.Column("quarantined_until", _TIME, nullable=True))
        batch_op.add_column(sa.Column("quarantine_count", sa.Integer(), nullable=False, server_default="0"))
        batch_op.add_column(sa.Column("trusted_since", _TIME, nullable=True))
        batch_op.add_column(sa.Column("suspicion", _JSON, nullable=True))
    op.create_table(
        "node_failures",
        sa.Column("id", _NUMBER, autoincrement=True, nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("replica", sa.String(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("is_certain", sa.Boolean(), nullable=False),
        sa.Column("is_loss", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_node_failures_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_node_failures")),
    )
    with op.batch_alter_table("node_failures", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_node_failures_at"), ["at"], unique=False)
        batch_op.create_index(batch_op.f("ix_node_failures_job_id"), ["job_id"], unique=False)


def downgrade() -> None:
    op.drop_table("node_failures")
    with op.batch_alter_table("nodes", schema=None) as batch_op:
        for name in (
            "suspicion", "trusted_since", "quarantine_count", "quarantined_until", "quarantined_at", "quarantine"
        ):  # fmt: skip
            batch_op.drop_column(name)
