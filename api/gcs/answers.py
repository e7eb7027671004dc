"""Errors in Cloud Storage's own shape: its clients read ``error.message``, and what to do next from the status.

https://cloud.google.com/storage/docs/json_api/v1/status-codes
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import orjson
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from api.routing import StrictRoute
from core.domain.errors import (
    Conflict,
    Forbidden,
    InsufficientStorage,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    RangeNotSatisfiable,
    StaleWrite,
    TrainmasterError,
    Unauthenticated,
    Unavailable,
)


class ConditionNotMet(Conflict):
    """``ifGenerationMatch`` and its kind: the object is not as the client knew it."""


class NotServed(InvalidRequest):
    """A part of Cloud Storage that volumes do not have."""


# The first that fits. Not 401 for a token that is none: on that Google's client tries to refresh it, and its user reads of
# missing refresh fields instead of what is wrong.
_REASONS: Final[tuple[tuple[type[TrainmasterError], int, str], ...]] = (
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


def answer(body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(body), 200, dict(headers or {}), media_type="application/json")


def refusal(status: int, reason: str, message: str) -> Response:
    errors = [{"message": message, "domain": "global", "reason": reason}]
    body = orjson.dumps({"error": {"code": status, "message": message, "errors": errors}})
    return Response(body, status, media_type="application/json")


class StorageRoute(StrictRoute):
    """Answers every error of ours as Cloud Storage would. A bug of ours is answered as everywhere else."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def in_their_words(request: Request) -> Response:
            try:
                return await handle(request)
            except TrainmasterError as error:
                return _refused(error)
            except RequestValidationError as error:
                item = error.errors()[0]
                path = ".".join(str(part) for part in item.get("loc", ())[1:]) or "body"
                return refusal(400, "invalid", f"{path}: {item.get('msg', 'is not valid')}.")
            except HTTPException as error:  # what reading the body raises
                if isinstance(error.__cause__, TrainmasterError):
                    return _refused(error.__cause__)
                return refusal(400, "parseError", "The body cannot be read; send UTF-8 encoded JSON.")
            except StaleWrite:
                return refusal(409, "conflict", "This changed in the same moment by somebody else; try again.")

        return in_their_words


def _refused(error: TrainmasterError) -> Response:
    known = ((status, reason) for kind, status, reason in _REASONS if isinstance(error, kind))
    status, reason = next(known, (error.status, "internalError"))
    response = refusal(status, reason, error.sentence)
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    return response
