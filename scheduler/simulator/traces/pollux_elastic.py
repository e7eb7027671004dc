"""Pollux's workloads run elastic: each job with one GPU or more, and at each size with the best batch size.

The speed of a job comes from the profiles: an epoch takes its progress divided by goodput, which is throughput of the
size and the number of nodes x statistical efficiency of the batch size in this epoch. The batch size is the one with
the most goodput among those that were profiled, between the application's own and its largest, with gradient
accumulation as in the artifact (`Goodput.optimize`). The first start costs 30 s, whatever the size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from core.domain.sharing.resources import Gang, GangRole, ResourceRequest
from scheduler.simulator.reading.arrival import Arrival, from_zero
from scheduler.simulator.traces.pollux import NODE_GPUS, START_S, Application, interpolate, rows_of
from scheduler.simulator.work_rate import WorkRate

_BATCHES: Final = 40  # batch sizes that are tried, evenly in the logarithm
_Numbers = NDArray[np.float64]


def read(path: Path, profiles: Path, *, gpus: int) -> list[Arrival]:
    """The jobs of a workload, each elastic with one worker or more, of one GPU each, as far as its largest batch goes.

    Raises:
        ScenarioError: with file, line and column.
    """
    found: dict[str, BestBatchProfile] = {}
    arrivals: list[Arrival] = []
    for row in rows_of(path, profiles):
        profile = found.get(row.application.name)
        if profile is None:
            most = min(gpus, max(row.application.validation))
            profile = found[row.application.name] = BestBatchProfile(row.application, most)
        gang = Gang((GangRole("worker", 1, ResourceRequest(1000, 2**30, 1), profile.most),))
        arrivals.append(
            Arrival(
                row.name,
                row.at_s,
                profile.duration_s,
                gang,
                gang.shape(),
                title=row.name,
                code=row.application.name,
                profile=profile,
            )
        )
    return from_zero(arrivals)


class BestBatchProfile:
    """Speeds of one application by size. Its work is measured in seconds with ``most`` GPUs on as few nodes as
    possible.
    """

    start_s = START_S

    def __init__(self, application: Application, most: int) -> None:
        self.application = application
        self.most = most
        sizes = sorted(application.validation)
        self._sizes = np.array(sizes, dtype=float)
        noises = [[epoch.noise for epoch in application.validation[size][: application.epochs]] for size in sizes]
        self._noise: _Numbers = np.array(noises)  # batch size x epoch x (squared gradient, variance)
        reached = [
            min(epochs[epoch].progress for epochs in application.validation.values())
            for epoch in range(application.epochs)
        ]
        self._progress: _Numbers = np.diff(np.array([0.0, *reached]))
        self._fastest = self._epochs_s(most, math.ceil(most / NODE_GPUS))
        self._ends = tuple(accumulate((START_S, *(float(s) for s in self._fastest))))
        self._rates: dict[tuple[int, int], WorkRate] = {}

    @property
    def duration_s(self) -> float:
        """With all GPUs, the first start included."""
        return self._ends[-1]

    def rate(self, replicas: int, nodes: int) -> WorkRate:
        rate = self._rates.get((replicas, nodes))
        if rate is None:
            speeds = self._fastest / self._epochs_s(replicas, nodes)
            rate = self._rates[replicas, nodes] = WorkRate(self._ends, (1.0, *(float(speed) for speed in speeds)))
        return rate

    def _epochs_s(self, replicas: int, nodes: int) -> _Numbers:
        """Seconds of each epoch with the best batch size."""
        goodput = np.zeros(self.application.epochs)
        measured = self.application.timings(replicas, nodes)
        for local, more in self._batches(replicas):
            step_s, sync_s = interpolate(measured, local)
            batch = replicas * local * (more + 1)
            goodput = np.maximum(goodput, self._gain(batch) / (step_s + more * (step_s - sync_s)))
        seconds: _Numbers = np.maximum(self._progress / goodput, 1e-9)
        return seconds

    def _batches(self, replicas: int) -> Iterator[tuple[int, int]]:
        """Batch sizes of a replica, with the number of further steps whose gradients are accumulated."""
        smallest, largest = self._sizes[0], self._sizes[-1]
        for batch in np.geomspace(smallest, largest, _BATCHES):
            local = math.ceil(batch / replicas - 1e-8)
            more = math.ceil(local / self.application.most_local - 1e-8) - 1
            if replicas == 1 and batch > smallest:
                more = max(1, more)  # the noise of gradients cannot be measured otherwise
            local = min(math.ceil(local / (more + 1) - 1e-8), int(largest / (replicas * (more + 1))))
            if local > 0:
                yield local, more

    def _gain(self, batch: float) -> _Numbers:
        """Progress of a step in each epoch, in steps of the smallest batch size."""
        below = max(0, int(np.searchsorted(self._sizes, batch, side="right")) - 1)
        above = min(below + 1, len(self._sizes) - 1)
        low, high = self._sizes[below], self._sizes[above]
        part = max(0.0, (batch - low) / (high - low)) if above > below else 0.0
        squared, variance = ((1 - part) * self._noise[below] + part * self._noise[above]).T
        gain: _Numbers = (variance + squared) / (variance / (batch / self._sizes[0]) + squared)
        return gain
