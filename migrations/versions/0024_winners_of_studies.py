"""What became of a study's best trial: the job and the version in the registry.

Revision ID: 0024
Revises: 0023
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_JSON = sa.JSON(none_as_null=True).with_variant(
    postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
)


def upgrade() -> None:
    with op.batch_alter_table("studies") as table:
        table.add_column(sa.Column("winner", _JSON, nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("studies") as table:
        table.drop_column("winner")
