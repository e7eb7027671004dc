"""Who comes next: larger priority, then the project and in it the user with the smallest share, then the policy's order.

The simple equivalent sorts all jobs again after every start, by :func:`claim`. Here only what a start can change is kept
in heaps: projects by share, in each its users; the jobs of one user are sorted once. Of a project (a user) only its own
starts change the share, and they only raise it, so an entry that is not on top of its heap is never too far down.
"""

from __future__ import annotations

from bisect import bisect_right
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

# What the policy compares: GPU-seconds or a level; then when it queued, in seconds from now; then the id.
Turn = tuple[float, float, str]
_EVERYBODY: Final = ("", "")
_Key = tuple[bool, float, Turn]
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
    queued_s = 0.0 if job.queued_at is None else (job.queued_at - now).total_seconds()
    measure = 0.0
    if policy.order is not QueueOrder.FIFO:
        waits_s = 0.0
        if isinstance(job, QueuedGang):
            waits_s = -queued_s if job.waits_since is None else (now - job.waits_since).total_seconds()
        if waits_s < policy.starvation_s:
            measure = _measure(job, policy)
    return measure, queued_s, job.job_id


def _measure(job: QueuedGang | RunningGang, policy: Policy) -> float:
    ends = policy.levels_gpu_s
    level = bisect_right(ends, job.attained_gpu_s)
    if policy.order is QueueOrder.ATTAINED_SERVICE:
        return level
    if job.estimate is not None:
        return job.estimate.likely_s * gpus_of(job.gang)
    # Nobody knows: taken to need what its level allows; where levels have no end, as much again as it had, which half
    # of all jobs do whose durations have a heavy tail (Harchol-Balter and Downey, "Exploiting process lifetime
    # distributions for dynamic load balancing", 1997).
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
        gone = self.withdrawn.copy()
        for users in self._ranks:
            by_project: dict[str, list[_Line]] = {}
            for (project, user), entries in users.items():
                jobs = [entry for entry in entries if entry[1].job_id not in gone] if gone else entries
                if not jobs:
                    continue
                if not self._is_fair:
                    yield from (job for _, job in jobs)
                    continue
                by_project.setdefault(project, []).append(_Line(user, jobs))
            yield from _fill([_Project(name, lines, shares) for name, lines in by_project.items()])


def _fill(projects: list[_Project]) -> Iterator[QueuedGang]:
    """Progressive filling: the project with the smallest key gives its next jobs, until another one has a smaller key."""
    heap = [(project.key(), project.name, project) for project in projects]
    heapify(heap)
    while heap:
        project = heap[0][2]
        rival = min(heap[1:3], default=None)  # below the top of a heap, the smaller of two
        yield from project.jobs_before(None if rival is None else rival[:2])
        if project.is_empty:
            heappop(heap)
        else:
            heapreplace(heap, (project.key(), project.name, project))


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
    def is_empty(self) -> bool:
        return not self._heap

    def key(self) -> _Key:
        _, turn, _, line = self._heap[0]
        is_owed = False
        if self._guarantees:
            job = line.jobs[line.at][1]
            is_owed = is_guaranteed(self.name, self._shares.likely(job.gang, job.shape), self._shares)
        return not is_owed, self.share, turn

    def jobs_before(self, rival: tuple[_Key, str] | None) -> Iterator[QueuedGang]:
        """The next jobs, at least one, while no other project has a smaller key than this one."""
        changes, name = self._shares.changes, self.name
        while self._heap:
            share, _, user, line = self._heap[0]
            jobs = line.jobs
            other = min(self._heap[1:3], default=None)
            # While nothing starts, shares stay: one that is really the smallest stays so for all jobs of the user.
            is_alone = (
                not self._guarantees
                and (other is None or share < other[0])
                and (rival is None or (True, self.share) < rival[0][:2])
            )
            for at in range(line.at, len(jobs)) if is_alone else (line.at,):
                line.at = at + 1
                yield jobs[at][1]
                if changes.get(name, 0) != self._changes:
                    self._changes = changes[name]
                    self.share = self._shares.of_project(name)
                    share = self._shares.of_user(name, user)
                    break
            if line.at < len(jobs):
                heapreplace(self._heap, (share, jobs[line.at][0], user, line))
            else:
                heappop(self._heap)
            if rival is not None and self._heap and (self.key(), name) > rival:
                return
