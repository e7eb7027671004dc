"""Webhooks, their deliveries, and the outbox that a trigger fills.

Revision ID: 0047
Revises: 0046

A migration that recreates the table events on SQLite has to recreate the trigger.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_JSON = sa.JSON(none_as_null=True).with_variant(
    postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
)
_CONDITION = (
    "substr(NEW.kind, 1, 8) <> 'webhook.' AND EXISTS (SELECT 1 FROM webhooks "
    "WHERE is_enabled AND (project_id IS NULL OR project_id = NEW.project_id))"
)
_INSERT = "INSERT INTO event_outbox (event_id) VALUES (NEW.id);"


def upgrade() -> None:
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=True),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("event_types", _JSON, nullable=False),
        sa.Column("ciphertext", sa.LargeBinary(), nullable=False),
        sa.Column("old_ciphertext", sa.LargeBinary(), nullable=True),
        sa.Column("old_secret_until", _TIME, nullable=True),
        sa.Column("is_enabled", sa.Boolean(), nullable=False),
        sa.Column("disabled_reason", sa.Text(), nullable=False),
        sa.Column("created_by", sa.String(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("updated_at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(["project_id"], ["projects.id"], name=op.f("fk_webhooks_project_id_projects")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhooks")),
    )
    op.create_index(op.f("ix_webhooks_project_id"), "webhooks", ["project_id"])
    op.create_table(
        "webhook_deliveries",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("webhook_id", sa.String(), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=True),
        sa.Column("object_key", sa.String(), nullable=False),
        sa.Column("event_type", sa.String(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", _TIME, nullable=False),
        sa.Column("response_status", sa.Integer(), nullable=True),
        sa.Column("response_excerpt", sa.Text(), nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("duration_ms", sa.Integer(), nullable=True),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("finished_at", _TIME, nullable=True),
        sa.ForeignKeyConstraint(
            ["webhook_id"], ["webhooks.id"], name=op.f("fk_webhook_deliveries_webhook_id_webhooks"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_webhook_deliveries")),
        sa.UniqueConstraint("webhook_id", "event_id", name=op.f("uq_webhook_deliveries_webhook_id_event_id")),
    )
    op.create_index(
        "ix_webhook_deliveries_webhook_id_state", "webhook_deliveries", ["webhook_id", "state", "next_at"]
    )
    op.create_index("ix_webhook_deliveries_webhook_id_id", "webhook_deliveries", ["webhook_id", "id"])
    op.create_index(op.f("ix_webhook_deliveries_finished_at"), "webhook_deliveries", ["finished_at"])
    op.create_table(
        "event_outbox",
        sa.Column("event_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.PrimaryKeyConstraint("event_id", name=op.f("pk_event_outbox")),
    )
    if op.get_context().dialect.name == "sqlite":
        op.execute(f"CREATE TRIGGER events_to_outbox AFTER INSERT ON events WHEN {_CONDITION} BEGIN {_INSERT} END")
        return
    op.execute(
        "CREATE OR REPLACE FUNCTION events_to_outbox() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF {_CONDITION} THEN {_INSERT} END IF; RETURN NULL; END $$"
    )
    op.execute(
        "CREATE TRIGGER events_to_outbox AFTER INSERT ON events FOR EACH ROW EXECUTE FUNCTION events_to_outbox()"
    )


def downgrade() -> None:
    if op.get_context().dialect.name == "sqlite":
        op.execute("DROP TRIGGER events_to_outbox")
    else:
        op.execute("DROP TRIGGER events_to_outbox ON events")
        op.execute("DROP FUNCTION events_to_outbox()")
    op.drop_table("event_outbox")
    op.drop_table("webhook_deliveries")
    op.drop_table("webhooks")
