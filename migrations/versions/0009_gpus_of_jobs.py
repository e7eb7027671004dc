"""How many GPUs a job's gang has, for lists in that order.

Revision ID: 0009
Revises: 0008
"""

from __future__ import annotations

import json

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("gpu_count", sa.Integer(), nullable=False, server_default="0"))
    connection = op.get_bind()
    # Jobs of one shape ask for the same.
    shapes = connection.execute(sa.text("select shape, min(id) from jobs group by shape")).all()
    for shape, job_id in shapes:
        gang = connection.execute(sa.text("select gang from jobs where id = :id"), {"id": job_id}).scalar_one()
        roles = (json.loads(gang) if isinstance(gang, str) else gang)["roles"]
        gpus = sum(role[1] * role[4] for role in roles)
        if gpus:
            connection.execute(
                sa.text("update jobs set gpu_count = :gpus where shape = :shape"), {"gpus": gpus, "shape": shape}
            )


def downgrade() -> None:
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_column("gpu_count")
