"""``python -m core.outgoing.apprise_child``: one message by Apprise, in a process of its own.

Reads a JSON object from stdin: ``url``, ``networks`` (the setting), ``title`` and ``body``; without ``body`` the URL is
only checked. Writes ``{"error": …, "masked": …}`` to stdout. Apprise's services connect in many ways, so an audit hook
of the interpreter refuses addresses where they are connected to; and this process has no secrets of the platform.
"""

from __future__ import annotations

import json
import logging
import socket
import sys
from typing import Any, Final

from core.outgoing.networks import OutboundNetworks, RefusedAddress

_CONNECTING: Final = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_STARTING: Final = frozenset({"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork"})
# Services of this machine's desktop and log.
_LOCAL: Final = frozenset({"dbus", "kde", "qt", "glib", "gnome", "macosx", "windows", "syslog"})
_LAST_LINES: Final = 3


class _LastLines(logging.Handler):
    """Keeps what the library logs: its only explanation of a failure."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines = [*self.lines, record.getMessage()][-_LAST_LINES:]


def _refuse_addresses(networks: OutboundNetworks, refused: list[str]) -> None:
    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event in _STARTING:
            raise PermissionError(f"{event} is not allowed")
        if event not in _CONNECTING or args[1] is None:
            return
        if args[0].family not in (socket.AF_INET, socket.AF_INET6):
            raise PermissionError("sockets of this machine are not connected to")
        try:
            networks.check(args[1][0])
        except RefusedAddress as error:
            refused.append(str(error))
            raise PermissionError(str(error)) from error

    sys.addaudithook(hook)


def _answer(order: dict[str, str]) -> dict[str, str]:
    import apprise

    lines = _LastLines()
    logging.getLogger("apprise").addHandler(lines)
    plugin = apprise.Apprise.instantiate(order["url"], suppress_exceptions=True)
    if plugin is None:
        return {"error": "; ".join(lines.lines) or "no URL of a service that Apprise knows", "masked": ""}
    if order["url"].partition(":")[0].lower() in _LOCAL:
        return {"error": "this service shows messages on the platform's own machine", "masked": ""}
    masked = f"{plugin.service_name}: {plugin.url(privacy=True)}"  # type: ignore[no-untyped-call]
    if "body" not in order:
        return {"error": "", "masked": masked}
    refused: list[str] = []
    _refuse_addresses(OutboundNetworks(order["networks"]), refused)
    is_sent = plugin.notify(title=order["title"], body=order["body"])
    return {"error": "" if is_sent else "; ".join(refused or lines.lines) or "the service refused it", "masked": masked}


def main() -> None:
    answer = _answer(json.load(sys.stdin))
    print(json.dumps(answer))  # noqa: T201 (read by the parent)


if __name__ == "__main__":
    main()
