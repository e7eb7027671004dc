"""Users and groups that an identity provider provisions by SCIM.

Revision ID: 0051
Revises: 0050
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_JSON = sa.JSON(none_as_null=True).with_variant(
    postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
)


def upgrade() -> None:
    op.create_table(
        "scim_resources",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("external_id", sa.String(), nullable=True),
        sa.Column("identity_id", sa.String(), nullable=True),
        sa.Column("body", _JSON, nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_scim_resources")),
    )
    op.create_index("uq_scim_resources_key", "scim_resources", ["kind", "key"], unique=True)
    op.create_index(op.f("ix_scim_resources_external_id"), "scim_resources", ["external_id"])
    op.create_index(op.f("ix_scim_resources_identity_id"), "scim_resources", ["identity_id"])


def downgrade() -> None:
    op.drop_table("scim_resources")
