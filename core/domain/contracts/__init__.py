"""The environment every training framework expects, as pure functions of a layout.

:func:`render` merges the contracts of all frameworks and platforms for one replica.
"""

from __future__ import annotations

from core.domain.contracts.context import AttemptContext, Paths, ReplicaContext, TrialContext, World, world_of
from core.domain.contracts.render import RenderedReplica, render

__all__ = [
    "AttemptContext",
    "Paths",
    "RenderedReplica",
    "ReplicaContext",
    "TrialContext",
    "World",
    "render",
    "world_of",
]
