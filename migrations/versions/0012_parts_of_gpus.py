"""Parts of GPUs: a job's GPUs and what a replica has of its device, in thousandths.

Revision ID: 0012
Revises: 0011
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("gpu_milli", sa.Integer(), nullable=False, server_default="0"))
    op.execute(sa.text("update jobs set gpu_milli = 1000 * gpu_count where gpu_count > 0"))
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_column("gpu_count")
    with op.batch_alter_table("replicas", schema=None) as batch_op:
        batch_op.add_column(sa.Column("gpu_milli", sa.Integer(), nullable=False, server_default="0"))


def downgrade() -> None:
    with op.batch_alter_table("replicas", schema=None) as batch_op:
        batch_op.drop_column("gpu_milli")
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("gpu_count", sa.Integer(), nullable=False, server_default="0"))
    # A part was never less than a device to a list.
    op.execute(sa.text("update jobs set gpu_count = (gpu_milli + 999) / 1000 where gpu_milli > 0"))
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_column("gpu_milli")
