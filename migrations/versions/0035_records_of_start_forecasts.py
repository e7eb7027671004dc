"""Start forecasts are compared with the real starts, and remember what they promised.

Revision ID: 0035
Revises: 0034
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_JSON = sa.JSON(none_as_null=True).with_variant(
    postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
)


def upgrade() -> None:
    op.create_table(
        "forecast_records",
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("made_at", _TIME, nullable=False),
        sa.Column("early_s", sa.Float(), nullable=False),
        sa.Column("likely_s", sa.Float(), nullable=False),
        sa.Column("late_s", sa.Float(), nullable=True),
        sa.Column("early", _TIME, nullable=False),
        sa.Column("likely", _TIME, nullable=False),
        sa.Column("late", _TIME, nullable=False),
        sa.Column("started_at", _TIME, nullable=True),
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.id"], name=op.f("fk_forecast_records_job_id_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", "attempt", "step", name=op.f("pk_forecast_records")),
    )
    op.create_index("ix_forecast_records_started_at", "forecast_records", ["started_at"])
    op.add_column("start_forecasts", sa.Column("promise", _JSON, nullable=True))


def downgrade() -> None:
    op.drop_column("start_forecasts", "promise")
    op.drop_table("forecast_records")
