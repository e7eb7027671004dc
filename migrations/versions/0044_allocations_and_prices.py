"""Prices and budgets, and the allocations that elastic gangs gave back.

Revision ID: 0044
Revises: 0043

The other allocations are read from replicas and their attempts.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_JSON = sa.JSON(none_as_null=True).with_variant(
    postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
)


def upgrade() -> None:
    op.add_column("replicas", sa.Column("placed_at", _TIME, nullable=True))
    op.create_index(op.f("ix_attempts_ended_at"), "attempts", ["ended_at"])
    op.create_table(
        "released_allocations",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("gpu_model", sa.String(), nullable=True),
        sa.Column("gpu_milli", sa.Integer(), nullable=False),
        sa.Column("cpu_milli", sa.Integer(), nullable=False),
        sa.Column("memory_bytes", sa.BigInteger(), nullable=False),
        sa.Column("start_at", _TIME, nullable=False),
        sa.Column("end_at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_released_allocations_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_released_allocations")),
    )
    op.create_index(op.f("ix_released_allocations_end_at"), "released_allocations", ["end_at"])
    op.create_index(op.f("ix_released_allocations_job_id"), "released_allocations", ["job_id"])
    op.create_table(
        "prices",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("resource", sa.String(), nullable=False),
        sa.Column("gpu_model", sa.String(), nullable=False),
        sa.Column("node_selector", _JSON, nullable=False),
        sa.Column("micros_per_hour", sa.BigInteger(), nullable=False),
        sa.Column("effective_from", _TIME, nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_prices")),
    )
    op.create_table(
        "budgets",
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("micros_per_month", sa.BigInteger(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("updated_by", sa.String(), nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_budgets_project_id_projects")),
        sa.PrimaryKeyConstraint("project_id", name=op.f("pk_budgets")),
    )


def downgrade() -> None:
    op.drop_table("budgets")
    op.drop_table("prices")
    op.drop_table("released_allocations")
    op.drop_index(op.f("ix_attempts_ended_at"), "attempts")
    op.drop_column("replicas", "placed_at")
