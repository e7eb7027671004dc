"""Budgets that lower the priority once they are spent, and counts of samples of idle GPUs.

Revision ID: 0045
Revises: 0044
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None

_COUNTS = ("gpu_samples", "idle_gpu_samples")


def upgrade() -> None:
    op.add_column("budgets", sa.Column("is_spent", sa.Boolean(), nullable=False, server_default=sa.false()))
    for name in _COUNTS:
        op.add_column("metric_streams", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))


def downgrade() -> None:
    for name in _COUNTS:
        op.drop_column("metric_streams", name)
    op.drop_column("budgets", "is_spent")
