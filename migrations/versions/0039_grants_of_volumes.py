"""Volumes have grants. Those registered before are granted to the members of all projects, as it was without grants.

Revision ID: 0039
Revises: 0038

Not the volume of the projects' own folders, where the roles in the projects decide. An event of each volume says what
the migration granted, so that administrators can narrow it: ``trainmaster volumes grant`` and ``revoke``.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_JSON = sa.JSON(none_as_null=True).with_variant(
    postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
)
_REASON = (
    "Before this version members of all projects could use the volume; the migration granted that. To narrow it: "
    "trainmaster volumes grant, and trainmaster volumes revoke VOLUME everyone."
)


def upgrade() -> None:
    op.create_table(
        "volume_grants",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("volume_id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=True),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("access", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(
            ["volume_id"], ["volumes.id"], name=op.f("fk_volume_grants_volume_id_volumes"), ondelete="CASCADE"
        ),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_volume_grants_project_id_projects")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_volume_grants")),
    )
    op.create_index(op.f("ix_volume_grants_project_id"), "volume_grants", ["project_id"])
    op.create_index("uq_volume_grants_project", "volume_grants", ["volume_id", "project_id", "prefix"], unique=True)
    op.create_index(
        "uq_volume_grants_everyone", "volume_grants", ["volume_id", "prefix"], unique=True,
        sqlite_where=sa.text("project_id IS NULL"), postgresql_where=sa.text("project_id IS NULL"),
    )  # fmt: skip
    _grant_registered_volumes()


def _grant_registered_volumes() -> None:
    volumes = sa.table("volumes", sa.column("id", sa.String()), sa.column("name", sa.String()))
    own_folders = os.environ.get("TRAINMASTER_DEFAULT_VOLUME", "output")
    connection = op.get_bind()
    others = connection.execute(sa.select(volumes.c.id, volumes.c.name).where(volumes.c.name != own_folders)).all()
    if not others:
        return
    grants = sa.table(
        "volume_grants", *(sa.column(name, sa.String()) for name in ("id", "volume_id", "prefix", "access"))
    )
    rows = [{"id": f"grant-{row.id}", "volume_id": row.id, "prefix": "", "access": "write"} for row in others]
    connection.execute(grants.insert(), rows)
    events = sa.table(
        "events",
        sa.column("at", _TIME),
        *(sa.column(name, sa.String()) for name in ("kind", "actor", "reason")),
        sa.column("data", _JSON),
    )
    data = {"grantee": "everyone", "access": "write", "prefix": ""}
    row = {"at": datetime.now(UTC), "kind": "volume.granted", "actor": "migration", "reason": _REASON}
    connection.execute(events.insert(), [{**row, "data": {"name": each.name, **data}} for each in others])


def downgrade() -> None:
    op.drop_table("volume_grants")
