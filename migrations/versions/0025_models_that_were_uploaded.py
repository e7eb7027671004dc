"""A version of a model may be of files that no job wrote.

Revision ID: 0025
Revises: 0024
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("model_versions") as batch:
        batch.alter_column("job_id", existing_type=sa.String(), nullable=True)


def downgrade() -> None:
    # What the older form cannot hold goes: its files lie below .models until somebody removes them.
    uploaded = "SELECT id FROM model_versions WHERE job_id IS NULL"
    for table in ("model_aliases", "model_holds", "model_files"):
        op.execute(f"DELETE FROM {table} WHERE version_id IN ({uploaded})")  # noqa: S608 (names of ours)
    op.execute("DELETE FROM model_versions WHERE job_id IS NULL")
    with op.batch_alter_table("model_versions") as batch:
        batch.alter_column("job_id", existing_type=sa.String(), nullable=False)
