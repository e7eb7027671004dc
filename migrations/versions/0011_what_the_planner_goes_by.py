"""What the planner goes by (policy, bookings, usage), what it said (outlooks, plan records), what jobs have had.

Revision ID: 0011
Revises: 0010
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

json_type = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")
time_type = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "policy",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("settings", json_type, nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("updated_at", time_type, nullable=False),
        sa.Column("updated_by", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_policy")),
    )
    op.create_table(
        "bookings",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("nodes", json_type, nullable=False),
        sa.Column("begins_at", time_type, nullable=False),
        sa.Column("ends_at", time_type, nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("created_at", time_type, nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_bookings_project_id_projects")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_bookings")),
    )
    op.create_index(op.f("ix_bookings_project_id"), "bookings", ["project_id"], unique=False)
    op.create_index(op.f("ix_bookings_ends_at"), "bookings", ["ends_at"], unique=False)
    op.create_table(
        "usage",
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.Column("share", sa.Float(), nullable=False),
        sa.Column("at", time_type, nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_usage_project_id_projects")),
        sa.PrimaryKeyConstraint("project_id", "user_id", name=op.f("pk_usage")),
    )
    op.create_table(
        "outlooks",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("earliest", time_type, nullable=True),
        sa.Column("likely", time_type, nullable=True),
        sa.Column("latest", time_type, nullable=True),
        sa.Column("at", time_type, nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_outlooks_job_id_jobs"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_outlooks")),
    )
    op.create_index(op.f("ix_outlooks_position"), "outlooks", ["position"], unique=False)
    op.create_table(
        "plan_records",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("at", time_type, nullable=False),
        sa.Column("base_id", sa.String(), nullable=False),
        sa.Column("after_id", sa.String(), nullable=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_plan_records")),
    )
    op.create_index(op.f("ix_plan_records_at"), "plan_records", ["at"], unique=False)
    op.create_index(op.f("ix_plan_records_base_id"), "plan_records", ["base_id"], unique=False)
    with op.batch_alter_table("projects", schema=None) as batch_op:
        batch_op.add_column(sa.Column("max_priority", sa.Integer(), nullable=True))
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("run_s", sa.Float(), nullable=False, server_default="0"))
        batch_op.add_column(sa.Column("attained_gpu_s", sa.Float(), nullable=False, server_default="0"))
        batch_op.add_column(sa.Column("preempted", json_type, nullable=True))
        batch_op.add_column(sa.Column("preempt_count", sa.Integer(), nullable=False, server_default="0"))
        batch_op.add_column(sa.Column("waits_since", time_type, nullable=True))
        batch_op.create_index("ix_jobs_finished_at", ["finished_at"], unique=False)
    with op.batch_alter_table("replicas", schema=None) as batch_op:
        batch_op.add_column(sa.Column("leaves", json_type, nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("replicas", schema=None) as batch_op:
        batch_op.drop_column("leaves")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_index("ix_jobs_finished_at")
        for name in ("waits_since", "preempt_count", "preempted", "attained_gpu_s", "run_s"):
            batch_op.drop_column(name)
    with op.batch_alter_table("projects", schema=None) as batch_op:
        batch_op.drop_column("max_priority")
    for name in ("plan_records", "outlooks", "usage", "bookings", "policy"):
        op.drop_table(name)
