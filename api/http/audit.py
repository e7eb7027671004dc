"""ASGI middleware that completes the audit log: what was refused, what no transaction recorded, and downloads.

Floods of refused requests are folded: of each caller, and of all anonymous ones together, some are recorded one by one;
the others are counted, and one entry a minute says how many there were.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from typing import Any, Final

import structlog
from anyio import to_thread
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.app.audit import AuditRecord, is_refusal, recording
from api.app.fair_use import TokenBuckets, address_of
from core.db.audit import append_entries
from core.db.engine import SessionFactory, unit_of_work
from core.domain.errors import TrainmasterError

log = structlog.get_logger(__name__)

# Refused requests that are recorded one by one: so many at once, and so many a second on average.
_OF_CALLER: Final = (30.0, 0.1)
_ANONYMOUS: Final = (300.0, 0.2)
_FOLD_S: Final = 60.0
# Entries of folded requests at once; the rest are counted in one more.
_FOLDED_ENTRIES: Final = 20
_FOLDED_KEYS: Final = 1_000
_PIECE_S: Final = 60.0  # of the pieces of one object, one in so long leaves an entry

# Address, user, action, status and code.
_FoldKey = tuple[str, str, str, int, str | None]


class AuditLog:
    """Writes entries outside of the requests' own transactions.

    ``callers``, ``anonymous``, ``pieces``: how many refused requests of each caller, of all anonymous callers together,
    and pieces of one object leave entries of their own.
    """

    def __init__(self, sessions: SessionFactory, clock: Callable[[], datetime]) -> None:
        self._sessions = sessions
        self.clock = clock
        self.callers = TokenBuckets(*_OF_CALLER)
        self.anonymous = TokenBuckets(*_ANONYMOUS)
        self.pieces = TokenBuckets(1.0, 1.0 / _PIECE_S)
        self._folded: Counter[_FoldKey] = Counter()

    async def finish(self, record: AuditRecord, status: int) -> None:
        """Called before the response begins: what the client is told is recorded."""
        is_recorded = record.is_change or record.is_download
        if is_refusal(status):
            if not (is_recorded or record.is_wrong_token):
                return
            if not self._is_admitted(record):
                self._fold(record, status)
                return
        elif not is_recorded or record.is_committed or record.is_skipped or record.is_repeated():
            return
        await to_thread.run_sync(self._write, record.rows(status))

    def _is_admitted(self, record: AuditRecord) -> bool:
        caller = record.token_id or record.user or address_of(record.scope)
        buckets = [(self.callers, caller)] if record.user else [(self.callers, caller), (self.anonymous, "")]
        if any(bucket.wait_s(key) for bucket, key in buckets):
            return False
        for bucket, key in buckets:
            bucket.take(key)
        return True

    def _fold(self, record: AuditRecord, status: int) -> None:
        key = (address_of(record.scope), record.user, record.action, status, record.code)
        if key not in self._folded and len(self._folded) >= _FOLDED_KEYS:
            key = ("", "", "none", status, None)
        self._folded[key] += 1

    def _write(self, rows: list[dict[str, Any]]) -> None:
        try:
            with recording(None), unit_of_work(self._sessions) as session:
                append_entries(session, rows)
        except TrainmasterError as error:
            # The change, if there was one, has no transaction; the process's log keeps the entry.
            entries = [{**row, "at": str(row["at"])} for row in rows]
            log.error("audit.not_written", why=error.sentence, entries=entries)  # noqa: TRY400 (the database is away)

    def write_folded(self) -> None:
        """Write how many requests were folded since the last time."""
        folded, self._folded = self._folded, Counter()
        shown = folded.most_common(_FOLDED_ENTRIES)
        rest = folded.total() - sum(count for _, count in shown)
        if rest:
            shown.append((("", "", "none", 0, None), rest))
        empty = dict.fromkeys(("user_id", "token_id", "project_id", "project"))
        rows: list[dict[str, Any]] = [
            {
                **empty, "at": self.clock(), "action": action, "method": "", "route": "", "user": user,
                "address": address, "object_kind": "folded_requests", "object_id": "", "outcome": "refused",
                "status": status, "code": code, "request_id": "", "repeats": count, "changes": [],
            }
            for (address, user, action, status, code), count in shown
        ]  # fmt: skip
        if rows:
            self._write(rows)

    @asynccontextmanager
    async def lifetime(self) -> AsyncIterator[None]:
        """Write folded requests once a minute, and at the end."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await to_thread.run_sync(self.write_folded)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_FOLD_S)
            await to_thread.run_sync(self.write_folded)


class AuditMiddleware:
    """Innermost: gives each request its record, and completes its entry when the response begins."""

    def __init__(self, app: ASGIApp, *, audit_log: AuditLog) -> None:
        self.app = app
        self._log = audit_log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        record = AuditRecord(scope, self._log.clock(), self._log.pieces)
        is_finished = False

        async def sending(message: Message) -> None:
            nonlocal is_finished
            if message["type"] == "http.response.start" and not is_finished:
                is_finished = True
                await self._log.finish(record, message["status"])
            await send(message)

        with recording(record):
            try:
                await self.app(scope, receive, sending)
            except Exception:
                if not is_finished:
                    record.code = "internal"
                    await self._log.finish(record, 500)
                raise
