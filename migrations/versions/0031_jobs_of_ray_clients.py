"""What clients of Ray told of jobs that they submitted, and the packages that they uploaded.

Revision ID: 0031
Revises: 0030
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def _json() -> sa.types.TypeEngine:
    return sa.JSON(none_as_null=True).with_variant(
        postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
    )


def upgrade() -> None:
    op.create_table(
        "ray_jobs",
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("submission_id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("body", _json(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_ray_jobs_job_id_jobs")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_ray_jobs_project_id_projects")),
        sa.PrimaryKeyConstraint("project_id", "submission_id", name=op.f("pk_ray_jobs")),
    )
    op.create_index(op.f("ix_ray_jobs_job_id"), "ray_jobs", ["job_id"])
    op.create_index("ix_ray_jobs_project_id_created_at", "ray_jobs", ["project_id", "created_at", "submission_id"])
    op.create_table(
        "ray_packages",
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_ray_packages_user_id_users")),
        sa.PrimaryKeyConstraint("user_id", "name", name=op.f("pk_ray_packages")),
    )


def downgrade() -> None:
    op.drop_table("ray_packages")
    op.drop_index("ix_ray_jobs_project_id_created_at", "ray_jobs")
    op.drop_index(op.f("ix_ray_jobs_job_id"), "ray_jobs")
    op.drop_table("ray_jobs")
