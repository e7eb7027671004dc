"""Trainmaster's Python client: submit training jobs, watch them, and read their output.

Importing this package is cheap; the client and its HTTP stack load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trainmaster.version import __version__

if TYPE_CHECKING:
    from trainmaster.client import AsyncClient as AsyncClient
    from trainmaster.client import Client as Client
    from trainmaster.spec import JobSpec as JobSpec

__all__ = ["AsyncClient", "Client", "JobSpec", "__version__"]

_LAZY = {"AsyncClient": "trainmaster.client", "Client": "trainmaster.client", "JobSpec": "trainmaster.spec"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'trainmaster' has no attribute {name!r}")
