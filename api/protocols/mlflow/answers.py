"""Errors in MLflow's format: clients read ``error_code`` and ``message``, and retry by the status alone.

https://github.com/mlflow/mlflow/blob/v3.17.2/mlflow/exceptions.py lists the codes and their statuses.
"""

from __future__ import annotations

from starlette.responses import Response

from api.protocols.kit.errors import AlreadyExists
from api.protocols.kit.json_values import answer
from api.protocols.kit.protocol_route import ProtocolRoute
from core.domain.errors import AttemptEnded, InvalidRequest


class MlflowRoute(ProtocolRoute):
    """Answers errors as MLflow's server does."""

    # The client retries 408, 429 and 5xx for minutes.
    statuses = {AlreadyExists: 400, AttemptEnded: 403, InvalidRequest: 400}  # noqa: RUF012 (a ClassVar of its base)
    codes = {  # noqa: RUF012
        400: "INVALID_PARAMETER_VALUE",
        401: "UNAUTHENTICATED",
        403: "PERMISSION_DENIED",
        404: "RESOURCE_DOES_NOT_EXIST",
        409: "RESOURCE_CONFLICT",
        413: "INVALID_PARAMETER_VALUE",
        500: "INTERNAL_ERROR",
        503: "TEMPORARILY_UNAVAILABLE",
        507: "RESOURCE_EXHAUSTED",
    }
    codes_of_errors = {AlreadyExists: "RESOURCE_ALREADY_EXISTS"}  # noqa: RUF012

    @classmethod
    def error_response(cls, status: int, code: str, message: str) -> Response:
        return answer({"error_code": code, "message": message}, status)
