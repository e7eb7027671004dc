"""Overtaken jobs: those that wait while others of their kind, which came later, get the room.

In an order by length (``shortest-first``, ``fair-finish``) a blocked gang whose start has no known time holds no room
against other jobs at first: reserved nodes would be idle for as long as jobs of unknown length run there. It does once
it is *overtaken*: it has waited for half an hour, and for much longer than is usual among the jobs that compete with
it. Waits are compared and not bounded, since in a crowded cluster everybody waits for days. A quantile is compared and
not the mean, which in a small cluster the gang's own wait decides; and only within one kind, since otherwise thirty
blocked pools would hide the thirty-first.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from math import inf
from typing import Final

import numpy as np

from core.domain.sharing.gpus import accepted_models
from core.domain.sharing.resources import Gang
from scheduler.planning.model import QueuedGang, RunningGang, Snapshot
from scheduler.planning.queue.policy_key import BY_LENGTH
from scheduler.planning.queue.shares import gpu_milli

OVERTAKEN_AFTER_S: Final = 1800.0
# So many times the wait that three quarters of the competing jobs do not exceed. With 4 gangs hold room so early that
# mean completion times rise by a fifth.
_MUCH_LONGER: Final = 8.0
_USUAL: Final = 0.75
# To take room back by stopping others, which costs restarts, it must have waited longer still.
_TAKES_BACK: Final = 16.0
# Waits are compared again after this factor, but not of jobs that have waited for longer than the last time.
_LATER: Final = 1.25
_LAST_COMPARED_S: Final = 100 * 24 * 3600.0

_Kind = tuple[tuple[tuple[str, str], ...], frozenset[str] | None]  # node selector; GPU models, None without GPUs


class Overtaking:
    """The waits of one snapshot, compared. Everything is computed on first use."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._now: datetime = snapshot.now
        self.is_by_length = snapshot.policy.order in BY_LENGTH
        self._kinds: dict[int, _Kind] = {}  # by identity of the gang, which lives as long as the snapshot
        self._by_kind: dict[_Kind, list[float]] | None = None
        self._usual_s: dict[_Kind, tuple[float, float]] = {}
        self._models: tuple[str, ...] = ()

    def since(self, job: QueuedGang) -> datetime:
        """Since when it waits without resources."""
        return job.waits_since or job.queued_at

    def is_overtaken(self, job: QueuedGang) -> bool:
        """Whether its reservation binds others, even where its start has no known time."""
        return self._has_waited(job, _MUCH_LONGER)

    def may_take_back(self, job: QueuedGang) -> bool:
        """Whether it may stop smaller jobs that passed it, before their time slices are over."""
        return self._has_waited(job, _TAKES_BACK)

    def _has_waited(self, job: QueuedGang, factor: float) -> bool:
        if not self.is_by_length:
            return False
        wait_s = (self._now - self.since(job)).total_seconds()
        return wait_s >= OVERTAKEN_AFTER_S and wait_s >= factor * self._usual_wait_s(job, wait_s)

    def _usual_wait_s(self, job: QueuedGang, wait_s: float) -> float:
        """The wait that three quarters of the jobs that compete with it, itself left out, do not exceed."""
        kind = self._kind(job.gang)
        usual = self._usual_s.get(kind)
        if usual is None:
            usual = self._usual_s[kind] = self._quantiles_s(kind)
        return usual[0] if wait_s > usual[0] else usual[1]

    def _quantiles_s(self, kind: _Kind) -> tuple[float, float]:
        """The quantile without one of the longer waits, and without one of the shorter."""
        if self._by_kind is None:
            self._by_kind = self._read()
        waits_s = np.sort(
            np.concatenate([np.array(waits_s) for other, waits_s in self._by_kind.items() if _compete(kind, other)])
        )
        others = len(waits_s) - 1
        if others < 1:
            return 0.0, 0.0
        rank = int(_USUAL * (others - 1))
        return float(waits_s[rank]), float(waits_s[rank + 1])

    def _read(self) -> dict[_Kind, list[float]]:
        by_kind: dict[_Kind, list[float]] = {}
        now = self._now
        for job in self._snapshot.queued:
            by_kind.setdefault(self._kind(job.gang), []).append((now - self.since(job)).total_seconds())
        for gang in self._snapshot.running:
            if not gang.is_part and gang.queued_at is not None:
                wait_s = ((gang.started_at or now) - gang.queued_at).total_seconds() - gang.earlier_s
                by_kind.setdefault(self._kind(gang.gang), []).append(max(0.0, wait_s))
        return by_kind

    def _kind(self, gang: Gang) -> _Kind:
        kind = self._kinds.get(id(gang))
        if kind is None:
            if not self._models:
                self._models = tuple(sorted({m for node in self._snapshot.nodes for m in node.allocatable.gpus}))
            kind = self._kinds[id(gang)] = _kind_of(gang, self._models)
        return kind


def _kind_of(gang: Gang, models: tuple[str, ...]) -> _Kind:
    requests = [role.request for role in gang.roles if gpu_milli(role.request)]
    usable = {
        model
        for request in requests
        for model in (accepted_models(request.gpu_models, models) if request.gpu_models else models)
    }
    return gang.node_selector, frozenset(usable) if requests else None


def _compete(kind: _Kind, other: _Kind) -> bool:
    """Whether jobs of both kinds may want the same nodes."""
    labels = dict(kind[0])
    if any(labels.get(key, value) != value for key, value in other[0]):
        return False
    if kind[1] is None or other[1] is None:
        return kind[1] is other[1]
    return kind == other or not kind[1].isdisjoint(other[1])


def next_overtaken_s(queued: Iterable[QueuedGang], now: datetime) -> float:
    """In how many seconds the planner should look again, since a job may be overtaken by then; infinite if never.

    Of all jobs with one node selector the one that waits longest counts: half an hour after its begin, and then each
    time that its wait has grown by a quarter.
    """
    oldest: dict[tuple[tuple[str, str], ...], datetime] = {}
    for job in queued:
        since, selector = job.waits_since or job.queued_at, job.gang.node_selector
        if since < oldest.setdefault(selector, since):
            oldest[selector] = since
    nearest_s = inf
    for since in oldest.values():
        wait_s, mark_s = (now - since).total_seconds(), OVERTAKEN_AFTER_S
        while mark_s <= wait_s + 1e-3:
            mark_s *= _LATER
        if mark_s <= _LAST_COMPARED_S:
            nearest_s = min(nearest_s, mark_s - wait_s)
    return nearest_s


def has_passed(gang: RunningGang, since: datetime) -> bool:
    """Whether it was started after ``since``."""
    return gang.started_at is not None and gang.started_at > since
