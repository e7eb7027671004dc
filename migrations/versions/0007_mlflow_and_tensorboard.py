"""What scripts tell by MLflow's protocol, and addresses for TensorBoard.

Revision ID: 0007
Revises: 0006
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def _json() -> sa.types.TypeEngine:
    return sa.JSON(none_as_null=True).with_variant(
        postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
    )


def _time() -> sa.types.TypeEngine:
    return sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "mlflow_runs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("attempt_id", sa.String(), nullable=False),
        sa.Column("replica", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("is_deleted", sa.Boolean(), nullable=False),
        sa.Column("params", _json(), nullable=False),
        sa.Column("tags", _json(), nullable=False),
        sa.Column("inputs", _json(), nullable=False),
        sa.Column("outputs", _json(), nullable=False),
        sa.Column("started_at", _time(), nullable=False),
        sa.Column("ended_at", _time(), nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_mlflow_runs_project_id_projects")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_mlflow_runs_job_id_jobs")),
        sa.ForeignKeyConstraint(["attempt_id"], ["attempts.id"], name=op.f("fk_mlflow_runs_attempt_id_attempts")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mlflow_runs")),
    )
    op.create_index(op.f("ix_mlflow_runs_job_id"), "mlflow_runs", ["job_id"])
    op.create_index(op.f("ix_mlflow_runs_attempt_id"), "mlflow_runs", ["attempt_id"])
    op.create_index("ix_mlflow_runs_project_id_started_at", "mlflow_runs", ["project_id", "started_at", "id"])
    op.create_table(
        "mlflow_models",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("params", _json(), nullable=False),
        sa.Column("tags", _json(), nullable=False),
        sa.Column("metrics", _json(), nullable=False),
        sa.Column("created_at", _time(), nullable=False),
        sa.Column("updated_at", _time(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_mlflow_models_project_id_projects")),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_mlflow_models_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mlflow_models")),
    )
    op.create_index(op.f("ix_mlflow_models_job_id"), "mlflow_models", ["job_id"])
    op.create_index("ix_mlflow_models_project_id_created_at", "mlflow_models", ["project_id", "created_at", "id"])
    op.create_table(
        "mlflow_registered",
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("tags", _json(), nullable=False),
        sa.Column("created_at", _time(), nullable=False),
        sa.Column("updated_at", _time(), nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_mlflow_registered_project_id_projects")),
        sa.PrimaryKeyConstraint("project_id", "name", name=op.f("pk_mlflow_registered")),
    )
    op.create_table(
        "mlflow_versions",
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("model_id", sa.String(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("tags", _json(), nullable=False),
        sa.Column("created_at", _time(), nullable=False),
        sa.Column("updated_at", _time(), nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id", "name"],
            ["mlflow_registered.project_id", "mlflow_registered.name"],
            name=op.f("fk_mlflow_versions_project_id_mlflow_registered"),
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_mlflow_versions_job_id_jobs")),
        sa.PrimaryKeyConstraint("project_id", "name", "version", name=op.f("pk_mlflow_versions")),
    )
    op.create_table(
        "tensorboard_links",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("token_id", sa.String(), nullable=False),
        sa.Column("job_ids", _json(), nullable=False),
        sa.Column("created_at", _time(), nullable=False),
        sa.Column("expires_at", _time(), nullable=False),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_tensorboard_links_user_id_users")),
        sa.ForeignKeyConstraint(["token_id"], ["tokens.id"], name=op.f("fk_tensorboard_links_token_id_tokens")),
        sa.PrimaryKeyConstraint("digest", name=op.f("pk_tensorboard_links")),
    )
    op.create_index(op.f("ix_tensorboard_links_expires_at"), "tensorboard_links", ["expires_at"])


def downgrade() -> None:
    for table in ("tensorboard_links", "mlflow_versions", "mlflow_registered", "mlflow_models", "mlflow_runs"):
        op.drop_table(table)
