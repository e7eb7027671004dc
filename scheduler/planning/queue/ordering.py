"""Queue order: larger priority first, then fair shares of projects and of users within them, then the policy's order.

Progressive filling: a start raises its project's share, then another project is served. The order is worst-case fair
weighted fair queueing (Bennett and Zhang, "WF2Q", INFOCOM 1996): among projects whose weighted share does not exceed
the mean, serve the one with the smallest share after a start. With "smallest share before the start", many light
projects would each get ahead by a job at the cost of a heavy one; with this rule and equal jobs every project ends
within one job of its entitlement. The start is assumed to be as small as the smallest next job of any project, not as
large as the project's own next job: otherwise small jobs, which end and come again, would pass a large gang for ever.
A project whose next job starves precedes the other projects that do not exceed the mean, the longest starving one
first: shares fluctuate, and the room reserved for a gang would change hands with them. Users within a project are
served alike.

The simple equivalent recomputes all keys after every start. Here only what a start can change is kept in heaps; the
jobs of one user are sorted once and taken in batches while nothing starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from operator import itemgetter
from typing import Final

from core.domain.ids import JobId
from core.domain.sharing.policy import Policy, QueueOrder
from scheduler.planning.model import QueuedGang, RunningGang, Snapshot
from scheduler.planning.queue.fair_queue import ProjectQueue, UserQueue, progressive_filling
from scheduler.planning.queue.job_classes import Batch, JobClass, JobFamily, QueueEntry, SortKey, job_batches
from scheduler.planning.queue.overtaking import Overtaking
from scheduler.planning.queue.policy_key import GittinsIndex, gittins_index, long_job_s, policy_key, turns_taken
from scheduler.planning.queue.quota import is_guaranteed, is_guaranteed_to_user
from scheduler.planning.queue.shares import Shares

_ALL_USERS: Final = ("", "")
_FIRST: Final = float("-inf")  # an overtaken job, in place of the policy's key
# Beyond this many jobs the exact position in the queue matters to no user.
LOOKAHEAD: Final = 1000


def sort_key(
    job: QueuedGang | RunningGang,
    policy: Policy,
    now: datetime,
    long_s: float = float("inf"),
    index: GittinsIndex | None = None,
) -> SortKey:
    """The sort key of a job among those of one user, by ``policy.order``. ``long_s`` and ``index``: see
    :func:`.policy_key.policy_key`.
    """
    queued_s = 0.0 if job.queued_at is None else (job.queued_at - now).total_seconds()
    compared = 0.0
    if policy.order is not QueueOrder.FIFO:
        waits_s = 0.0
        if isinstance(job, QueuedGang):
            waits_s = -queued_s if job.waits_since is None else (now - job.waits_since).total_seconds()
        if waits_s < policy.starvation_s:
            compared = policy_key(job, policy, long_s, index)
    turns = 0 if policy.rotation_s is None else turns_taken(job, policy, now)
    return compared, turns, queued_s, job.job_id


class JobQueue:
    """The waiting jobs of one snapshot. :meth:`walk` yields them in order while starts change ``shares``.

    Idle jobs, which may not start whatever is free, come after all others of their priority and outside the fair
    queue: at the head of a user's queue they would lend their age, or the project's guarantee, to the jobs behind
    them.

    Attributes:
        withdrawn: jobs that started; the next walk leaves them out.

    Args:
        can_run: whether the empty cluster could hold a job; called once per shape.
        may_start: whether quotas and bookings let a job start somewhere if that were free. Once false, it stays false
        while jobs only start; ``None``: no quotas and bookings. overtaking: of the snapshot.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        shares: Shares,
        can_run: Callable[[QueuedGang], bool],
        may_start: Callable[[QueuedGang], bool] | None = None,
        overtaking: Overtaking | None = None,
    ) -> None:
        self.shares = shares
        self.withdrawn: set[JobId] = set()
        self._walks = 0
        self._is_fair = snapshot.policy.is_fair
        self._owed = frozenset(name for name, account in shares.accounts.items() if account.quota.guaranteed)
        lines: dict[int, dict[tuple[str, str], list[QueueEntry]]] = {}
        firsts: dict[str, QueuedGang] = {}
        job_families: dict[
            tuple[str, str, str, int, bool, bool], tuple[JobFamily, list[QueueEntry], dict[object, JobClass]]
        ] = {}
        policy, now, long_s = snapshot.policy, snapshot.now, long_job_s(snapshot)
        overtaking = overtaking or Overtaking(snapshot)
        starvation_s, index = policy.starvation_s, gittins_index(snapshot.finished_run_times)
        for job in snapshot.queued:
            turn = sort_key(job, policy, now, long_s, index)
            is_aged = job.waits_since is not None or -turn[2] >= starvation_s
            if overtaking.is_overtaken(job):
                turn = (_FIRST, *turn[1:])
            key = (job.project, job.user, job.shape, job.priority, is_aged, job.is_resumable)
            family_entry = job_families.get(key)
            if family_entry is None:
                holder = (job.project, job.user) if self._is_fair else _ALL_USERS
                line = lines.setdefault(-job.priority, {}).setdefault(holder, [])
                family_entry = job_families[key] = (JobFamily(), line, {})
                firsts.setdefault(job.shape, job)
            job_family, line, job_classes = family_entry
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
        """All jobs in order. ``shares`` must include a start before the next job is requested.

        Jobs that are known to wait (:meth:`waits`) come in batches; every other job comes alone.
        """
        self._walks += 1
        return self.batches(self.shares, self.waits)

    def refuse(self, job_class: JobClass, above_s: float | None = None) -> None:
        """Record that no job of this class can start in the present walk while its project starts nothing.

        ``above_s``: nor any of its family that may hold its resources for longer than this.
        """
        changes = self.shares.changes.get(job_class.first.project, 0)
        if above_s is None:
            job_class.refused_in, job_class.refused_at = self._walks, changes
        else:
            job_family = job_class.job_family
            job_family.refused_in, job_family.refused_at, job_family.refused_above_s = self._walks, changes, above_s

    def waits(self, job_class: JobClass) -> bool:
        """Whether it is known in the present walk that no job of the class starts."""
        if job_class.is_ineligible:
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
        """The waiting jobs in the order in which they would be served if each of them started in its turn.

        Hypothetical shares are computed for the first thousand jobs only; behind these, whole users and projects
        follow each other.
        """
        ordered: list[QueuedGang] = []
        if all(len(users) == 1 for users in self._ranks) and (self._is_fair or not self._owed):
            for run in self.batches(self.shares, lambda _: True):
                ordered.extend([job for _, job, _ in run])
            return ordered
        hypothetical = self.shares.copy()
        for run in self.batches(hypothetical, lambda job_class: job_class.is_ineligible or len(ordered) >= LOOKAHEAD):
            _, job, job_class = run[0]
            if len(ordered) < LOOKAHEAD and not job_class.is_ineligible:
                hypothetical.add(job.project, job.user, hypothetical.likely_amounts(job.gang, job.shape))
            ordered.extend([job for _, job, _ in run])
        return ordered

    def _is_ineligible(self, job_class: JobClass) -> bool:
        if job_class.is_ineligible:
            return True
        job = job_class.first
        changes = self.shares.changes.get(job.project, 0)
        if job_class.checked_at == changes:
            return False
        if job.shape not in self._hopeless and (self._may_start is None or self._may_start(job)):
            job_class.checked_at = changes
            return False
        job_class.is_ineligible = True
        return True

    def batches(self, shares: Shares, waits: Callable[[JobClass], bool]) -> Iterator[Batch]:
        """All jobs in the order of ``shares``: those for which ``waits`` holds in batches, every other one alone."""
        withdrawn = self.withdrawn.copy()
        is_ineligible = self._is_ineligible if self._hopeless or self._may_start is not None else None
        for users in self._ranks:
            by_project: dict[str, list[UserQueue]] = {}
            ineligible: list[QueueEntry] = []
            for (project, user), entries in users.items():
                jobs = [entry for entry in entries if entry[1].job_id not in withdrawn] if withdrawn else entries
                if len(users) == 1:  # a single queue: nothing to share
                    if self._is_fair or not self._owed:
                        yield from job_batches(jobs, is_ineligible, ineligible, waits)
                    else:
                        yield from self._guaranteed_first(_eligible_entries(jobs, is_ineligible, ineligible), shares)
                    continue
                line = UserQueue(
                    user,
                    shares.weight_of_user(project, user),
                    jobs=jobs,
                    is_ineligible=is_ineligible,
                    ineligible=ineligible,
                )
                line.skip_ineligible()
                if line.at < len(jobs):
                    by_project.setdefault(project, []).append(line)
            lines = [line for user_queues in by_project.values() for line in user_queues]
            unit = min((shares.increment_of(line.head.gang, line.head.shape) for line in lines), default=0.0)
            projects = [
                ProjectQueue(name, user_queues, shares, unit) for name, user_queues in sorted(by_project.items())
            ]
            yield from progressive_filling(projects, shares, waits)
            ineligible.sort(key=itemgetter(0))
            if self._hopeless:
                ineligible.sort(key=lambda entry: entry[1].shape in self._hopeless)
            if ineligible:
                yield ineligible

    def _guaranteed_first(self, entries: Iterable[QueueEntry], shares: Shares) -> Iterator[Batch]:
        """A single queue: first jobs within their project's guarantee, of these first those within their user's
        guarantee.

        One pass suffices, since amounts only grow: a job outside its guarantee stays outside.
        """
        not_guaranteed: list[QueueEntry] = []
        for are_users in (True, False):
            if are_users and not any(shares.accounts[project].quota.user_guaranteed for project in self._owed):
                continue
            not_guaranteed = []
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
                not_guaranteed.append(entry)
            entries = not_guaranteed
        for entry in not_guaranteed:
            yield (entry,)


def _eligible_entries(
    entries: Iterable[QueueEntry], is_ineligible: Callable[[JobClass], bool] | None, ineligible: list[QueueEntry]
) -> Iterator[QueueEntry]:
    """The entries of a single queue; ineligible ones are moved to ``ineligible``."""
    for entry in entries:
        if is_ineligible is not None and is_ineligible(entry[2]):
            ineligible.append(entry)
        else:
            yield entry
