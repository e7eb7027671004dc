"""Routers that parse request bodies and Content-Length strictly, and responses that are serialised once."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Coroutine
from functools import cached_property
from typing import Any, Final

import orjson
from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send
from trainmaster.wire.base import Problem

from core.domain.errors import InvalidRequest, PayloadTooLarge

# Of a decompressed body: 4 MiB of report items compress about eightfold.
INFLATED_LIMIT_BYTES: Final = 32 * 2**20
DEPTH_LIMIT: Final = 64  # levels; no valid body is nested deeper than ten
_PROBLEM: Final[dict[str, Any]] = {
    "description": "A problem: a stable code, and a sentence that says what to do.",
    "model": Problem,
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}
PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {"4XX": _PROBLEM, "5XX": _PROBLEM}
_CONTENT_LENGTH: Final = re.compile(r"[0-9]+")
_LENGTH_DIGITS: Final = 18  # beyond any limit of the platform, and short enough for Python to parse


def new_router(tag: str, prefix: str = "") -> APIRouter:
    """The router of one resource. Give every route an ``operation_id``."""
    return APIRouter(prefix=prefix, tags=[tag], route_class=StrictRoute, responses=PROBLEMS)


def json_response(model: BaseModel, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Serialised here: the framework would validate the response again."""
    return Response(model.model_dump_json(), status, headers, media_type="application/json")


class StrictRequest(Request):
    """Strict JSON (RFC 8259): UTF-8, no NaN, no lone surrogates; and no NUL, which PostgreSQL cannot store."""

    async def body(self) -> bytes:
        """The body, decompressed if the client sent it with gzip."""
        if not hasattr(self, "_body"):
            body = await super().body()
            if self.headers.get("content-encoding", "").lower() == "gzip":
                body = _inflated(body)
            self._body = body
        return self._body

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await self.body()
            try:
                value = orjson.loads(body)
            except orjson.JSONDecodeError as error:
                raise json.JSONDecodeError(error.msg, "", error.pos) from error
            # The number of brackets bounds the depth, so that almost no body has to be walked.
            if body.count(b"{") + body.count(b"[") > DEPTH_LIMIT or b"\\u0000" in body:
                _demand_plain(value)
            self._json = value
        return self._json


class StrictRoute(APIRoute):
    """Parses bodies strictly, and answers HEAD like GET without the body, where GET gives one complete response.

    HEAD is not added to ``methods``, which would double every operation in the OpenAPI document.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return super().matches(self._as_get(scope))

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await super().handle(self._as_get(scope), receive, send)

    def _as_get(self, scope: Scope) -> Scope:
        is_head = scope["type"] == "http" and scope["method"] == "HEAD"
        if not is_head or not self._is_whole or b"follow" in scope["query_string"]:
            return scope
        return {**scope, "method": "GET"}

    @cached_property
    def _is_whole(self) -> bool:
        """Whether GET gives a complete response. Streams have no end, and files handle HEAD themselves."""
        return self.methods == {"GET"} and self.response_class is not Response

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            return await handle(StrictRequest(request.scope, request.receive))

        return strict


def _inflated(body: bytes) -> bytes:
    inflater = zlib.decompressobj(wbits=31)  # gzip alone
    try:
        inflated = inflater.decompress(body, INFLATED_LIMIT_BYTES)
    except zlib.error:
        raise InvalidRequest(
            "The body is not gzip, as Content-Encoding says; compress it or drop the header.", field="content-encoding"
        ) from None
    if inflater.unconsumed_tail:
        raise PayloadTooLarge(
            f"The body is larger than {INFLATED_LIMIT_BYTES // 2**20} MiB when decompressed; send less at once."
        )
    if not inflater.eof:
        raise InvalidRequest("The body ends in the middle of its gzip stream; send it again.", field="body")
    return inflated


def _demand_plain(value: Any) -> None:
    level = [value]
    for _ in range(DEPTH_LIMIT):
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item)
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, str) and "\0" in item:
                raise InvalidRequest("The body holds a NUL character (\\u0000); remove it.", field="body")
        if not below:
            return
        level = below
    field = _deepest(value)
    raise InvalidRequest(f"{field}: the body is nested deeper than {DEPTH_LIMIT} levels; flatten it.", field=field)


def _deepest(value: Any) -> str:
    """The path to the part of the body that is nested too deep (its first names)."""
    waiting: list[tuple[Any, tuple[str, ...], int]] = [(value, (), 0)]
    while waiting:
        item, path, depth = waiting.pop()
        if depth >= DEPTH_LIMIT:
            return ".".join(path)[:200] or "body"
        below = item.items() if isinstance(item, dict) else enumerate(item) if isinstance(item, list) else ()
        waiting.extend((part, (*path, str(name)) if len(path) < 4 else path, depth + 1) for name, part in below)
    return "body"


def content_length(text: str) -> int | None:
    """The value of a Content-Length header in bytes; ``None`` if it is not a number.

    Only ASCII digits count (RFC 9110, 8.6): ``str.isdigit`` accepts others, which ``int`` cannot read.
    """
    if not _CONTENT_LENGTH.fullmatch(text):
        return None
    digits = text.lstrip("0") or "0"
    return int(digits) if len(digits) <= _LENGTH_DIGITS else 10**_LENGTH_DIGITS
