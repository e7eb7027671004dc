"""Endpoints, deployed models, their revisions and the jobs that serve them.

Revision ID: 0022
Revises: 0021
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_JSON = sa.JSON(none_as_null=True).with_variant(
    postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
)
_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "endpoints",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sa.Column("deleting_at", _TIME, nullable=True),
        sa.Column("deleted_at", _TIME, nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_endpoints_project_id_projects")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_endpoints_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_endpoints")),
    )
    op.create_index("ix_endpoints_project_id_name", "endpoints", ["project_id", "name"])
    op.create_index("ix_endpoints_created_at", "endpoints", ["created_at", "id"])
    op.create_table(
        "deployments",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("endpoint_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("replicas", sa.Integer(), nullable=False),
        sa.Column("traffic", sa.Integer(), nullable=False),
        sa.Column("wanted", sa.Integer(), nullable=False),
        sa.Column("stable", sa.Integer(), nullable=True),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sa.Column("ended_at", _TIME, nullable=True),
        sa.ForeignKeyConstraint(["endpoint_id"], ["endpoints.id"], name=op.f("fk_deployments_endpoint_id_endpoints")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_deployments")),
    )
    op.create_index("ix_deployments_endpoint_id", "deployments", ["endpoint_id", "name"])
    op.create_table(
        "deployment_revisions",
        sa.Column("deployment_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("spec", _JSON, nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("failed_at", _TIME, nullable=True),
        sa.Column("stable_at", _TIME, nullable=True),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(
            ["deployment_id"], ["deployments.id"], name=op.f("fk_deployment_revisions_deployment_id_deployments")
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_deployment_revisions_user_id_users")),
        sa.PrimaryKeyConstraint("deployment_id", "number", name=op.f("pk_deployment_revisions")),
    )
    op.create_table(
        "serving_replicas",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("deployment_id", sa.String(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("misses", sa.Integer(), nullable=False),
        sa.Column("words", sa.Text(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("runs_since", _TIME, nullable=True),
        sa.Column("ready_at", _TIME, nullable=True),
        sa.Column("draining_at", _TIME, nullable=True),
        sa.Column("ended_at", _TIME, nullable=True),
        sa.ForeignKeyConstraint(
            ["deployment_id"], ["deployments.id"], name=op.f("fk_serving_replicas_deployment_id_deployments")
        ),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_serving_replicas_job_id_jobs")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_serving_replicas")),
        sa.UniqueConstraint("job_id", name=op.f("uq_serving_replicas_job_id")),
    )
    op.create_index("ix_serving_replicas_deployment_id_state", "serving_replicas", ["deployment_id", "state"])


def downgrade() -> None:
    for table in ("serving_replicas", "deployment_revisions", "deployments", "endpoints"):
        op.drop_table(table)
