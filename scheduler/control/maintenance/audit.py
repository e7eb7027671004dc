"""The audit log's hash chain and its retention: one fenced writer, whatever number of API processes append entries."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

import structlog

from core.db.audit import chain_entries, cut_entries, head_of
from scheduler.control import fence
from scheduler.control.context import ControlContext

log = structlog.get_logger(__name__)

AUDIT_LEASE: Final = "audit"
_BATCH: Final = 500  # entries of one transaction
_BATCHES: Final = 40  # of one run; the next one is seconds away


def chain_audit(control: ControlContext) -> int:
    """Chain the entries that were committed since the last run, in batches; returns how many.

    The process's log gets the newest hash, as an anchor outside of the database.
    """
    chained = 0
    with fence.leased(control, AUDIT_LEASE) as lease:
        if lease is None:
            return 0
        for _ in range(_BATCHES):
            with lease.write() as session:
                count = chain_entries(session, _BATCH)
                position, newest = head_of(session) if count else (0, "")
            if count:
                log.info("audit.chained", entries=count, position=position, hash=newest)
            chained += count
            if count < _BATCH:
                break
    return chained


def cut_audit(control: ControlContext, keep: timedelta) -> int:
    """Delete entries of days (UTC) that are older than ``keep``; zero: none. Returns how many."""
    if not keep:
        return 0
    now = control.clock()
    midnight = (now - keep).replace(hour=0, minute=0, second=0, microsecond=0)
    with fence.leased(control, AUDIT_LEASE) as lease:
        if lease is None:
            return 0
        with lease.write() as session:
            return cut_entries(session, before=midnight, now=now)
    return 0
