from __future__ import annotations

from core.bell.base import Bell
from core.bell.socket import SocketBell, bell_path
from core.settings import Settings


def make_bell(settings: Settings) -> Bell:
    """The bell that reaches this platform's scheduler."""
    if settings.is_embedded_broker:
        return SocketBell(bell_path(settings.run_dir))
    # Celery takes a quarter of a second to import: only those pay who ring through it.
    from core.bell.celery import CeleryBell

    return CeleryBell(settings.broker_url)
