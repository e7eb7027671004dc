"""Elastic jobs remember how fast they were with how many replicas.

Revision ID: 0036
Revises: 0035
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "job_speeds",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("replicas", sa.Integer(), nullable=False),
        sa.Column("steps_per_s", sa.Float(), nullable=False),
        sa.Column("measured_s", sa.Float(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_job_speeds_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "replicas", name=op.f("pk_job_speeds")),
    )
    op.create_index("ix_job_speeds_updated_at", "job_speeds", ["updated_at"])


def downgrade() -> None:
    op.drop_table("job_speeds")
