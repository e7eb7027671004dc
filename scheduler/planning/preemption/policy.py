"""The preemption policy: for which reason, if any, a waiting job may take the resources of a running one.

The relation is asymmetric: of two jobs at most one may preempt the other, so a victim can never preempt its preemptor
in return. `docs/decisions/0024-preemption.md` proves it, reason by reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from core.domain.sharing.policy import Policy
from scheduler.planning.model import PreemptCode, QueuedGang, RunningGang, Snapshot
from scheduler.planning.preemption.time_slicing import ShareExchange, TimeSlicing
from scheduler.planning.queue.overtaking import Overtaking
from scheduler.planning.queue.quota import (
    is_guaranteed,
    is_guaranteed_to_user,
    is_part_guaranteed,
    is_part_guaranteed_to_user,
)
from scheduler.planning.queue.shares import Shares

# No job is started and stopped at the same moment, whatever the policy says.
_LEAST_RUN_S: Final = 1e-3
_SAME_SHARE: Final = 1e-9


class PreemptionPolicy:
    """The preemption rules of one snapshot; amounts held are read from ``shares``, which may change meanwhile.

    Attributes:
        exchange: compares shares. turns: compares jobs of equal priority. is_by_priority_only: no rule but larger
        priority applies.
    """

    def __init__(self, snapshot: Snapshot, shares: Shares, overtaking: Overtaking | None = None) -> None:
        self.overtaking = overtaking or Overtaking(snapshot)
        self.policy: Policy = snapshot.policy
        self.shares = shares
        self.exchange = ShareExchange(snapshot, shares)
        self.turns = TimeSlicing(snapshot, self.exchange, self.overtaking)
        self._has_guarantees = any(account.quota.guaranteed for account in snapshot.accounts)
        self._has_user_guarantees = any(account.quota.user_guaranteed for account in snapshot.accounts)
        policy = self.policy
        self._by_share = policy.is_fair and policy.preempts_shares
        self.is_by_priority_only = not (
            self._by_share
            or policy.takes_turns
            or (policy.reclaims and (self._has_guarantees or self._has_user_guarantees))
        )

    def may_stop(self, gang: RunningGang) -> bool:
        """Whether any job may preempt it: it is preemptible, not stopping yet, and had its minimum run time."""
        return (
            gang.is_preemptible
            and not gang.is_stopping
            and gang.started_at is not None
            and self.turns.ran_s(gang) >= max(self.policy.min_run_time_s, _LEAST_RUN_S)
        )

    def may_preempt_any(self, job: QueuedGang, least_priority: int) -> bool:
        """False if the job certainly may preempt no running job. ``least_priority``: lowest priority of the running
        jobs.
        """
        if self.policy.preempts_priority and job.priority > least_priority:
            return True
        return not self.is_by_priority_only and (
            self._by_share or self.policy.takes_turns or self.may_reclaim(job) or self._may_reclaim_in_project(job)
        )

    def may_reclaim(self, job: QueuedGang) -> bool:
        """Whether its needs are covered by its project's guarantee, and borrowers have to return them."""
        return (
            self.policy.reclaims
            and self._has_guarantees
            and is_guaranteed(job.project, self.exchange.needs_of(job), self.shares, waits=job.gang)
        )

    def reason_to_preempt(self, job: QueuedGang, gang: RunningGang) -> PreemptCode | None:
        """The reason for which ``job`` may take the resources of ``gang``; ``None``: it may not."""
        policy = self.policy
        is_apart = job.project != gang.project
        if is_apart and self._has_guarantees and self._is_protected(gang):
            return None
        if policy.preempts_priority and job.priority > gang.priority:
            return PreemptCode.PRIORITY
        if self.is_by_priority_only:
            return None
        if is_apart and self.may_reclaim(job) and self.exchange.borrows(gang, self.exchange.needs_of(job)):
            return PreemptCode.GUARANTEE
        if (
            is_apart
            and self._by_share
            and job.priority >= gang.priority
            and self.exchange.lowers_larger_share(job, gang, strictly=True)
        ):
            return PreemptCode.FAIR_SHARE
        if not is_apart and job.user != gang.user:
            if self._is_protected_in_project(gang):
                return None
            code = self._reason_in_project(job, gang)
            if code is not None:
                return code
        if self.turns.may_take_turn(job, gang):
            return PreemptCode.TIME_SLICE
        return None

    def _reason_in_project(self, job: QueuedGang, gang: RunningGang) -> PreemptCode | None:
        """The reason between two users of one project: as between projects, but never against a larger priority.

        Where shares preempt, the exchange must not enlarge the project's share: another project could then reclaim
        the difference, the victim get it back from there, and so on in a circle.
        """
        if job.priority < gang.priority or (self._by_share and not self.exchange.keeps_share(job, gang)):
            return None
        if self._may_reclaim_in_project(job) and self.exchange.borrows(gang, self.exchange.needs_of(job), gang.user):
            return PreemptCode.GUARANTEE
        if self._by_share and self.exchange.lowers_larger_share_in_project(job, gang):
            return PreemptCode.FAIR_SHARE
        return None

    def may_backfill_over(self, job: QueuedGang, other: QueuedGang) -> bool:
        """Whether ``other`` may start in the room that is reserved for ``job``, whose start has no known time.

        In an order by length until ``job`` is overtaken, and after that if ``job`` can take the room back. In other
        orders if ``job`` may reclaim it after a turn: only within one project, or where fair shares are off, since
        shares may change until then, and not once ``job`` starves.
        """
        policy = self.policy
        if self.overtaking.is_by_length:
            return self._lends(job, other)
        if not other.is_preemptible or self.turns.has_starved(job):
            return False  # a stream of short jobs could otherwise delay it for ever
        if job.priority != other.priority:
            return job.priority > other.priority and policy.preempts_priority
        if not policy.takes_turns or (policy.is_fair and job.project != other.project):
            return False
        return self.turns.will_come_first(job, other)

    @property
    def may_lend(self) -> bool:
        """Whether any reservation may be lent."""
        return self.policy.takes_turns or self.overtaking.is_by_length

    def is_lent(self, job: QueuedGang) -> bool:
        """Whether a reservation of ``job`` without a known time is lent to all jobs of its priority and share."""
        return self.overtaking.is_by_length and not self.overtaking.is_overtaken(job)

    def _lends(self, job: QueuedGang, other: QueuedGang) -> bool:
        if job.priority != other.priority or not self._has_no_larger_share(other, job):
            return False
        if not self.overtaking.is_overtaken(job):
            return True
        return other.is_resumable and other.is_preemptible and self.turns.may_take_back_from(job, other)

    def _has_no_larger_share(self, other: QueuedGang, job: QueuedGang) -> bool:
        """Whether its project, or its user in the same project, holds no more than those of ``job``."""
        if not self.policy.is_fair:
            return True
        shares, reserved = self.shares, self.exchange.needs_of(job)  # the reservation counts as held
        if other.project != job.project:
            return shares.project_share(other.project) <= shares.project_share(job.project, reserved) + _SAME_SHARE
        return other.user == job.user or (
            shares.user_share(other.project, other.user)
            <= shares.user_share(job.project, job.user, reserved) + _SAME_SHARE
        )

    def may_take_growth(self, job: QueuedGang, gang: RunningGang) -> bool:
        """Whether ``job`` may take the replicas that ``gang`` has above its minimum."""
        if job.project != gang.project and self._has_guarantees and self._is_protected(gang):
            return False
        is_other_user = job.project == gang.project and job.user != gang.user
        if is_other_user and job.priority <= gang.priority and self._is_protected_in_project(gang):
            return False
        if job.priority >= gang.priority:
            return True
        return not self.is_by_priority_only and self.reason_to_preempt(job, gang) is not None

    def _is_protected(self, gang: RunningGang) -> bool:
        """Within its project's guarantee: no other project preempts it, whatever its priority."""
        return is_guaranteed(gang.project, self.exchange.usage_of(gang), self.shares)

    def _may_reclaim_in_project(self, job: QueuedGang) -> bool:
        """Whether its needs are covered by its user's guarantee, and other users of the project have to return them."""
        if not (self.policy.reclaims and self._has_user_guarantees):
            return False
        return is_guaranteed_to_user(job.project, job.user, self.exchange.needs_of(job), self.shares, waits=job.gang)

    def _is_protected_in_project(self, gang: RunningGang) -> bool:
        """Within its user's guarantee: other users of the project preempt it only by a larger priority."""
        return self._has_user_guarantees and is_guaranteed_to_user(
            gang.project, gang.user, self.exchange.usage_of(gang), self.shares
        )

    def is_guaranteed_part(self, job: QueuedGang, gang: RunningGang, part: Mapping[str, int]) -> bool:
        """Whether giving ``part`` to ``job`` would cut into the guarantee of the gang's project, or of its user in the
        project.
        """
        shares = self.shares
        if job.project != gang.project:
            return self._has_guarantees and is_part_guaranteed(gang.project, part, shares)
        if not self._has_user_guarantees or job.user == gang.user or job.priority > gang.priority:
            return False
        return is_part_guaranteed_to_user(gang.project, gang.user, part, shares)
