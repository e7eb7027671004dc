"""Errors as Kubernetes' API server sends them: objects of kind ``Status``.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/
"""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from api.http.protocol_errors import Codes, ProtocolRoute
from api.protocols.kit.errors import AlreadyExists, NotServed
from api.protocols.kit.json_values import answer
from core.domain.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    InvalidSpec,
    NotFound,
    PayloadTooLarge,
    Unauthenticated,
    Unavailable,
)

# The first match counts.
_REASONS: Final[Codes] = (
    (Unauthenticated, 401, "Unauthorized"),
    (NotServed, 404, "NotFound"),
    (Forbidden, 403, "Forbidden"),
    (NotFound, 404, "NotFound"),
    (AlreadyExists, 409, "AlreadyExists"),
    (Conflict, 409, "Conflict"),
    (InvalidSpec, 422, "Invalid"),
    (InvalidRequest, 422, "Invalid"),
    (PayloadTooLarge, 413, "RequestEntityTooLarge"),
    (Unavailable, 503, "ServiceUnavailable"),
)


def items(kind: str, version: str, found: list[dict[str, Any]]) -> Response:
    """A list of objects. ``kind``: of each object."""
    return answer({"kind": f"{kind}List", "apiVersion": version, "metadata": {}, "items": found})


class KubernetesRoute(ProtocolRoute):
    """Answers errors as Kubernetes does."""

    codes = _REASONS
    otherwise = "InternalError"
    invalid = unreadable = "BadRequest"
    stale = (409, "Conflict")

    @classmethod
    def refusal(cls, status: int, code: str, message: str) -> Response:
        status_object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        return answer({**status_object, "message": message, "reason": code, "code": status}, status)
