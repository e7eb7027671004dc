"""Errors in MLflow's own shape: its clients read ``error_code`` and ``message``, and try again by the status alone.

https://github.com/mlflow/mlflow/blob/v3.17.2/mlflow/exceptions.py has the codes and the status of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from typing import Any, Final

import orjson
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DataError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from api.routing import StrictRoute
from core.domain.errors import (
    AttemptEnded,
    Conflict,
    Forbidden,
    InsufficientStorage,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    StaleWrite,
    TrainmasterError,
    Unauthenticated,
    Unavailable,
)


class AlreadyExists(Conflict):
    """A name that is taken. Clients that get or create count on this code."""


# The first that fits. What is answered with 408, 429 or 5xx the client sends again for minutes.
_CODES: Final[tuple[tuple[type[TrainmasterError], int, str], ...]] = (
    (AlreadyExists, 400, "RESOURCE_ALREADY_EXISTS"),
    (Unauthenticated, 401, "UNAUTHENTICATED"),
    (AttemptEnded, 403, "PERMISSION_DENIED"),
    (Forbidden, 403, "PERMISSION_DENIED"),
    (NotFound, 404, "RESOURCE_DOES_NOT_EXIST"),
    (InvalidRequest, 400, "INVALID_PARAMETER_VALUE"),
    (PayloadTooLarge, 413, "INVALID_PARAMETER_VALUE"),
    (Conflict, 409, "RESOURCE_CONFLICT"),
    (Unavailable, 503, "TEMPORARILY_UNAVAILABLE"),
    (InsufficientStorage, 507, "RESOURCE_EXHAUSTED"),
)


def answer(body: dict[str, Any]) -> Response:
    return Response(orjson.dumps(body), media_type="application/json")


def refusal(status: int, code: str, message: str) -> Response:
    body = orjson.dumps({"error_code": code, "message": message})
    return Response(body, status, media_type="application/json")


class MlflowRoute(StrictRoute):
    """Answers every error of ours as MLflow's server would. A bug of ours is answered as everywhere else."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def in_their_words(request: Request) -> Response:
            try:
                return await handle(request)
            except TrainmasterError as error:
                return _refused(error)
            except RequestValidationError as error:
                return refusal(400, "INVALID_PARAMETER_VALUE", _mistakes(error))
            except HTTPException as error:  # what reading the body raises
                if isinstance(error.__cause__, TrainmasterError):
                    return _refused(error.__cause__)
                return refusal(400, "INVALID_PARAMETER_VALUE", "The body cannot be read; send UTF-8 encoded JSON.")
            except (StaleWrite, DataError, UnicodeEncodeError):
                return refusal(
                    400, "INVALID_PARAMETER_VALUE", "The request holds a value that cannot be kept (a NUL character)."
                )

        return in_their_words


def _refused(error: TrainmasterError) -> Response:
    known = ((status, code) for kind, status, code in _CODES if isinstance(error, kind))
    status, code = next(known, (error.status, "INTERNAL_ERROR"))
    response = refusal(status, code, error.sentence)
    if error.retry_after_s is not None:
        response.headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _mistakes(error: RequestValidationError) -> str:
    told = []
    for item in error.errors()[:3]:
        path = ".".join(str(part) for part in item.get("loc", ())[1:]) or "body"
        told.append(f"{path}: {str(item.get('msg', 'is not valid')).removeprefix('Value error, ')}")
    return "; ".join(told) + "."
