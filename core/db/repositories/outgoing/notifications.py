"""Notifications: which channels an event is for, what is due, and when a channel has had too many messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from core.db.engine import UntypedRow, insert_into
from core.db.tables import Notification, NotificationChannel, User
from core.outgoing.events import is_subscribed

WAITING: Final = "waiting"
SENT: Final = "sent"
DEAD: Final = "dead"
# More messages than these in a window make one digest.
WINDOW: Final = timedelta(minutes=10)
MESSAGES_OF_WINDOW: Final = 5


def add_notifications(session: Session, events: Sequence[UntypedRow], now: datetime) -> None:
    """Of these events, for each channel that they are for: a project's has the project's events, a user's those of the
    user's own jobs, and a platform admin's also those of no project.
    """
    query = select(NotificationChannel, User.is_admin).outerjoin(User, User.id == NotificationChannel.user_id)
    channels = session.execute(query.where(NotificationChannel.is_enabled)).all()
    found = [
        new_notification(channel.id, event.kind, _text(event), now=now, event_id=event.id)
        for event in events
        for channel, is_admin in channels
        if is_subscribed(channel.event_types, event.kind) and _is_for(channel, bool(is_admin), event)
    ]
    if found:
        session.execute(insert_into(session, Notification).on_conflict_do_nothing(), found)


def _is_for(channel: NotificationChannel, is_admin: bool, event: UntypedRow) -> bool:
    if channel.project_id is not None:
        return bool(channel.project_id == event.project_id)
    is_own = event.job_user is not None and event.job_user == channel.user_id
    return is_own or (is_admin and event.project_id is None)


def _text(event: UntypedRow) -> str:
    subject = f"{event.job_name} ({event.job_id})" if event.job_id else _object_name(event.data)
    where = f" in {event.name}" if event.name else ""
    return f"{event.kind}: {subject}{where}{f': {event.reason}' if event.reason else ''}"


def _object_name(data: Mapping[str, Any]) -> str:
    return " ".join(f"{name} {data[name]}" for name in ("node", "study", "endpoint", "model", "user") if name in data)


def new_notification(
    channel_id: str, event_type: str, text: str, *, now: datetime, event_id: int | None = None
) -> dict[str, object]:
    """The columns of a waiting notification."""
    return {
        "channel_id": channel_id,
        "event_id": event_id,
        "event_type": event_type,
        "text": text[:1_000],
        "state": WAITING,
        "attempts": 0,
        "next_at": now,
        "error": "",
        "created_at": now,
    }


def due_channels(session: Session, now: datetime) -> Sequence[str]:
    """Enabled channels with a notification that is due."""
    due = select(Notification.id).where(
        Notification.channel_id == NotificationChannel.id, Notification.state == WAITING, Notification.next_at <= now
    )
    return session.scalars(select(NotificationChannel.id).where(NotificationChannel.is_enabled, due.exists())).all()


def due_notifications(session: Session, channel_id: str, now: datetime, limit: int) -> Sequence[Notification]:
    """The oldest that are due; none while the channel had enough messages in the window: they wait for a digest."""
    sent = session.execute(
        select(func.count(func.distinct(Notification.finished_at))).where(
            Notification.channel_id == channel_id,
            Notification.state == SENT,
            Notification.finished_at > now - WINDOW,
            Notification.event_id.is_not(None),
        )
    ).scalar_one()
    query = select(Notification).where(
        Notification.channel_id == channel_id, Notification.state == WAITING, Notification.next_at <= now
    )
    if sent >= MESSAGES_OF_WINDOW:
        query = query.where(Notification.event_id.is_(None))
    return session.scalars(query.order_by(Notification.id).limit(limit)).all()


def delete_notifications(session: Session, *, finished_before: datetime, limit: int) -> int:
    """Delete the oldest finished ones; returns how many."""
    old = select(Notification.id).where(Notification.finished_at < finished_before).limit(limit)
    ids = session.scalars(old).all()
    session.execute(delete(Notification).where(Notification.id.in_(ids)))
    return len(ids)
