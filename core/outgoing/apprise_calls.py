"""Messages by Apprise's services: Slack, Teams, e-mail, ntfy and a hundred others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).resolve().parents[2]
# Seconds. Services that are tried again by the library itself take long.
_TIMEOUT_S: Final = 45.0


class NotSent(Exception):
    """The message was not sent, or the URL is wrong; the text says why, without secrets of the URL."""


def masked_url(url: str) -> str:
    """The service and the URL without its secrets. Raises ``NotSent``: Apprise cannot use it."""
    return _call({"url": url, "networks": ""})


def send_message(url: str, title: str, body: str, networks: str) -> None:
    """Send it now. ``networks``: the setting ``outbound_networks``. Raises ``NotSent``."""
    _call({"url": url, "title": title, "body": body, "networks": networks})


def _call(order: dict[str, str]) -> str:
    environment = {name: os.environ[name] for name in ("PATH", "LANG", "SSL_CERT_FILE") if name in os.environ}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "core.outgoing.apprise_child"],
            input=json.dumps(order),
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
            cwd=_ROOT,
            env={**environment, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
    except subprocess.TimeoutExpired as error:
        raise NotSent(f"the service did not answer within {_TIMEOUT_S:g} s") from error
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        raise NotSent("the message could not be sent, which is a bug") from error
    if answer["error"]:
        raise NotSent(str(answer["error"])[:1_000])
    return str(answer["masked"])
