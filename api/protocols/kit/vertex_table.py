"""Maps Google's machine types, accelerators, images and locations to ours.

Layers, the strongest first: entries that administrators store at run time (effective from the next request, in every
API process), ``TRAINMASTER_VERTEX``, and Google's own sizes. With plain processes, which share one machine and have no
images, a machine type requests only its GPUs unless an administrator configures more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from api.app.unit_of_work import AppContext, UnitOfWork
from api.protocols.kit.vertex_table_entries import SECTIONS, SWITCH, Entry, read_entries, read_stored_rows, read_text
from core.db.repositories.vertex_records import read_vertex_table
from core.domain.errors import InvalidRequest
from core.settings import BadSettings, Settings

# GiB of memory for each CPU: https://cloud.google.com/compute/docs/machine-resource
_FAMILIES: Final = {
    "n1-standard": 3.75, "n1-highmem": 6.5, "n1-highcpu": 0.9,
    "n2-standard": 4, "n2-highmem": 8, "n2-highcpu": 1,
    "n2d-standard": 4, "n2d-highmem": 8, "n2d-highcpu": 1,
    "n4-standard": 4, "n4-highmem": 8, "n4-highcpu": 2,
    "e2-standard": 4, "e2-highmem": 8, "e2-highcpu": 1,
    "c2-standard": 4, "c2d-standard": 4, "c2d-highmem": 8, "c2d-highcpu": 2,
    "c3-standard": 4, "c3-highmem": 8, "c3-highcpu": 2,
    "g2-standard": 4, "g4-standard": 3.75,
}  # fmt: skip
# By the number of accelerators: (CPUs, GiB). https://cloud.google.com/compute/docs/gpus
_GPU_MACHINES: Final = {
    "a2-highgpu-1g": (12, 85), "a2-highgpu-2g": (24, 170), "a2-highgpu-4g": (48, 340), "a2-highgpu-8g": (96, 680),
    "a2-megagpu-16g": (96, 1360),
    "a2-ultragpu-1g": (12, 170), "a2-ultragpu-2g": (24, 340), "a2-ultragpu-4g": (48, 680), "a2-ultragpu-8g": (96, 1360),
    "a3-highgpu-1g": (26, 234), "a3-highgpu-2g": (52, 468), "a3-highgpu-4g": (104, 936), "a3-highgpu-8g": (208, 1872),
    "a3-megagpu-8g": (208, 1872), "a3-ultragpu-8g": (224, 2952), "a4-highgpu-8g": (224, 3968),
}  # fmt: skip
_MODELS: Final[Mapping[str, tuple[str, ...]]] = {
    "NVIDIA_TESLA_K80": ("K80",),
    "NVIDIA_TESLA_P100": ("P100",),
    "NVIDIA_TESLA_V100": ("V100",),
    "NVIDIA_TESLA_P4": ("P4",),
    "NVIDIA_TESLA_T4": ("T4",),
    "NVIDIA_TESLA_A100": ("A100",),
    "NVIDIA_A100_80GB": ("A100-80GB",),
    "NVIDIA_L4": ("L4",),
    "NVIDIA_H100_80GB": ("H100",),
    "NVIDIA_H100_MEGA_80GB": ("H100",),
    "NVIDIA_H200_141GB": ("H200",),
    "NVIDIA_B200": ("B200",),
    "NVIDIA_GB200": ("GB200",),
    "NVIDIA_RTX_PRO_6000": ("RTX-PRO-6000",),
}
_SIZED: Final = re.compile(r"([a-z0-9]+-[a-z]+)-([0-9]{1,3})")
_NAMED: Final = "that an administrator names in the table (`trainmaster vertex-table`)"


class Machine(BaseModel):
    """Resource requests of one replica on this machine type; unset ones are shared."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cpu: str | int | float | None = None
    memory: str | int | float | None = None
    shm: str | int | float | None = None
    node_selector: dict[str, str] = Field(default_factory=dict)


class Table:
    """Layers of entries over the built-in ones, the strongest first.

    In each layer exact names precede patterns (``n1-*``); of patterns the first match counts. An image ``null`` is the
    platform's own. ``projects`` and ``buckets`` map names in scripts to ours; unmapped names stay. ``serving_images``
    maps containers of models; ``null``: the platform's own server loads the model instead.
    """

    def __init__(self, *layers: Iterable[Entry], has_images: bool = True) -> None:
        self._layers = [_Layer(entries) for entries in layers]
        self._has_images = has_images

    @property
    def has_images(self) -> bool:
        """Whether jobs run in images; plain processes do not."""
        return self._has_images

    def entries(self) -> list[Entry]:
        """All effective entries by section and precedence, without those whose name a stronger layer has."""
        entries: dict[tuple[str, str], Entry] = {}
        for section in (*SECTIONS, SWITCH):
            for layer in self._layers:
                for name, entry in layer.of(section).items():
                    entries.setdefault((section, name), entry)
        return list(entries.values())

    def find(self, section: str, name: str) -> Entry | None:
        """The entry for a name of Google's; ``None`` if there is none."""
        for layer in self._layers:
            entries = layer.of(section)
            if name in entries:
                return entries[name]
            for pattern, entry in entries.items():
                if fnmatchcase(name, pattern):
                    return entry
        return None

    def machine(self, name: str, *, path: str) -> Machine:
        """Raises ``InvalidRequest`` for an unknown machine type."""
        own = self.find("machines", name)
        if own is not None and own.value is not None:
            return Machine.model_validate(own.value)
        if not name:
            return Machine()
        if name in _GPU_MACHINES:
            cpus, gib = _GPU_MACHINES[name]
            return Machine(cpu=cpus, memory=f"{gib}Gi")
        sized = _SIZED.fullmatch(name)
        if sized is not None and sized[1] in _FAMILIES and int(sized[2]):
            cpus = int(sized[2])
            return Machine(cpu=cpus, memory=f"{int(cpus * _FAMILIES[sized[1]] * 1024)}Mi")
        raise InvalidRequest(
            f'{path}: Machine type "{name[:100]}" is not supported. Google\'s such as n1-standard-4 are, and those '
            f"{_NAMED}.",
            field=path,
        )

    def gpu_models(self, accelerator: str, *, path: str) -> tuple[str, ...]:
        """GPU models that count as this accelerator; empty: any. Raises ``InvalidRequest``."""
        own = self.find("accelerators", accelerator)
        if own is not None and own.value is not None:
            return tuple(own.value)
        if accelerator not in _MODELS:
            raise InvalidRequest(
                f"{path}: Accelerator type {accelerator[:100]} is not supported; an administrator can name GPUs that "
                "count as it in the table (`trainmaster vertex-table`).",
                field=path,
            )
        return _MODELS[accelerator]

    def resources(
        self, machine_type: str, accelerator: str, count: int, *, paths: tuple[str, str]
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Resources of one replica with ``count`` accelerators, as in a job spec, and the machine's node selector.

        ``paths``: of the machine type and the accelerator in the request. Raises ``InvalidRequest``.
        """
        machine = self.machine(machine_type, path=paths[0])
        resources: dict[str, Any] = machine.model_dump(exclude_none=True, include={"cpu", "memory", "shm"})
        if count:
            resources |= {"gpus": count, "gpu_type": list(self.gpu_models(accelerator, path=paths[1]))}
        return resources, machine.node_selector

    def image(self, uri: str) -> str | None:
        """The image for ``uri``, by default itself; ``None``: the platform's own."""
        if not self._has_images:
            return None
        own = self.find("images", uri)
        return uri if own is None else own.value

    def serving_image(self, uri: str) -> tuple[bool, str | None]:
        """Whether the table has an entry for this model container, and its value."""
        own = self.find("serving_images", uri)
        return (False, None) if own is None else (True, own.value)

    def project(self, name: str) -> str:
        own = self.find("projects", name)
        return name if own is None else str(own.value)

    def bucket(self, name: str) -> str:
        own = self.find("buckets", name)
        return name if own is None else str(own.value)

    def node_selector(self, location: str) -> dict[str, str]:
        own = self.find("locations", location)
        return {} if own is None else dict(own.value)

    @property
    def trusts_pickles(self) -> bool:
        """Whether the platform's server unpickles when it replaces one of Google's containers, as those do."""
        own = self.find(SWITCH, "")
        return True if own is None else bool(own.value)


class _Layer:
    def __init__(self, entries: Iterable[Entry]) -> None:
        self._sections: dict[str, dict[str, Entry]] = {}
        for entry in entries:
            self._sections.setdefault(entry.section, {})[entry.name] = entry

    def of(self, section: str) -> Mapping[str, Entry]:
        return self._sections.get(section, {})


def table_of(context: AppContext) -> Table:
    """The current table. Opens a short transaction, so call it outside of one."""
    with context.read() as work:
        return stored_table(work, context.settings)


def stored_table(work: UnitOfWork, settings: Settings) -> Table:
    """The same in an open transaction. Entries that another version stored and this one cannot read are skipped."""
    stored, _ = read_stored_rows(read_vertex_table(work.session).entries)
    return table_with(stored, settings)


def table_with(stored: Iterable[Entry], settings: Settings) -> Table:
    """The table with these stored entries."""
    is_plain = settings.executor == "process"
    return Table(stored, environment_entries(settings), _PLAIN if is_plain else (), has_images=not is_plain)


# Plain processes share one machine: there a machine type asks for nothing.
_PLAIN: Final = (Entry("machines", "*", {}, "platform"),)


def environment_entries(settings: Settings) -> tuple[Entry, ...]:
    """Entries of ``TRAINMASTER_VERTEX``. Raises ``BadSettings`` if they are invalid."""
    return _of_environment(settings.vertex)


@lru_cache(maxsize=16)
def _of_environment(text: str) -> tuple[Entry, ...]:
    try:
        entries, wrong = read_entries(read_text(text), "environment") if text else ([], [])
        mistakes = [mistake.sentence.removesuffix(".") for mistake in wrong[:3]]
    except ValueError as error:
        entries, mistakes = [], [str(error)]
    if mistakes:
        raise BadSettings(
            f"TRAINMASTER_VERTEX cannot be used: {'; '.join(mistakes)}. Write a JSON object such as "
            '{"machines": {"n1-*": {"cpu": 2, "memory": "8Gi"}}, "accelerators": {"NVIDIA_TESLA_T4": ["L4"]}}.'
        )
    return tuple(entries)
