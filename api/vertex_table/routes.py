"""The administrators' mapping table for Vertex AI's names: read, replace, and resolve a machine type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from fastapi import Query
from sqlalchemy import select
from trainmaster.spec.fields import MAX_GPUS
from trainmaster.wire.vertex_table import VertexEntryView, VertexMachineView, VertexTableUpdate, VertexTableView

from api.app.unit_of_work import AppContextDep, UnitOfWork
from api.auth import Caller, PlatformAdmin, Reader
from api.http.routing import new_router
from api.protocols.vertex.table import stored_table, table_with
from api.protocols.vertex.table_entries import Entry, document_of, read_entries, read_stored_rows, stored_rows
from api.vertex_table.warnings import cluster_of, warnings_of
from core.db.repositories.vertex_records import StoredVertexTable, read_vertex_table, write_vertex_table
from core.db.tables import Volume
from core.domain.errors import Conflict, InvalidRequest, together
from core.settings import Settings

router = new_router("vertex-table", "/vertex-table")


@router.get("", operation_id="get_vertex_table", summary="The mapping of Vertex AI's names")
def get_vertex_table(caller: Reader, context: AppContextDep) -> VertexTableView:
    """Entries for Google's machine types, accelerators, images, locations, projects and buckets that differ from the
    built-in ones.
    """
    with context.read() as work:
        return _view(work, context.settings, caller, read_vertex_table(work.session))


@router.put("", operation_id="set_vertex_table", summary="Store a table for Vertex AI's clients")
def set_vertex_table(body: VertexTableUpdate, caller: PlatformAdmin, context: AppContextDep) -> VertexTableView:
    """Replaces the stored table; applies from the next request. 409 if the stored table has changed since `generation`;
    `warnings` lists probable mistakes.
    """
    with context.write() as work:
        before = read_vertex_table(work.session)
        if body.generation != before.generation:
            raise Conflict(_conflict(before, body.generation), field="generation")
        entries, wrong = read_entries(body.table)
        if wrong:
            raise together(wrong, "entries of the table")
        stored = write_vertex_table(
            work.session, stored_rows(entries), seen=before.generation, by=caller.user, now=work.now
        )
        changed = _changes(read_stored_rows(before.entries)[0], entries)
        data = {"generation": stored.generation, "changed": changed}
        work.record_event("vertex_table.changed", caller.actor, data=data)
        return _view(work, context.settings, caller, stored)


@router.get("/machine", operation_id="try_vertex_machine", summary="The resources of a machine type")
def try_vertex_machine(
    _caller: Reader,
    context: AppContextDep,
    machine_type: Annotated[str, Query(max_length=200)],
    accelerator: Annotated[str, Query(max_length=100)] = "",
    count: Annotated[int, Query(ge=1, le=MAX_GPUS)] = 1,
    location: Annotated[str, Query(max_length=64)] = "",
) -> VertexMachineView:
    """The resources of one replica with `count` accelerators in the location. Submits nothing."""
    with context.read() as work:
        table = stored_table(work, context.settings)
        machine = table.machine(machine_type, path="machine_type")
        resources = machine.model_dump(exclude_none=True, include={"cpu", "memory", "shm"})
        used = [("machines", machine_type), ("locations", location)]
        if accelerator:
            resources["gpus"] = count
            resources["gpu_type"] = list(table.gpu_models(accelerator, path="accelerator"))
            used.insert(1, ("accelerators", accelerator))
        selector = {**table.node_selector(location), **machine.node_selector}
        found = [entry for section, name in used if (entry := table.find(section, name)) is not None]
        warning = cluster_of(work.session).lack(resources, selector)
    return VertexMachineView(
        machine_type=machine_type,
        resources=resources,
        node_selector=selector,
        entries=_shown(found),
        warnings=[f"{machine_type} {warning}"] if warning else [],
    )


def _changes(before: Iterable[Entry], after: Iterable[Entry]) -> list[str]:
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
        warnings=[*_unreadable(wrong), *warnings_of(table, cluster_of(work.session))] if caller.is_admin else [],
    )


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
