"""How far a start of the embedded platform is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from core.settings import Settings
from embedded import supervisor
from embedded.errors import CannotStart
from embedded.supervisor import Supervisor, UpOptions


class Ready(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def api() -> Iterator[str]:
    """One that is ready, without a scheduler."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Ready) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(("does_answer", "log"), [(False, "api.log"), (True, "scheduler.log")])
def test_a_start_that_is_given_up_says_what_it_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], does_answer: bool, log: str
) -> None:
    monkeypatch.setattr(supervisor, "READY_WITHIN_S", 0.0)
    starting = Supervisor(UpOptions(tmp_path, "127.0.0.1", 0))
    sentence = rf"not ready 0 s after .* waiting for .*\(logs/{log}\) in {tmp_path}"
    with api() as url, pytest.raises(CannotStart, match=sentence):
        starting._await_ready([], url if does_answer else "http://127.0.0.1:1", Settings(home=tmp_path), 7)
    assert capsys.readouterr().err.startswith("Starting: waiting for ")
