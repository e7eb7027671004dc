"""What clients of Vertex AI told of endpoints, and traffic that moves when a deployed model is ready.

Revision ID: 0028
Revises: 0027
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None


def _json() -> sa.types.TypeEngine:
    return sa.JSON(none_as_null=True).with_variant(
        postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
    )


def upgrade() -> None:
    op.create_table(
        "vertex_endpoints",
        sa.Column("endpoint_id", sa.String(), nullable=False),
        sa.Column("location", sa.String(), nullable=False),
        sa.Column("display_name", sa.Text(), nullable=False),
        sa.Column("labels", _json(), nullable=False),
        sa.Column("deployed", _json(), nullable=False),
        sa.ForeignKeyConstraint(
            ["endpoint_id"], ["endpoints.id"], name=op.f("fk_vertex_endpoints_endpoint_id_endpoints")
        ),
        sa.PrimaryKeyConstraint("endpoint_id", name=op.f("pk_vertex_endpoints")),
    )
    op.add_column("deployments", sa.Column("split_when_ready", _json(), nullable=True))


def downgrade() -> None:
    op.drop_column("deployments", "split_when_ready")
    op.drop_table("vertex_endpoints")
