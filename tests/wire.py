"""A wire between two processes that a test can cut, freeze and mend."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum, auto
from typing import Final
from urllib.parse import urlsplit

_PIECE: Final = 65_536


class _Is(Enum):
    WHOLE = auto()
    CUT = auto()  # nobody listens, and what was open is closed
    FROZEN = auto()  # connections open, and nothing comes through


class Wire:
    """Forwards TCP to the server of ``url``; use ``self.url`` instead of it.

    With more ``targets`` it balances: each connection goes to the next one that takes it.
    """

    def __init__(self, url: str, *, default_port: int = 80, targets: Sequence[tuple[str, int]] = ()) -> None:
        parts = urlsplit(url)
        self._targets = deque(targets or [(parts.hostname or "127.0.0.1", parts.port or default_port)])
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        user = parts.netloc.rpartition("@")[0]
        self.url = parts._replace(netloc=f"{user}@127.0.0.1:{self.port}" if user else f"127.0.0.1:{self.port}").geturl()
        self._state = _Is.WHOLE
        self._moves = threading.Condition()
        self._open: set[socket.socket] = set()
        self._start()

    def cut(self) -> None:
        """As when the server's process dies: connections break, new ones are refused."""
        with self._moves:
            self._state = _Is.CUT
            _close(self._listener)
            for end in self._open:
                _close(end)
            self._open.clear()
            self._moves.notify_all()

    def freeze(self) -> None:
        """As when the server is stopped, or a firewall forgets: connections are taken, and nothing is ever answered."""
        with self._moves:
            self._state = _Is.FROZEN

    def mend(self) -> None:
        """All is well again; what was held back by a freeze arrives now."""
        with self._moves:
            was, self._state = self._state, _Is.WHOLE
            self._moves.notify_all()
        if was is _Is.CUT:
            self._listener = socket.create_server(("127.0.0.1", self.port), backlog=256)
            self._start()

    def close(self) -> None:
        self.cut()

    def _start(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), name="wire", daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(near,), name="wire", daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        try:
            self._pass()
            far = self._reach()
        except OSError:
            _close(near)
            return
        with self._moves:
            if self._state is _Is.CUT:
                _close(near)
                _close(far)
                return
            self._open |= {near, far}
        threading.Thread(target=self._pump, args=(far, near), name="wire", daemon=True).start()
        self._pump(near, far)

    def _reach(self) -> socket.socket:
        for _ in range(len(self._targets)):
            self._targets.rotate()
            with suppress(OSError):
                far = socket.create_connection(self._targets[0], timeout=5)
                far.settimeout(None)
                return far
        raise OSError("nobody is there")

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                self._pass()
                sink.sendall(piece)
        for end in (source, sink):
            _close(end)
        with self._moves:
            self._open -= {source, sink}

    def _pass(self) -> None:
        """Return when something may come through."""
        with self._moves:
            while self._state is _Is.FROZEN:
                self._moves.wait(1.0)
            if self._state is _Is.CUT:
                raise OSError("the wire is cut")


def _close(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
