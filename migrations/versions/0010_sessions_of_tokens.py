"""Which token a browser's session was opened with: it ends with that.

Revision ID: 0010
Revises: 0009
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("tokens", schema=None) as batch_op:
        batch_op.add_column(sa.Column("opened_by", sa.String(), nullable=True))
        batch_op.create_index(batch_op.f("ix_tokens_opened_by"), ["opened_by"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("tokens", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_tokens_opened_by"))
        batch_op.drop_column("opened_by")
