"""Notification channels, and notifications; the trigger of the outbox knows the channels.

Revision ID: 0048
Revises: 0047

A migration that recreates the table events on SQLite has to recreate the trigger.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_JSON = sa.JSON(none_as_null=True).with_variant(
    postgresql.JSONB(none_as_null=True, astext_type=sa.Text()), "postgresql"
)
_WEBHOOKS = (
    "EXISTS (SELECT 1 FROM webhooks WHERE is_enabled AND (project_id IS NULL OR project_id = NEW.project_id))"
)
_CHANNELS = (
    "EXISTS (SELECT 1 FROM notification_channels "
    "WHERE is_enabled AND (project_id IS NULL OR project_id = NEW.project_id))"
)
_INSERT = "INSERT INTO event_outbox (event_id) VALUES (NEW.id);"


def upgrade() -> None:
    op.create_table(
        "notification_channels",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("project_id", sa.String(), nullable=True),
        sa.Column("user_id", sa.String(), nullable=True),
        sa.Column("description", sa.Text(), nullable=False),
        sa.Column("ciphertext", sa.LargeBinary(), nullable=False),
        sa.Column("shown", sa.Text(), nullable=False),
        sa.Column("event_types", _JSON, nullable=False),
        sa.Column("is_enabled", sa.Boolean(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.ForeignKeyConstraint(
            ["project_id"], ["projects.id"], name=op.f("fk_notification_channels_project_id_projects")
        ),
        sa.ForeignKeyConstraint(["user_id"], ["users.id"], name=op.f("fk_notification_channels_user_id_users")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notification_channels")),
    )
    op.create_index(op.f("ix_notification_channels_project_id"), "notification_channels", ["project_id"])
    op.create_index(op.f("ix_notification_channels_user_id"), "notification_channels", ["user_id"])
    op.create_table(
        "notifications",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("channel_id", sa.String(), nullable=False),
        sa.Column("event_id", sa.BigInteger(), nullable=True),
        sa.Column("event_type", sa.String(), nullable=False),
        sa.Column("text", sa.Text(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", _TIME, nullable=False),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("finished_at", _TIME, nullable=True),
        sa.ForeignKeyConstraint(
            ["channel_id"],
            ["notification_channels.id"],
            name=op.f("fk_notifications_channel_id_notification_channels"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_notifications")),
        sa.UniqueConstraint("channel_id", "event_id", name=op.f("uq_notifications_channel_id_event_id")),
    )
    op.create_index("ix_notifications_channel_id_state", "notifications", ["channel_id", "state", "next_at"])
    op.create_index(op.f("ix_notifications_finished_at"), "notifications", ["finished_at"])
    _set_trigger(f"({_WEBHOOKS} OR {_CHANNELS})")


def downgrade() -> None:
    _set_trigger(_WEBHOOKS)
    op.drop_table("notifications")
    op.drop_table("notification_channels")


def _set_trigger(subscribers: str) -> None:
    condition = f"substr(NEW.kind, 1, 8) <> 'webhook.' AND {subscribers}"
    if op.get_context().dialect.name == "sqlite":
        op.execute("DROP TRIGGER events_to_outbox")
        op.execute(f"CREATE TRIGGER events_to_outbox AFTER INSERT ON events WHEN {condition} BEGIN {_INSERT} END")
        return
    op.execute(
        "CREATE OR REPLACE FUNCTION events_to_outbox() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN IF {condition} THEN {_INSERT} END IF; RETURN NULL; END $$"
    )
