"""A study knows which one it was cloned from, as a job does.

Revision ID: 0026
Revises: 0025
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("studies", sa.Column("cloned_from", sa.String(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("studies") as batch_op:
        batch_op.drop_column("cloned_from")
