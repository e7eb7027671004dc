"""Who comes next: larger priority, then the project and in it the user whose turn it is by shares, then the policy's order.

Projects fill up progressively: a start raises its project's share, and then it is the turn of another one. Whose turn it
is, is decided as in worst-case fair weighted fair queueing (Bennett and Zhang, "WF2Q", INFOCOM 1996): among those that
do not have more than the mean by their weights, the one that has least once a job has started. "The least before" alone
would let many light projects each get ahead by a job, and a heavy one pay for all of them; so with equal jobs everybody
ends within one of what the weights entitle to. That job is not the next one of each but as small as the smallest of
these: otherwise small jobs, which end and come again, would pass a large gang for ever. And whoever's next job has starved
comes before the others that do not have more than the mean, the one first that starves longest: shares waver, and the
room that is kept for a gang would change hands with them. Users take turns inside their project in the same way.

The simple equivalent works out all keys again after every start. Here only what a start can change is kept in heaps; the
jobs of one user are sorted once, and go by in one go while nothing starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from heapq import heapify, heappop, heappush, heapreplace
from operator import itemgetter
from typing import Final, Generic, TypeVar

from core.domain.ids import JobId
from scheduler.planning.measure import drain_s, measure
from scheduler.planning.model import QueuedGang, RunningGang, Snapshot
from scheduler.planning.policy import Policy, QueueOrder
from scheduler.planning.quota import is_guaranteed, is_guaranteed_to_user
from scheduler.planning.shares import Shares

# What the policy compares: GPU-seconds or a level; then when it queued, in seconds from now; then the id.
Turn = tuple[float, float, str]
_EVERYBODY: Final = ("", "")
_Entry = tuple[Turn, QueuedGang]
# Behind so many nobody needs to know the place in the queue exactly.
_LOOKED_AHEAD: Final = 1000
_ROUNDING: Final = 1e-9  # of shares, which are 0 to 1


def turn_of(job: QueuedGang | RunningGang, policy: Policy, now: datetime, long_s: float = float("inf")) -> Turn:
    """The place of a job among those of one user, by ``policy.order``. ``long_s``: as :func:`.measure.drain_s` says."""
    queued_s = 0.0 if job.queued_at is None else (job.queued_at - now).total_seconds()
    compared = 0.0
    if policy.order is not QueueOrder.FIFO:
        waits_s = 0.0
        if isinstance(job, QueuedGang):
            waits_s = -queued_s if job.waits_since is None else (now - job.waits_since).total_seconds()
        if waits_s < policy.starvation_s:
            compared = measure(job, policy, long_s)
    return compared, queued_s, job.job_id


class Queue:
    """The waiting jobs of one snapshot. :meth:`walk` yields them in order while starts change ``shares``.

    Who may not start, whatever is free, comes after all others of its priority and takes no turn: at the head of its line it
    would lend its age, or what is guaranteed to its project, to those behind it.

    Attributes:
        withdrawn: jobs that started; they are left out from the next walk on.
        idle: those that are known to be such as may not start.

    Args:
        can_run: whether the empty cluster could hold a job; asked once of each shape.
        may_start: whether quotas and bookings let a job start somewhere, were that free. Once no, it stays so as long as
            jobs only start. ``None``: there are none.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        shares: Shares,
        can_run: Callable[[QueuedGang], bool],
        may_start: Callable[[QueuedGang], bool] | None = None,
    ) -> None:
        self.shares = shares
        self.withdrawn: set[JobId] = set()
        self.idle: set[JobId] = set()
        self._is_fair = snapshot.policy.is_fair
        self._owed = frozenset(name for name, account in shares.accounts.items() if account.quota.guaranteed)
        lines: dict[int, dict[tuple[str, str], list[_Entry]]] = {}
        policy, now, long_s = snapshot.policy, snapshot.now, drain_s(snapshot)
        for job in snapshot.queued:
            who = (job.project, job.user) if self._is_fair else _EVERYBODY
            lines.setdefault(-job.priority, {}).setdefault(who, []).append((turn_of(job, policy, now, long_s), job))
        firsts = {job.shape: job for job in snapshot.queued}
        self._hopeless = {shape for shape, job in firsts.items() if not can_run(job)}
        self._may_start = may_start
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
        if all(len(users) == 1 for users in self._ranks) and (self._is_fair or not self._owed):
            return list(self.walk())
        twin = self.shares.copy()
        taken: list[QueuedGang] = []
        for job in self._walk(twin):
            if len(taken) < _LOOKED_AHEAD and job.job_id not in self.idle:
                twin.add(job.project, job.user, twin.likely(job.gang, job.shape))
            taken.append(job)
        return taken

    def _is_idle(self, job: QueuedGang) -> bool:
        if job.job_id in self.idle:
            return True
        if job.shape not in self._hopeless and (self._may_start is None or self._may_start(job)):
            return False
        self.idle.add(job.job_id)
        return True

    def _walk(self, shares: Shares) -> Iterator[QueuedGang]:
        gone = self.withdrawn.copy()
        is_idle = self._is_idle if self._hopeless or self._may_start is not None else None
        for users in self._ranks:
            by_project: dict[str, list[_Line]] = {}
            idle: list[_Entry] = []
            for (project, user), entries in users.items():
                jobs = [entry for entry in entries if entry[1].job_id not in gone] if gone else entries
                if len(users) == 1:  # nobody to take turns with
                    in_line = _in_line(jobs, is_idle, idle)
                    yield from in_line if self._is_fair or not self._owed else self._guaranteed_first(in_line, shares)
                    continue
                line = _Line(user, shares.weight_of_user(project, user), jobs=jobs, is_idle=is_idle, idle=idle)
                line.skip()
                if line.at < len(jobs):
                    by_project.setdefault(project, []).append(line)
            lines = [line for its in by_project.values() for line in its]
            unit = min((shares.step(line.head.gang, line.head.shape) for line in lines), default=0.0)
            projects = [_Project(name, its, shares, unit) for name, its in sorted(by_project.items())]
            yield from _fill(projects, shares)
            idle.sort(key=itemgetter(0))
            if self._hopeless:
                idle.sort(key=lambda entry: entry[1].shape in self._hopeless)
            yield from (job for _, job in idle)

    def _guaranteed_first(self, jobs: Iterable[QueuedGang], shares: Shares) -> Iterator[QueuedGang]:
        """In one line: those first that stay within what is guaranteed to their projects, of these first those whose users
        stay within theirs.

        A pass finds them, as all only get more: who would not stay within it when asked would not later either.
        """
        others: list[QueuedGang] = []
        for are_users in (True, False):
            if are_users and not any(shares.accounts[project].quota.user_guaranteed for project in self._owed):
                continue
            others = []
            for job in jobs:
                if job.project in self._owed:
                    need = shares.likely(job.gang, job.shape)
                    is_owed = is_guaranteed(job.project, need, shares, waits=job.gang)
                    if is_owed and (
                        not are_users or is_guaranteed_to_user(job.project, job.user, need, shares, waits=job.gang)
                    ):
                        yield job
                        continue
                others.append(job)
            jobs = others
        yield from others


def _in_line(
    entries: Iterable[_Entry], is_idle: Callable[[QueuedGang], bool] | None, idle: list[_Entry]
) -> Iterator[QueuedGang]:
    """One line; who may not start is put into ``idle`` instead."""
    for entry in entries:
        if is_idle is not None and is_idle(entry[1]):
            idle.append(entry)
        else:
            yield entry[1]


def _fill(projects: list[_Project], shares: Shares) -> Iterator[QueuedGang]:
    turns = _Turns(projects)
    while (project := turns.first()) is not None:
        yield from project.take(shares)
        turns.update(project)


@dataclass(slots=True, eq=False)
class _Side:
    """Somebody who takes turns. ``share``: by weight; ``size``: by how much a small job raises it; ``is_owed``: comes first."""

    name: str
    weight: float = 1.0
    share: float = 0.0
    size: float = 0.0
    turn: Turn = (0.0, 0.0, "")
    starves_s: float | None = None  # since when its next job has starved, in seconds from now
    is_owed: bool = False
    is_empty: bool = False


_Some = TypeVar("_Some", bound=_Side)


class _Turns(Generic[_Some]):
    """Whose turn it is among sides of which only the one whose turn it is changes."""

    __slots__ = ("_counted", "_later", "_ready", "_weighted", "_weights")

    def __init__(self, sides: Sequence[_Some]) -> None:
        self._ready: list[tuple[bool, bool, float, Turn, str, _Some]] = []
        self._later = [(side.share, side.name, side) for side in sides]
        heapify(self._later)
        self._counted = {side.name: side.weight * side.share for side in sides}
        self._weights = sum(side.weight for side in sides)
        self._weighted = sum(self._counted.values())
        for side in sides:
            if side.is_owed:
                self._ready.append(self._entry(side))
        if self._ready:
            heapify(self._ready)
            self._later = [entry for entry in self._later if not entry[2].is_owed]
            heapify(self._later)

    def _entry(self, side: _Some) -> tuple[bool, bool, float, Turn, str, _Some]:
        starves_s = side.starves_s
        compared = side.share + side.size if starves_s is None else starves_s
        return not side.is_owed, starves_s is None, compared, side.turn, side.name, side

    def first(self) -> _Some | None:
        """Whose turn it is; ``None`` when all are empty."""
        mean = self._weighted / self._weights + _ROUNDING if self._counted else 0.0
        while self._later and self._later[0][0] <= mean:
            heappush(self._ready, self._entry(heappop(self._later)[2]))
        while self._ready:
            side = self._ready[0][5]
            if side.is_owed or side.share <= mean:
                return side
            heappop(self._ready)
            heappush(self._later, (side.share, side.name, side))
        if not self._later:
            return None
        side = heappop(self._later)[2]
        self._ready.append(self._entry(side))
        return side

    def update(self, side: _Some) -> None:
        """Whose turn it was has changed."""
        self._weighted -= self._counted[side.name]
        if side.is_empty:
            heappop(self._ready)
            self._weights -= side.weight
            del self._counted[side.name]
        else:
            heapreplace(self._ready, self._entry(side))
            self._counted[side.name] = side.weight * side.share
            self._weighted += self._counted[side.name]


@dataclass(slots=True, eq=False)
class _Line(_Side):
    """The jobs of one user, sorted, and how far they have been taken."""

    jobs: list[_Entry] = field(default_factory=list)
    at: int = 0
    is_idle: Callable[[QueuedGang], bool] | None = None  # whether a job may not start, whatever is free
    idle: list[_Entry] = field(default_factory=list)  # where those go
    is_promised: bool = False  # something is guaranteed to the user

    def skip(self) -> bool:
        """Leave out those at the head that may not start; whether there were any."""
        at, jobs, is_idle = self.at, self.jobs, self.is_idle
        if is_idle is not None:
            while self.at < len(jobs) and is_idle(jobs[self.at][1]):
                self.idle.append(jobs[self.at])
                self.at += 1
        return self.at > at

    def look(self, shares: Shares, project: str) -> None:
        """Take in what its share and its next job are now."""
        self.skip()
        self.is_empty = self.at >= len(self.jobs)
        if not self.is_empty:
            self.turn, job = self.jobs[self.at]
            self.share = shares.of_user(project, self.name)
            if self.is_promised:
                need = shares.likely(job.gang, job.shape)
                self.is_owed = is_guaranteed_to_user(project, self.name, need, shares, waits=job.gang)
            since_s = self.turn[1]
            if job.waits_since is not None:
                since_s += (job.waits_since - job.queued_at).total_seconds()
            self.starves_s = since_s if -since_s >= shares.policy.starvation_s else None

    @property
    def head(self) -> QueuedGang:
        return self.jobs[self.at][1]


class _Project(_Side):
    """One project, and the turns of its users."""

    __slots__ = ("_changes", "_guarantees", "_lines")

    def __init__(self, name: str, lines: list[_Line], shares: Shares, unit: float) -> None:
        weight = shares.weight_of(name)
        super().__init__(name, weight, size=unit / weight)
        account = shares.accounts.get(name)
        of_users = account.quota.user_guaranteed if account is not None else {}
        for line in lines:
            line.is_promised = bool(of_users.get(line.name))
            line.size = unit / line.weight
            line.look(shares, name)
        self._lines = _Turns(sorted(lines, key=lambda line: line.name))
        self._changes = shares.changes.get(name, 0)
        self._guarantees = shares.guarantees(name)
        self._look(shares)

    def _look(self, shares: Shares) -> None:
        line = self._lines.first()
        self.is_empty = line is None
        if line is not None:
            self.turn = line.turn
            self.starves_s = line.starves_s
            self.share = shares.of_project(self.name)
            if self._guarantees:
                job = line.head
                self.is_owed = is_guaranteed(self.name, shares.likely(job.gang, job.shape), shares, waits=job.gang)

    def take(self, shares: Shares) -> Iterator[QueuedGang]:
        """The next jobs of one user until one of them starts, as that changes whose turn it is."""
        line = self._lines.first()
        if line is None:
            return
        changes, name, jobs = shares.changes, self.name, line.jobs
        # Another user's start may have used up what the quota leaves: then it was not for its next job that it came.
        is_late = line.skip()
        while line.at < len(jobs) and not is_late:
            line.at += 1
            yield jobs[line.at - 1][1]
            if line.skip() and line.at == len(jobs):
                break
            if changes.get(name, 0) != self._changes or self._guarantees or line.is_promised:
                self._changes = changes.get(name, 0)
                break
        line.look(shares, name)
        self._lines.update(line)
        self._look(shares)
