"""Versions of clients and attempts, pinned jobs, and retention policies of projects.

Revision ID: 0049
Revises: 0048
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0049"
down_revision = "0048"
branch_labels = None
depends_on = None

_JSON = sa.JSON(none_as_null=True).with_variant(
    postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
)
_COLUMNS = {
    "tokens": ("client_version", sa.String()),
    "attempts": ("platform_version", sa.String()),
    "projects": ("retention", _JSON),
}


def upgrade() -> None:
    for table, (name, kind) in _COLUMNS.items():
        op.add_column(table, sa.Column(name, kind, nullable=True))
    op.add_column("jobs", sa.Column("pinned_by", sa.String(), nullable=True))
    op.add_column("jobs", sa.Column("expired", _JSON, nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "expired")
    op.drop_column("jobs", "pinned_by")
    for table, (name, _) in _COLUMNS.items():
        op.drop_column(table, name)
