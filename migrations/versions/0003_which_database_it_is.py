"""An id for the database itself, and what the executor holds that it does not know.

Revision ID: 0003
Revises: 0002
"""

from __future__ import annotations

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    identity = op.create_table(
        "identity",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_identity")),
    )
    op.bulk_insert(identity, [{"name": "database", "id": secrets.token_hex(8)}])
    op.create_table(
        "strangers",
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("database_id", sa.String(), nullable=False),
        sa.Column("is_foreign", sa.Boolean(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("attempt_id", name=op.f("pk_strangers")),
    )


def downgrade() -> None:
    op.drop_table("strangers")
    op.drop_table("identity")
