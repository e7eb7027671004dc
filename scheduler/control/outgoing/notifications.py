"""Sends notifications by Apprise; many at once become one digest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

import structlog
from sqlalchemy import select

from core.db.engine import unit_of_work
from core.db.repositories.outgoing import notifications
from core.db.tables import Notification, NotificationChannel
from core.outgoing.apprise_calls import NotSent, send_message
from core.secrets import UnreadableSecret, unseal
from core.work_queue import WorkQueue
from scheduler.control.context import ControlContext
from scheduler.control.fence import RenewedLease
from scheduler.control.leased_loop import LeasedLoop, PollingWorker
from scheduler.control.outgoing.webhooks import RETRY_DELAYS_S

log = structlog.get_logger(__name__)

_POLL_S: Final = 2.0
_AT_ONCE: Final = 4  # each is a process
_BATCH: Final = 1_000
_LINES: Final = 20  # of a digest
# A process of Apprise ends before: see ``core.outgoing.apprise_calls``.
_LEASE_TTL: Final = timedelta(seconds=90)


class Notifier:
    """Sends notifications, in threads; one per process. ``networks``: the setting ``outbound_networks``."""

    def __init__(self, control: ControlContext, networks: str) -> None:
        self._control, self._networks = replace(control, lease_ttl=_LEASE_TTL), networks
        self._loop = LeasedLoop(self._control, kind="channel", topic=None, max_passes=1)
        self._queue = WorkQueue[str](self._send_each, workers=_AT_ONCE)
        self._worker = PollingWorker("notification", "notifications", self.work, threads=1, every_s=_POLL_S)

    def start(self) -> None:
        """Start with what is due, and go on polling. Returns at once."""
        self._worker.start()

    def close(self) -> None:
        """Stop; a message that is being sent may be sent again by the next scheduler."""
        self._worker.close()
        self._queue.close()

    def work(self) -> None:
        """Start sending to each channel that has something due. Raises ``Unavailable``: the database is away."""
        with unit_of_work(self._control.sessions, read_only=True) as session:
            due = notifications.due_channels(session, self._control.clock())
        for channel_id in due:
            self._queue.submit(channel_id)

    def send(self, channel_id: str) -> None:
        """Send what is due to this channel, as one message. Raises ``Unavailable`` like :meth:`work`."""
        self._loop.reconcile(channel_id, partial(self._run_pass, channel_id))

    def _send_each(self, channel_ids: Sequence[str]) -> None:
        for channel_id in channel_ids:
            self.send(channel_id)

    def _run_pass(self, channel_id: str, lease: RenewedLease) -> bool:
        with unit_of_work(self._control.sessions, read_only=True) as session:
            channel = session.get(NotificationChannel, channel_id)
            if channel is None or not channel.is_enabled:
                return False
            due = notifications.due_notifications(session, channel_id, self._control.clock(), _BATCH)
        if not due:
            return False
        title, body = message_of([row.text for row in due])
        owner = channel.project_id or channel.user_id or ""
        error = ""
        try:
            url = unseal(self._control.secret_key, owner, channel_id, channel.ciphertext)
            send_message(url, title, body, self._networks)
        except UnreadableSecret as unreadable:
            error = unreadable.sentence
        except NotSent as failure:
            error = str(failure)
        with lease.fenced() as session:
            now = self._control.clock()
            for row in session.scalars(select(Notification).where(Notification.id.in_([each.id for each in due]))):
                _note_result(row, error, now)
        if error:
            log.warning("notification.not_sent", channel=channel_id, why=error)
        return False


def _note_result(row: Notification, error: str, now: datetime) -> None:
    row.attempts += 1
    row.error = error
    if not error:
        row.state, row.finished_at = notifications.SENT, now
    elif row.attempts > len(RETRY_DELAYS_S):
        row.state, row.finished_at = notifications.DEAD, now
    else:
        row.next_at = now + timedelta(seconds=RETRY_DELAYS_S[row.attempts - 1])


def message_of(texts: Sequence[str]) -> tuple[str, str]:
    """Title and body of one message for these notifications, oldest first."""
    if len(texts) == 1:
        return f"Trainmaster: {texts[0].partition(':')[0]}", texts[0]
    more = len(texts) - _LINES
    lines = [*texts[:_LINES], *([f"… and {more} more"] if more > 0 else [])]
    return f"Trainmaster: {len(texts)} notifications", "\n".join(lines)
