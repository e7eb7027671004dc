"""API models of the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from trainmaster.wire.base import WireModel

AuditOutcome = Literal["allowed", "refused"]


class AuditEntryView(WireModel):
    """One request. ``position``, ``previous_hash`` and ``hash``: in the hash chain, some seconds after the request."""

    id: int
    at: datetime
    action: str = Field(description="The operation, such as `cancel_job`.")
    method: str
    route: str
    user: str = Field(description="Empty: anonymous; `attempt:ID`: a job's script.")
    user_id: str | None
    token_id: str | None
    address: str
    object_kind: str
    object_id: str
    project_id: str | None
    project: str | None
    outcome: AuditOutcome
    status: int
    code: str | None = Field(description="Of the error.")
    request_id: str
    repeats: int = Field(description="Refused requests that the entry stands for: floods are folded.")
    changes: list[dict[str, Any]] = Field(
        description="Rows that were created, changed or deleted; `fields`: name -> [before, after], without secrets."
    )
    position: int | None
    previous_hash: str | None
    hash: str | None
