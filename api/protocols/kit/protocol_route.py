"""Routes for clients of other systems: errors in the shape of their protocol, and the query parameters that each reads.

A protocol states its errors in tables: where its HTTP statuses differ from ours, and its code for each status.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DataError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from api.app import audit
from api.http.problems import request_id_of, unexpected
from api.http.routing import StrictRoute
from api.protocols.kit.errors import mistakes_of
from core.domain.errors import Conflict, StaleWrite, TrainmasterError, Unauthenticated

T = TypeVar("T")


class ProtocolRoute(StrictRoute):
    """Answers every error, bugs included, in another system's protocol.

    ``statuses`` and ``codes_of_errors`` hold for subclasses, too: the nearest class counts.
    """

    statuses: ClassVar[Mapping[type[TrainmasterError], int]]  # of errors whose status differs from ours
    codes: ClassVar[Mapping[int, str]]  # error code by HTTP status; that of 500 stands for statuses without one
    codes_of_errors: ClassVar[Mapping[type[TrainmasterError], str]] = {}  # where the status does not tell the code
    unreadable: ClassVar[str | None] = None  # the code of a body that cannot be parsed; ``None``: that of 400

    @classmethod
    def error_response(cls, status: int, code: str, message: str) -> Response:
        """An error in that protocol."""
        raise NotImplementedError

    def check_parameters(self, request: Request) -> None:
        """Raises ``InvalidRequest`` for a query parameter that the route does not read."""

    def finish_response(self, request: Request, response: Response) -> Response:
        """The response of the handler as it is sent."""
        del request
        return response

    @cached_property
    def parameters(self) -> frozenset[str]:
        """Names of all parameters that the route reads."""
        return frozenset(field.alias for field in get_flat_params(self.dependant))

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def translated(request: Request) -> Response:
            try:
                self.check_parameters(request)
                return self.finish_response(request, await handle(request))
            except TrainmasterError as error:
                return self.response_to(error)
            except RequestValidationError as error:
                return self._invalid(f"{mistakes_of(error, limit=3, above=1)}.")
            except HTTPException as error:  # what reading the body raises
                if isinstance(error.__cause__, TrainmasterError):
                    return self.response_to(error.__cause__)
                return self._invalid("The body cannot be read; send UTF-8 encoded JSON.", self.unreadable)
            except StaleWrite:
                message = "Another request changed this at the same time; try again."
                return self.error_response(Conflict.status, self._code_of(Conflict.status), message)
            except (DataError, UnicodeEncodeError):
                return self._invalid("The request has a value that cannot be stored (a NUL character).")
            except ClientDisconnect:
                raise  # there is no client to answer
            except Exception as error:  # noqa: BLE001 (the edge: clients of other systems cannot read problem+json)
                return self.response_to(unexpected(error, request_id_of(request)))

        return translated

    @classmethod
    def response_to(cls, error: TrainmasterError) -> Response:
        """The response to one of the platform's errors in that protocol."""
        audit.note_error(error.code)
        status = _nearest(cls.statuses, error, error.status)
        response = cls.error_response(
            status, _nearest(cls.codes_of_errors, error, cls._code_of(status)), error.sentence
        )
        if error.retry_after_s is not None:
            response.headers["Retry-After"] = str(math.ceil(error.retry_after_s))
        if status == Unauthenticated.status:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response

    @classmethod
    def _code_of(cls, status: int) -> str:
        return cls.codes.get(status, cls.codes[500])

    @classmethod
    def _invalid(cls, message: str, code: str | None = None) -> Response:
        audit.note_error("invalid_request")
        return cls.error_response(400, code or cls._code_of(400), message)


def _nearest(table: Mapping[type[TrainmasterError], T], error: TrainmasterError, default: T) -> T:
    """The entry of the error's class, or of its nearest base class."""
    return next((table[kind] for kind in type(error).__mro__ if kind in table), default)
