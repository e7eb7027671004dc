"""Horovod's rendezvous: an HTTP key-value store on ``/scope/key``, empty for every attempt.

Horovod's client has no authentication, so any client of the port may write: the store is bounded, and a gang
of one machine is served on its loopback alone.

It asks for another rank's addresses every 10 ms, and gives up after 30 s. Replicas of a gang may start minutes apart,
where one node has the image and another has not: so such a question is answered when there is an answer.
"""

from __future__ import annotations

import glob
import os
import select
import socket
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


# A value is the addresses at which one rank meets the others, 68 bytes for each of them: 64 MiB for a thousand ranks.
VALUE_BYTES = 1 << 20
STORE_BYTES = 256 << 20
_SILENT_S = 60.0
PATIENCE_S = 300.0
MAX_AWAITED = 4096


def serve(port: int, say: Callable[[str], None], host: str = "") -> None:
    """Listen on ``port`` for as long as this process lives. A port in use is logged and ignored: few jobs are
    Horovod's.

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


def wait_for(env: dict[str, str], is_over: Callable[[], bool], pause: Callable[[float], None]) -> None:
    """Return when the store of rank 0 answers, or ``is_over``. At once for programs that cannot be Horovod's.

    Horovod tries for two seconds and aborts if nothing listens yet: rank 0's image may still be on its way to its node.

    Args:
        env: of the program.
        is_over: whether rank 0 has ended already, or patience has.
        pause: waits for so many seconds; raises where the replica is to stop.
    """
    host, port = env.get("HOROVOD_GLOO_RENDEZVOUS_ADDR", ""), env.get("HOROVOD_GLOO_RENDEZVOUS_PORT", "")
    if not host or not port.isdigit() or env.get("HOROVOD_RANK") == "0" or not _has_horovod(env):
        return
    pause_s = 0.02
    while not is_over():
        try:
            socket.create_connection((host, int(port)), timeout=5.0).close()
        except OSError:
            pause(pause_s)
            pause_s = min(0.5, 1.3 * pause_s)
        else:
            return


def _has_horovod(env: dict[str, str]) -> bool:
    """Whether a Python in PATH has it, or PYTHONPATH."""
    folders = [folder for folder in env.get("PYTHONPATH", "").split(":") if folder]
    for programs in (env.get("PATH") or os.defpath).split(":"):
        for name in ("site-packages", "dist-packages"):
            folders += glob.glob(os.path.join(os.path.dirname(programs.rstrip("/")), "lib", "python3*", name))
    return any(os.path.exists(os.path.join(folder, "horovod", "__init__.py")) for folder in folders)


def _run(listener: socket.socket) -> None:
    # Nearly every job never connects: the server's modules are imported with the first connection.
    select.select([listener], [], [])
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    store: dict[str, bytes] = {}
    awaited: dict[str, threading.Event] = {}
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = _SILENT_S

        def do_GET(self) -> None:
            with lock:
                value = store.get(self.path)
                # Other keys are looked at in passing: their absence is an answer.
                is_awaited = value is None and self.path.rpartition("/")[2].isdigit()
                has_room = self.path in awaited or len(awaited) < MAX_AWAITED
                appeared = awaited.setdefault(self.path, threading.Event()) if is_awaited and has_room else None
            if appeared is not None:
                appeared.wait(PATIENCE_S)
                value = store.get(self.path)
            self._answer(404 if value is None else 200, value or b"")

        def do_PUT(self) -> None:
            length = self.headers.get("Content-Length") or "0"
            # Not any Unicode digit: `int` does not read "²".
            if not (length.isascii() and length.isdigit() and len(length) < 19) or int(length) > VALUE_BYTES:
                self.close_connection = True  # what it sends is not read
                return self._answer(413)
            value = self.rfile.read(int(length))
            with lock:
                has_room = sum(map(len, store.values())) + len(value) <= STORE_BYTES
                if has_room:
                    store[self.path] = value
                    if self.path in awaited:
                        awaited.pop(self.path).set()
            return self._answer(200 if has_room else 507)

        def do_DELETE(self) -> None:
            scope = self.path.rstrip("/") + "/"
            with lock:
                for path in [path for path in store if path == self.path or path.startswith(scope)]:
                    del store[path]
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
