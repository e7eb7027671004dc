"""Warnings about valid entries of the mapping table that are probably mistakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session
from trainmaster.sizes import format_size
from trainmaster.spec.quantity import format_cpu, parse_bytes, parse_cpu_milli

from api.protocols.vertex.table import Table
from api.protocols.vertex.table_entries import Entry
from api.protocols.vertex.training.specs import ACCELERATORS
from core.db.repositories.nodes import merged_labels
from core.db.tables import Node, Project, Volume
from core.domain.sharing.gpu_models import accepted_models, accepts
from core.domain.sharing.resources import Amounts

_SPECIAL: Final = "*?["
_KNOWN: Final = tuple(name for number, name in ACCELERATORS.items() if number)


@dataclass(frozen=True, slots=True)
class _Machine:
    labels: Mapping[str, str]
    amounts: Amounts

    @property
    def models(self) -> set[str]:
        return {*self.amounts.gpus, *self.amounts.shares}


@dataclass(frozen=True, slots=True)
class ClusterInventory:
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


def cluster_of(session: Session) -> ClusterInventory:
    nodes = session.execute(select(Node.labels, Node.admin_labels, Node.allocatable)).all()
    projects = session.scalars(select(Project.name).where(Project.deleted_at.is_(None)))
    return ClusterInventory(
        tuple(_Machine(merged_labels(row[0], row[1]), Amounts.from_json(row[2])) for row in nodes),
        frozenset(projects),
        frozenset(session.scalars(select(Volume.name))),
    )


def warnings_of(table: Table, cluster: ClusterInventory) -> list[str]:
    entries = table.entries()
    return [
        *_never_reached(entries),
        *(warning for entry in entries for warning in _of_entry(entry, table, cluster)),
    ]


def _of_entry(entry: Entry, table: Table, cluster: ClusterInventory) -> Iterator[str]:
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


def _of_accelerator(entry: Entry, cluster: ClusterInventory) -> Iterator[str]:
    if not any(fnmatchcase(known, entry.name) for known in _KNOWN):
        near = [known for known in _KNOWN if entry.name.upper().replace("-", "_") in known]
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
        any(character in entry.name for character in _SPECIAL)
        and "/" not in entry.name
        and entry.name[0] not in _SPECIAL
    ):
        yield (
            f"{entry.path}: patterns match full names with the registry, so this one matches none of Google's; "
            f"*/{entry.name} may be meant."
        )


def _never_reached(entries: list[Entry]) -> Iterator[str]:
    """Patterns shadowed by an earlier, broader pattern of the same layer. Exact names always precede patterns."""
    for index, entry in enumerate(entries):
        if not any(character in entry.name for character in _SPECIAL):
            continue
        for before in entries[:index]:
            if (
                before.section == entry.section
                and before.source == entry.source
                and any(character in before.name for character in _SPECIAL)
                and fnmatchcase(entry.name, before.name)
            ):
                yield f"{entry.path} is never used: {before.name} comes before it and matches, too. Put it first."
                break
