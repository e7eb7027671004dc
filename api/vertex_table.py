"""The administrators' mapping table for Vertex AI's names: read, replace, check for mistakes, try a machine type."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final

from fastapi import Query
from sqlalchemy import select
from sqlalchemy.orm import Session
from trainmaster.sizes import format_size
from trainmaster.spec.fields import MAX_GPUS
from trainmaster.spec.quantity import format_cpu, parse_bytes, parse_cpu_milli
from trainmaster.wire.admin import VertexEntryView, VertexMachineView, VertexTableUpdate, VertexTableView

from api.app.unit_of_work import AppContextDep, UnitOfWork
from api.auth import Caller, PlatformAdmin, Reader
from api.http.routing import new_router
from api.protocols.kit.vertex_table import Table, stored_table, table_with
from api.protocols.kit.vertex_table_entries import Entry, document_of, read_entries, read_stored_rows, stored_rows
from api.protocols.vertex.training.specs import ACCELERATORS
from core.db.repositories.nodes import merged_labels
from core.db.repositories.vertex_records import StoredVertexTable, read_vertex_table, write_vertex_table
from core.db.tables import Node, Project, Volume
from core.domain.errors import Conflict, InvalidRequest, combined_error
from core.domain.sharing.gpus import accepted_models, accepts
from core.domain.sharing.resources import Amounts
from core.settings import Settings

router = new_router("vertex-table", "/vertex-table")

_PATTERN_CHARACTERS: Final = "*?["
_GPU_MODELS: Final = tuple(name for number, name in ACCELERATORS.items() if number)


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
            raise combined_error(wrong, "entries of the table")
        stored = write_vertex_table(
            work.session, stored_rows(entries), generation=before.generation, by=caller.user, now=work.now
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
        paths = ("machine_type", "accelerator")
        resources, own = table.resources(machine_type, accelerator, count if accelerator else 0, paths=paths)
        used = [("machines", machine_type), ("locations", location)]
        if accelerator:
            used.insert(1, ("accelerators", accelerator))
        selector = {**table.node_selector(location), **own}
        found = [entry for section, name in used if (entry := table.find(section, name)) is not None]
        warning = _cluster_inventory(work.session).lack(resources, selector)
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
        warnings=[*_unreadable(wrong), *_warnings(table, _cluster_inventory(work.session))] if caller.is_admin else [],
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


@dataclass(frozen=True, slots=True)
class _Machine:
    labels: Mapping[str, str]
    amounts: Amounts

    @property
    def models(self) -> set[str]:
        return {*self.amounts.gpus, *self.amounts.shares}


@dataclass(frozen=True, slots=True)
class _ClusterInventory:
    nodes: tuple[_Machine, ...] = ()
    projects: frozenset[str] = frozenset()
    volumes: frozenset[str] = frozenset()

    @property
    def models(self) -> list[str]:
        return sorted({model for node in self.nodes for model in node.models})

    def lack(self, resources: Mapping[str, Any], selector: Mapping[str, str]) -> str:
        """Why no node can run a replica with these resources, as the end of a sentence; empty if one can, or without
        nodes.
        """
        if not self.nodes:
            return ""
        labels = ", ".join(f"{key}={value}" for key, value in selector.items())
        there = [node for node in self.nodes if all(node.labels.get(key) == value for key, value in selector.items())]
        if not there:
            return f"selects nodes with {labels}, but no node has these labels."
        cpu_milli = parse_cpu_milli(resources["cpu"]) if "cpu" in resources else 0
        memory = parse_bytes(resources["memory"]) if "memory" in resources else 0
        count, models = resources.get("gpus", 0), resources.get("gpu_type", [])
        asks = [f"{format_cpu(cpu_milli)} CPU{'' if cpu_milli == 1000 else 's'}"] if cpu_milli else []
        asks += [f"{format_size(memory)} of memory"] if memory else []
        asks += [f"{count} GPU{'' if count == 1 else 's'} ({' or '.join(models) or 'any'})"] if count else []
        for node in there:
            has = node.amounts
            wanted = accepted_models(models, has.gpus) if models else tuple(has.gpus)
            gpus = max((has.gpus[model] for model in wanted), default=0)
            if has.cpu_milli >= cpu_milli and has.memory_bytes >= memory and gpus >= count:
                return ""
        where = f"no node with {labels}" if labels else "no node"
        return f"requests {', '.join(asks)}, but {where} has as much."


def _cluster_inventory(session: Session) -> _ClusterInventory:
    nodes = session.execute(select(Node.labels, Node.admin_labels, Node.allocatable)).all()
    projects = session.scalars(select(Project.name).where(Project.deleted_at.is_(None)))
    return _ClusterInventory(
        tuple(_Machine(merged_labels(row[0], row[1]), Amounts.from_json(row[2])) for row in nodes),
        frozenset(projects),
        frozenset(session.scalars(select(Volume.name))),
    )


def _warnings(table: Table, cluster: _ClusterInventory) -> list[str]:
    entries = table.entries()
    return [
        *_never_reached(entries),
        *(warning for entry in entries for warning in _of_entry(entry, table, cluster)),
    ]


def _of_entry(entry: Entry, table: Table, cluster: _ClusterInventory) -> Iterator[str]:
    match entry.section:
        case "machines" if entry.value:
            resources = {name: entry.value[name] for name in ("cpu", "memory") if name in entry.value}
            if lack := cluster.lack(resources, entry.value.get("node_selector", {})):
                yield f"{entry.path} {lack}"
        case "accelerators":
            yield from _of_accelerator(entry, cluster)
        case "images" | "serving_images":
            yield from _of_image(entry, table)
        case "locations" if entry.value:
            if lack := cluster.lack({}, entry.value):
                yield f"{entry.path} {lack}"
        case "projects" if entry.value not in cluster.projects:
            yield f"{entry.path}: there is no project {entry.value}."
        case "buckets" if entry.value not in cluster.projects | cluster.volumes:
            yield f"{entry.path}: there is neither a volume nor a project {entry.value}."


def _of_accelerator(entry: Entry, cluster: _ClusterInventory) -> Iterator[str]:
    if not any(fnmatchcase(known, entry.name) for known in _GPU_MODELS):
        near = [known for known in _GPU_MODELS if entry.name.upper().replace("-", "_") in known]
        hint = f"; {' or '.join(near[:3])} may be meant" if near else ""
        yield f"{entry.path} is not an accelerator type of Google, so no client requests it{hint}."
    if not cluster.nodes:
        return
    present = cluster.models
    missing = [model for model in entry.value or () if not any(accepts(model, each) for each in present)]
    if missing:
        has = f"the nodes have {', '.join(present)}" if present else "the nodes have no GPUs at all"
        yield f"{entry.path}: no node has the GPU model {' or '.join(missing)}; {has}."


def _of_image(entry: Entry, table: Table) -> Iterator[str]:
    if not table.has_images:
        if entry.section == "images" or entry.value is not None:
            yield f"{entry.path} has no effect as an image: jobs are plain processes here, which have none."
        return
    if entry.name.strip("*") == "":
        yield f"{entry.path}: the pattern matches every image, also users' own."
    elif (
        any(character in entry.name for character in _PATTERN_CHARACTERS)
        and "/" not in entry.name
        and entry.name[0] not in _PATTERN_CHARACTERS
    ):
        yield (
            f"{entry.path}: patterns match full names with the registry, so this one matches none of Google's; "
            f"*/{entry.name} may be meant."
        )


def _never_reached(entries: list[Entry]) -> Iterator[str]:
    """Patterns shadowed by an earlier, broader pattern of the same layer. Exact names always precede patterns."""
    for index, entry in enumerate(entries):
        if not any(character in entry.name for character in _PATTERN_CHARACTERS):
            continue
        for before in entries[:index]:
            if (
                before.section == entry.section
                and before.source == entry.source
                and any(character in before.name for character in _PATTERN_CHARACTERS)
                and fnmatchcase(entry.name, before.name)
            ):
                yield f"{entry.path} is never used: {before.name} comes before it and matches, too. Put it first."
                break
