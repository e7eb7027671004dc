"""What clients of Vertex AI keep in metadata stores and TensorBoards.

Revision ID: 0027
Revises: 0026
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def _json() -> sa.types.TypeEngine:
    return sa.JSON(none_as_null=True).with_variant(
        postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
    )


def upgrade() -> None:
    op.create_table(
        "vertex_records",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("location", sa.String(), nullable=False),
        sa.Column("collection", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("display_name", sa.Text(), nullable=False),
        sa.Column("schema_title", sa.String(), nullable=False),
        sa.Column("body", _json(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_vertex_records_project_id_projects")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_vertex_records_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_vertex_records")),
        sa.UniqueConstraint(
            "project_id",
            "location",
            "collection",
            "name",
            name=op.f("uq_vertex_records_project_id_location_collection_name"),
        ),
    )
    op.create_index(op.f("ix_vertex_records_job_id"), "vertex_records", ["job_id"])
    op.create_index(
        "ix_vertex_records_project_id_created_at",
        "vertex_records",
        ["project_id", "location", "collection", "created_at", "id"],
    )
    op.create_table(
        "vertex_links",
        sa.Column("above_id", sa.String(), nullable=False),
        sa.Column("below_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["above_id"],
            ["vertex_records.id"],
            name=op.f("fk_vertex_links_above_id_vertex_records"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(
            ["below_id"],
            ["vertex_records.id"],
            name=op.f("fk_vertex_links_below_id_vertex_records"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("above_id", "below_id", "kind", name=op.f("pk_vertex_links")),
    )
    op.create_index(op.f("ix_vertex_links_below_id"), "vertex_links", ["below_id"])


def downgrade() -> None:
    op.drop_index(op.f("ix_vertex_links_below_id"), table_name="vertex_links")
    op.drop_table("vertex_links")
    op.drop_index("ix_vertex_records_project_id_created_at", table_name="vertex_records")
    op.drop_index(op.f("ix_vertex_records_job_id"), table_name="vertex_records")
    op.drop_table("vertex_records")
