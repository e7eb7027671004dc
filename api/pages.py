"""The built web application: static files with cache headers, and one page for all of the application's addresses."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Annotated, Final

from fastapi import Path as PathParameter
from fastapi import Request, Response
from fastapi.responses import FileResponse, HTMLResponse

from api.http.routing import new_router
from core.domain.errors import NotFound
from core.worker_packages import WEB_BUILD, missing_pages

router = new_router("pages")

# The first path segments of the application's pages. Other unknown addresses are answered with 404.
PAGE_PATHS: Final = (
    "jobs", "studies", "models", "endpoints", "batch-predictions", "submit", "compare", "queue", "simulations",
    "cluster", "activity", "projects", "users", "tokens", "volumes", "usage", "audit", "notifications", "webhooks",
    "settings", "login",
)  # fmt: skip
# No inline scripts or styles, nothing from other origins, and no embedding in other sites' frames.
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "font-src 'self'; connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors "
    "'none'",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_KINDS: Final = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
}
_ENCODINGS: Final = (("br", ".br"), ("gzip", ".gz"))  # the better compression first
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_UNBUILT: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Trainmaster</title>
<h1>No web pages</h1>
<p>The platform runs: the command line, the SDK and the API work.</p>
<p>{why}</p></html>
"""


def page() -> Response:
    """The application's single page. It contains no data, so it needs no token; the API provides what it shows."""
    why = missing_pages(WEB_BUILD)
    if why is not None:
        text = re.sub("`(.+?)`", r"<code>\1</code>", html.escape(why))
        return HTMLResponse(_UNBUILT.format(why=text), headers={**_HEADERS, "Cache-Control": "no-store"})
    return HTMLResponse((WEB_BUILD / "index.html").read_bytes(), headers={**_HEADERS, "Cache-Control": "no-cache"})


def page_below(below: str) -> Response:  # noqa: ARG001 (the application reads the address)
    return page()


router.add_api_route("/", page, methods=["GET"], include_in_schema=False, name="page")
for _place in PAGE_PATHS:
    router.add_api_route(f"/{_place}", page, methods=["GET"], include_in_schema=False, name="page")
    router.add_api_route(f"/{_place}/{{below:path}}", page_below, methods=["GET"], include_in_schema=False, name="page")


@router.get("/assets/{name}", include_in_schema=False)
def asset(name: Annotated[str, PathParameter(max_length=200)], request: Request) -> Response:
    """A part of the build, named by its content, so that it can be cached for ever."""
    return _file(f"assets/{name}", name, request, "public, max-age=31536000, immutable")


@router.get("/icon.svg", include_in_schema=False)
def icon(request: Request) -> Response:
    return _file("icon.svg", "icon.svg", request, "max-age=86400")


@router.get("/start.js", include_in_schema=False)
def start(request: Request) -> Response:
    """Sets the colour scheme before the first paint, and reloads a page with a missing chunk. Its name is fixed, so it
    is revalidated.
    """
    return _file("start.js", "start.js", request, "no-cache")


def _file(path: str, name: str, request: Request, keep: str) -> Response:
    kind = _KINDS.get(Path(name).suffix)
    if kind is None or not _NAME.fullmatch(name) or not (WEB_BUILD / path).is_file():
        raise NotFound(f"There is no file {name!r} in the web pages; reload the page, it may have been rebuilt.")
    headers = {**_HEADERS, "Cache-Control": keep, "Vary": "Accept-Encoding"}
    taken = {word.partition(";")[0].strip() for word in request.headers.get("accept-encoding", "").split(",")}
    for encoding, suffix in _ENCODINGS:
        compressed = WEB_BUILD / f"{path}{suffix}"
        if encoding in taken and compressed.is_file():
            return FileResponse(compressed, media_type=kind, headers={**headers, "Content-Encoding": encoding})
    return FileResponse(WEB_BUILD / path, media_type=kind, headers=headers)
