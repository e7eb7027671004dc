"""Delivers events to webhooks: at least once, and in order for each object.

One thread of each scheduler polls the outbox, and a few others deliver: each to one webhook, under its lease, so that
a slow endpoint delays no other. A process that is killed leaves deliveries that are waiting; the next one sends them.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.engine import unit_of_work
from core.db.repositories.events import append_event
from core.db.repositories.outgoing import webhooks
from core.db.repositories.outgoing.webhooks import DeliveryState
from core.db.tables import Webhook, WebhookDelivery
from core.outgoing.networks import OutboundNetworks
from core.outgoing.signatures import signed_headers
from core.secrets import UnreadableSecret, unseal
from core.work_queue import WorkQueue
from scheduler.control import fence
from scheduler.control.context import ControlContext
from scheduler.control.fence import RenewedLease
from scheduler.control.journal import SCHEDULER
from scheduler.control.leased_loop import LeasedLoop, PollingWorker
from scheduler.control.outgoing.sender import SendResult, WebhookMessage, send_all

log = structlog.get_logger(__name__)

OUTBOX_LEASE: Final = "outbox"
_POLL_S: Final = 1.0
_OUTBOX_BATCH: Final = 500
_DELIVERY_BATCH: Final = 256
# Webhooks that one process delivers to at once; each has a thread, which mostly waits.
_WEBHOOKS_AT_ONCE: Final = 32
# Then other webhooks get their turn.
_MAX_PASSES: Final = 20
# Seconds after each failed try: 26 hours together. Then the delivery is dead.
RETRY_DELAYS_S: Final = (5, 30, 120, 600, 1800, 3600, 7200, 14400, 28800, 36000)
_JITTER: Final = 0.25
# 410 Gone: the receiver wants no more messages.
_UNWANTED: Final = 410


class WebhookDeliverer:
    """Delivers to webhooks, in threads; one per process."""

    def __init__(self, control: ControlContext, networks: OutboundNetworks) -> None:
        self._control, self._networks = control, networks
        self._loop = LeasedLoop(control, kind="webhook", topic=None, max_passes=_MAX_PASSES)
        self._queue = WorkQueue[str](self._deliver, workers=_WEBHOOKS_AT_ONCE)
        self._worker = PollingWorker("webhook", "webhooks", self.work, threads=1, every_s=_POLL_S)

    def start(self) -> None:
        """Start with what is due, and go on polling. Returns at once."""
        self._worker.start()

    def close(self) -> None:
        """Finish the deliveries that are being sent, within some seconds; others are left to the next scheduler."""
        self._worker.close()
        self._queue.close()

    def work(self) -> None:
        """Distribute the outbox, and start the delivery to each webhook that has something due.

        Raises:
            Unavailable: the database is away.
        """
        distribute(self._control)
        with unit_of_work(self._control.sessions, read_only=True) as session:
            due = webhooks.due_webhooks(session, self._control.clock())
        for webhook_id in due:
            self._queue.submit(webhook_id)

    def deliver(self, webhook_id: str) -> None:
        """Send what is due to this webhook. Raises ``Unavailable`` like :meth:`work`."""
        self._loop.reconcile(webhook_id, partial(self._run_pass, webhook_id))

    def _deliver(self, webhook_ids: Sequence[str]) -> None:
        for webhook_id in webhook_ids:
            self.deliver(webhook_id)

    def _run_pass(self, webhook_id: str, lease: RenewedLease) -> bool:
        now = self._control.clock()
        with unit_of_work(self._control.sessions, read_only=True) as session:
            webhook = session.get(Webhook, webhook_id)
            if webhook is None or not webhook.is_enabled or self._worker.is_stopping:
                return False
            due = webhooks.due_deliveries(session, webhook_id, now, _DELIVERY_BATCH)
        if not due:
            return False
        try:
            keys = _signing_secrets(self._control.secret_key, webhook, now)
        except UnreadableSecret as unreadable:
            with lease.write() as session:
                _disable(session, webhook, now, f"{unreadable.sentence} Rotate the secret, then enable the webhook.")
            return False
        messages = [_message(delivery, keys, now) for delivery in due]

        async def send_and_save() -> dict[int, SendResult]:
            # Saved before the event loop ends, which may wait for a name server.
            results = await send_all(webhook.url, messages, self._networks, lease.renew_if_due)
            with lease.write() as session:
                _save(session, webhook, results, self._control.clock())
            return results

        results = asyncio.run(send_and_save())
        return any(not result.error for result in results.values())


def distribute(control: ControlContext) -> None:
    """Turn the events of the outbox into deliveries; one process at a time does."""
    with unit_of_work(control.sessions, read_only=True) as session:
        if not webhooks.has_outbox(session):
            return
    with fence.leased(control, OUTBOX_LEASE) as lease:
        while lease is not None:
            with lease.write() as session:
                if webhooks.distribute_outbox(session, limit=_OUTBOX_BATCH, now=control.clock()) < _OUTBOX_BATCH:
                    return


def _signing_secrets(key: bytes, webhook: Webhook, now: datetime) -> list[str]:
    """Raises ``UnreadableSecret``."""
    sealed = [webhook.ciphertext]
    if webhook.old_ciphertext is not None and webhook.old_secret_until is not None and now < webhook.old_secret_until:
        sealed.append(webhook.old_ciphertext)
    return [unseal(key, webhook.project_id or "", webhook.id, each) for each in sealed]


def _message(delivery: WebhookDelivery, keys: Sequence[str], now: datetime) -> WebhookMessage:
    body = delivery.body.encode()
    message_id = f"msg_{delivery.webhook_id.removeprefix('webhook-')}_{delivery.id}"
    headers = signed_headers(message_id, int(now.timestamp()), body, keys)
    return WebhookMessage(delivery.id, delivery.object_key, body, headers)


def _save(
    session: Session,
    webhook: Webhook,
    results: dict[int, SendResult],
    now: datetime,
) -> None:
    rows = session.scalars(
        select(WebhookDelivery).where(WebhookDelivery.id.in_(results), WebhookDelivery.state == DeliveryState.WAITING)
    )
    dead = 0
    for row in rows:
        result = results[row.id]
        row.attempts += 1
        row.response_status, row.response_excerpt = result.status, result.excerpt
        row.error, row.duration_ms = result.error, result.duration_ms
        if not result.error:
            row.state, row.finished_at = DeliveryState.DELIVERED, now
        elif row.attempts > len(RETRY_DELAYS_S):
            row.state, row.finished_at = DeliveryState.DEAD, now
            dead += 1
        else:
            row.next_at = now + _delay(row.id, row.attempts)
    if dead:
        reason = f"{dead} deliveries to {webhook.url} failed for more than a day; replay them once it answers."
        _record_event(session, webhook, "webhook.delivery_dead", reason, now)
    if any(result.status == _UNWANTED for result in results.values()):
        _disable(session, webhook, now, "The endpoint answered 410 Gone.")


def _delay(delivery_id: int, attempts: int) -> timedelta:
    """The delay after so many failed attempts; its jitter differs between deliveries, so that they spread."""
    jitter = _JITTER * zlib.crc32(f"{delivery_id}:{attempts}".encode()) / 2**32
    return timedelta(seconds=RETRY_DELAYS_S[attempts - 1] * (1 + jitter))


def _disable(session: Session, webhook: Webhook, now: datetime, reason: str) -> None:
    row = session.get(Webhook, webhook.id)
    if row is not None and row.is_enabled:
        row.is_enabled, row.disabled_reason, row.updated_at = False, reason, now
        _record_event(session, webhook, "webhook.disabled", reason, now)


def _record_event(session: Session, webhook: Webhook, kind: str, reason: str, now: datetime) -> None:
    data = {"webhook": webhook.id, "url": webhook.url}
    append_event(session, at=now, kind=kind, actor=SCHEDULER, project_id=webhook.project_id, reason=reason, data=data)
    log.warning(kind, **data, why=reason)
