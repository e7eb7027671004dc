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

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from operator import itemgetter
from typing import Final

from core.domain.ids import JobId
from scheduler.planning.model import QueuedGang, RunningGang, Snapshot
from scheduler.planning.policy import Policy, QueueOrder
from scheduler.planning.queue.fair_queue import ProjectQueue, UserQueue, fill_up
from scheduler.planning.queue.job_classes import Batch, JobClass, JobFamily, QueueEntry, SortKey, in_line
from scheduler.planning.queue.policy_key import long_job_s, policy_key, turns_taken
from scheduler.planning.queue.quota import is_guaranteed, is_guaranteed_to_user
from scheduler.planning.queue.shares import Shares

_EVERYBODY: Final = ("", "")
# Behind so many nobody needs to know the place in the queue exactly.
_LOOKED_AHEAD: Final = 1000


def sort_key(job: QueuedGang | RunningGang, policy: Policy, now: datetime, long_s: float = float("inf")) -> SortKey:
    """The place of a job among those of one user, by ``policy.order``. ``long_s``: as :func:`.measure.long_job_s` says."""
    queued_s = 0.0 if job.queued_at is None else (job.queued_at - now).total_seconds()
    compared = 0.0
    if policy.order is not QueueOrder.FIFO:
        waits_s = 0.0
        if isinstance(job, QueuedGang):
            waits_s = -queued_s if job.waits_since is None else (now - job.waits_since).total_seconds()
        if waits_s < policy.starvation_s:
            compared = policy_key(job, policy, long_s)
    turns = 0 if policy.rotation_s is None else turns_taken(job, policy, now)
    return compared, turns, queued_s, job.job_id


class JobQueue:
    """The waiting jobs of one snapshot. :meth:`walk` yields them in order while starts change ``shares``.

    Who may not start, whatever is free, comes after all others of its priority and takes no turn: at the head of its line it
    would lend its age, or what is guaranteed to its project, to those behind it.

    Attributes:
        withdrawn: jobs that started; they are left out from the next walk on.

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
        self._walks = 0
        self._is_fair = snapshot.policy.is_fair
        self._owed = frozenset(name for name, account in shares.accounts.items() if account.quota.guaranteed)
        lines: dict[int, dict[tuple[str, str], list[QueueEntry]]] = {}
        firsts: dict[str, QueuedGang] = {}
        job_families: dict[
            tuple[str, str, str, int, bool], tuple[JobFamily, list[QueueEntry], dict[object, JobClass]]
        ] = {}
        policy, now, long_s = snapshot.policy, snapshot.now, long_job_s(snapshot)
        starvation_s = policy.starvation_s
        for job in snapshot.queued:
            turn = sort_key(job, policy, now, long_s)
            is_aged = job.waits_since is not None or -turn[2] >= starvation_s
            key = (job.project, job.user, job.shape, job.priority, is_aged)
            found = job_families.get(key)
            if found is None:
                who = (job.project, job.user) if self._is_fair else _EVERYBODY
                line = lines.setdefault(-job.priority, {}).setdefault(who, [])
                found = job_families[key] = (JobFamily(), line, {})
                firsts.setdefault(job.shape, job)
            job_family, line, job_classes = found
            length = (job.max_run_time_s, job.overrun_s)
            job_class = job_classes.get(length)
            if job_class is None:
                job_class = job_classes[length] = JobClass(job, job_family, job.max_hold_s, is_aged)
            line.append((turn, job, job_class))
        self._hopeless = {shape for shape, job in firsts.items() if not can_run(job)}
        self._may_start = may_start
        for users in lines.values():
            for line in users.values():
                line.sort(key=itemgetter(0))
        self._ranks = [lines[rank] for rank in sorted(lines)]

    def walk(self) -> Iterator[Batch]:
        """Every job, the next one first. A start must be told to ``shares`` before the next job is asked for.

        Those of which it is known that they wait (:meth:`waits`) come together with such as are next; every other one alone.
        """
        self._walks += 1
        return self._walk(self.shares, self.waits)

    def refuse(self, job_class: JobClass, above_s: float | None = None) -> None:
        """Nothing is left for this job_class in the present walk, as long as its project starts nothing.

        ``above_s``: nor for any other of its job_family that may hold its place for longer than this.
        """
        changes = self.shares.changes.get(job_class.first.project, 0)
        if above_s is None:
            job_class.refused_in, job_class.refused_at = self._walks, changes
        else:
            job_family = job_class.job_family
            job_family.refused_in, job_family.refused_at, job_family.refused_above_s = self._walks, changes, above_s

    def waits(self, job_class: JobClass) -> bool:
        """Whether it is known in the present walk that none of them starts."""
        if job_class.is_idle:
            return True
        job_family, walks = job_class.job_family, self._walks
        if walks not in (job_class.refused_in, job_family.refused_in):
            return False
        changes = self.shares.changes.get(job_class.first.project, 0)
        return (job_class.refused_in == walks and job_class.refused_at == changes) or (
            job_family.refused_in == walks
            and job_family.refused_at == changes
            and job_class.max_hold_s > job_family.refused_above_s
        )

    def in_order(self) -> list[QueuedGang]:
        """Who waits, in the order in which they would be taken if each of them started when it is its turn.

        Where this is asked for, what the jobs would hold counts for the first thousand only; behind these whole users
        and projects follow one another.
        """
        taken: list[QueuedGang] = []
        if all(len(users) == 1 for users in self._ranks) and (self._is_fair or not self._owed):
            for run in self._walk(self.shares, lambda _: True):
                taken.extend([job for _, job, _ in run])
            return taken
        twin = self.shares.copy()
        for run in self._walk(twin, lambda job_class: job_class.is_idle or len(taken) >= _LOOKED_AHEAD):
            _, job, job_class = run[0]
            if len(taken) < _LOOKED_AHEAD and not job_class.is_idle:
                twin.add(job.project, job.user, twin.likely_amounts(job.gang, job.shape))
            taken.extend([job for _, job, _ in run])
        return taken

    def _is_idle(self, job_class: JobClass) -> bool:
        if job_class.is_idle:
            return True
        job = job_class.first
        changes = self.shares.changes.get(job.project, 0)
        if job_class.asked_at == changes:
            return False
        if job.shape not in self._hopeless and (self._may_start is None or self._may_start(job)):
            job_class.asked_at = changes
            return False
        job_class.is_idle = True
        return True

    def _walk(self, shares: Shares, waits: Callable[[JobClass], bool]) -> Iterator[Batch]:
        gone = self.withdrawn.copy()
        is_idle = self._is_idle if self._hopeless or self._may_start is not None else None
        for users in self._ranks:
            by_project: dict[str, list[UserQueue]] = {}
            idle: list[QueueEntry] = []
            for (project, user), entries in users.items():
                jobs = [entry for entry in entries if entry[1].job_id not in gone] if gone else entries
                if len(users) == 1:  # nobody to take turns with
                    if self._is_fair or not self._owed:
                        yield from in_line(jobs, is_idle, idle, waits)
                    else:
                        yield from self._guaranteed_first(_not_idle(jobs, is_idle, idle), shares)
                    continue
                line = UserQueue(user, shares.weight_of_user(project, user), jobs=jobs, is_idle=is_idle, idle=idle)
                line.skip()
                if line.at < len(jobs):
                    by_project.setdefault(project, []).append(line)
            lines = [line for its in by_project.values() for line in its]
            unit = min((shares.increment_of(line.head.gang, line.head.shape) for line in lines), default=0.0)
            projects = [ProjectQueue(name, its, shares, unit) for name, its in sorted(by_project.items())]
            yield from fill_up(projects, shares, waits)
            idle.sort(key=itemgetter(0))
            if self._hopeless:
                idle.sort(key=lambda entry: entry[1].shape in self._hopeless)
            if idle:
                yield idle

    def _guaranteed_first(self, entries: Iterable[QueueEntry], shares: Shares) -> Iterator[Batch]:
        """In one line: those first that stay within what is guaranteed to their projects, of these first those whose users
        stay within theirs.

        A pass finds them, as all only get more: who would not stay within it when asked would not later either.
        """
        others: list[QueueEntry] = []
        for are_users in (True, False):
            if are_users and not any(shares.accounts[project].quota.user_guaranteed for project in self._owed):
                continue
            others = []
            for entry in entries:
                job = entry[1]
                if job.project in self._owed:
                    need = shares.likely_amounts(job.gang, job.shape)
                    is_owed = is_guaranteed(job.project, need, shares, waits=job.gang)
                    if is_owed and (
                        not are_users or is_guaranteed_to_user(job.project, job.user, need, shares, waits=job.gang)
                    ):
                        yield (entry,)
                        continue
                others.append(entry)
            entries = others
        for entry in others:
            yield (entry,)


def _not_idle(
    entries: Iterable[QueueEntry], is_idle: Callable[[JobClass], bool] | None, idle: list[QueueEntry]
) -> Iterator[QueueEntry]:
    """One line; who may not start is put into ``idle`` instead."""
    for entry in entries:
        if is_idle is not None and is_idle(entry[2]):
            idle.append(entry)
        else:
            yield entry
