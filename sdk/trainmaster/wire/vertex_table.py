"""What Vertex AI's machine types, accelerators, images and names are here, on the wire."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from trainmaster.wire.base import WireModel, WireRequest
from trainmaster.wire.numbers import Finite


class VertexEntryView(WireModel):
    """One entry. ``name``: of Google's, or a pattern of such names; empty for a switch. ``source``: an administrator stored it,
    `TRAINMASTER_VERTEX` says it, or the platform itself (machines of plain processes ask for nothing).
    """

    section: str
    name: str
    value: Any
    source: Literal["stored", "environment", "platform"]


class VertexTableView(WireModel):
    """``table``: what administrators stored, as it is given back. ``entries``: all that can count, of the stored table and what lies
    below it, in the order in which they are looked at. ``generation``: 0 while nobody stored one. ``warnings``, to platform
    admins alone: what is allowed and probably not meant, a sentence each.
    """

    table: dict[str, Any]
    entries: list[VertexEntryView]
    generation: int
    updated_at: datetime | None = None
    updated_by: str | None = None
    warnings: list[str] = Field(default_factory=list)


class VertexTableUpdate(WireRequest):
    """``generation``: of the table that this one was made of. ``table``: the whole one; the order of its names counts."""

    generation: int = Field(ge=0, le=2**31 - 2)
    table: dict[str, Finite]


class VertexMachineView(WireModel):
    """What one replica on such a machine asks for here. ``resources``: as in a job spec. ``entries``: those that say so; where there
    is none, it is as built in. ``warnings``: what of it no node has.
    """

    machine_type: str
    resources: dict[str, Any]
    node_selector: dict[str, str]
    entries: list[VertexEntryView]
    warnings: list[str] = Field(default_factory=list)
