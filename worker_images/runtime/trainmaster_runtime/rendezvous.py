"""Horovod's rendezvous: an HTTP key-value store on ``/scope/key``, empty for every attempt.

Horovod's client can prove nothing of itself, so whoever reaches the port may write: what is kept is bounded, and a gang
of one machine is served on its loopback alone.
"""

from __future__ import annotations

import select
import socket
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


# A value is the addresses of one rank: some hundred bytes.
_VALUE_BYTES = 1 << 20
_STORE_BYTES = 64 << 20
_SILENT_S = 60.0


def serve(port: int, say: Callable[[str], None], host: str = "") -> None:
    """Listen on ``port`` for as long as this process lives. A taken port is told and let pass: few jobs are Horovod's.

    ``host``: the address to listen at; empty: all of this machine's.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        say("Horovod's rendezvous is not served, port %d: %s" % (port, error.strerror))
        return
    threading.Thread(target=_run, args=(listener,), daemon=True).start()


def _run(listener: socket.socket) -> None:
    # Nearly every job never asks: the server's modules are read when the first one does.
    select.select([listener], [], [])
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    store: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = _SILENT_S

        def do_GET(self) -> None:
            value = store.get(self.path)
            self._answer(404 if value is None else 200, value or b"")

        def do_PUT(self) -> None:
            length = self.headers.get("Content-Length") or "0"
            if not length.isdigit() or int(length) > _VALUE_BYTES:
                self.close_connection = True  # what it sends is not read
                return self._answer(413)
            value = self.rfile.read(int(length))
            if sum(map(len, store.values())) + len(value) > _STORE_BYTES:
                return self._answer(507)
            store[self.path] = value
            return self._answer(200)

        def do_DELETE(self) -> None:
            for path in [path for path in store if path == self.path or path.startswith(self.path.rstrip("/") + "/")]:
                store.pop(path, None)
            self._answer(200)

        def _answer(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
            pass

    server = ThreadingHTTPServer(listener.getsockname()[:2], Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listener
    server.daemon_threads = True
    server.serve_forever()
