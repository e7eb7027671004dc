"""TensorBoard: creation of addresses for jobs, and the reverse proxy below them.

TensorBoard shows users' files, so its pages are isolated from the platform's: they are sandboxed, which gives them an
opaque origin without cookies and storage, and they may only load from their own address.
"""

from __future__ import annotations

import re
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Final

import httpx
from fastapi import APIRouter, Path, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send
from trainmaster.wire.jobs import TensorBoardLinkView, TensorBoardRequest

from api.app.unit_of_work import AppContext, AppContextDep
from api.auth import Caller, Reader
from api.http.routing import PROBLEMS, StrictRoute
from api.tensorboard.links import PREFIX, TensorBoardView, TensorBoardViewDep, make_link
from api.tensorboard.viewers import Viewers, demand_installed
from core.domain.errors import NotFound, Unavailable

router = APIRouter(tags=["tensorboard"], route_class=StrictRoute, responses=PROBLEMS)

_HOST: Final = re.compile(r"^[A-Za-z0-9.-]+(:\d+)?$|^\[[0-9a-fA-F:]+\](:\d+)?$")
# TensorBoard gets neither cookies nor the platform's tokens, and cannot set cookies.
_REQUEST_HEADERS: Final = ("accept", "accept-encoding", "content-type", "if-none-match", "x-tensorboard-feature-flags")
_RESPONSE_HEADERS: Final = (
    "content-type",
    "content-encoding",
    "content-length",
    "etag",
    "cache-control",
    "content-disposition",
)
_METHODS: Final = "GET, HEAD, POST"


@router.post(
    "/api/v1/tensorboards",
    operation_id="open_tensorboard",
    summary="Open TensorBoard for jobs",
    status_code=201,
)
async def open_tensorboard(
    body: TensorBoardRequest, caller: Reader, context: AppContextDep, response: Response
) -> TensorBoardLinkView:
    """`path` is relative to the API's address. It is valid for a day, at most as long as the caller's token, and gives
    access without a token: keep it secret. TensorBoard starts with the first request, and ends when it is idle.
    """
    demand_installed()
    response.headers["Cache-Control"] = "no-store"
    return await run_in_threadpool(_make, context, caller, body)


def _make(context: AppContext, caller: Caller, body: TensorBoardRequest) -> TensorBoardLinkView:
    with context.write() as work:
        return make_link(work, caller, body.jobs)


@router.get(f"{PREFIX}/{{secret}}", include_in_schema=False)
async def without_slash(view: TensorBoardViewDep) -> Response:
    """A redirect, since the page's own URLs are relative."""
    return RedirectResponse(f"{PREFIX}/{view.secret}/", 308, headers={"Referrer-Policy": "no-referrer"})


@router.options(f"{PREFIX}/{{secret}}/{{path:path}}", include_in_schema=False)
async def preflight(view: TensorBoardViewDep, path: str, request: Request) -> Response:
    """CORS preflight: TensorBoard's page, which has an opaque origin, sends a header of its own."""
    del view, path
    requested = request.headers.get("access-control-request-headers", "")
    allowed = {"Access-Control-Allow-Methods": _METHODS, "Access-Control-Max-Age": "600"}
    if re.fullmatch(r"[A-Za-z0-9, -]{1,500}", requested):
        allowed["Access-Control-Allow-Headers"] = requested
    return Response(status_code=204, headers={**_isolation_headers(request, None), **allowed})


@router.api_route(f"{PREFIX}/{{secret}}/{{path:path}}", methods=["GET", "HEAD", "POST"], include_in_schema=False)
async def forward(view: TensorBoardViewDep, path: Annotated[str, Path(max_length=4096)], request: Request) -> Response:
    """Forward the request to the TensorBoard of these jobs, and stream its response back."""
    viewers: Viewers = request.app.state.viewers
    using = viewers.use(view.key, view.outputs)
    client = await using.__aenter__()
    try:
        query = request.url.query
        upstream_request = client.build_request(
            request.method,
            _url(path, query),
            headers={name: request.headers[name] for name in _REQUEST_HEADERS if name in request.headers},
            content=await request.body() if request.method == "POST" else None,
        )
        answer = await client.send(upstream_request, stream=True)
    except httpx.HTTPError as error:
        await using.__aexit__(None, None, None)
        raise Unavailable("TensorBoard does not answer; try again in a moment.", retry_after_s=5.0) from error
    except BaseException:
        await using.__aexit__(None, None, None)
        raise

    headers = {name: answer.headers[name] for name in _RESPONSE_HEADERS if name in answer.headers}
    return _ProxiedResponse(answer, using, {**headers, **_isolation_headers(request, view)})


def _url(path: str, query: str) -> httpx.URL:
    """The upstream URL. Raises ``NotFound`` for an invalid path, such as one of two slashes or with a NUL."""
    try:
        return httpx.URL(path=f"/{path}", query=query.encode() if query else None)
    except httpx.InvalidURL as error:
        raise NotFound("TensorBoard has nothing at this address; open it at its first page.") from error


class _ProxiedResponse(StreamingResponse):
    """Streams a TensorBoard's response. The TensorBoard is released however the sending ends."""

    def __init__(
        self, answer: httpx.Response, using: AbstractAsyncContextManager[httpx.AsyncClient], headers: dict[str, str]
    ) -> None:
        super().__init__(answer.aiter_raw(), answer.status_code, headers)
        self._answer, self._using = answer, using

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._answer.aclose()
            await self._using.__aexit__(None, None, None)


def _isolation_headers(request: Request, view: TensorBoardView | None) -> dict[str, str]:
    """Headers that isolate the page from the platform's. ``view``: the page may only load from its address."""
    host = request.headers.get("host", "")
    own = f"{request.url.scheme}://{host}{PREFIX}/{view.secret}/" if view is not None and _HOST.match(host) else ""
    policy = (
        "sandbox allow-scripts allow-downloads",
        "default-src 'none'",
        f"script-src {own} 'unsafe-eval'",
        f"style-src {own} 'unsafe-inline'",
        f"font-src {own} data:",
        f"img-src {own} data: blob:",
        f"media-src {own} data: blob:",
        f"connect-src {own} data:",
        f"worker-src {own} blob:",
        f"frame-src {own}",
        "form-action 'none'",
        "base-uri 'none'",
        "frame-ancestors 'self'",
    )
    return {
        "Content-Security-Policy": "; ".join(policy),
        # To the page's opaque origin, its own scripts are of another origin. The address gives access to them anyway.
        "Access-Control-Allow-Origin": "null",
        "Cross-Origin-Resource-Policy": "cross-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Robots-Tag": "noindex",
    }
