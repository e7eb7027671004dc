"""A trial that a program tries by itself knows who asked for it, and when that program was last heard of.

Revision ID: 0030
Revises: 0029
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("trials", sa.Column("client", sa.String(), nullable=True))
    op.add_column("trials", sa.Column("heard_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("trials") as batch_op:
        batch_op.drop_column("heard_at")
        batch_op.drop_column("client")
