"""Worlds: how often the layout of an attempt has changed, and why.

Revision ID: 0004
Revises: 0003
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # The defaults are for the attempts that there are, and for a scheduler of the version before that still adds some.
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.add_column(sa.Column("world", sa.Integer(), server_default=sa.text("1"), nullable=False))
        batch_op.add_column(sa.Column("world_reason", sa.Text(), server_default=sa.text("''"), nullable=False))


def downgrade() -> None:
    with op.batch_alter_table("attempts", schema=None) as batch_op:
        batch_op.drop_column("world_reason")
        batch_op.drop_column("world")
