"""Routes for the clients of other systems: every error of ours is told in that system's own shape."""

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

# An error of ours, the HTTP status and the code that stand for it there. The first that fits counts.
Codes: TypeAlias = tuple[tuple[type[TrainmasterError], int, str], ...]


class ProtocolRoute(StrictRoute):
    """Answers every error of ours as another system would, our own bugs included."""

    codes: ClassVar[Codes]
    otherwise: ClassVar[str]  # the code of what no line of ``codes`` names
    invalid: ClassVar[str]  # of a request that is not as it must be: 400
    unreadable: ClassVar[str]  # of a body that is none: 400
    stale: ClassVar[tuple[int, str]]  # where somebody else was quicker

    @classmethod
    def refusal(cls, status: int, code: str, message: str) -> Response:
        """An error in that system's shape."""
        raise NotImplementedError

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def in_their_words(request: Request) -> Response:
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
                return self.refusal(*self.stale, "This changed in the same moment by somebody else; try again.")
            except (DataError, UnicodeEncodeError):
                message = "The request holds a value that cannot be kept (a NUL character)."
                return self.refusal(400, self.invalid, message)
            except ClientDisconnect:
                raise  # nobody is there to be told
            except Exception as error:  # noqa: BLE001 (the edge: a client of another system cannot read our problems)
                return self.refused(unexpected(error, request_id_of(request)))

        return in_their_words

    @classmethod
    def refused(cls, error: TrainmasterError) -> Response:
        """What an error of ours is in that system."""
        known = ((status, code) for kind, status, code in cls.codes if isinstance(error, kind))
        status, code = next(known, (error.status, cls.otherwise))
        response = cls.refusal(status, code, error.sentence)
        if error.retry_after_s is not None:
            response.headers["Retry-After"] = str(math.ceil(error.retry_after_s))
        if status == Unauthenticated.status:
            response.headers["WWW-Authenticate"] = "Bearer"
        return response


def _mistakes(error: RequestValidationError) -> str:
    told = []
    for item in error.errors()[:3]:
        path = ".".join(str(part) for part in item.get("loc", ())[1:]) or "body"
        told.append(f"{path}: {str(item.get('msg', 'is not valid')).removeprefix('Value error, ')}")
    return "; ".join(told) + "."
