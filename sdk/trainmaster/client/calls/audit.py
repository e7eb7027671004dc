"""The audit log: its list and its export."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from typing import Any

from trainmaster.client.calls.build import params, typed
from trainmaster.client.steps import Call
from trainmaster.wire.audit import AuditEntryView, AuditOutcome
from trainmaster.wire.base import Page


def list_audit_entries_page(
    *,
    user: str | None = None,
    token: str | None = None,
    action: str | None = None,
    object: str | None = None,  # noqa: A002 (the filter's name)
    project: str | None = None,
    outcome: AuditOutcome | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[AuditEntryView]]:
    """One page of the audit log, the newest entries first. For admins of the platform, or of projects.

    Args:
        action: the operation, such as ``cancel_job``.
        object: its ID or name.
    """
    query = params(
        user=user, token=token, action=action, object=object, project=project, outcome=outcome, since=since,
        until=until, limit=limit, cursor=cursor,
    )  # fmt: skip
    return typed(Page[AuditEntryView], "list_audit_entries", "GET", "/audit", query=query)


def export_audit_log_page(
    *,
    user: str | None = None,
    token: str | None = None,
    action: str | None = None,
    object: str | None = None,  # noqa: A002 (as above)
    project: str | None = None,
    outcome: AuditOutcome | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    after: int | None = None,
    limit: int | None = None,
) -> Call[list[dict[str, Any]]]:
    """Entries of the hash chain beyond the position ``after``, at most ``limit``; at its end also all entries that are
    not chained yet.
    """
    query = params(
        user=user, token=token, action=action, object=object, project=project, outcome=outcome, since=since,
        until=until, after=after, limit=limit,
    )  # fmt: skip
    call: Call[Any] = typed(AuditEntryView, "export_audit_log", "GET", "/audit/export", query=query)
    return replace(call, decode=lambda answer: [json.loads(line) for line in answer.content.splitlines()])
