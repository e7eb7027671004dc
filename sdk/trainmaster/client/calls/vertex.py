"""What Vertex AI's machine types, accelerators, images and names are here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainmaster.client.calls.build import params, typed
from trainmaster.client.steps import Call
from trainmaster.wire.vertex_table import VertexMachineView, VertexTableUpdate, VertexTableView


def get_vertex_table() -> Call[VertexTableView]:
    """The table that administrators keep for Vertex AI's clients, and where each entry comes from."""
    return typed(VertexTableView, "get_vertex_table", "GET", "/vertex-table")


def set_vertex_table(table: Mapping[str, Any], *, generation: int) -> Call[VertexTableView]:
    """Store a table in the place of the one that was: ``{"machines": {"n1-*": {"cpu": 4}}}``.

    Args:
        generation: that of the table that was read; somebody else's change since then is a ``Conflict``.
    """
    body = VertexTableUpdate(table=dict(table), generation=generation)
    return typed(VertexTableView, "set_vertex_table", "PUT", "/vertex-table", body=body)


def try_vertex_machine(
    machine_type: str, *, accelerator: str | None = None, count: int | None = None, location: str | None = None
) -> Call[VertexMachineView]:
    """What one replica on such a machine asks for here: ``try_vertex_machine("n1-standard-4", accelerator="NVIDIA_L4")``."""
    query = params(machine_type=machine_type, accelerator=accelerator, count=count, location=location)
    return typed(VertexMachineView, "try_vertex_machine", "GET", "/vertex-table/machine", query=query)
