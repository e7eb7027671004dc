"""API models of the mapping table for Vertex AI's machine types, accelerators, images and names."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from trainmaster.wire.base import Finite, WireModel, WireRequest


class VertexEntryView(WireModel):
    """One entry. ``name``: Google's name, or a pattern of such names; empty for a switch.

    ``source``: stored by an administrator, from `TRAINMASTER_VERTEX`, or built in (machines of the process executor
    request nothing).
    """

    section: str
    name: str
    value: Any
    source: Literal["stored", "environment", "platform"]


class VertexTableView(WireModel):
    """``table``: the stored table. ``entries``: all effective entries, stored and built in, in the order of evaluation.

    ``generation``: 0 if no table is stored. ``warnings``: for platform admins, about valid but probably unintended
    entries.
    """

    table: dict[str, Any]
    entries: list[VertexEntryView]
    generation: int
    updated_at: datetime | None = None
    updated_by: str | None = None
    warnings: list[str] = Field(default_factory=list)


class VertexTableUpdate(WireRequest):
    """``generation``: of the table that was edited. ``table``: the whole table; the order of its names matters."""

    generation: int = Field(ge=0, le=2**31 - 2)
    table: dict[str, Finite]


class VertexMachineView(WireModel):
    """Resources of a replica on such a machine, as in a job spec. ``entries``: the entries that apply; none: built in.

    ``warnings``: requirements that no node meets.
    """

    machine_type: str
    resources: dict[str, Any]
    node_selector: dict[str, str]
    entries: list[VertexEntryView]
    warnings: list[str] = Field(default_factory=list)
