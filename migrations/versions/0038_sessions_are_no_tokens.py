"""Sessions of browsers have texts of another form than tokens: those of the earlier form end, users log in again.

Revision ID: 0038
Revises: 0037
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    tokens = sa.table(
        "tokens", sa.column("name", sa.String()), sa.column("revoked_at", sa.DateTime(timezone=True))
    )
    op.execute(
        tokens.update()
        .where(tokens.c.name == "browser session", tokens.c.revoked_at.is_(None))
        .values(revoked_at=sa.func.current_timestamp())
    )


def downgrade() -> None:
    """What was revoked stays revoked."""
