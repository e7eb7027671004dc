"""What clients of Vertex AI told of their jobs.

Revision ID: 0016
Revises: 0015
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def _json() -> sa.types.TypeEngine:
    return sa.JSON(none_as_null=True).with_variant(
        postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
    )


def upgrade() -> None:
    op.create_table(
        "vertex_resources",
        sa.Column("collection", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("location", sa.String(), nullable=False),
        sa.Column("display_name", sa.Text(), nullable=False),
        sa.Column("labels", _json(), nullable=False),
        sa.Column("body", _json(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_vertex_resources_project_id_projects")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_vertex_resources_job_id_jobs")),
        sa.PrimaryKeyConstraint("collection", "id", name=op.f("pk_vertex_resources")),
    )
    op.create_index(op.f("ix_vertex_resources_job_id"), "vertex_resources", ["job_id"])
    op.create_index(
        "ix_vertex_resources_project_id_created_at",
        "vertex_resources",
        ["project_id", "collection", "created_at", "id"],
    )


def downgrade() -> None:
    op.drop_index("ix_vertex_resources_project_id_created_at", table_name="vertex_resources")
    op.drop_index(op.f("ix_vertex_resources_job_id"), table_name="vertex_resources")
    op.drop_table("vertex_resources")
