"""Fair queue (WF²Q): projects by their shares, and within each project its users; :mod:`.ordering` describes the
rule.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from operator import itemgetter
from typing import Final, Generic, TypeVar

from scheduler.planning.model import QueuedGang
from scheduler.planning.queue.job_classes import Batch, JobClass, QueueEntry, SortKey, end_of_class
from scheduler.planning.queue.quota import is_guaranteed, is_guaranteed_to_user
from scheduler.planning.queue.shares import Shares

_ROUNDING: Final = 1e-9  # of shares, which range from 0 to 1


def progressive_filling(
    projects: list[ProjectQueue], shares: Shares, waits: Callable[[JobClass], bool]
) -> Iterator[Batch]:
    """The jobs of all projects in order of service.

    Batches hold consecutive jobs of one class which are known to wait; every other job comes alone.
    """
    fair_queue = FairQueue(projects)
    singles = 0  # jobs to take singly before testing again whether tied projects can be merged
    while (project := fair_queue.first()) is not None:
        if singles <= 0 and len(tied := fair_queue.tied()) > 1:
            merged = merge_tied(tied, waits)
            if len(merged) >= len(tied):
                yield merged
                for project in tied:
                    project.refresh(shares)
                fair_queue.update_all(tied)
                continue
            singles = len(tied)
        singles -= 1
        yield from project.take(shares, fair_queue, waits)
        fair_queue.update(project)


def merge_tied(projects: Sequence[ProjectQueue], waits: Callable[[JobClass], bool]) -> Sequence[QueueEntry]:
    """The jobs that tied projects take in turn while only the sort keys of their jobs decide, merged into one batch.

    Ends where one of them has a job of another class next, since its position may then change. Empty if one of them
    has a job that may start, or if the batch would be too small.
    """
    runs = [project.next_alike(waits) for project in projects]
    if not all(runs):
        return ()
    until = min(user_queue.jobs[end - 1][0] for user_queue, end in filter(None, runs))
    parts = [
        (user_queue, bisect_right(user_queue.jobs, until, user_queue.at, end, key=itemgetter(0)))
        for user_queue, end in filter(None, runs)
    ]
    if sum(end - user_queue.at for user_queue, end in parts) < len(projects):
        return ()
    merged: list[QueueEntry] = []
    for user_queue, end in parts:
        merged += user_queue.jobs[user_queue.at : end]
        user_queue.at = end
    merged.sort(key=itemgetter(0))
    return merged


@dataclass(slots=True, eq=False)
class ShareHolder:
    """A project or user in the fair queue. ``share``: its share by weight. ``increment``: how much a small job raises
    it. ``is_below_guarantee``: it precedes the others.
    """

    name: str
    weight: float = 1.0
    share: float = 0.0
    increment: float = 0.0
    sort_key: SortKey = (0.0, 0, 0.0, "")
    starves_s: float | None = None  # since when its next job starves, in seconds from now
    is_below_guarantee: bool = False
    is_empty: bool = False


_Holder = TypeVar("_Holder", bound=ShareHolder)


class FairQueue(Generic[_Holder]):
    """Priority queue of share holders; only the head's key changes."""

    __slots__ = ("_counted", "_later", "_ready", "_weighted", "_weights")

    def __init__(self, holders: Sequence[_Holder]) -> None:
        self._ready: list[tuple[bool, bool, float, SortKey, str, _Holder]] = []
        self._later = [(holder.share, holder.name, holder) for holder in holders]
        heapify(self._later)
        self._counted = {holder.name: holder.weight * holder.share for holder in holders}
        self._weights = sum(holder.weight for holder in holders)
        self._weighted = sum(self._counted.values())
        for holder in holders:
            if holder.is_below_guarantee:
                self._ready.append(self._entry(holder))
        if self._ready:
            heapify(self._ready)
            self._later = [entry for entry in self._later if not entry[2].is_below_guarantee]
            heapify(self._later)

    def _entry(self, holder: _Holder) -> tuple[bool, bool, float, SortKey, str, _Holder]:
        starves_s = holder.starves_s
        compared = holder.share + holder.increment if starves_s is None else starves_s
        return not holder.is_below_guarantee, starves_s is None, compared, holder.sort_key, holder.name, holder

    def first(self) -> _Holder | None:
        """The head: the holder to serve next; ``None`` when all are empty."""
        mean = self._weighted / self._weights + _ROUNDING if self._counted else 0.0
        while self._later and self._later[0][0] <= mean:
            heappush(self._ready, self._entry(heappop(self._later)[2]))
        while self._ready:
            holder = self._ready[0][5]
            if holder.is_below_guarantee or holder.share <= mean:
                return holder
            heappop(self._ready)
            heappush(self._later, (holder.share, holder.name, holder))
        if not self._later:
            return None
        holder = heappop(self._later)[2]
        self._ready.append(self._entry(holder))
        return holder

    def head_stays_until(self, entries: Sequence[QueueEntry], at: int, end: int) -> int:
        """The position of the first of the head's next jobs before which another holder comes.

        For jobs whose start changes nothing but the sort key of the head.
        """
        rival = min(self._ready[1:3], default=None)  # the second of a heap is one of these two
        head = self._ready[0]
        if rival is None or head[:3] != rival[:3]:
            return end
        return bisect_left(entries, (rival[3], rival[4]), at, end, key=lambda entry: (entry[0], head[4]))

    def tied(self) -> list[_Holder]:
        """The head, and the holders that follow it only because of the sort keys of their jobs."""
        ready, head = self._ready, self._ready[0]
        mean = self._weighted / self._weights + _ROUNDING
        tied_holders: list[_Holder] = []
        places = [0]
        while places:  # ties are connected in a heap
            place = places.pop()
            if place < len(ready) and ready[place][:3] == head[:3]:
                holder = ready[place][5]
                if holder.is_below_guarantee or holder.share <= mean:
                    tied_holders.append(holder)
                places += (2 * place + 1, 2 * place + 2)
        return tied_holders

    def update_all(self, holders: Sequence[_Holder]) -> None:
        """Re-insert holders after a change that left their shares as they were."""
        changed = {holder.name for holder in holders}
        self._ready = [entry for entry in self._ready if entry[4] not in changed]
        self._ready += [self._entry(holder) for holder in holders if not holder.is_empty]
        heapify(self._ready)
        for holder in holders:
            if holder.is_empty:
                self._weights -= holder.weight
                self._weighted -= self._counted.pop(holder.name)

    def update(self, holder: _Holder) -> None:
        """Re-insert the head after a change."""
        self._weighted -= self._counted[holder.name]
        if holder.is_empty:
            heappop(self._ready)
            self._weights -= holder.weight
            del self._counted[holder.name]
        else:
            heapreplace(self._ready, self._entry(holder))
            self._counted[holder.name] = holder.weight * holder.share
            self._weighted += self._counted[holder.name]


@dataclass(slots=True, eq=False)
class UserQueue(ShareHolder):
    """The sorted jobs of one user, and how far they have been taken."""

    jobs: list[QueueEntry] = field(default_factory=list)
    at: int = 0
    is_ineligible: Callable[[JobClass], bool] | None = (
        None  # whether a job of this class may not start, whatever is free
    )
    ineligible: list[QueueEntry] = field(default_factory=list)  # collects those jobs
    has_guarantee: bool = False  # the user has a guarantee
    _alike_until: int = 0

    def alike_until(self) -> int:
        """The position where the run of jobs of the head's class ends."""
        if self.at >= self._alike_until:
            self._alike_until = end_of_class(self.jobs, self.at)
        return self._alike_until

    def skip_ineligible(self) -> bool:
        """Skip ineligible jobs at the head; whether there were any."""
        at, jobs, is_ineligible = self.at, self.jobs, self.is_ineligible
        if is_ineligible is not None:
            while self.at < len(jobs) and is_ineligible(jobs[self.at][2]):
                self.ineligible.append(jobs[self.at])
                self.at += 1
        return self.at > at

    def refresh(self, shares: Shares, project: str) -> None:
        """Recompute share, guarantee and sort key for the next job."""
        self.skip_ineligible()
        self.is_empty = self.at >= len(self.jobs)
        if not self.is_empty:
            self.sort_key, job, _ = self.jobs[self.at]
            self.share = shares.user_share(project, self.name)
            if self.has_guarantee:
                need = shares.likely_amounts(job.gang, job.shape)
                self.is_below_guarantee = is_guaranteed_to_user(project, self.name, need, shares, waits=job.gang)
            since_s = self.sort_key[2]
            if job.waits_since is not None:
                since_s += (job.waits_since - job.queued_at).total_seconds()
            self.starves_s = since_s if -since_s >= shares.policy.starvation_s else None

    @property
    def head(self) -> QueuedGang:
        return self.jobs[self.at][1]

    @property
    def head_class(self) -> JobClass:
        return self.jobs[self.at][2]


class ProjectQueue(ShareHolder):
    """One project, and the fair queue of its users."""

    __slots__ = ("_changes", "_has_guarantee", "_user_queues")

    def __init__(self, name: str, user_queues: list[UserQueue], shares: Shares, unit: float) -> None:
        weight = shares.weight_of(name)
        super().__init__(name, weight, increment=unit / weight)
        account = shares.accounts.get(name)
        of_users = account.quota.user_guaranteed if account is not None else {}
        for user_queue in user_queues:
            user_queue.has_guarantee = bool(of_users.get(user_queue.name))
            user_queue.increment = unit / user_queue.weight
            user_queue.refresh(shares, name)
        self._user_queues = FairQueue(sorted(user_queues, key=lambda user_queue: user_queue.name))
        self._changes = shares.changes.get(name, 0)
        self._has_guarantee = shares.has_guarantee(name)
        self._refresh(shares)

    def _refresh(self, shares: Shares) -> None:
        user_queue = self._user_queues.first()
        self.is_empty = user_queue is None
        if user_queue is not None:
            self.sort_key = user_queue.sort_key
            self.starves_s = user_queue.starves_s
            self.share = shares.project_share(self.name)
            if self._has_guarantee:
                job = user_queue.head
                self.is_below_guarantee = is_guaranteed(
                    self.name, shares.likely_amounts(job.gang, job.shape), shares, waits=job.gang
                )

    def next_alike(self, waits: Callable[[JobClass], bool]) -> tuple[UserQueue, int] | None:
        """The user queue to serve next, and up to which position its jobs are of one waiting class; ``None`` if there
        is none.

        Only for jobs that are judged one by one, because of a guarantee.
        """
        user_queue = self._user_queues.first()
        if (
            user_queue is None
            or user_queue.at >= len(user_queue.jobs)
            or not (self._has_guarantee or user_queue.has_guarantee)
        ):
            return None
        job_class = user_queue.head_class
        if job_class.is_aged or job_class.is_ineligible or not waits(job_class) or len(self._user_queues.tied()) > 1:
            return None
        return user_queue, user_queue.alike_until()

    def refresh(self, shares: Shares) -> None:
        """Recompute the keys after jobs of the head user were taken without a start."""
        user_queue = self._user_queues.first()
        if user_queue is not None:
            user_queue.refresh(shares, self.name)
            self._user_queues.update(user_queue)
        self._refresh(shares)

    def take(
        self, shares: Shares, fair_queue: FairQueue[ProjectQueue], waits: Callable[[JobClass], bool]
    ) -> Iterator[Batch]:
        """The next jobs of one user until one of them starts, since a start changes the order."""
        user_queue = self._user_queues.first()
        if user_queue is None:
            return
        changes, name, jobs = shares.changes, self.name, user_queue.jobs
        # after each job: guarantees are judged job by job
        looks_again = self._has_guarantee or user_queue.has_guarantee
        # Another user's start may have used up the quota: then the user was not served for its present next job.
        is_late = user_queue.skip_ineligible()
        while user_queue.at < len(jobs) and not is_late:
            at, job_class = user_queue.at, jobs[user_queue.at][2]
            if job_class.is_aged or not waits(job_class):
                user_queue.at += 1
                yield jobs[at : user_queue.at]
            else:
                user_queue.at = user_queue.alike_until()
                if looks_again:
                    user_queue.at = self._user_queues.head_stays_until(jobs, at + 1, user_queue.at)
                    user_queue.at = fair_queue.head_stays_until(jobs, at + 1, user_queue.at)
                yield jobs[at : user_queue.at]
            if user_queue.skip_ineligible() and user_queue.at == len(jobs):
                break
            if changes.get(name, 0) != self._changes or looks_again:
                self._changes = changes.get(name, 0)
                break
        user_queue.refresh(shares, name)
        self._user_queues.update(user_queue)
        self._refresh(shares)
