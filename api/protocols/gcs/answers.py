"""The classes of all routes: errors in Cloud Storage's own shape, and partial responses by a field mask.

Clients read ``error.message``, and what to do next from the status:
https://cloud.google.com/storage/docs/json_api/v1/status-codes
"""

from __future__ import annotations

from typing import ClassVar, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from api.protocols.gcs.parameters import refuse_unknown_parameters
from api.protocols.kit.errors import NotServed
from api.protocols.kit.field_mask import Selection, read_selection, select
from api.protocols.kit.json_values import answer
from api.protocols.kit.protocol_route import ProtocolRoute
from core.domain.errors import Conflict, InvalidRequest, Unauthenticated

_JSON: Final = "application/json"


class ConditionNotMet(Conflict):
    """A precondition such as ``ifGenerationMatch`` failed: the object changed since the client read it."""

    def __init__(self, sentence: str = "At least one of the pre-conditions you specified did not hold.") -> None:
        super().__init__(sentence)


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

    def finish_response(self, request: Request, response: Response) -> Response:
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
