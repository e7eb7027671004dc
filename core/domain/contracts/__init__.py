"""The environment every training framework expects, as pure functions of a layout.

One module per framework; :func:`render` merges them all for one replica.
"""

from __future__ import annotations

from core.domain.contracts.context import AttemptContext, Paths, Seat, TrialContext, World, world_of
from core.domain.contracts.render import RenderedReplica, render

__all__ = ["AttemptContext", "Paths", "RenderedReplica", "Seat", "TrialContext", "World", "render", "world_of"]
