"""Errors in the shape of Google's APIs: ``{"error": {"code", "message", "status"}}``.

https://cloud.google.com/apis/design/errors#http_mapping
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

import orjson
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DataError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from api.routing import StrictRoute
from core.domain.errors import (
    Conflict,
    Forbidden,
    InsufficientStorage,
    InvalidRequest,
    InvalidSpec,
    NotFound,
    PayloadTooLarge,
    StaleWrite,
    TrainmasterError,
    Unauthenticated,
    Unavailable,
)


class NotServed(InvalidRequest):
    """A part of Vertex AI that this platform does not have; the sentence names it."""


# The first that fits. Not 401 for a token that is none: on that Google's client tries to refresh it, and its user reads of
# missing refresh fields instead of what is wrong.
_STATUSES: Final[tuple[tuple[type[TrainmasterError], int, str], ...]] = (
    (NotServed, 501, "UNIMPLEMENTED"),
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


class VertexRoute(StrictRoute):
    """Answers every error of ours as Vertex AI would. A bug of ours is answered as everywhere else."""

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
                message = f"{path}: {str(item.get('msg', 'is not valid')).removeprefix('Value error, ')}."
                return refusal(400, "INVALID_ARGUMENT", message)
            except HTTPException as error:  # what reading the body raises
                if isinstance(error.__cause__, TrainmasterError):
                    return _refused(error.__cause__)
                return refusal(400, "INVALID_ARGUMENT", "The body cannot be read; send UTF-8 encoded JSON.")
            except StaleWrite:
                return refusal(409, "ABORTED", "This changed in the same moment by somebody else; try again.")
            except (DataError, UnicodeEncodeError):
                return refusal(
                    400, "INVALID_ARGUMENT", "The request holds a value that cannot be kept (a NUL character)."
                )

        return in_their_words


def _refused(error: TrainmasterError) -> Response:
    known = ((code, status) for kind, code, status in _STATUSES if isinstance(error, kind))
    code, status = next(known, (error.status, "INTERNAL"))
    response = refusal(code, status, error.sentence)
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    return response
