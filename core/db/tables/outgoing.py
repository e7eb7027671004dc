"""What leaves the platform: webhooks, notifications, and the outbox that a trigger fills with the events."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from sqlalchemy import BigInteger, Boolean, ForeignKey, Index, Integer, LargeBinary, Text, UniqueConstraint
from sqlalchemy.event import listen
from sqlalchemy.orm import Mapped, mapped_column
from sqlalchemy.schema import DDL

from core.db.tables.base import Base, BigId


class Webhook(Base):
    """An endpoint that events are sent to. ``project_id``: ``None`` for events of the whole platform.

    ``ciphertext``: its secret, sealed. ``old_ciphertext``: the secret before the last rotation, which signs as well
    until ``old_secret_until``. ``event_types``: kinds of events, ``job.*`` or ``*``.
    """

    __tablename__ = "webhooks"
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str | None] = mapped_column(ForeignKey("projects.id"), index=True)
    url: Mapped[str] = mapped_column(Text)
    description: Mapped[str] = mapped_column(Text, default="")
    event_types: Mapped[list[Any]]
    ciphertext: Mapped[bytes] = mapped_column(LargeBinary)
    old_ciphertext: Mapped[bytes | None] = mapped_column(LargeBinary)
    old_secret_until: Mapped[datetime | None]
    is_enabled: Mapped[bool] = mapped_column(Boolean, default=True)
    disabled_reason: Mapped[str] = mapped_column(Text, default="")
    created_by: Mapped[str]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class WebhookDelivery(Base):
    """One event for one webhook. ``state``: ``waiting``, ``delivered`` or ``dead``.

    ``object_key``: names the object of the event; deliveries of one object are sent in order of ``id``. ``body``: what
    is sent, the same at each try. ``attempts``: since the last replay. ``response_excerpt``: the beginning of the last
    response. ``event_id``: ``None`` for a test.
    """

    __tablename__ = "webhook_deliveries"
    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    webhook_id: Mapped[str] = mapped_column(ForeignKey("webhooks.id", ondelete="CASCADE"))
    event_id: Mapped[int | None] = mapped_column(BigInteger)
    object_key: Mapped[str]
    event_type: Mapped[str]
    body: Mapped[str] = mapped_column(Text)
    state: Mapped[str]
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    next_at: Mapped[datetime]
    response_status: Mapped[int | None] = mapped_column(Integer)
    response_excerpt: Mapped[str] = mapped_column(Text, default="")
    error: Mapped[str] = mapped_column(Text, default="")
    duration_ms: Mapped[int | None] = mapped_column(Integer)
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None] = mapped_column(index=True)
    __table_args__ = (
        UniqueConstraint("webhook_id", "event_id"),
        Index("ix_webhook_deliveries_webhook_id_state", "webhook_id", "state", "next_at"),
        Index("ix_webhook_deliveries_webhook_id_id", "webhook_id", "id"),
    )


class NotificationChannel(Base):
    """Where people are notified, by one of Apprise's services: of a project or of a user, one of both.

    ``ciphertext``: the service's URL, sealed. ``shown``: the service and its URL without secrets.
    """

    __tablename__ = "notification_channels"
    id: Mapped[str] = mapped_column(primary_key=True)
    project_id: Mapped[str | None] = mapped_column(ForeignKey("projects.id"), index=True)
    user_id: Mapped[str | None] = mapped_column(ForeignKey("users.id"), index=True)
    description: Mapped[str] = mapped_column(Text, default="")
    ciphertext: Mapped[bytes] = mapped_column(LargeBinary)
    shown: Mapped[str] = mapped_column(Text)
    event_types: Mapped[list[Any]]
    is_enabled: Mapped[bool] = mapped_column(Boolean, default=True)
    created_at: Mapped[datetime]


class Notification(Base):
    """One event for one channel. ``state``: ``waiting``, ``sent`` or ``dead``. Those of one message have one
    ``finished_at``. ``event_id``: ``None`` for a test.
    """

    __tablename__ = "notifications"
    id: Mapped[int] = mapped_column(BigId, primary_key=True, autoincrement=True)
    channel_id: Mapped[str] = mapped_column(ForeignKey("notification_channels.id", ondelete="CASCADE"))
    event_id: Mapped[int | None] = mapped_column(BigInteger)
    event_type: Mapped[str]
    text: Mapped[str] = mapped_column(Text)
    state: Mapped[str]
    attempts: Mapped[int] = mapped_column(Integer, default=0)
    next_at: Mapped[datetime]
    error: Mapped[str] = mapped_column(Text, default="")
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None] = mapped_column(index=True)
    __table_args__ = (
        UniqueConstraint("channel_id", "event_id"),
        Index("ix_notifications_channel_id_state", "channel_id", "state", "next_at"),
    )


class OutboxEvent(Base):
    """An event that was not yet given to the webhooks. Written by a trigger, in the transaction of the event."""

    __tablename__ = "event_outbox"
    event_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)


# A trigger costs the writers of events no round trip, and no event is missed, whatever writes it. Migration 0048 has
# the same text.
_CONDITION: Final = (
    "substr(NEW.kind, 1, 8) <> 'webhook.' AND (EXISTS (SELECT 1 FROM webhooks "
    "WHERE is_enabled AND (project_id IS NULL OR project_id = NEW.project_id)) "
    "OR EXISTS (SELECT 1 FROM notification_channels "
    "WHERE is_enabled AND (project_id IS NULL OR project_id = NEW.project_id)))"
)
_INSERT: Final = "INSERT INTO event_outbox (event_id) VALUES (NEW.id);"
_SQLITE: Final = (
    f"CREATE TRIGGER IF NOT EXISTS events_to_outbox AFTER INSERT ON events WHEN {_CONDITION} BEGIN {_INSERT} END"
)
_POSTGRES: Final = (
    "CREATE OR REPLACE FUNCTION events_to_outbox() RETURNS trigger LANGUAGE plpgsql AS "
    f"$$ BEGIN IF {_CONDITION} THEN {_INSERT} END IF; RETURN NULL; END $$;"
    "DROP TRIGGER IF EXISTS events_to_outbox ON events;"
    "CREATE TRIGGER events_to_outbox AFTER INSERT ON events FOR EACH ROW EXECUTE FUNCTION events_to_outbox()"
)
for _dialect, _text in (("sqlite", _SQLITE), ("postgresql", _POSTGRES)):
    _ddl = DDL(_text)  # type: ignore[no-untyped-call]
    listen(Base.metadata, "after_create", _ddl.execute_if(dialect=_dialect))
