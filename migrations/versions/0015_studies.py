"""Studies and their trials.

Revision ID: 0015
Revises: 0014
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_JSON = sa.JSON(none_as_null=True).with_variant(
    postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
)


def upgrade() -> None:
    op.create_table(
        "studies",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("spec", _JSON, nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("output_volume", sa.String(), nullable=False),
        sa.Column("output_path", sa.Text(), nullable=True),
        sa.Column("trial_count", sa.Integer(), nullable=False),
        sa.Column("proposed", sa.Integer(), nullable=False),
        sa.Column("prepared", _JSON, nullable=False),
        sa.Column("prepared_at", sa.Integer(), nullable=False),
        sa.Column("known", _JSON, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("deleted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("updated_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_studies_project_id_projects")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_studies_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_studies")),
    )
    op.create_index("ix_studies_project_id_created_at", "studies", ["project_id", "created_at", "id"])
    op.create_index("ix_studies_name", "studies", ["name"])
    op.create_index("ix_studies_state", "studies", ["state"])
    op.create_table(
        "trials",
        sa.Column("study_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("parameters", _JSON, nullable=False),
        sa.Column("memo", _JSON, nullable=False),
        sa.Column("result", _JSON, nullable=True),
        sa.Column("curve", _JSON, nullable=True),
        sa.Column("stop", _JSON, nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("gpu_s", sa.Float(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_trials_job_id_jobs")),
        sa.ForeignKeyConstraint(["study_id"], ["studies.id"], name=op.f("fk_trials_study_id_studies")),
        sa.PrimaryKeyConstraint("study_id", "number", name=op.f("pk_trials")),
        sa.UniqueConstraint("job_id", name=op.f("uq_trials_job_id")),
    )
    op.create_index("ix_trials_study_id_state", "trials", ["study_id", "state"])
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.add_column(sa.Column("trial", _JSON, nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("jobs", schema=None) as batch_op:
        batch_op.drop_column("trial")
    op.drop_table("trials")
    op.drop_table("studies")
