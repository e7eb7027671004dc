"""Taking turns: projects by their shares, and inside each its users (:mod:`.order` tells the rule)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from operator import itemgetter
from typing import Final, Generic, TypeVar

from scheduler.planning.model import QueuedGang
from scheduler.planning.queue.job_classes import Entry, Kind, Run, Turn, end_of_kind
from scheduler.planning.queue.quota import is_guaranteed, is_guaranteed_to_user
from scheduler.planning.queue.shares import Shares

_ROUNDING: Final = 1e-9  # of shares, which are 0 to 1


def fill_up(projects: list[Project], shares: Shares, waits: Callable[[Kind], bool]) -> Iterator[Run]:
    """Their jobs, the next one first; those together that wait and come one after another, as far as they are alike."""
    turns = Turns(projects)
    alone = 0  # how many are taken one by one until it is looked again whether some can be taken together
    while (project := turns.first()) is not None:
        if alone <= 0 and len(tied := turns.tied()) > 1:
            merged = _merged(tied, waits)
            if len(merged) >= len(tied):
                yield merged
                for one in tied:
                    one.look(shares)
                turns.update_all(tied)
                continue
            alone = len(tied)
        alone -= 1
        yield from project.take(shares, turns, waits)
        turns.update(project)


def _merged(projects: Sequence[Project], waits: Callable[[Kind], bool]) -> Sequence[Entry]:
    """What they take in turn, if only the turns of their jobs tell whose turn it is, until one of them has a job of another
    kind next: then it may have another place. Nothing if one of them has a job that may start, or too few.
    """
    runs = [project.next_alike(waits) for project in projects]
    if not all(runs):
        return ()
    until = min(line.jobs[end - 1][0] for line, end in filter(None, runs))
    parts = [
        (line, bisect_right(line.jobs, until, line.at, end, key=itemgetter(0))) for line, end in filter(None, runs)
    ]
    if sum(end - line.at for line, end in parts) < len(projects):
        return ()
    merged: list[Entry] = []
    for line, end in parts:
        merged += line.jobs[line.at : end]
        line.at = end
    merged.sort(key=itemgetter(0))
    return merged


@dataclass(slots=True, eq=False)
class Side:
    """Somebody who takes turns. ``share``: by weight; ``size``: by how much a small job raises it; ``is_owed``: comes first."""

    name: str
    weight: float = 1.0
    share: float = 0.0
    size: float = 0.0
    turn: Turn = (0.0, 0, 0.0, "")
    starves_s: float | None = None  # since when its next job has starved, in seconds from now
    is_owed: bool = False
    is_empty: bool = False


_Some = TypeVar("_Some", bound=Side)


class Turns(Generic[_Some]):
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

    def keeps_until(self, entries: Sequence[Entry], at: int, end: int) -> int:
        """Whose turn it is has these jobs next, for whom nothing of its place changes but their own turns: the first of them
        before which somebody else comes.
        """
        rival = min(self._ready[1:3], default=None)  # the next in a heap is one of these two
        mine = self._ready[0]
        if rival is None or mine[:3] != rival[:3]:
            return end
        return bisect_left(entries, (rival[3], rival[4]), at, end, key=lambda entry: (entry[0], mine[4]))

    def tied(self) -> list[_Some]:
        """Whose turn it is, and who comes after it for the turn of its job alone."""
        ready, mine = self._ready, self._ready[0]
        mean = self._weighted / self._weights + _ROUNDING
        found: list[_Some] = []
        places = [0]
        while places:  # in a heap they hang together
            place = places.pop()
            if place < len(ready) and ready[place][:3] == mine[:3]:
                side = ready[place][5]
                if side.is_owed or side.share <= mean:
                    found.append(side)
                places += (2 * place + 1, 2 * place + 2)
        return found

    def update_all(self, sides: Sequence[_Some]) -> None:
        """These have changed; none of them by its share."""
        changed = {side.name for side in sides}
        self._ready = [entry for entry in self._ready if entry[4] not in changed]
        self._ready += [self._entry(side) for side in sides if not side.is_empty]
        heapify(self._ready)
        for side in sides:
            if side.is_empty:
                self._weights -= side.weight
                self._weighted -= self._counted.pop(side.name)

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
class Line(Side):
    """The jobs of one user, sorted, and how far they have been taken."""

    jobs: list[Entry] = field(default_factory=list)
    at: int = 0
    is_idle: Callable[[Kind], bool] | None = None  # whether such a job may not start, whatever is free
    idle: list[Entry] = field(default_factory=list)  # where those go
    is_promised: bool = False  # something is guaranteed to the user
    _alike_until: int = 0

    def alike_until(self) -> int:
        """Where the jobs at the head end that are of one kind."""
        if self.at >= self._alike_until:
            self._alike_until = end_of_kind(self.jobs, self.at)
        return self._alike_until

    def skip(self) -> bool:
        """Leave out those at the head that may not start; whether there were any."""
        at, jobs, is_idle = self.at, self.jobs, self.is_idle
        if is_idle is not None:
            while self.at < len(jobs) and is_idle(jobs[self.at][2]):
                self.idle.append(jobs[self.at])
                self.at += 1
        return self.at > at

    def look(self, shares: Shares, project: str) -> None:
        """Take in what its share and its next job are now."""
        self.skip()
        self.is_empty = self.at >= len(self.jobs)
        if not self.is_empty:
            self.turn, job, _ = self.jobs[self.at]
            self.share = shares.of_user(project, self.name)
            if self.is_promised:
                need = shares.likely(job.gang, job.shape)
                self.is_owed = is_guaranteed_to_user(project, self.name, need, shares, waits=job.gang)
            since_s = self.turn[2]
            if job.waits_since is not None:
                since_s += (job.waits_since - job.queued_at).total_seconds()
            self.starves_s = since_s if -since_s >= shares.policy.starvation_s else None

    @property
    def head(self) -> QueuedGang:
        return self.jobs[self.at][1]

    @property
    def head_kind(self) -> Kind:
        return self.jobs[self.at][2]


class Project(Side):
    """One project, and the turns of its users."""

    __slots__ = ("_changes", "_guarantees", "_lines")

    def __init__(self, name: str, lines: list[Line], shares: Shares, unit: float) -> None:
        weight = shares.weight_of(name)
        super().__init__(name, weight, size=unit / weight)
        account = shares.accounts.get(name)
        of_users = account.quota.user_guaranteed if account is not None else {}
        for line in lines:
            line.is_promised = bool(of_users.get(line.name))
            line.size = unit / line.weight
            line.look(shares, name)
        self._lines = Turns(sorted(lines, key=lambda line: line.name))
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

    def next_alike(self, waits: Callable[[Kind], bool]) -> tuple[Line, int] | None:
        """Whose jobs are next, and up to which: of one kind that waits, and judged one by one. ``None``: none such."""
        line = self._lines.first()
        if line is None or line.at >= len(line.jobs) or not (self._guarantees or line.is_promised):
            return None
        kind = line.head_kind
        if kind.is_aged or kind.is_idle or not waits(kind) or len(self._lines.tied()) > 1:
            return None
        return line, line.alike_until()

    def look(self, shares: Shares) -> None:
        """Jobs of the user whose turn it is were taken; none has started."""
        line = self._lines.first()
        if line is not None:
            line.look(shares, self.name)
            self._lines.update(line)
        self._look(shares)

    def take(self, shares: Shares, turns: Turns[Project], waits: Callable[[Kind], bool]) -> Iterator[Run]:
        """The next jobs of one user until one of them starts, as that changes whose turn it is."""
        line = self._lines.first()
        if line is None:
            return
        changes, name, jobs = shares.changes, self.name, line.jobs
        looks_again = self._guarantees or line.is_promised  # after each job, as these are judged one by one
        # Another user's start may have used up what the quota leaves: then it was not for its next job that it came.
        is_late = line.skip()
        while line.at < len(jobs) and not is_late:
            at, kind = line.at, jobs[line.at][2]
            if kind.is_aged or not waits(kind):
                line.at += 1
                yield jobs[at : line.at]
            else:
                line.at = line.alike_until()
                if looks_again:
                    line.at = self._lines.keeps_until(jobs, at + 1, line.at)
                    line.at = turns.keeps_until(jobs, at + 1, line.at)
                yield jobs[at : line.at]
            if line.skip() and line.at == len(jobs):
                break
            if changes.get(name, 0) != self._changes or looks_again:
                self._changes = changes.get(name, 0)
                break
        line.look(shares, name)
        self._lines.update(line)
        self._look(shares)
