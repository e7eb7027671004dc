"""A login code belongs to the token that created it: what the code gives ends with that token.

Revision ID: 0037
Revises: 0036
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("login_codes", sa.Column("parent_token_id", sa.String(), nullable=True))


def downgrade() -> None:
    op.drop_column("login_codes", "parent_token_id")
