"""Questions of several kinds, which wait for different times; what is known of a start, in words.

Revision ID: 0013
Revises: 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

json_type = sa.JSON(none_as_null=True).with_variant(postgresql.JSONB(none_as_null=True), "postgresql")


def upgrade() -> None:
    # Nobody waits for longer than seconds for what is in these tables: they are filled anew.
    op.execute(sa.text("delete from questions"))
    op.execute(sa.text("delete from outlooks"))
    with op.batch_alter_table("questions", schema=None) as batch_op:
        batch_op.add_column(sa.Column("kind", sa.String(), nullable=False, server_default="forecast"))
        batch_op.add_column(sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False))
        batch_op.create_index(batch_op.f("ix_questions_expires_at"), ["expires_at"], unique=False)
    with op.batch_alter_table("outlooks", schema=None) as batch_op:
        batch_op.add_column(sa.Column("code", sa.String(), nullable=False, server_default="expected"))
        batch_op.add_column(sa.Column("sentence", sa.Text(), nullable=False, server_default=""))
        batch_op.add_column(sa.Column("nodes", json_type, nullable=False))


def downgrade() -> None:
    op.execute(sa.text("delete from questions"))
    with op.batch_alter_table("outlooks", schema=None) as batch_op:
        for name in ("nodes", "sentence", "code"):
            batch_op.drop_column(name)
    with op.batch_alter_table("questions", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_questions_expires_at"))
        for name in ("expires_at", "kind"):
            batch_op.drop_column(name)
