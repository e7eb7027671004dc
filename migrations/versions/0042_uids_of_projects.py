"""Each project gets a user id for its plain processes, when its first job starts.

Revision ID: 0042
Revises: 0041
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("projects") as table:
        table.add_column(sa.Column("uid_offset", sa.Integer(), nullable=True))
        table.create_unique_constraint(op.f("uq_projects_uid_offset"), ["uid_offset"])


def downgrade() -> None:
    with op.batch_alter_table("projects") as table:
        table.drop_constraint(op.f("uq_projects_uid_offset"), type_="unique")
        table.drop_column("uid_offset")
