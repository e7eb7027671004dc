"""How the scheduler's processes bear a broker that is away or frozen."""

from __future__ import annotations

import socket
from typing import Any, Final

from kombu.connection import Connection

# Seconds. A broker that is there answers within milliseconds; who waits longer waits for nothing.
_CONNECT_S: Final = 2.0
_ANSWER_S: Final = 2.0
_RETRY_FIRST_S: Final = 0.2
_RETRY_LAST_S: Final = 2.0

# What kombu's Redis transport hands to the client. A peer that vanished without a word is found by the kernel.
REDIS_OPTIONS: Final[dict[str, Any]] = {
    "socket_timeout": _ANSWER_S,
    "socket_connect_timeout": _CONNECT_S,
    "socket_keepalive": True,
    "socket_keepalive_options": {socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPINTVL: 3, socket.TCP_KEEPCNT: 3},
    # A worker that waits for messages looks this often whether its connection still lives.
    "health_check_interval": 5,
}


class QuickConnection(Connection):
    """Tries to come back every two seconds at most; the library's own patience grows to half a minute."""

    def _ensure_connection(self, *args: Any, **options: Any) -> Any:
        options |= {
            "interval_start": _RETRY_FIRST_S,
            "interval_step": _RETRY_FIRST_S,
            "interval_max": _RETRY_LAST_S,
        }
        return super()._ensure_connection(*args, **options)  # type: ignore[no-untyped-call]
