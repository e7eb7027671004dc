"""A project has one endpoint of a name: two concurrent requests could make two, and their name led to neither.

Revision ID: 0023
Revises: 0022
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Of several of one name the first keeps it; the others, which answered to nothing but their ids, are called so.
    op.execute(
        "UPDATE endpoints SET name = id WHERE deleted_at IS NULL AND EXISTS ("
        "SELECT 1 FROM endpoints AS earlier WHERE earlier.project_id = endpoints.project_id "
        "AND earlier.name = endpoints.name AND earlier.deleted_at IS NULL AND earlier.id < endpoints.id)"
    )
    op.drop_index("ix_endpoints_project_id_name", "endpoints")
    op.create_index(
        "uq_endpoints_project_id_name",
        "endpoints",
        ["project_id", "name"],
        unique=True,
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )


def downgrade() -> None:
    op.drop_index("uq_endpoints_project_id_name", "endpoints")
    op.create_index("ix_endpoints_project_id_name", "endpoints", ["project_id", "name"])
