"""What Google's machine types, accelerators, images and locations are here.

Built in are Google's own sizes; an administrator lays others over them (``TRAINMASTER_VERTEX``). Plain processes share one
machine, and have no images: there a machine type asks for nothing but its GPUs unless the administrator says otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

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
T = TypeVar("T")
_SIZED: Final = re.compile(r"([a-z0-9]+-[a-z]+)-([0-9]{1,3})")


class Machine(BaseModel):
    """What one replica on such a machine asks for; what is unstated it shares with others."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cpu: str | int | float | None = None
    memory: str | None = None
    shm: str | None = None
    node_selector: dict[str, str] = Field(default_factory=dict)


class Table(BaseModel):
    """Each mapping by name or pattern (``n1-*``), the first that fits. An image ``null``: the platform's own. ``projects`` and
    ``buckets``: from Google's names in scripts to ours; what is not named there has our name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    machines: dict[str, Machine] = Field(default_factory=dict)
    accelerators: dict[str, tuple[str, ...]] = Field(default_factory=dict)  # empty: any GPU
    images: dict[str, str | None] = Field(default_factory=dict)
    locations: dict[str, dict[str, str]] = Field(default_factory=dict)  # node labels
    projects: dict[str, str] = Field(default_factory=dict)
    buckets: dict[str, str] = Field(default_factory=dict)

    def machine(self, name: str, *, path: str) -> Machine:
        """Raises ``InvalidRequest``: nobody knows such a machine type."""
        own = _find(self.machines, name)
        if own is not None:
            return own
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
            f'{path}: Machine type "{name[:100]}" is not supported. Google\'s such as n1-standard-4 are, and those that an '
            "administrator names in TRAINMASTER_VERTEX.",
            field=path,
        )

    def gpu_models(self, accelerator: str, *, path: str) -> tuple[str, ...]:
        """Models of ours that count as this accelerator; none: any. Raises ``InvalidRequest``."""
        own = _find(self.accelerators, accelerator)
        if own is not None:
            return own
        if accelerator not in _MODELS:
            raise InvalidRequest(
                f"{path}: Accelerator type {accelerator} is not supported; an administrator can name GPUs that count as it in "
                "TRAINMASTER_VERTEX.",
                field=path,
            )
        return _MODELS[accelerator]

    def image(self, uri: str) -> str | None:
        """``uri`` itself unless another image stands for it; ``None``: the platform's own."""
        match = next((pattern for pattern in self.images if fnmatchcase(uri, pattern)), None)
        return uri if match is None else self.images[match]

    def project(self, name: str) -> str:
        return _find(self.projects, name) or name

    def bucket(self, name: str) -> str:
        return _find(self.buckets, name) or name

    def node_selector(self, location: str) -> dict[str, str]:
        return dict(_find(self.locations, location) or {})


def _find(of: Mapping[str, T], name: str) -> T | None:
    return of[name] if name in of else next((of[pattern] for pattern in of if fnmatchcase(name, pattern)), None)


def table_of(settings: Settings) -> Table:
    """Raises ``BadSettings``: the administrator's table cannot be read."""
    return _read(settings.vertex, settings.executor == "process")


@lru_cache(maxsize=16)
def _read(text: str, is_plain: bool) -> Table:
    try:
        own = Table.model_validate_json(text) if text else Table()
    except ValidationError as error:
        wrong = "; ".join(_mistakes(error))
        raise BadSettings(
            f"TRAINMASTER_VERTEX cannot be used: {wrong}. Write a JSON object such as "
            '{"machines": {"n1-*": {"cpu": 2, "memory": "8Gi"}}, "accelerators": {"NVIDIA_TESLA_T4": ["L4"]}}.'
        ) from error
    if not is_plain:
        return own
    return own.model_copy(
        update={
            "machines": {**own.machines, "*": own.machines.get("*", Machine())},
            "images": {**own.images, "*": None},
        }
    )


def _mistakes(error: ValidationError) -> Iterable[str]:
    for item in error.errors(include_url=False)[:3]:
        yield f"{'.'.join(map(str, item['loc'])) or 'it'}: {item['msg']}"
