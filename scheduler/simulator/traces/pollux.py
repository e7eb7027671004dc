"""Workloads and throughput profiles of Pollux (Qiao et al., OSDI 2021), run rigid: each job with the GPUs it asks for.

A workload is a CSV with ``name, time, application, num_replicas, batch_size``; the profiles are a folder with a
folder per application: ``placements.csv`` and ``scalability.csv`` (seconds of a step and of its synchronisation by
placement and local batch size) and ``validation-<batch size>.csv`` (progress and gradient noise by epoch).

The run time is computed like the artifact's simulator for its Tiresias (``Job.step`` with ``target_num_replicas`` and
``target_batch_size``): the batch is split evenly over the replicas, with gradient accumulation where a part exceeds
the largest profiled size; the replicas use as few nodes of four GPUs as possible; an epoch takes its progress divided
by goodput, which is throughput x statistical efficiency at this batch size in this epoch; and each start costs 30 s,
the first one included, which is part of the duration here. Left out: the artifact's slowdown of jobs that are spread
over more nodes than necessary, and its 60 s rounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

from scheduler.simulator.errors import ScenarioError
from scheduler.simulator.reading.arrival import Arrival, from_zero, single_gpus
from scheduler.simulator.traces.rows import number, read_rows, whole

START_S: Final = 30.0  # `rescale_time` of the artifact
NODE_GPUS: Final = 4
# Per application, from its `applications.py`: epochs, and the largest batch on one GPU if not the largest profiled.
_EPOCHS: Final = {"bert": 2, "cifar10": 100, "ncf": 10, "imagenet": 90, "deepspeech2": 80, "yolov3": 50}
_MOST_LOCAL: Final = {"yolov3": 8}
_COLUMNS: Final = ("name", "time", "application", "num_replicas", "batch_size")


def read(path: Path, profiles: Path) -> list[Arrival]:
    """The jobs of a workload, each with a worker of one GPU per replica.

    Raises:
        ScenarioError: with file, line and column.
    """
    durations: dict[tuple[str, int, int], float] = {}
    arrivals: list[Arrival] = []
    for row in rows_of(path, profiles):
        gang = single_gpus(row.replicas)
        kind = (row.application.name, row.replicas, row.batch)
        if kind not in durations:
            durations[kind] = row.application.duration_s(row.replicas, row.batch)
        arrivals.append(
            Arrival(row.name, row.at_s, durations[kind], gang, gang.shape(), title=row.name, code=row.application.name)
        )
    return from_zero(arrivals)


@dataclass(frozen=True)
class WorkloadRow:
    """A job of a workload. ``replicas``, ``batch``: as its user would choose them for a rigid job."""

    name: str
    at_s: float
    application: Application
    replicas: int
    batch: int


def rows_of(path: Path, profiles: Path) -> Iterator[WorkloadRow]:
    """The jobs of a workload, each with the profile of its application.

    Raises:
        ScenarioError: with file, line and column.
    """
    applications: dict[str, Application] = {}
    for line, row in read_rows(path, _COLUMNS):
        where = f"{path.name}, line {line}"
        name = row["application"]
        if name not in applications:
            if name not in _EPOCHS or not (profiles / name / "placements.csv").is_file():
                raise ScenarioError(f"{where}: application: there is no profile of {name!r} in {profiles.name}")
            applications[name] = Application.read(profiles / name)
        replicas, batch = (whole(row, column, where, least=1) for column in ("num_replicas", "batch_size"))
        yield WorkloadRow(row["name"], number(row, "time", where), applications[name], replicas, batch)


@dataclass(frozen=True)
class Epoch:
    """State after an epoch with one batch size. ``noise``: squared gradient and its variance."""

    progress: float
    metric: float
    noise: tuple[float, float]


@dataclass(frozen=True)
class Application:
    """The profile of one kind of training."""

    name: str
    epochs: int
    most_local: int
    validation: Mapping[int, Sequence[Epoch]]  # by batch size, ascending
    steps: Mapping[
        str, Sequence[tuple[float, float, float]]
    ]  # by placement: local batch, step and sync seconds, ascending
    scaling: Sequence[tuple[int, int, float, float, float]]  # nodes, replicas, local batch, step and sync seconds

    @classmethod
    def read(cls, folder: Path) -> Application:
        validation: dict[int, list[Epoch]] = {}
        for path in folder.glob("validation-*.csv"):
            epochs: list[Epoch] = []
            for line, row in read_rows(path, ("progress", "metric", "grad_sqr", "grad_var")):
                where = f"{folder.name}/{path.name}, line {line}"
                noise = (number(row, "grad_sqr", where), number(row, "grad_var", where))
                epochs.append(
                    Epoch(number(row, "progress", where), number(row, "metric", where, least=-math.inf), noise)
                )
            validation[int(path.stem.partition("-")[2])] = epochs
        steps: dict[str, list[tuple[float, float, float]]] = {}
        scaling: list[tuple[int, int, float, float, float]] = []
        for line, row in read_rows(folder / "placements.csv", ("placement", "local_bsz", "step_time", "sync_time")):
            where = f"{folder.name}/placements.csv, line {line}"
            local, step, sync = (number(row, column, where) for column in ("local_bsz", "step_time", "sync_time"))
            placement = row["placement"]
            steps.setdefault(placement, []).append((local, step, sync))
            scaling.append((len(placement), sum(map(int, placement)), local, step, sync))
        path = folder / "scalability.csv"
        for line, row in read_rows(path, ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")):
            where = f"{folder.name}/scalability.csv, line {line}"
            scaling.append(
                (
                    int(number(row, "num_nodes", where)), int(number(row, "num_replicas", where)),
                    number(row, "local_bsz", where), number(row, "step_time", where), number(row, "sync_time", where),
                )
            )  # fmt: skip
        most_local = _MOST_LOCAL.get(folder.name) or int(max(local for same in steps.values() for local, _, _ in same))
        return cls(
            folder.name,
            _EPOCHS[folder.name],
            most_local,
            dict(sorted(validation.items())),
            {placement: sorted(same) for placement, same in steps.items()},
            scaling,
        )

    def duration_s(self, replicas: int, batch: int) -> float:
        """Run time in seconds with so many GPUs and this batch size."""
        smallest, largest = min(self.validation), max(self.validation)
        local = math.ceil(batch / replicas - 1e-8)
        more = math.ceil(local / self.most_local - 1e-8) - 1
        if replicas == 1 and batch > smallest:
            more = max(1, more)
        local = min(math.ceil(local / (more + 1) - 1e-8), int(largest / (replicas * (more + 1))))
        step_s, sync_s = self.step_s(replicas, local)
        whole = replicas * local * (more + 1)
        step_s += more * (step_s - sync_s)
        total_s, done = START_S, 0.0
        for epoch in range(self.epochs):
            squared, variance = self._between(whole, epoch)
            gain = (variance + squared) / (variance / (whole / smallest) + squared)
            reached = min(epochs[epoch].progress for epochs in self.validation.values())
            total_s += round((reached - done) / (gain / step_s))
            done = reached
        return total_s

    def _between(self, batch: int, epoch: int) -> tuple[float, float]:
        """Gradient noise at a batch size between two measured ones."""
        sizes = list(self.validation)
        low = max((size for size in sizes if size <= batch), default=sizes[0])
        high = min((size for size in sizes if size >= batch), default=sizes[-1])
        part = 0.0 if low == high else (batch - low) / (high - low)
        below, above = self.validation[low][epoch].noise, self.validation[high][epoch].noise
        return (1 - part) * below[0] + part * above[0], (1 - part) * below[1] + part * above[1]

    def step_s(self, replicas: int, local: int) -> tuple[float, float]:
        """Seconds of a step and of its synchronisation, on as few nodes of four GPUs as possible."""
        return interpolate(self.timings(replicas), local)

    def timings(self, replicas: int, nodes: int | None = None) -> Sequence[tuple[float, float, float]]:
        """Local batch sizes with seconds of a step and of its synchronisation, ascending.

        Args:
            nodes: as few as possible if ``None``.
        """
        full, rest = divmod(replicas, NODE_GPUS)
        parts = [NODE_GPUS] * full + ([rest] if rest else [])
        if nodes is not None and nodes != len(parts):
            return self._scaled(nodes, replicas)
        turns = ["".join(map(str, parts[at:] + parts[:at])) for at in range(len(parts))]
        measured = self.steps.get(min(turns))
        return self._scaled(len(parts), replicas) if measured is None else measured

    def _scaled(self, nodes: int, replicas: int) -> Sequence[tuple[float, float, float]]:
        """Measurements at the nearest numbers of nodes and replicas, where this placement was not measured."""
        near = min(
            {(n, r) for n, r, *_ in self.scaling},
            key=lambda pair: (abs(pair[1] - replicas), abs(pair[0] - nodes), pair),
        )
        return sorted(
            {local: (local, step, sync) for n, r, local, step, sync in self.scaling if (n, r) == near}.values()
        )


def interpolate(measured: Sequence[tuple[float, float, float]], local: float) -> tuple[float, float]:
    """Seconds of a step and of its synchronisation with this local batch size."""
    if local <= measured[0][0]:
        return measured[0][1:]
    for (low, step, sync), (high, step_above, sync_above) in pairwise(measured):
        if low <= local <= high:
            part = (local - low) / (high - low)
            return step + part * (step_above - step), sync + part * (sync_above - sync)
    return measured[-1][1:]
