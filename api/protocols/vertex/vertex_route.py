"""The class of all routes of Vertex AI's API: errors in the shape of Google's APIs, and strict query parameters.

Errors are ``{"error": {"code", "message", "status"}}``: https://cloud.google.com/apis/design/errors#http_mapping. Each
query parameter is served, ignored without effect, or refused by its name:
https://cloud.google.com/apis/docs/system-parameters
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from api.protocols.kit.errors import AlreadyExists, NotServed, refuse_unknown
from api.protocols.kit.json_values import answer
from api.protocols.kit.protocol_route import ProtocolRoute
from core.domain.errors import (
    AttemptEnded,
    Conflict,
    InsufficientStorage,
    InvalidRequest,
    InvalidSpec,
    ModelUnreachable,
    PayloadTooLarge,
    Unauthenticated,
)


class NoCapacity(InvalidRequest):
    """The job is infeasible: no node of the cluster could ever run it."""


# An invalid token gives 403, not 401: on 401 Google's client tries to refresh the token, and its user reads about
# missing refresh fields instead of the real cause.
_STATUSES: Final = {
    NotServed: 501,
    NoCapacity: 429,
    Unauthenticated: 403,
    AttemptEnded: 403,
    AlreadyExists: 409,
    InvalidRequest: 400,
    InvalidSpec: 400,
    PayloadTooLarge: 400,
    Conflict: 400,
    ModelUnreachable: 503,
    InsufficientStorage: 429,
}
_CODES: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_FORMATS: Final = ("$alt", "alt")
# Ignored: they set only the response's layout, or accounting.
_IDLE: Final = frozenset({"prettyPrint", "$prettyPrint", "$.xgafv", "quotaUser"})
_IN_HEADER: Final = "tokens in an address are (send it in the header Authorization: Bearer)"
_ABSENT: Final[Mapping[str, str]] = {
    "readMask": "a choice of an answer's fields is",
    "fields": "a choice of an answer's fields is",
    "$fields": "a choice of an answer's fields is",
    "callback": "JSONP is",
    "validateOnly": "validate_only is",
    "allowMissing": "allow_missing is (create it first)",
    "force": "deleting what lies below with it is (delete that first)",
    "etag": "a condition on the etag is",
    "view": "another view of an answer is",
    "orderBy": "another order is",
    "filter": "a filter is",
    "pageSize": "pages are",
    "pageToken": "pages are",
    "updateMask": "update_mask is",
    "access_token": _IN_HEADER,
    "oauth_token": _IN_HEADER,
    "key": _IN_HEADER,
}


class VertexRoute(ProtocolRoute):
    """Answers errors as Vertex AI does, and refuses query parameters that the route does not read."""

    statuses = _STATUSES
    codes = _CODES
    codes_of_errors = {AlreadyExists: "ALREADY_EXISTS", Conflict: "FAILED_PRECONDITION"}  # noqa: RUF012 (a ClassVar)

    def check_parameters(self, request: Request) -> None:
        # A catch-all route names the missing feature, whatever the parameters.
        if not self.path.endswith(":path}"):
            _refuse_unknown_parameters(request.query_params, self.parameters)

    @classmethod
    def error_response(cls, status: int, code: str, message: str) -> Response:
        return answer({"error": {"code": status, "message": message, "status": code}}, status)


def _refuse_unknown_parameters(query: Mapping[str, str], served: Collection[str]) -> None:
    """Refuse parameters that the route does not read.

    Raises:
        NotServed: a parameter of the real API with a non-empty value.
        InvalidRequest: an unknown parameter, or a response format other than JSON.
    """
    for name in _FORMATS:
        if name in query and query[name].partition(";")[0] != "json":
            raise InvalidRequest(f"Invalid value at '{name}': answers are json, not {query[name][:50]!r}.", field=name)
    refuse_unknown(
        query,
        {*served, *_IDLE, *_FORMATS},
        _ABSENT,
        empty=("", "0", "false"),
        unknown=lambda name: InvalidRequest(
            f'Invalid JSON payload received. Unknown name "{name[:100]}": Cannot bind query parameter.',
            field=name[:100],
        ),
    )
