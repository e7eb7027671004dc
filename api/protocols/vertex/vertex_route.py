"""The class of all routes of Vertex AI's API."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.dependencies.utils import get_flat_params
from starlette.requests import Request
from starlette.responses import Response

from api.http.protocol_errors import ProtocolRoute
from api.protocols.vertex.answers import STATUSES, refusal
from api.protocols.vertex.query import demand_known
from core.domain.errors import TrainmasterError


class VertexRoute(ProtocolRoute):
    """Answers errors as Vertex AI does, and refuses query parameters that the route does not read."""

    codes = STATUSES
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
                    demand_known(request.query_params, served)
            except TrainmasterError as error:
                return self.refused(error)
            return await handle(request)

        return with_known_parameters

    @classmethod
    def refusal(cls, status: int, code: str, message: str) -> Response:
        return refusal(status, code, message)
