"""Users have identities at OpenID Connect providers, whose groups give memberships.

Revision ID: 0041
Revises: 0040
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "user_identities",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("user_id", sa.String(), nullable=False),
        sa.Column("issuer", sa.Text(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("provider", sa.String(), nullable=False),
        sa.Column("email", sa.Text(), nullable=True),
        sa.Column("is_admin_source", sa.Boolean(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("last_login_at", _TIME, nullable=True),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_user_identities_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_user_identities")),
    )
    op.create_index(op.f("ix_user_identities_user_id"), "user_identities", ["user_id"])
    op.create_index("uq_user_identities_subject", "user_identities", ["issuer", "subject"], unique=True)
    op.add_column("memberships", sa.Column("identity_id", sa.String(), nullable=True))


def downgrade() -> None:
    op.drop_column("memberships", "identity_id")
    op.drop_table("user_identities")
