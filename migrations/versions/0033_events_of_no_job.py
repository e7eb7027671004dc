"""The history of what is no job's, such as an endpoint, is found among millions of events of jobs.

Revision ID: 0033
Revises: 0032
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    where = sa.text("job_id IS NULL")
    op.create_index("ix_events_of_no_job", "events", ["project_id", "id"], sqlite_where=where, postgresql_where=where)


def downgrade() -> None:
    op.drop_index("ix_events_of_no_job", "events")
