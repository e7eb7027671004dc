"""Every error as ``application/problem+json`` (RFC 9457): a stable code, and one sentence that says what to do."""

from __future__ import annotations

import errno
import math
import traceback
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, Final

import orjson
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DataError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from trainmaster.wire.base import Problem, ProblemError, ProblemEvent

from api.app import audit
from core.domain.errors import (
    Conflict,
    IllegalTransition,
    InsufficientStorage,
    InvalidRequest,
    StaleWrite,
    TrainmasterError,
)

log = structlog.get_logger(__name__)

MEDIA_TYPE: Final = "application/problem+json"
_NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_METHODS: Final = ("DELETE", "GET", "PATCH", "POST", "PUT")
_CODES: Final = {400: "bad_request", 404: "not_found", 405: "method_not_allowed", 413: "payload_too_large"}


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    audit.note_error(problem.code)
    body = orjson.dumps(problem.model_dump(mode="json", exclude_none=True))
    return Response(body, problem.status, dict(headers or {}), media_type=MEDIA_TYPE)


def problem_of(error: TrainmasterError, request_id: str | None) -> Problem:
    return Problem(
        title=_title(error.status),
        status=error.status,
        code=error.code,
        detail=error.sentence,
        field=error.field,
        errors=[ProblemError.model_validate(item) for item in error.errors],
        history=_history_of(error),
        request_id=request_id,
    )


def _history_of(error: TrainmasterError) -> list[ProblemEvent] | None:
    if not isinstance(error, IllegalTransition) or not error.history:
        return None
    return [ProblemEvent.model_validate(event) for event in error.history]


def response_to(error: TrainmasterError, request_id: str | None) -> Response:
    """The problem response for one of the platform's own errors."""
    headers: dict[str, str] = {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after_s))
    if error.status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status >= 500:
        cause = error.__cause__
        log.warning("request.refused", code=error.code, request_id=request_id, cause=repr(cause) if cause else None)
    return problem_response(problem_of(error, request_id), headers)


def unexpected(error: BaseException, request_id: str | None) -> TrainmasterError:
    """The error for an unexpected exception: a full disk, or else a bug, which is logged here."""
    if isinstance(error, OSError) and error.errno in _NO_SPACE:
        return InsufficientStorage("The platform's disk is full; free some space and try again.")
    # Formatted here: a log renderer that shows local variables would show secrets.
    log.error("request.failed", request_id=request_id, traceback="".join(traceback.format_exception(error)))
    return TrainmasterError(f"The platform failed unexpectedly; report the request id {request_id} to its admin.")


def unexpected_response(error: BaseException, request_id: str | None) -> Response:
    reported = unexpected(error, request_id)
    if isinstance(reported, InsufficientStorage):
        return response_to(reported, request_id)
    return problem_response(problem_of(reported, request_id))


def install(app: FastAPI, page: Callable[[], Response], foreign: Callable[[Request], Response | None]) -> None:
    """Answer every error that a handler or the framework raises with a problem.

    Args:
        app: where the exception handlers are installed.
        page: the web page for a browser that navigates to a missing address.
        foreign: the response for a client of another system, in its protocol's shape; ``None`` if it is not one.
    """

    async def platform_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, TrainmasterError)  # noqa: S101 (registered for this type alone)
        return response_to(error, request_id_of(request))

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)  # noqa: S101
        return problem_response(_validation_problem(request, error))

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)  # noqa: S101
        if isinstance(error.__cause__, TrainmasterError):  # the framework wraps what reading the body raises
            return response_to(error.__cause__, request_id_of(request))
        if error.status_code == HTTPStatus.NOT_FOUND and _is_navigation(request):
            missing = page()
            missing.status_code = HTTPStatus.NOT_FOUND
            return missing
        if error.status_code in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED):
            refused = foreign(request)
            if refused is not None:
                return refused
        headers = dict(error.headers or {})
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = _methods_of(request)
        return problem_response(_http_problem(request, error), headers)

    async def stale(request: Request, _error: Exception) -> Response:
        sentence = "Another request changed this at the same time; read it again, then repeat the request."
        return response_to(Conflict(sentence), request_id_of(request))

    async def unstorable(request: Request, error: Exception) -> Response:
        log.warning("request.unstorable_value", request_id=request_id_of(request), cause=repr(error))
        sentence = "The request has a value that the database cannot store (a number out of range, a NUL character)."
        return response_to(InvalidRequest(sentence), request_id_of(request))

    app.add_exception_handler(TrainmasterError, platform_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(StaleWrite, stale)
    app.add_exception_handler(DataError, unstorable)
    app.add_exception_handler(UnicodeEncodeError, unstorable)


def _is_navigation(request: Request) -> bool:
    """Whether a browser navigates to a page: scripts cannot set this header."""
    is_api = request.url.path.startswith(("/api/", "/assets/"))
    return request.method == "GET" and request.headers.get("sec-fetch-mode") == "navigate" and not is_api


def request_id_of(request: Request) -> str | None:
    request_id: str | None = request.scope.get("state", {}).get("request_id")
    return request_id


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def _http_problem(request: Request, error: HTTPException) -> Problem:
    status = error.status_code
    match status:
        case 404:
            detail = (
                f"There is nothing at {request.url.path}; the API is under /api/v1, its description at /openapi.json."
            )
        case 405:
            detail = f"{request.method} is not possible at {request.url.path}; use {_methods_of(request)}."
        case 400:
            detail = "The body cannot be read; send UTF-8 encoded JSON."
        case _:
            detail = f"{_title(status)}."
    return Problem(
        title=_title(status),
        status=status,
        code=_CODES.get(status, "http_error"),
        detail=detail,
        request_id=request_id_of(request),
    )


def _methods_of(request: Request) -> str:
    """All methods of the path; the framework only names those of the first route that matches it."""
    found = [
        method
        for method in _METHODS
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in request.app.routes)
    ]
    return ", ".join(found)


def _validation_problem(request: Request, error: RequestValidationError) -> Problem:
    errors = _mistakes_of_body(request, error) or [_mistake(item) for item in error.errors()]
    first = errors[0]
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return Problem(
        title=_title(422),
        status=422,
        code="invalid_request",
        detail=f"{first.path}: {first.message}{more}.",
        field=first.path,
        errors=errors,
        request_id=request_id_of(request),
    )


def _mistakes_of_body(request: Request, error: RequestValidationError) -> list[ProblemError]:
    """The mistake that explains all others: a body not sent as JSON, or a job that is not wrapped in `spec`."""
    if isinstance(error.body, bytes) and all(item.get("loc") == ("body",) for item in error.errors()):
        given = request.headers.get("content-type")
        was = "there is no Content-Type" if given is None else f"Content-Type {given} is not JSON"
        return [
            ProblemError(
                path="body", message=f"{was}; send the header Content-Type: application/json", hint="send JSON"
            )
        ]
    if (
        getattr(request.scope.get("route"), "operation_id", "") == "submit_job"
        and isinstance(error.body, dict)
        and not {"spec", "spec_text"} & error.body.keys()
    ):
        flat = ", ".join(str(name) for name in list(error.body)[:3] if name != "dry_run")
        return [
            ProblemError(
                path="spec",
                message=f"is missing; put the fields of the job ({flat}) under it, "
                'as in {"spec": {"name": "digits", "command": "python train.py"}}',
                hint="put them under `spec`",
            )
        ]
    return []


def _mistake(item: Mapping[str, Any]) -> ProblemError:
    """Pydantic's error with the field as users write it: ``spec.name``, ``limit``."""
    kind = str(item.get("type", ""))
    # The tags of a union discriminated by `kind` are not part of what the client sent.
    location = [str(part) for part in item.get("loc", ()) if not str(part).startswith("kind=")]
    if kind == "json_invalid":
        reason = item.get("ctx", {}).get("error", "")
        return ProblemError(path="body", message=f"is not JSON: {reason} at character {location[-1]}", hint=None)
    path = ".".join(location[1:] or location) or "body"
    message = str(item.get("msg", "is not valid")).removeprefix("Value error, ")
    hint = None
    if kind == "extra_forbidden":
        message, hint = "is not a field of this request", "remove it, or look at /openapi.json for the fields"
    elif kind == "missing":
        message = "is missing"
    return ProblemError(path=path, message=message[:1].lower() + message[1:], hint=hint)
