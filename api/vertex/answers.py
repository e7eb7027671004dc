"""Errors in the shape of Google's APIs: ``{"error": {"code", "message", "status"}}``.

https://cloud.google.com/apis/design/errors#http_mapping
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson
from starlette.responses import Response

from api.translated import Codes, TranslatedRoute
from core.domain.errors import (
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


class NotServed(InvalidRequest):
    """A part of Vertex AI that this platform does not have; the sentence names it."""


class NoCapacity(InvalidRequest):
    """No node of the cluster could ever hold what is asked for."""


# The first that fits. Not 401 for a token that is none: on that Google's client tries to refresh it, and its user reads of
# missing refresh fields instead of what is wrong.
_STATUSES: Final[Codes] = (
    (NotServed, 501, "UNIMPLEMENTED"),
    (NoCapacity, 429, "RESOURCE_EXHAUSTED"),
    (Unauthenticated, 403, "PERMISSION_DENIED"),
    (Forbidden, 403, "PERMISSION_DENIED"),
    (NotFound, 404, "NOT_FOUND"),
    (InvalidRequest, 400, "INVALID_ARGUMENT"),
    (InvalidSpec, 400, "INVALID_ARGUMENT"),
    (PayloadTooLarge, 400, "INVALID_ARGUMENT"),
    (Conflict, 400, "FAILED_PRECONDITION"),
    (Unavailable, 503, "UNAVAILABLE"),
    (InsufficientStorage, 429, "RESOURCE_EXHAUSTED"),
)


def answer(body: Mapping[str, Any]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")


def refusal(code: int, status: str, message: str) -> Response:
    body = orjson.dumps({"error": {"code": code, "message": message, "status": status}})
    return Response(body, code, media_type="application/json")


class VertexRoute(TranslatedRoute):
    """Answers every error of ours as Vertex AI would."""

    codes = _STATUSES
    otherwise = "INTERNAL"
    invalid = unreadable = "INVALID_ARGUMENT"
    stale = (409, "ABORTED")

    @classmethod
    def refusal(cls, status: int, code: str, message: str) -> Response:
        return refusal(status, code, message)
