"""Who comes next: larger priority, then the project and in it the user with the smallest share, then the policy's order.

The simple equivalent sorts all jobs again after every start, by :func:`claim`. Here only what a start can change is kept
in heaps: projects by share, in each its users; the jobs of one user are sorted once. Of a project (a user) only its own
starts change the share, and they only raise it, so an entry that is not on top of its heap is never too far down.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from heapq import heapify, heappop, heapreplace
from operator import itemgetter
from typing import Final

from core.domain.ids import JobId
from scheduler.planning.model import QueuedGang, RunningGang, Snapshot
from scheduler.planning.policy import Policy, QueueOrder
from scheduler.planning.quota import is_guaranteed
from scheduler.planning.shares import Shares, gpus_of

# What the policy compares: GPU-seconds or a level; then who queued first, then the id.
Turn = tuple[float, float, str]
_EVERYBODY: Final = ("", "")
_Entry = tuple[Turn, QueuedGang]
# Behind so many nobody needs to know the place in the queue exactly.
_LOOKED_AHEAD: Final = 1000


@dataclass(frozen=True, slots=True, order=True)
class Claim:
    """Where a job stands: the smaller one comes first. Of a job that runs: as if it waited, and its resources were free.

    ``rank``: the priority, negative. ``borrows``: it is not within what is guaranteed to its project. The shares are 0
    where the policy is not fair.
    """

    rank: int
    borrows: bool
    project_share: float
    user_share: float
    turn: Turn


def claim(job: QueuedGang | RunningGang, snapshot: Snapshot, shares: Shares) -> Claim:
    """The claim of a job with what is held according to ``shares``."""
    policy = snapshot.policy
    turn = turn_of(job, policy, snapshot.now)
    if not policy.is_fair:
        return Claim(-job.priority, False, 0.0, 0.0, turn)
    own = shares.of_running(job) if isinstance(job, RunningGang) else None
    need = shares.likely(job.gang, job.shape) if isinstance(job, QueuedGang) else shares.of_running(job)
    return Claim(
        -job.priority,
        not is_guaranteed(job.project, need, shares, is_held=own is not None),
        shares.of_project(job.project, own),
        shares.of_user(job.project, job.user, own),
        turn,
    )


def turn_of(job: QueuedGang | RunningGang, policy: Policy, now: datetime) -> Turn:
    """The place of a job among those of one user, by ``policy.order``."""
    queued_at = job.queued_at or now
    measure = 0.0
    if policy.order is not QueueOrder.FIFO:
        waited_s = 0.0
        if isinstance(job, QueuedGang):
            waited_s = (now - (job.waits_since or queued_at)).total_seconds()
        if waited_s < policy.starvation_s:
            measure = _measure(job, policy)
    return measure, queued_at.timestamp(), job.job_id


def _measure(job: QueuedGang | RunningGang, policy: Policy) -> float:
    level = policy.level(job.attained_gpu_s)
    if policy.order is QueueOrder.ATTAINED_SERVICE:
        return level
    if job.estimate is not None:
        return job.estimate.likely_s * gpus_of(job.gang)
    # Nobody knows: taken to need what its level allows; where levels have no end, as much again as it had, which half
    # of all jobs do whose durations have a heavy tail (Harchol-Balter and Downey, "Exploiting process lifetime
    # distributions for dynamic load balancing", 1997).
    ends = policy.levels_gpu_s
    return ends[level] if level < len(ends) else job.attained_gpu_s


class Queue:
    """The waiting jobs of one snapshot. :meth:`walk` yields them in order while starts change ``shares``.

    Attributes:
        withdrawn: jobs that started; they are left out from the next walk on.
    """

    def __init__(self, snapshot: Snapshot, shares: Shares) -> None:
        self.shares = shares
        self.withdrawn: set[JobId] = set()
        self._is_fair = snapshot.policy.is_fair
        lines: dict[int, dict[tuple[str, str], list[_Entry]]] = {}
        policy, now = snapshot.policy, snapshot.now
        for job in snapshot.queued:
            who = (job.project, job.user) if self._is_fair else _EVERYBODY
            lines.setdefault(-job.priority, {}).setdefault(who, []).append((turn_of(job, policy, now), job))
        for users in lines.values():
            for line in users.values():
                line.sort(key=itemgetter(0))
        self._ranks = [lines[rank] for rank in sorted(lines)]

    def walk(self) -> Iterator[QueuedGang]:
        """Every job, the next one first. A start must be told to ``shares`` before the next job is asked for."""
        return self._walk(self.shares)

    def in_turn(self) -> list[QueuedGang]:
        """Who waits, in the order in which they would be taken if each of them started when it is its turn.

        Where this is asked for, what the jobs would hold counts for the first thousand only; behind these whole users
        and projects follow one another.
        """
        if not self._is_fair:
            return list(self.walk())
        twin = self.shares.copy()
        taken: list[QueuedGang] = []
        for job in self._walk(twin):
            if len(taken) < _LOOKED_AHEAD:
                twin.add(job.project, job.user, twin.likely(job.gang, job.shape))
            taken.append(job)
        return taken

    def _walk(self, shares: Shares) -> Iterator[QueuedGang]:
        for users in self._ranks:
            by_project: dict[str, list[_Line]] = {}
            for (project, user), jobs in users.items():
                waiting = [entry for entry in jobs if entry[1].job_id not in self.withdrawn]
                if not waiting:
                    continue
                if not self._is_fair:
                    yield from (job for _, job in waiting)
                    continue
                by_project.setdefault(project, []).append(_Line(user, waiting))
            yield from _fill([_Project(name, lines, shares) for name, lines in by_project.items()])


def _fill(projects: list[_Project]) -> Iterator[QueuedGang]:
    """Progressive filling: the project with the smallest key gives its next job, then its key is worked out again."""
    heap = [(project.key(), project.name, project) for project in projects]
    heapify(heap)
    while heap:
        project = heap[0][2]
        rival = min(heap[1:3], default=None)  # below the top of a heap, the smaller of two
        while True:
            yield project.head
            if not project.advance():
                heappop(heap)
                break
            key = project.key()
            if rival is not None and (key, project.name) > rival[:2]:
                heapreplace(heap, (key, project.name, project))
                break


class _Line:
    """The jobs of one user, sorted, and how far they have been taken."""

    __slots__ = ("at", "jobs", "user")

    def __init__(self, user: str, jobs: list[_Entry]) -> None:
        self.user = user
        self.jobs = jobs
        self.at = 0


class _Project:
    """The waiting users of one project, by share."""

    __slots__ = ("_changes", "_guarantees", "_heap", "_shares", "name", "share")

    def __init__(self, name: str, lines: list[_Line], shares: Shares) -> None:
        self.name = name
        self.share = shares.of_project(name)
        self._shares = shares
        self._changes = shares.changes.get(name, 0)
        self._guarantees = shares.guarantees(name)
        self._heap = [(shares.of_user(name, line.user), line.jobs[0][0], line.user, line) for line in lines]
        heapify(self._heap)

    @property
    def head(self) -> QueuedGang:
        line = self._heap[0][3]
        return line.jobs[line.at][1]

    def key(self) -> tuple[bool, float, Turn]:
        is_owed = False
        if self._guarantees:
            job = self.head
            is_owed = is_guaranteed(self.name, self._shares.likely(job.gang, job.shape), self._shares)
        return not is_owed, self.share, self._heap[0][1]

    def advance(self) -> bool:
        """Go on behind the head, which has started or not; whether somebody is left."""
        share, _, user, line = self._heap[0]
        changes = self._shares.changes.get(self.name, 0)
        if changes != self._changes:
            self._changes = changes
            self.share = self._shares.of_project(self.name)
            share = self._shares.of_user(self.name, user)
        line.at += 1
        if line.at < len(line.jobs):
            heapreplace(self._heap, (share, line.jobs[line.at][0], user, line))
        else:
            heappop(self._heap)
        return bool(self._heap)
