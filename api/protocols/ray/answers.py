"""Errors as Ray's dashboard tells them: plain text, which its client puts behind ``Request failed with status
code``.
"""

from __future__ import annotations

from typing import Final

from starlette.responses import PlainTextResponse, Response

from api.http.protocol_errors import Codes, ProtocolRoute
from core.domain.errors import (
    AttemptEnded,
    Conflict,
    Forbidden,
    InsufficientStorage,
    InvalidRequest,
    InvalidSpec,
    NotFound,
    PayloadTooLarge,
    Unauthenticated,
    Unavailable,
)

# The first that fits. Ray has no codes: a client sees the status and the text.
_STATUSES: Final[Codes] = (
    (Unauthenticated, 401, ""),
    (AttemptEnded, 403, ""),
    (Forbidden, 403, ""),
    (NotFound, 404, ""),
    (InvalidRequest, 400, ""),
    (InvalidSpec, 400, ""),
    (PayloadTooLarge, 413, ""),
    (Conflict, 409, ""),
    (Unavailable, 503, ""),
    (InsufficientStorage, 507, ""),
)


def refusal(status: int, message: str) -> Response:
    return PlainTextResponse(message.removesuffix("."), status)  # the client adds a full stop of its own


class RayRoute(ProtocolRoute):
    """Answers every error of ours as Ray's dashboard would."""

    codes = _STATUSES
    otherwise = invalid = unreadable = ""
    stale = (409, "")

    @classmethod
    def refusal(cls, status: int, code: str, message: str) -> Response:
        del code
        return refusal(status, message)
