"""What a reporter talks to: an API behind HTTP connections without a network, and a clock that may skip time."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from trainmaster_runtime import clock

Answer = tuple[int, dict[str, Any]]


def connect_to(post: Callable[[Any], Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request of ``http.client`` goes to ``post``, which gets its body and gives status and answer."""

    class Connection:
        sock = None

        def __init__(self, *_: object, **__: object) -> None:
            self.answer: Answer = 0, {}

        def connect(self) -> None:
            pass

        def request(self, _method: str, _path: str, data: bytes, headers: dict[str, str]) -> None:
            text = gzip.decompress(data) if headers.get("Content-Encoding") == "gzip" else data
            self.answer = post(json.loads(text))

        def getresponse(self) -> SimpleNamespace:
            status, answer = self.answer
            return SimpleNamespace(status=status, read=lambda: json.dumps(answer).encode())

        def close(self) -> None:
            pass

    monkeypatch.setattr("http.client.HTTPConnection", Connection)


class SkippingClock:
    """The runtime's monotonic clock, of which a test may skip hours."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.skipped_s = 0.0
        monkeypatch.setattr(clock, "monotonic", self)

    def __call__(self) -> float:
        return time.monotonic() + self.skipped_s

    def skip(self, seconds: float = 3600.0) -> None:
        self.skipped_s += seconds
