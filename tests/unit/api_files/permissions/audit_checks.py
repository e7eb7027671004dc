"""What each request of the table of permissions must leave in the audit log."""

from __future__ import annotations

from typing import Any

from httpx import Response
from sqlalchemy import select

from api.app.audited_routes import DOWNLOADS, EXCLUDED
from api.app.fair_use import TokenBuckets
from api.http.audit import AuditLog
from core.db.engine import unit_of_work
from core.db.tables import AuditEntry

_SAFE = ("GET", "HEAD", "OPTIONS")
_CREATE_NOTHING = ("POST /mlflow/api/2.0/mlflow/experiments/create",)
# Whose token is none of a user that is let in.
_UNKNOWN = ("anonymous", "expired")


def unfold(log: AuditLog) -> None:
    """Record refused requests one by one, and every piece of a download."""
    log.callers = log.anonymous = log.pieces = TokenBuckets(1e9, 1e9)


def entries_of(house: Any, answer: Response) -> list[AuditEntry]:
    with unit_of_work(house.sessions, read_only=True) as session:
        found = select(AuditEntry).where(AuditEntry.request_id == answer.headers["x-request-id"])
        return list(session.scalars(found.order_by(AuditEntry.id)))


def check_audit(house: Any, route: str, who: str, answer: Response) -> None:
    """Every changing request leaves an entry with its object and outcome; so do downloads, and wrong tokens."""
    method, _, template = route.partition(" ")
    entries = entries_of(house, answer)
    if method in _SAFE and (template.startswith("/storage/") or who == "attempt"):
        return  # an object's description is no download, and scripts read their own data
    if method in _SAFE and not (template in DOWNLOADS and method == "GET"):
        assert not entries or who in _UNKNOWN, f"{who}: reading leaves no entry"
        return
    if answer.status_code == 200 and (b'"dry_run":true' in answer.request.content or route in _CREATE_NOTHING):
        assert not entries, f"{who}: a dry run leaves no entry"
        return
    if route in EXCLUDED:
        assert not entries or who in _UNKNOWN, f"{who}: {route} is excluded"
        return
    assert entries, f"{who}: no entry of {route}, answered with {answer.status_code}"
    last = entries[-1]
    if template != "/batch/storage/v1":
        is_refused = answer.status_code >= 400
        assert (last.outcome, last.status) == ("refused" if is_refused else "allowed", answer.status_code), who
        assert (last.code is not None) == is_refused, f"{who}: code {last.code}"
    assert last.action != "none"
    assert last.address
    assert last.object_kind, f"{who}: no kind of object"
    if answer.status_code < 400:
        assert last.object_id, f"{who}: {route} left an entry without its object: {last.object_kind}"
        assert last.user, f"{who}: no user"
