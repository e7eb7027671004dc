"""The administrators' table: what holds, storing another, and what a machine type becomes by it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import select
from trainmaster.wire.vertex_table import VertexEntryView, VertexMachineView, VertexTableUpdate, VertexTableView

from api.app.unit_of_work import UnitOfWork
from api.auth import Caller
from api.protocols.vertex.table import Table, stored_table, table_with
from api.protocols.vertex.table_entries import Entry, document_of, kept_of, read_entries, read_kept
from api.vertex_table.warnings import Cluster, cluster_of, warnings_of
from core.db.repositories.events import append_event
from core.db.repositories.vertex.table import StoredVertexTable, read_vertex_table, write_vertex_table
from core.db.tables import Volume
from core.domain.errors import Conflict, InvalidRequest, together
from core.settings import Settings


@dataclass(frozen=True, slots=True)
class Wish:
    """One replica, in Google's words; ``accelerator`` and ``location`` may be empty."""

    machine_type: str
    accelerator: str = ""
    count: int = 1
    location: str = ""


def get(work: UnitOfWork, settings: Settings, caller: Caller) -> VertexTableView:
    return _view(work, settings, caller, read_vertex_table(work.session))


def store(work: UnitOfWork, settings: Settings, caller: Caller, body: VertexTableUpdate) -> VertexTableView:
    """Put the body's table in the place of the stored one.

    Raises:
        InvalidRequest: entries that are none, all of them; nothing is changed.
        Conflict: the stored table is no longer of the generation that the body names.
        StaleWrite: somebody else stores one in the same moment.
    """
    before = read_vertex_table(work.session)
    if body.generation != before.generation:
        raise Conflict(_conflict(before, body.generation), field="generation")
    entries, wrong = read_entries(body.table)
    if wrong:
        raise together(wrong, "entries of the table")
    kept = write_vertex_table(work.session, kept_of(entries), seen=before.generation, by=caller.user, now=work.now)
    data = {"generation": kept.generation, "changed": changes(read_kept(before.entries)[0], entries)}
    append_event(work.session, at=work.now, kind="vertex_table.changed", actor=caller.actor, data=data)
    return _view(work, settings, caller, kept)


def look(work: UnitOfWork, settings: Settings, wish: Wish) -> VertexMachineView:
    """Raises ``InvalidRequest``: there is no such machine type or accelerator."""
    table = stored_table(work, settings)
    machine = table.machine(wish.machine_type, path="machine_type")
    resources = machine.model_dump(exclude_none=True, include={"cpu", "memory", "shm"})
    asked = [("machines", wish.machine_type), ("locations", wish.location)]
    if wish.accelerator:
        resources["gpus"] = wish.count
        resources["gpu_type"] = list(table.gpu_models(wish.accelerator, path="accelerator"))
        asked.insert(1, ("accelerators", wish.accelerator))
    selector = {**table.node_selector(wish.location), **machine.node_selector}
    found = [entry for section, name in asked if (entry := table.find(section, name)) is not None]
    warning = cluster_of(work.session).lack(resources, selector)
    return VertexMachineView(
        machine_type=wish.machine_type,
        resources=resources,
        node_selector=selector,
        entries=_shown(found),
        warnings=[f"{wish.machine_type} {warning}"] if warning else [],
    )


def changes(before: Iterable[Entry], after: Iterable[Entry]) -> list[str]:
    """Paths of the entries that are new, gone or other, at most 100."""
    was = {entry.path: entry.value for entry in before}
    now = {entry.path: entry.value for entry in after}
    none = object()
    return [path for path in {**was, **now} if was.get(path, none) != now.get(path, none)][:100]


def _conflict(kept: StoredVertexTable, generation: int) -> str:
    if not kept.generation:
        return f"Nobody has stored a table yet, so its generation is 0, not {generation}; read it again."
    at = f" at {kept.updated_at:%Y-%m-%d %H:%M:%S} UTC" if kept.updated_at is not None else ""
    return (
        f"{kept.updated_by or 'Somebody'} stored another table{at}: its generation is {kept.generation}, and yours was made of "
        f"{generation}. Read it again (`trainmaster vertex-table`), change that one, and store it."
    )


def _view(work: UnitOfWork, settings: Settings, caller: Caller, kept: StoredVertexTable) -> VertexTableView:
    stored, wrong = read_kept(kept.entries)
    table = table_with(stored, settings)
    may_see = _Sight(work, caller)
    return VertexTableView(
        table=document_of(entry for entry in stored if may_see(entry)),
        entries=_shown(entry for entry in table.entries() if may_see(entry)),
        generation=kept.generation,
        updated_at=kept.updated_at,
        updated_by=kept.updated_by or None,
        warnings=[*_unreadable(wrong), *_warnings(work, table)] if caller.is_admin else [],
    )


def _warnings(work: UnitOfWork, table: Table) -> list[str]:
    cluster: Cluster = cluster_of(work.session)
    return warnings_of(table, cluster)


def _unreadable(wrong: Iterable[InvalidRequest]) -> list[str]:
    return [
        f"{mistake.sentence.removesuffix('.')}: another version kept it. It has no effect, and goes with the next change."
        for mistake in wrong
    ]


def _shown(entries: Iterable[Entry]) -> list[VertexEntryView]:
    return [
        VertexEntryView(section=entry.section, name=entry.name, value=entry.value, source=entry.source)
        for entry in entries
    ]


class _Sight:
    """Which entries the caller may know of: others than an administrator hear of no project that is not theirs."""

    def __init__(self, work: UnitOfWork, caller: Caller) -> None:
        self._is_admin = caller.is_admin
        self._own = {each.project for each in caller.projects.values()}
        self._volumes = set() if caller.is_admin else set(work.session.scalars(select(Volume.name)))

    def __call__(self, entry: Entry) -> bool:
        if self._is_admin or entry.section not in ("projects", "buckets"):
            return True
        return entry.value in self._own or (entry.section == "buckets" and entry.value in self._volumes)
