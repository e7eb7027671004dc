"""Errors as Kubernetes' API server tells them: an object of the kind ``Status``.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import orjson
from starlette.responses import Response

from api.http.protocol_errors import Codes, ProtocolRoute
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


class NotServed(NotFound):
    """A resource of Kubernetes that this platform does not have; the sentence names it."""


class AlreadyExists(Conflict):
    """A name that is taken."""


# The first that fits.
_REASONS: Final[Codes] = (
    (Unauthenticated, 401, "Unauthorized"),
    (Forbidden, 403, "Forbidden"),
    (NotFound, 404, "NotFound"),
    (AlreadyExists, 409, "AlreadyExists"),
    (Conflict, 409, "Conflict"),
    (InvalidSpec, 422, "Invalid"),
    (InvalidRequest, 422, "Invalid"),
    (PayloadTooLarge, 413, "RequestEntityTooLarge"),
    (Unavailable, 503, "ServiceUnavailable"),
)


def answer(body: Mapping[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(body), status, media_type="application/json")


def items(kind: str, version: str, found: list[dict[str, Any]]) -> Response:
    """A list of objects; ``kind`` of each one."""
    return answer({"kind": f"{kind}List", "apiVersion": version, "metadata": {}, "items": found})


def timestamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class KubernetesRoute(ProtocolRoute):
    """Answers every error of ours as Kubernetes would."""

    codes = _REASONS
    otherwise = "InternalError"
    invalid = unreadable = "BadRequest"
    stale = (409, "Conflict")

    @classmethod
    def refusal(cls, status: int, code: str, message: str) -> Response:
        status_object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        return answer({**status_object, "message": message, "reason": code, "code": status}, status)
