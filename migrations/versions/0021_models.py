"""The registry of models.

Revision ID: 0021
Revises: 0018
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0021"
down_revision = "0018"
branch_labels = None
depends_on = None

_JSON = sa.JSON(none_as_null=True).with_variant(
    postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
)
_BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "models",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("labels", _JSON, nullable=False),
        sa.Column("is_protected", sa.Boolean(), nullable=False),
        sa.Column("version_count", sa.Integer(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sa.Column("deleted_at", _TIME, nullable=True),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_models_project_id_projects")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_models_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_models")),
    )
    op.create_index(
        "uq_models_project_id_name",
        "models",
        ["project_id", "name"],
        unique=True,
        sqlite_where=sa.text("deleted_at IS NULL"),
        postgresql_where=sa.text("deleted_at IS NULL"),
    )
    op.create_table(
        "model_versions",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("model_id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("stage", sa.String(), nullable=False),
        sa.Column("is_protected", sa.Boolean(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("labels", _JSON, nullable=False),
        sa.Column("format", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=False),
        sa.Column("source", _JSON, nullable=False),
        sa.Column("lineage", _JSON, nullable=True),
        sa.Column("wanted", _JSON, nullable=False),
        sa.Column("volume", sa.String(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(), nullable=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("file_count", sa.Integer(), nullable=True),
        sa.Column("done_bytes", sa.BigInteger(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sa.Column("ready_at", _TIME, nullable=True),
        sa.Column("deleted_at", _TIME, nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name=op.f("fk_model_versions_job_id_jobs")),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_model_versions_model_id_models")),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_model_versions_project_id_projects")),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_model_versions_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model_versions")),
        sa.UniqueConstraint("model_id", "number", name=op.f("uq_model_versions_model_id_number")),
    )
    op.create_index("ix_model_versions_state", "model_versions", ["state", "created_at"])
    op.create_index("ix_model_versions_job_id", "model_versions", ["job_id"])
    op.create_table(
        "model_files",
        sa.Column("version_id", sa.String(), nullable=False),
        sa.Column("path", sa.Text(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("mtime_ns", sa.BigInteger(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(
            ["version_id"], ["model_versions.id"], name=op.f("fk_model_files_version_id_model_versions")
        ),
        sa.PrimaryKeyConstraint("version_id", "path", name=op.f("pk_model_files")),
    )
    op.create_table(
        "model_aliases",
        sa.Column("model_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version_id", sa.String(), nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_model_aliases_model_id_models")),
        sa.ForeignKeyConstraint(
            ["version_id"], ["model_versions.id"], name=op.f("fk_model_aliases_version_id_model_versions")
        ),
        sa.PrimaryKeyConstraint("model_id", "name", name=op.f("pk_model_aliases")),
    )
    op.create_index("ix_model_aliases_version_id", "model_aliases", ["version_id"])
    op.create_table(
        "model_holds",
        sa.Column("version_id", sa.String(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["version_id"], ["model_versions.id"], name=op.f("fk_model_holds_version_id_model_versions")
        ),
        sa.PrimaryKeyConstraint("version_id", "holder", name=op.f("pk_model_holds")),
    )
    op.create_table(
        "model_changes",
        sa.Column("id", _BIG_ID, autoincrement=True, nullable=False),
        sa.Column("model_id", sa.String(), nullable=False),
        sa.Column("at", _TIME, nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("what", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("before", sa.String(), nullable=True),
        sa.Column("after", sa.String(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["model_id"], ["models.id"], name=op.f("fk_model_changes_model_id_models")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_model_changes")),
    )
    op.create_index("ix_model_changes_model_id", "model_changes", ["model_id", "id"])


def downgrade() -> None:
    for table in ("model_changes", "model_holds", "model_aliases", "model_files", "model_versions", "models"):
        op.drop_table(table)
