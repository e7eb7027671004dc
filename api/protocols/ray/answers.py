"""Errors as Ray's dashboard sends them: plain text; its client prefixes ``Request failed with status code``."""

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

# The first match counts. Ray has no error codes: a client sees the status and the text.
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
    """Answers errors as Ray's dashboard does."""

    codes = _STATUSES
    otherwise = invalid = unreadable = ""
    stale = (409, "")

    @classmethod
    def refusal(cls, status: int, code: str, message: str) -> Response:
        del code
        return refusal(status, message)
