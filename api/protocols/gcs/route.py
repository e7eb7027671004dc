"""The classes of all routes of Cloud Storage's API."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Final

import orjson
from fastapi.dependencies.utils import get_flat_params
from starlette.requests import Request
from starlette.responses import Response

from api.http.protocol_errors import ProtocolRoute
from api.protocols.gcs.answers import REASONS
from api.protocols.gcs.field_mask import read_selection, select
from api.protocols.gcs.parameters import demand_known
from core.domain.errors import TrainmasterError

_JSON: Final = "application/json"


class StorageRoute(ProtocolRoute):
    """Answers errors as Cloud Storage does, refuses parameters that the route does not read, and applies ``fields``."""

    codes = REASONS
    otherwise = "internalError"
    invalid = "invalid"
    unreadable = "parseError"
    stale = (409, "conflict")
    accepts_any_parameter: ClassVar[bool] = False

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        served = frozenset({*(field.alias for field in get_flat_params(self.dependant)), "fields"})

        async def with_known_parameters(request: Request) -> Response:
            fields = request.query_params.get("fields", "")
            try:
                if not self.accepts_any_parameter:
                    demand_known(request.query_params, request.headers, served)
                chosen = read_selection(fields) if fields else {}
            except TrainmasterError as error:
                return self.refused(error)
            response = await handle(request)
            if not chosen or response.status_code != 200 or response.media_type != _JSON:
                return response
            body = select(orjson.loads(response.body), chosen)
            return Response(orjson.dumps(body), 200, media_type=_JSON)

        return with_known_parameters

    @classmethod
    def refusal(cls, status: int, code: str, message: str) -> Response:
        if status == 304:
            return Response(status_code=304)
        errors = [{"message": message, "domain": "global", "reason": code}]
        body = orjson.dumps({"error": {"code": status, "message": message, "errors": errors}})
        return Response(body, status, media_type=_JSON)


class RefusingRoute(StorageRoute):
    """For features that are not served at all: any parameter is accepted, so that the refusal names the feature."""

    accepts_any_parameter = True
