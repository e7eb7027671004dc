from __future__ import annotations

from core.settings import Settings
from core.wakeups.base import Wakeup
from core.wakeups.socket import SocketBell, bell_path


def make_bell(settings: Settings) -> Wakeup:
    """The bell that reaches this platform's scheduler."""
    if settings.is_embedded_broker:
        return SocketBell(bell_path(settings.run_dir))
    # Celery takes a quarter of a second to import: only those pay who ring through it.
    from core.wakeups.celery import CeleryBell

    return CeleryBell(settings.broker_url)
