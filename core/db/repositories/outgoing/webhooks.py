"""Webhooks: deliveries from the outbox of events, what is due, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from core.db.engine import UntypedRow, insert_into
from core.db.repositories.outgoing.notifications import add_notifications
from core.db.tables import Event, Job, OutboxEvent, Project, Webhook, WebhookDelivery
from core.outgoing.events import is_subscribed, message_body, object_key


class DeliveryState(StrEnum):
    WAITING = "waiting"
    DELIVERED = "delivered"
    DEAD = "dead"


def has_outbox(session: Session) -> bool:
    return session.execute(select(OutboxEvent.event_id).limit(1)).first() is not None


def distribute_outbox(session: Session, *, limit: int, now: datetime) -> int:
    """Turn the oldest events of the outbox into deliveries and notifications, in this transaction; returns how
    many events.
    """
    columns = (Event.at, Event.project_id, Event.job_id, Event.attempt_id, Event.kind, Event.actor, Event.reason)
    rows = session.execute(
        select(
            OutboxEvent.event_id,
            Event.id,
            Event.data,
            Project.name,
            Job.name.label("job_name"),
            Job.user_id.label("job_user"),
            *columns,
        )
        .outerjoin(Event, Event.id == OutboxEvent.event_id)
        .outerjoin(Project, Project.id == Event.project_id)
        .outerjoin(Job, Job.id == Event.job_id)
        .order_by(OutboxEvent.event_id)
        .limit(limit)
    ).all()
    if not rows:
        return 0
    add_notifications(session, [row for row in rows if row.id is not None], now)
    webhooks = session.scalars(select(Webhook).where(Webhook.is_enabled)).all()
    found = [
        _delivery(webhook.id, row, now)
        for row in rows
        if row.id is not None  # its project was deleted meanwhile
        for webhook in webhooks
        if webhook.project_id in (None, row.project_id) and is_subscribed(webhook.event_types, row.kind)
    ]
    if found:
        session.execute(insert_into(session, WebhookDelivery).on_conflict_do_nothing(), found)
    session.execute(delete(OutboxEvent).where(OutboxEvent.event_id.in_([row.event_id for row in rows])))
    return len(rows)


def _delivery(webhook_id: str, row: UntypedRow, now: datetime) -> dict[str, object]:
    job = None if row.job_id is None else {"id": row.job_id, "name": row.job_name}
    data = {
        "event_id": row.id,
        "project": row.name,
        "job": job,
        "attempt_id": row.attempt_id,
        "actor": row.actor,
        "reason": row.reason,
        "details": row.data,
    }
    return new_delivery(
        webhook_id,
        row.kind,
        message_body(row.kind, row.at, data),
        now=now,
        event_id=row.id,
        key=object_key(row.job_id, row.data, row.project_id),
    )


def new_delivery(
    webhook_id: str, event_type: str, body: str, *, now: datetime, event_id: int | None = None, key: str = "test"
) -> dict[str, object]:
    """The columns of a waiting delivery."""
    return {
        "webhook_id": webhook_id,
        "event_id": event_id,
        "object_key": key,
        "event_type": event_type,
        "body": body,
        "state": DeliveryState.WAITING,
        "attempts": 0,
        "next_at": now,
        "created_at": now,
        "response_excerpt": "",
        "error": "",
    }


def due_webhooks(session: Session, now: datetime) -> Sequence[str]:
    """Enabled webhooks with a delivery that is due."""
    due = select(WebhookDelivery.id).where(
        WebhookDelivery.webhook_id == Webhook.id,
        WebhookDelivery.state == DeliveryState.WAITING,
        WebhookDelivery.next_at <= now,
    )
    return session.scalars(select(Webhook.id).where(Webhook.is_enabled, due.exists())).all()


def due_deliveries(session: Session, webhook_id: str, now: datetime, limit: int) -> Sequence[WebhookDelivery]:
    """The oldest deliveries that are due, without objects whose next delivery waits for another try."""
    waiting = (WebhookDelivery.webhook_id == webhook_id, WebhookDelivery.state == DeliveryState.WAITING)
    blocked = select(WebhookDelivery.object_key).where(*waiting, WebhookDelivery.next_at > now)
    return session.scalars(
        select(WebhookDelivery)
        .where(*waiting, WebhookDelivery.object_key.not_in(blocked))
        .order_by(WebhookDelivery.id)
        .limit(limit)
    ).all()


def delete_deliveries(session: Session, *, finished_before: datetime, limit: int) -> int:
    """Delete the oldest finished deliveries; returns how many."""
    old = select(WebhookDelivery.id).where(WebhookDelivery.finished_at < finished_before).limit(limit)
    ids = session.scalars(old).all()
    session.execute(delete(WebhookDelivery).where(WebhookDelivery.id.in_(ids)))
    return len(ids)
