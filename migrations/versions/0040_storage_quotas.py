"""Projects have a measured storage usage; code archives name the project that they count against.

Revision ID: 0040
Revises: 0039

The quota itself is the resource ``storage`` in ``projects.quota``; no project has one before an administrator sets it.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_JSON = sa.JSON(none_as_null=True).with_variant(
    postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
)


def upgrade() -> None:
    op.create_table(
        "storage_usages",
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("parts", _JSON, nullable=False),
        sa.Column("used_bytes", sa.BigInteger(), nullable=False),
        sa.Column("added_bytes", sa.BigInteger(), nullable=False),
        sa.Column("unreadable", sa.Integer(), nullable=False),
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("duration_s", sa.Float(), nullable=False),
        sa.Column("measured_at", _TIME, nullable=True),
        sa.Column("due_at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_storage_usages_project_id_projects")),
        sa.PrimaryKeyConstraint("project_id", name=op.f("pk_storage_usages")),
    )
    op.create_index(op.f("ix_storage_usages_due_at"), "storage_usages", ["due_at"])
    with op.batch_alter_table("archives") as archives:
        archives.add_column(sa.Column("project_id", sa.String(), nullable=True))
        archives.create_foreign_key(op.f("fk_archives_project_id_projects"), "projects", ["project_id"], ["id"])
        archives.create_index(op.f("ix_archives_project_id"), ["project_id"])


def downgrade() -> None:
    with op.batch_alter_table("archives") as archives:
        archives.drop_index(op.f("ix_archives_project_id"))
        archives.drop_constraint(op.f("fk_archives_project_id_projects"), type_="foreignkey")
        archives.drop_column("project_id")
    op.drop_index(op.f("ix_storage_usages_due_at"), "storage_usages")
    op.drop_table("storage_usages")
