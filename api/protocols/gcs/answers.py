"""Errors in Cloud Storage's own shape: its clients read ``error.message``, and what to do next from the status.

https://cloud.google.com/storage/docs/json_api/v1/status-codes
"""

from __future__ import annotations

from typing import Final

from api.http.protocol_errors import Codes
from api.protocols.kit.errors import NotServed
from core.domain.errors import (
    Conflict,
    Forbidden,
    InsufficientStorage,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    RangeNotSatisfiable,
    Unauthenticated,
    Unavailable,
)


class ConditionNotMet(Conflict):
    """A precondition such as ``ifGenerationMatch`` failed: the object changed since the client read it."""


class NotChanged(ConditionNotMet):
    """The client already has the current content (HTTP 304)."""


# The first match counts. An invalid token gives 403, not 401: on 401 Google's client tries to refresh the token, and
# its user reads about missing refresh fields instead of the real cause.
REASONS: Final[Codes] = (
    (NotChanged, 304, "notModified"),
    (ConditionNotMet, 412, "conditionNotMet"),
    (NotServed, 501, "notImplemented"),
    (Unauthenticated, 403, "forbidden"),
    (Forbidden, 403, "forbidden"),
    (NotFound, 404, "notFound"),
    (InvalidRequest, 400, "invalid"),
    (PayloadTooLarge, 413, "uploadTooLarge"),
    (RangeNotSatisfiable, 416, "requestedRangeNotSatisfiable"),
    (Conflict, 409, "conflict"),
    (Unavailable, 503, "backendError"),
    (InsufficientStorage, 507, "quotaExceeded"),
)
