"""Errors in the shape of Google's APIs: ``{"error": {"code", "message", "status"}}``.

https://cloud.google.com/apis/design/errors#http_mapping
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from api.http.protocol_errors import Codes
from api.protocols.kit.errors import AlreadyExists, NotServed
from api.protocols.kit.json_values import answer
from core.domain.errors import (
    AttemptEnded,
    Conflict,
    Forbidden,
    InsufficientStorage,
    InvalidRequest,
    InvalidSpec,
    ModelTooSlow,
    ModelUnreachable,
    NotFound,
    PayloadTooLarge,
    Unauthenticated,
    Unavailable,
)


class NoCapacity(InvalidRequest):
    """The job is infeasible: no node of the cluster could ever run it."""


# The first match counts. An invalid token gives 403, not 401: on 401 Google's client tries to refresh the token, and
# its user reads about missing refresh fields instead of the real cause.
STATUSES: Final[Codes] = (
    (NotServed, 501, "UNIMPLEMENTED"),
    (NoCapacity, 429, "RESOURCE_EXHAUSTED"),
    (Unauthenticated, 403, "PERMISSION_DENIED"),
    (AttemptEnded, 403, "PERMISSION_DENIED"),
    (Forbidden, 403, "PERMISSION_DENIED"),
    (AlreadyExists, 409, "ALREADY_EXISTS"),
    (NotFound, 404, "NOT_FOUND"),
    (InvalidRequest, 400, "INVALID_ARGUMENT"),
    (InvalidSpec, 400, "INVALID_ARGUMENT"),
    (PayloadTooLarge, 400, "INVALID_ARGUMENT"),
    (Conflict, 400, "FAILED_PRECONDITION"),
    (ModelTooSlow, 504, "DEADLINE_EXCEEDED"),
    (ModelUnreachable, 503, "UNAVAILABLE"),
    (Unavailable, 503, "UNAVAILABLE"),
    (InsufficientStorage, 429, "RESOURCE_EXHAUSTED"),
)


def refusal(code: int, status: str, message: str) -> Response:
    return answer({"error": {"code": code, "message": message, "status": status}}, code)
