"""Traces of Gavel (Narayanan et al., OSDI 2020) as extended by Shockwave (Zheng et al., NSDI 2023).

A line has twelve fields separated by tabs: job type with its batch size, command, folder, the steps' argument,
whether it needs data, steps, GPUs, mode, priority, SLO, duration, arrival. A JSON table gives steps per second by
type and GPUs.

The run time of a job alone is computed like Shockwave's ``generate_pickle_file``: the number of epochs from its steps
with the first batch size; the batch size of each epoch by its mode (``static``; ``accordion``: the largest one
outside of critical phases and after three tenths; ``gns``: doubled at measured epochs); per epoch samples / batch
size / steps per second.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from scheduler.simulator.errors import ScenarioError
from scheduler.simulator.reading.arrival import Arrival, single_gpus
from scheduler.simulator.traces.rows import number, read_text, whole

_FIELDS: Final = (
    "type", "command", "folder", "steps_argument", "needs_data", "steps", "gpus", "mode", "priority", "slo", "duration",
    "arrival",
)  # fmt: skip
# Samples of one epoch, as Shockwave's `dataset_len` has them.
_SAMPLES: Final = {
    "ResNet-18": 50_000,
    "ResNet-50": 100_000,
    "Transformer": 10_000,
    "LM": 59_675,
    "Recommendation": 117_907,
}
_LARGEST: Final = {"ResNet-18": 256, "ResNet-50": 128, "Transformer": 128, "LM": 80, "Recommendation": 8192}
# Epochs at which gradient noise allows doubling the batch size, by model, first batch size and GPUs
# (`get_gns_bs_pattern`).
_DOUBLINGS: Final[Mapping[tuple[str, int, int], tuple[int, ...]]] = {
    ("ResNet-18", 16, 1): (31, 41, 51, 71), ("ResNet-18", 32, 1): (21, 31, 51), ("ResNet-18", 64, 1): (11, 31),
    ("ResNet-18", 128, 1): (11,), ("ResNet-18", 16, 2): (21, 31, 91, 111), ("ResNet-18", 32, 2): (11, 21, 41),
    ("ResNet-18", 64, 2): (21, 41), ("ResNet-18", 128, 2): (41,), ("ResNet-18", 16, 4): (11, 21, 81, 91),
    ("ResNet-18", 32, 4): (21, 31, 61), ("ResNet-18", 64, 4): (11, 61), ("ResNet-18", 128, 4): (11,),
    ("ResNet-50", 64, 1): (101,), ("ResNet-50", 32, 2): (101, 111), ("ResNet-50", 64, 2): (81,),
    ("ResNet-50", 32, 4): (131, 221), ("ResNet-50", 64, 4): (191,),
    ("LM", 5, 1): (31, 41, 61, 71), ("LM", 10, 1): (11, 21, 41), ("LM", 20, 1): (11, 41), ("LM", 40, 1): (11,),
    ("LM", 5, 2): (31, 51, 61, 71), ("LM", 10, 2): (11, 31, 41), ("LM", 20, 2): (31, 41), ("LM", 40, 2): (11,),
    ("LM", 5, 4): (11, 31, 71, 91), ("LM", 10, 4): (11, 31, 61), ("LM", 20, 4): (11, 61), ("LM", 40, 4): (61,),
    ("Recommendation", 512, 1): (21, 41, 71, 91), ("Recommendation", 1024, 1): (21, 51, 91),
    ("Recommendation", 2048, 1): (21, 41), ("Recommendation", 4096, 1): (41,),
}  # fmt: skip
# Critical epochs after the first ones, which keep the small batch size (`get_accordion_bs_pattern`).
_CRITICAL_REST: Final = {"ResNet-18": ((150, 160), (250, 260)), "Recommendation": ((60, 70), (80, 90))}
_CALM_AFTER: Final = 0.3  # fraction of its epochs


class Throughputs:
    """Steps per second on one kind of GPU."""

    def __init__(self, table: Mapping[str, Any], gpu: str) -> None:
        self._table = table[gpu]

    @classmethod
    def read(cls, path: Path, gpu: str = "v100") -> Throughputs:
        try:
            return cls(json.loads(read_text(path)), gpu)
        except (ValueError, KeyError) as error:
            raise ScenarioError(f"{path.name}: is no table of steps per second of {gpu}") from error

    def per_s(self, model: str, batch: int, gpus: int) -> float:
        """Raises :class:`KeyError` for combinations that were not measured."""
        kind = f"('{model} (batch size {batch})', {gpus})"
        steps = float(self._table[kind]["null"])
        if steps <= 0:  # zero marks combinations that did not fit into memory
            raise KeyError(kind)
        return steps


def read(path: Path, throughputs: Throughputs) -> list[Arrival]:
    """The jobs, each with one worker per GPU; ``duration_s`` is its run time alone.

    Raises:
        ScenarioError: with file, line and field.
    """
    arrivals: list[Arrival] = []
    for line, text in enumerate(read_text(path).splitlines(), 1):
        if not text.strip():
            continue
        where = f"{path.name}, line {line}"
        parts = text.split("\t")
        if len(parts) != len(_FIELDS):
            raise ScenarioError(f"{where}: has {len(parts)} fields between tabs instead of {len(_FIELDS)}")
        row: dict[str, str] = dict(zip(_FIELDS, parts, strict=True))
        found = re.fullmatch(r"(\S+) \(batch size (\d+)\)", row["type"])
        if found is None or found[1] not in _SAMPLES:
            raise ScenarioError(f"{where}: type: {row['type']!r} is not one of {', '.join(_SAMPLES)} (batch size …)")
        model, batch, gpus = found[1], int(found[2]), whole(row, "gpus", where, least=1)
        try:
            sizes = batch_sizes(model, batch, gpus, row["mode"], whole(row, "steps", where))
            duration_s = sum(_SAMPLES[model] / size / throughputs.per_s(model, size, gpus) for size in sizes)
        except KeyError as error:
            raise ScenarioError(f"{where}: mode: {row['mode']!r} is not known, or {error} was not measured") from None
        gang = single_gpus(gpus)
        arrivals.append(
            Arrival(
                f"job-{line - 1:04}", number(row, "arrival", where), duration_s, gang, gang.shape(), title=model,
                code=row["type"],
            )
        )  # fmt: skip
    return arrivals


def batch_sizes(model: str, batch: int, gpus: int, mode: str, steps: int) -> Sequence[int]:
    """Batch size per epoch. Raises :class:`KeyError` for an unknown mode."""
    epochs = math.ceil(steps / math.ceil(_SAMPLES[model] / batch))
    match mode:
        case "static":
            return [batch] * epochs
        case "accordion":
            return [
                batch if _is_critical(model, batch, epoch) or epoch <= epochs * _CALM_AFTER else _LARGEST[model]
                for epoch in range(epochs)
            ]
        case "gns":
            ends = _DOUBLINGS.get((model, batch, gpus), ())
            return [_doubled(batch, ends, epoch, epochs, _LARGEST[model]) for epoch in range(epochs)]
        case _:
            raise KeyError(mode)


def _is_critical(model: str, batch: int, epoch: int) -> bool:
    match model:
        case "Transformer":
            return True
        case "ResNet-50":
            return epoch % 30 < 10
        case "ResNet-18":
            first = 20 if batch == 256 else 10
        case "Recommendation":
            first = {512: 30, 1024: 30, 2048: 40}.get(batch, 10)
        case _:
            first = 10
    return epoch < first or any(low <= epoch < high for low, high in _CRITICAL_REST.get(model, ()))


def _doubled(batch: int, ends: Sequence[int], epoch: int, epochs: int, largest: int) -> int:
    """The artifact does not double in the very last epoch if that lies in a later phase than the first."""
    passed = sum(epoch >= end for end in ends)
    if not passed or (passed > 1 and epoch == epochs - 1):
        return min(batch, largest)
    return int(min(batch * 2**passed, largest))
