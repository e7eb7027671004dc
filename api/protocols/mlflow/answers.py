"""Errors in MLflow's format: clients read ``error_code`` and ``message``, and retry by the status alone.

https://github.com/mlflow/mlflow/blob/v3.17.2/mlflow/exceptions.py lists the codes and their statuses.
"""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

from api.http.protocol_errors import Codes, ProtocolRoute
from api.protocols.kit.errors import AlreadyExists
from api.protocols.kit.json_values import answer
from core.domain.errors import (
    AttemptEnded,
    Conflict,
    Forbidden,
    InsufficientStorage,
    InvalidRequest,
    NotFound,
    PayloadTooLarge,
    Unauthenticated,
    Unavailable,
)

# The first match counts. The client retries 408, 429 and 5xx for minutes.
_CODES: Final[Codes] = (
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


class MlflowRoute(ProtocolRoute):
    """Answers errors as MLflow's server does."""

    codes = _CODES
    otherwise = "INTERNAL_ERROR"
    invalid = unreadable = "INVALID_PARAMETER_VALUE"
    stale = (409, "RESOURCE_CONFLICT")

    @classmethod
    def refusal(cls, status: int, code: str, message: str) -> Response:
        return answer({"error_code": code, "message": message}, status)
