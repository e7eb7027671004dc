"""The class of all routes of Vertex AI's API: errors in the shape of Google's APIs, and strict query parameters.

Errors are ``{"error": {"code", "message", "status"}}``: https://cloud.google.com/apis/design/errors#http_mapping. Each
query parameter is served, ignored without effect, or refused by its name:
https://cloud.google.com/apis/docs/system-parameters
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, Final

from fastapi.dependencies.utils import get_flat_params
from starlette.requests import Request
from starlette.responses import Response

from api.http.protocol_errors import Codes, ProtocolRoute
from api.protocols.kit.errors import AlreadyExists, NotServed, refuse_unknown
from api.protocols.kit.json_values import answer
from core.domain.errors import (
    AttemptEnded,
    Conflict,
    Forbidden,
    InsufficientStorage,
    InvalidRequest,
    InvalidSpec,
    ModelTooSlow,
    ModelUnreachable,
    NotFound,
    PayloadTooLarge,
    TrainmasterError,
    Unauthenticated,
    Unavailable,
)


class NoCapacity(InvalidRequest):
    """The job is infeasible: no node of the cluster could ever run it."""


# The first match counts. An invalid token gives 403, not 401: on 401 Google's client tries to refresh the token, and
# its user reads about missing refresh fields instead of the real cause.
_STATUSES: Final[Codes] = (
    (NotServed, 501, "UNIMPLEMENTED"),
    (NoCapacity, 429, "RESOURCE_EXHAUSTED"),
    (Unauthenticated, 403, "PERMISSION_DENIED"),
    (AttemptEnded, 403, "PERMISSION_DENIED"),
    (Forbidden, 403, "PERMISSION_DENIED"),
    (AlreadyExists, 409, "ALREADY_EXISTS"),
    (NotFound, 404, "NOT_FOUND"),
    (InvalidRequest, 400, "INVALID_ARGUMENT"),
    (InvalidSpec, 400, "INVALID_ARGUMENT"),
    (PayloadTooLarge, 400, "INVALID_ARGUMENT"),
    (Conflict, 400, "FAILED_PRECONDITION"),
    (ModelTooSlow, 504, "DEADLINE_EXCEEDED"),
    (ModelUnreachable, 503, "UNAVAILABLE"),
    (Unavailable, 503, "UNAVAILABLE"),
    (InsufficientStorage, 429, "RESOURCE_EXHAUSTED"),
)
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

    codes = _STATUSES
    otherwise = "INTERNAL"
    invalid = unreadable = "INVALID_ARGUMENT"
    stale = (409, "ABORTED")

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        served = frozenset(field.alias for field in get_flat_params(self.dependant))
        # A catch-all route names the missing feature, whatever the parameters.
        is_refusal = self.path.endswith(":path}")

        async def with_known_parameters(request: Request) -> Response:
            try:
                if not is_refusal:
                    _refuse_unknown_parameters(request.query_params, served)
            except TrainmasterError as error:
                return self.refused(error)
            return await handle(request)

        return with_known_parameters

    @classmethod
    def refusal(cls, status: int, code: str, message: str) -> Response:
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
        not_served=lambda name, what: NotServed(f"{name}: {what} not served by this platform here; leave it out."),
        unknown=lambda name: InvalidRequest(
            f'Invalid JSON payload received. Unknown name "{name[:100]}": Cannot bind query parameter.',
            field=name[:100],
        ),
    )
