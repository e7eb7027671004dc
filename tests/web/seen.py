"""What a page did until its test failed: an element that never came does not say why."""

from __future__ import annotations

from typing import Any, Final

_LINES: Final = 25


class Seen:
    """Requests without an answer, requests that failed, and what the console said of one page."""

    def __init__(self, page: Any) -> None:
        self._page = page
        self._open: dict[Any, str] = {}
        self._notes: list[str] = []
        page.on("request", lambda request: self._open.update({request: f"{request.method} {request.url}"}))
        page.on("requestfinished", self._ended)
        page.on("requestfailed", self._failed)
        page.on("console", lambda message: self._notes.append(f"console: {message.type}: {message.text}"))
        page.on("pageerror", lambda error: self._notes.append(f"error: {error}"))

    def _ended(self, request: Any) -> None:
        self._open.pop(request, None)

    def _failed(self, request: Any) -> None:
        self._notes.append(f"failed: {self._open.pop(request, request.url)}: {request.failure}")

    def summary(self) -> str:
        try:
            text = self._page.evaluate("document.body ? document.body.innerText.slice(0, 600) : ''")
        except Exception as error:  # noqa: BLE001 (a page that is gone, or stands still, has no text)
            text = f"({type(error).__name__})"
        waits = [f"no answer: {what}" for what in self._open.values()]
        return "\n".join([self._page.url, *waits[-_LINES:], *self._notes[-_LINES:], text])


OPEN: Final[list[Seen]] = []
"""Of the test that runs."""
