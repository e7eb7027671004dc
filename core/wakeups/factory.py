from __future__ import annotations

from core.settings import Settings
from core.wakeups.base import Wakeup
from core.wakeups.socket import SocketWakeup, wakeup_socket_path


def make_wakeup(settings: Settings) -> Wakeup:
    """The wake-up channel to this platform's scheduler."""
    if settings.is_embedded_broker:
        return SocketWakeup(wakeup_socket_path(settings.run_dir))
    # Importing Celery takes a quarter of a second: only processes that send through it pay for that.
    from core.wakeups.celery import CeleryWakeup

    return CeleryWakeup(settings.broker_url)
