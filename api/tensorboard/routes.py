"""TensorBoard: an address for some jobs, and all that is asked for below it.

What a TensorBoard shows comes from users' files, so its pages are kept apart from the platform's: they are sandboxed,
which gives them an origin of their own that has neither cookies nor storage, and may load from their own address alone.
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
from api.tensorboard.links import PREFIX, Sight, SightDep, make_link
from api.tensorboard.viewers import Viewers, demand_installed
from core.domain.errors import NotFound, Unavailable

router = APIRouter(tags=["tensorboard"], route_class=StrictRoute, responses=PROBLEMS)

_HOST: Final = re.compile(r"^[A-Za-z0-9.-]+(:\d+)?$|^\[[0-9a-fA-F:]+\](:\d+)?$")
# Neither cookies nor the platform's tokens go in, nor anything that would let it set them out.
_ASKED: Final = ("accept", "accept-encoding", "content-type", "if-none-match", "x-tensorboard-feature-flags")
_TOLD: Final = ("content-type", "content-encoding", "content-length", "etag", "cache-control", "content-disposition")
_METHODS: Final = "GET, HEAD, POST"


@router.post(
    "/api/v1/tensorboards",
    operation_id="open_tensorboard",
    summary="An address to look at jobs in TensorBoard",
    status_code=201,
)
async def open_tensorboard(
    body: TensorBoardRequest, caller: Reader, context: AppContextDep, response: Response
) -> TensorBoardLinkView:
    """`path` is below the API's own address, good for a day or as long as the token that asked, and needs no token: do
    not give it away. TensorBoard starts with the first look, and ends when nobody has looked for a while.
    """
    demand_installed()
    response.headers["Cache-Control"] = "no-store"
    return await run_in_threadpool(_make, context, caller, body)


def _make(context: AppContext, caller: Caller, body: TensorBoardRequest) -> TensorBoardLinkView:
    with context.write() as work:
        return make_link(work, caller, body.jobs)


@router.get(f"{PREFIX}/{{secret}}", include_in_schema=False)
async def without_slash(sight: SightDep) -> Response:
    """Its page's own addresses are relative."""
    return RedirectResponse(f"{PREFIX}/{sight.secret}/", 308, headers={"Referrer-Policy": "no-referrer"})


@router.options(f"{PREFIX}/{{secret}}/{{path:path}}", include_in_schema=False)
async def preflight(sight: SightDep, path: str, request: Request) -> Response:
    """A page without an origin asks before it sends a header of its own, which TensorBoard's does."""
    del sight, path
    asked = request.headers.get("access-control-request-headers", "")
    allowed = {"Access-Control-Allow-Methods": _METHODS, "Access-Control-Max-Age": "600"}
    if re.fullmatch(r"[A-Za-z0-9, -]{1,500}", asked):
        allowed["Access-Control-Allow-Headers"] = asked
    return Response(status_code=204, headers={**_apart(request, None), **allowed})


@router.api_route(f"{PREFIX}/{{secret}}/{{path:path}}", methods=["GET", "HEAD", "POST"], include_in_schema=False)
async def look(sight: SightDep, path: Annotated[str, Path(max_length=4096)], request: Request) -> Response:
    """Hand the request on to the TensorBoard of these jobs, and its answer back as it comes."""
    viewers: Viewers = request.app.state.viewers
    using = viewers.use(sight.key, sight.outputs)
    client = await using.__aenter__()
    try:
        query = request.url.query
        asked = client.build_request(
            request.method,
            _url(path, query),
            headers={name: request.headers[name] for name in _ASKED if name in request.headers},
            content=await request.body() if request.method == "POST" else None,
        )
        answer = await client.send(asked, stream=True)
    except httpx.HTTPError as error:
        await using.__aexit__(None, None, None)
        raise Unavailable("TensorBoard does not answer; try again in a moment.", retry_after_s=5.0) from error
    except BaseException:
        await using.__aexit__(None, None, None)
        raise

    told = {name: answer.headers[name] for name in _TOLD if name in answer.headers}
    return _Handed(answer, using, {**told, **_apart(request, sight)})


def _url(path: str, query: str) -> httpx.URL:
    """Raises ``NotFound`` for what is no path, such as one of two slashes or with a NUL."""
    try:
        return httpx.URL(path=f"/{path}", query=query.encode() if query else None)
    except httpx.InvalidURL as error:
        raise NotFound("TensorBoard has nothing at this address; open it at its first page.") from error


class _Handed(StreamingResponse):
    """The answer of a TensorBoard as it comes. However its sending ends, the TensorBoard is let go."""

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


def _apart(request: Request, sight: Sight | None) -> dict[str, str]:
    """What keeps the page from the platform's own, whatever is in it. ``sight``: only below its address it may load."""
    host = request.headers.get("host", "")
    own = f"{request.url.scheme}://{host}{PREFIX}/{sight.secret}/" if sight is not None and _HOST.match(host) else ""
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
        # Its own scripts and answers are another origin's to it. Whoever has the address may read them anyway.
        "Access-Control-Allow-Origin": "null",
        "Cross-Origin-Resource-Policy": "cross-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Robots-Tag": "noindex",
    }
