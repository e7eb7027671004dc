"""The audit log in both databases: append-only, chained by hashes, and cut by retention alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from trainmaster.audit import verify_entries

from core.db.audit import AuditFilter, append_entries, oldest_entries
from core.db.engine import SessionFactory, unit_of_work
from scheduler.control.maintenance.audit import chain_audit, cut_audit

NOW = datetime(2026, 11, 21, 7, tzinfo=UTC)


@pytest.fixture
def control(sessions: SessionFactory) -> Any:
    """What the chain needs of a control loop."""
    return SimpleNamespace(sessions=sessions, clock=lambda: NOW, holder="here", lease_ttl=timedelta(seconds=15))


def entry(number: int, at: datetime = NOW) -> dict[str, Any]:
    return {
        "at": at, "action": "cancel_job", "method": "POST", "route": "/api/v1/jobs/{job}/cancel", "user": "ann",
        "user_id": "user-1", "token_id": "token-1", "address": "10.0.0.1", "object_kind": "job",
        "object_id": f"job-{number}", "project_id": None, "project": None, "outcome": "allowed", "status": 200,
        "code": None, "request_id": "r", "repeats": 1, "changes": [{"fields": {"state": ["running", "ü"]}, "x": 1.5}],
    }  # fmt: skip


def add(sessions: SessionFactory, *entries: dict[str, Any]) -> None:
    with unit_of_work(sessions) as session:
        append_entries(session, entries)


def export(sessions: SessionFactory) -> list[dict[str, Any]]:
    with unit_of_work(sessions, read_only=True) as session:
        return [
            found
            for is_chained in (True, False)
            for found in oldest_entries(session, AuditFilter(), after=0, is_chained=is_chained, limit=100)
        ]


def test_entries_are_chained_once_in_their_order(control: Any) -> None:
    add(control.sessions, entry(1), entry(2))
    assert verify_entries(export(control.sessions)).unchained == 2
    assert (chain_audit(control), chain_audit(control)) == (2, 0)
    add(control.sessions, entry(3))
    assert chain_audit(control) == 1
    entries = export(control.sessions)
    assert [(found["position"], found["object_id"]) for found in entries] == [(1, "job-1"), (2, "job-2"), (3, "job-3")]
    found = verify_entries(entries, head=(2, entries[1]["hash"]))
    assert (found.mistakes, found.position, found.unchained) == ([], 3, 0)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_entries SET object_id = 'x'",
        "UPDATE audit_entries SET \"user\" = 'x' WHERE position IS NULL",
        "UPDATE audit_entries SET hash = 'x' WHERE position IS NOT NULL",
        "DELETE FROM audit_entries",
        "DELETE FROM audit_entries WHERE position IS NULL",
    ],
)
def test_the_database_refuses_changes(control: Any, statement: str) -> None:
    add(control.sessions, entry(1))
    chain_audit(control)
    add(control.sessions, entry(2))
    before = export(control.sessions)
    with pytest.raises(IntegrityError, match="append-only"), unit_of_work(control.sessions) as session:
        session.execute(text(statement))
    assert export(control.sessions) == before


def test_only_the_newest_lease_chains(control: Any) -> None:
    add(control.sessions, entry(1))
    from core.db import leases

    with unit_of_work(control.sessions) as session:
        leases.acquire(session, "audit", holder="elsewhere", now=NOW, ttl=timedelta(seconds=15))
    assert chain_audit(control) == 0
    assert export(control.sessions)[0]["position"] is None


def test_retention_cuts_whole_days_and_records_where(control: Any) -> None:
    days = [NOW - timedelta(days=number) for number in (40, 31, 30, 1, 0)]
    add(control.sessions, *(entry(number, at) for number, at in enumerate(days, 1)))
    chain_audit(control)
    whole = export(control.sessions)
    assert cut_audit(control, timedelta(0)) == 0
    assert cut_audit(control, timedelta(days=30)) == 2
    chain_audit(control)
    entries = export(control.sessions)
    assert [found["position"] for found in entries] == [3, 4, 5, 6]
    assert entries[-1]["changes"] == [{"position": 2, "hash": whole[1]["hash"]}]
    assert verify_entries(entries).mistakes == []
    assert verify_entries(entries, head=(1, whole[0]["hash"])).mistakes == []
    assert cut_audit(control, timedelta(days=30)) == 0
    with pytest.raises(IntegrityError, match="append-only"), unit_of_work(control.sessions) as session:
        session.execute(text("DELETE FROM audit_entries WHERE position = 3"))


def chained(control: Any) -> list[dict[str, Any]]:
    add(control.sessions, *(entry(number) for number in range(1, 6)))
    chain_audit(control)
    return export(control.sessions)


def test_a_changed_or_removed_entry_is_named(control: Any) -> None:
    entries = chained(control)
    head = entries[-1]["position"], entries[-1]["hash"]
    changed = [{**each, "user": "eve"} if each["position"] == 2 else each for each in entries]
    assert [mistake[:19] for mistake in verify_entries(changed).mistakes] == ["entry 2 was changed"]
    assert "entry 3 was removed" in verify_entries([*entries[:2], *entries[3:]]).mistakes[0]
    assert "entries 1 to 2 were removed" in verify_entries(entries[2:]).mistakes[0]
    assert verify_entries(entries[:-1]).mistakes == []  # the chain alone cannot show it
    assert "entry 5" in verify_entries(entries[:-1], head).mistakes[0]
    swapped = [entries[0], {**entries[2], "position": 2}, {**entries[1], "position": 3}, *entries[3:]]
    assert verify_entries(swapped).mistakes
