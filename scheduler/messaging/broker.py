"""Timeouts and reconnects of the scheduler's processes for a broker that is away or frozen."""

from __future__ import annotations

import socket
from typing import Any, Final

from kombu.connection import Connection

# Seconds. A broker that is up answers within milliseconds; longer waiting is in vain.
_CONNECT_S: Final = 2.0
_ANSWER_S: Final = 2.0
_RETRY_FIRST_S: Final = 0.2
_RETRY_LAST_S: Final = 2.0

# What kombu's Redis transport hands to the client. Keep-alive lets the kernel find a peer that vanished silently.
REDIS_OPTIONS: Final[dict[str, Any]] = {
    "socket_timeout": _ANSWER_S,
    "socket_connect_timeout": _CONNECT_S,
    "socket_keepalive": True,
    "socket_keepalive_options": {socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPINTVL: 3, socket.TCP_KEEPCNT: 3},
    # How often, in seconds, a worker that waits for messages checks its connection.
    "health_check_interval": 5,
}


class QuickConnection(Connection):
    """Reconnects every two seconds at most; the library's own back-off grows to half a minute."""

    def _ensure_connection(self, *args: Any, **options: Any) -> Any:
        options |= {
            "interval_start": _RETRY_FIRST_S,
            "interval_step": _RETRY_FIRST_S,
            "interval_max": _RETRY_LAST_S,
        }
        return super()._ensure_connection(*args, **options)  # type: ignore[no-untyped-call]
