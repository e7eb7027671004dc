from __future__ import annotations

from core.settings import Settings
from core.wakeups.base import Wakeup
from core.wakeups.socket import SocketWakeup, wakeup_socket_path


def make_wakeup(settings: Settings) -> Wakeup:
    """The bell that reaches this platform's scheduler."""
    if settings.is_embedded_broker:
        return SocketWakeup(wakeup_socket_path(settings.run_dir))
    # Celery takes a quarter of a second to import: only those pay who ring through it.
    from core.wakeups.celery import CeleryWakeup

    return CeleryWakeup(settings.broker_url)
