"""Tokens can be limited to projects; users can be service accounts of a project.

Revision ID: 0050
Revises: 0049
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None

_JSON = sa.JSON(none_as_null=True).with_variant(
    postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
)


def upgrade() -> None:
    op.add_column("tokens", sa.Column("project_ids", _JSON, nullable=True))
    op.add_column("users", sa.Column("service_project_id", sa.String(), nullable=True))
    op.create_index(op.f("ix_users_service_project_id"), "users", ["service_project_id"])


def downgrade() -> None:
    op.drop_index(op.f("ix_users_service_project_id"), "users")
    op.drop_column("users", "service_project_id")
    op.drop_column("tokens", "project_ids")
