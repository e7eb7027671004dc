"""The classes of all routes: errors in Cloud Storage's own shape, and partial responses by a field mask.

Clients read ``error.message``, and what to do next from the status:
https://cloud.google.com/storage/docs/json_api/v1/status-codes. Field masks (``fields``), such as
``items(name,size),nextPageToken``: https://cloud.google.com/storage/docs/json_api#partial-response
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Final, TypeAlias

import orjson
from starlette.requests import Request
from starlette.responses import Response

from api.protocols.gcs.parameters import refuse_unknown_parameters
from api.protocols.kit.errors import NotServed
from api.protocols.kit.json_values import answer
from api.protocols.kit.protocol_route import ProtocolRoute
from core.domain.errors import Conflict, InvalidRequest, Unauthenticated

# Field name -> selection below it; empty: the whole field. ``*`` matches any name.
Selection: TypeAlias = "dict[str, Selection]"

_JSON: Final = "application/json"
_LIMIT: Final = 1_000  # characters of a field mask
_DEPTH: Final = 20
_TOKEN: Final = re.compile(r"\s*([A-Za-z0-9_$.-]+|[*,/()])\s*")


class ConditionNotMet(Conflict):
    """A precondition such as ``ifGenerationMatch`` failed: the object changed since the client read it."""


class NotChanged(ConditionNotMet):
    """The client already has the current content (HTTP 304)."""


# An invalid token gives 403, not 401: on 401 Google's client tries to refresh the token, and its user reads about
# missing refresh fields instead of the real cause.
_STATUSES: Final = {NotChanged: 304, ConditionNotMet: 412, NotServed: 501, Unauthenticated: 403, InvalidRequest: 400}
_CODES: Final = {
    304: "notModified",
    400: "invalid",
    403: "forbidden",
    404: "notFound",
    409: "conflict",
    412: "conditionNotMet",
    413: "uploadTooLarge",
    416: "requestedRangeNotSatisfiable",
    500: "internalError",
    501: "notImplemented",
    503: "backendError",
    507: "quotaExceeded",
}


class StorageRoute(ProtocolRoute):
    """Answers errors as Cloud Storage does, refuses parameters that the route does not read, and applies ``fields``."""

    statuses = _STATUSES
    codes = _CODES
    unreadable = "parseError"
    accepts_any_parameter: ClassVar[bool] = False

    def check_parameters(self, request: Request) -> None:
        if not self.accepts_any_parameter:
            refuse_unknown_parameters(request.query_params, request.headers, {*self.parameters, "fields"})
        request.state.selection = read_selection(request.query_params.get("fields", ""))

    def finished(self, request: Request, response: Response) -> Response:
        chosen: Selection = request.state.selection
        if not chosen or response.status_code != 200 or response.media_type != _JSON:
            return response
        return answer(select(orjson.loads(response.body), chosen))

    @classmethod
    def error_response(cls, status: int, code: str, message: str) -> Response:
        if status == 304:
            return Response(status_code=304)
        errors = [{"message": message, "domain": "global", "reason": code}]
        return answer({"error": {"code": status, "message": message, "errors": errors}}, status)


class RefusingRoute(StorageRoute):
    """For features that are not served at all: any parameter is accepted, so that the refusal names the feature."""

    accepts_any_parameter = True


# --- field masks -----------------------------------------------------------------------------------------------------


def read_selection(text: str) -> Selection:
    """Parse a field mask; empty: the whole. Raises ``InvalidRequest``."""
    found: Selection = {}
    if not text:
        return found
    if len(text) > _LIMIT:
        raise InvalidRequest(f"fields has more than {_LIMIT} characters; leave it out.", field="fields")
    tokens = _tokens(text)
    if _read_list(tokens, 0, found, 0) != len(tokens):
        raise _invalid(text)
    return found


def select(value: Any, selection: Selection) -> Any:
    if not selection:
        return value
    if isinstance(value, list):
        return [select(item, selection) for item in value]
    if not isinstance(value, dict):
        return value
    chosen = {name: selection.get(name, selection.get("*")) for name in value}
    return {name: select(value[name], below) for name, below in chosen.items() if below is not None}


def _tokens(text: str) -> list[str]:
    found, at = [], 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise _invalid(text)
        found.append(token[1])
        at = token.end()
    return found


def _read_list(tokens: list[str], at: int, into: Selection, depth: int) -> int:
    """Parse ``tokens`` from ``at`` into ``into``; return the position after the list."""
    if depth > _DEPTH:
        raise _invalid("".join(tokens))
    while True:
        place = into
        while True:  # a/b/c
            if at >= len(tokens) or tokens[at] in ",/()":
                raise _invalid("".join(tokens))
            name, at = tokens[at], at + 1
            is_whole = place.get(name) == {}  # selected as a whole before
            place = {} if is_whole else place.setdefault(name, {})
            if at >= len(tokens) or tokens[at] != "/":
                break
            at += 1
        if at < len(tokens) and tokens[at] == "(":
            at = _read_list(tokens, at + 1, place, depth + 1)
            if at >= len(tokens) or tokens[at] != ")":
                raise _invalid("".join(tokens))
            at += 1
        else:
            place.clear()  # the whole field, even if a part was selected before
        if at >= len(tokens) or tokens[at] != ",":
            return at
        at += 1


def _invalid(text: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid field selection {text[:100]}", field="fields")
