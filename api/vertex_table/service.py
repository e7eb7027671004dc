"""The administrators' mapping table for Vertex AI's names: read, replace, and resolve a machine type."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import select
from trainmaster.wire.vertex_table import VertexEntryView, VertexMachineView, VertexTableUpdate, VertexTableView

from api.app.unit_of_work import UnitOfWork
from api.auth import Caller
from api.protocols.vertex.table import Table, stored_table, table_with
from api.protocols.vertex.table_entries import Entry, document_of, read_entries, read_stored_rows, stored_rows
from api.vertex_table.warnings import ClusterInventory, cluster_of, warnings_of
from core.db.repositories.events import append_event
from core.db.repositories.vertex.table import StoredVertexTable, read_vertex_table, write_vertex_table
from core.db.tables import Volume
from core.domain.errors import Conflict, InvalidRequest, together
from core.settings import Settings


@dataclass(frozen=True, slots=True)
class MachineQuery:
    """One replica in Vertex AI's terms; ``accelerator`` and ``location`` may be empty."""

    machine_type: str
    accelerator: str = ""
    count: int = 1
    location: str = ""


def get(work: UnitOfWork, settings: Settings, caller: Caller) -> VertexTableView:
    return _view(work, settings, caller, read_vertex_table(work.session))


def store(work: UnitOfWork, settings: Settings, caller: Caller, body: VertexTableUpdate) -> VertexTableView:
    """Replace the stored table.

    Raises:
        InvalidRequest: all invalid entries; nothing is changed.
        Conflict: the stored table's generation is not the one that the body names.
        StaleWrite: another request stored a table at the same time.
    """
    before = read_vertex_table(work.session)
    if body.generation != before.generation:
        raise Conflict(_conflict(before, body.generation), field="generation")
    entries, wrong = read_entries(body.table)
    if wrong:
        raise together(wrong, "entries of the table")
    stored = write_vertex_table(
        work.session, stored_rows(entries), seen=before.generation, by=caller.user, now=work.now
    )
    data = {"generation": stored.generation, "changed": changes(read_stored_rows(before.entries)[0], entries)}
    append_event(work.session, at=work.now, kind="vertex_table.changed", actor=caller.actor, data=data)
    return _view(work, settings, caller, stored)


def resolve_machine(work: UnitOfWork, settings: Settings, query: MachineQuery) -> VertexMachineView:
    """The resources of a machine type. Raises ``InvalidRequest``: an unknown machine type or accelerator."""
    table = stored_table(work, settings)
    machine = table.machine(query.machine_type, path="machine_type")
    resources = machine.model_dump(exclude_none=True, include={"cpu", "memory", "shm"})
    used = [("machines", query.machine_type), ("locations", query.location)]
    if query.accelerator:
        resources["gpus"] = query.count
        resources["gpu_type"] = list(table.gpu_models(query.accelerator, path="accelerator"))
        used.insert(1, ("accelerators", query.accelerator))
    selector = {**table.node_selector(query.location), **machine.node_selector}
    found = [entry for section, name in used if (entry := table.find(section, name)) is not None]
    warning = cluster_of(work.session).lack(resources, selector)
    return VertexMachineView(
        machine_type=query.machine_type,
        resources=resources,
        node_selector=selector,
        entries=_shown(found),
        warnings=[f"{query.machine_type} {warning}"] if warning else [],
    )


def changes(before: Iterable[Entry], after: Iterable[Entry]) -> list[str]:
    """Paths of the entries that were added, removed or changed, at most 100."""
    was = {entry.path: entry.value for entry in before}
    now = {entry.path: entry.value for entry in after}
    none = object()
    return [path for path in {**was, **now} if was.get(path, none) != now.get(path, none)][:100]


def _conflict(current: StoredVertexTable, generation: int) -> str:
    if not current.generation:
        return f"No table is stored yet, so its generation is 0, not {generation}; read it again."
    at = f" at {current.updated_at:%Y-%m-%d %H:%M:%S} UTC" if current.updated_at is not None else ""
    return (
        f"{current.updated_by or 'Another user'} stored another table{at}: its generation is {current.generation}, but "
        f"yours is based on {generation}. Read it again (`trainmaster vertex-table`), repeat your change, and store it."
    )


def _view(work: UnitOfWork, settings: Settings, caller: Caller, stored: StoredVertexTable) -> VertexTableView:
    entries, wrong = read_stored_rows(stored.entries)
    table = table_with(entries, settings)
    may_see = _Visibility(work, caller)
    return VertexTableView(
        table=document_of(entry for entry in entries if may_see(entry)),
        entries=_shown(entry for entry in table.entries() if may_see(entry)),
        generation=stored.generation,
        updated_at=stored.updated_at,
        updated_by=stored.updated_by or None,
        warnings=[*_unreadable(wrong), *_warnings(work, table)] if caller.is_admin else [],
    )


def _warnings(work: UnitOfWork, table: Table) -> list[str]:
    cluster: ClusterInventory = cluster_of(work.session)
    return warnings_of(table, cluster)


def _unreadable(wrong: Iterable[InvalidRequest]) -> list[str]:
    return [
        f"{mistake.sentence.removesuffix('.')}: another version stored it. It has no effect; the next change removes "
        "it."
        for mistake in wrong
    ]


def _shown(entries: Iterable[Entry]) -> list[VertexEntryView]:
    return [
        VertexEntryView(section=entry.section, name=entry.name, value=entry.value, source=entry.source)
        for entry in entries
    ]


class _Visibility:
    """The entries that the caller may see: only administrators see entries of projects that are not theirs."""

    def __init__(self, work: UnitOfWork, caller: Caller) -> None:
        self._is_admin = caller.is_admin
        self._own = {each.project for each in caller.projects.values()}
        self._volumes = set() if caller.is_admin else set(work.session.scalars(select(Volume.name)))

    def __call__(self, entry: Entry) -> bool:
        if self._is_admin or entry.section not in ("projects", "buckets"):
            return True
        return entry.value in self._own or (entry.section == "buckets" and entry.value in self._volumes)
