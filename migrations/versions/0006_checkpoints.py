"""Checkpoints that users keep or choose, and the rules by which the others go.

Revision ID: 0006
Revises: 0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

json_type = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("resume_choice", json_type, nullable=True))
    op.create_table(
        "kept_checkpoints",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_kept_checkpoints_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", "path", name=op.f("pk_kept_checkpoints")),
    )
    op.create_table(
        "retentions",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("rule", json_type, nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_retentions_job_id_jobs")),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_retentions")),
    )


def downgrade() -> None:
    op.drop_table("retentions")
    op.drop_table("kept_checkpoints")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_column("resume_choice")
