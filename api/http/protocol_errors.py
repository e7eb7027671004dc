"""Routes for clients of other systems: every error is answered in the shape of that system's protocol."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, TypeAlias

from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DataError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from api.http.problems import request_id_of, unexpected
from api.http.routing import StrictRoute
from core.domain.errors import StaleWrite, TrainmasterError, Unauthenticated

# Error class, HTTP status and error code in that protocol. The first entry that matches counts.
Codes: TypeAlias = tuple[tuple[type[TrainmasterError], int, str], ...]


class ProtocolRoute(StrictRoute):
    """Answers every error, bugs included, in another system's protocol."""

    codes: ClassVar[Codes]
    otherwise: ClassVar[str]  # the code of an error that is not in ``codes``
    invalid: ClassVar[str]  # the code of an invalid request: 400
    unreadable: ClassVar[str]  # the code of a body that cannot be parsed: 400
    stale: ClassVar[tuple[int, str]]  # status and code of a concurrent modification

    @classmethod
    def refusal(cls, status: int, code: str, message: str) -> Response:
        """The error response of that protocol."""
        raise NotImplementedError

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def translated(request: Request) -> Response:
            try:
                return await handle(request)
            except TrainmasterError as error:
                return self.refused(error)
            except RequestValidationError as error:
                return self.refusal(400, self.invalid, _mistakes(error))
            except HTTPException as error:  # what reading the body raises
                if isinstance(error.__cause__, TrainmasterError):
                    return self.refused(error.__cause__)
                return self.refusal(400, self.unreadable, "The body cannot be read; send UTF-8 encoded JSON.")
            except StaleWrite:
                return self.refusal(*self.stale, "Another request changed this at the same time; try again.")
            except (DataError, UnicodeEncodeError):
                message = "The request has a value that cannot be stored (a NUL character)."
                return self.refusal(400, self.invalid, message)
            except ClientDisconnect:
                raise  # there is no client to answer
            except Exception as error:  # noqa: BLE001 (the edge: clients of other systems cannot read problem+json)
                return self.refused(unexpected(error, request_id_of(request)))

        return translated

    @classmethod
    def refused(cls, error: TrainmasterError) -> Response:
        """The response for one of the platform's errors in that protocol."""
        known = ((status, code) for kind, status, code in cls.codes if isinstance(error, kind))
        status, code = next(known, (error.status, cls.otherwise))
        response = cls.refusal(status, code, error.sentence)
        if error.retry_after_s is not None:
            response.headers["Retry-After"] = str(math.ceil(error.retry_after_s))
        if status == Unauthenticated.status:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response


def _mistakes(error: RequestValidationError) -> str:
    mistakes = []
    for item in error.errors()[:3]:
        path = ".".join(str(part) for part in item.get("loc", ())[1:]) or "body"
        mistakes.append(f"{path}: {str(item.get('msg', 'is not valid')).removeprefix('Value error, ')}")
    return "; ".join(mistakes) + "."
