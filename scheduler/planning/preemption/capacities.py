"""The hypothetical capacities of one plan: what each preemptor may use once all victims are gone."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from core.domain.ids import JobId
from scheduler.planning.model import QueuedGang
from scheduler.planning.placement.ledger import Ledger
from scheduler.planning.placement.partial import PartialPlacement
from scheduler.planning.preemption.eviction import Evictable, EvictionWhatIf
from scheduler.planning.preemption.policy import PreemptionPolicy


class HypotheticalCapacities:
    """One capacity per view of the ledger: without the victims that are stopping, and those accepted so far.

    Args:
        stopping: victims of earlier plans. over_quota: jobs that wait for a quota of their project or user.
    """

    def __init__(
        self,
        ledger: Ledger,
        preemption_policy: PreemptionPolicy,
        stopping: Sequence[Evictable],
        over_quota: Collection[JobId],
    ) -> None:
        self._ledger = ledger
        self._preemption_policy = preemption_policy
        self._stopping = stopping
        self._over_quota = over_quota
        self._with_reservation = {reservation.job.job_id for reservation in ledger.backfill_reservations}
        self._accepted: list[tuple[Sequence[Evictable], PartialPlacement]] = []
        self._what_ifs: dict[tuple[int, frozenset[int]], EvictionWhatIf] = {}

    @property
    def revision(self) -> int:
        """How many placements were accepted."""
        return len(self._accepted)

    def has_reservation(self, job: QueuedGang) -> bool:
        return job.job_id in self._with_reservation

    def has_reservation_within(self, job: QueuedGang, seconds: float) -> bool:
        """Whether it has a backfill reservation that begins by then."""
        return any(
            reservation.job.job_id == job.job_id and reservation.start_s is not None and reservation.start_s <= seconds
            for reservation in self._ledger.backfill_reservations
        )

    def of(self, job: QueuedGang) -> EvictionWhatIf:
        """What ``job`` may use, plus resources that are becoming free and are promised to no job."""
        ledger = self._ledger
        if (
            self.has_reservation(job)
            or self._preemption_policy.may_reclaim(job)
            or self._is_passed_over(job)
            or self._is_lent_to(job)
        ):
            level, reserved_nodes = 0, frozenset[int]()
        else:
            level, reserved_nodes = ledger.level(job.max_hold_s), ledger.reserved_nodes
        what_if = self._what_ifs.get((level, reserved_nodes))
        if what_if is None:
            what_if = EvictionWhatIf(ledger.views[level], reserved_nodes)
            self._what_ifs[level, reserved_nodes] = what_if
            what_if.evict(self._stopping)
            for evictables, draft in self._accepted:
                what_if.evict(evictables)
                what_if.claim(draft)
        return what_if

    def _is_lent_to(self, job: QueuedGang) -> bool:
        """Whether all reservations are lent to this job."""
        return self._preemption_policy.overtaking.is_by_length and all(
            reservation.start_s is None and self._preemption_policy.may_backfill_over(reservation.job, job)
            for reservation in self._ledger.backfill_reservations
        )

    def _is_passed_over(self, job: QueuedGang) -> bool:
        """Whether all reservations belong to jobs of lower priority that were reached first because this job is over
        quota.
        """
        return job.job_id in self._over_quota and all(
            reservation.job.priority < job.priority for reservation in self._ledger.backfill_reservations
        )

    def claim_freed(self, job: QueuedGang, draft: PartialPlacement) -> None:
        """``job`` takes what becomes free without further victims."""
        self.of(job).claim(draft)
        self._accepted.append(((), draft))

    def accept(self, victims: Sequence[Evictable], draft: PartialPlacement) -> None:
        """``victims`` are evicted, and their preemptor takes ``draft``."""
        self._accepted.append((victims, draft))
        for what_if in self._what_ifs.values():
            what_if.evict(victims)
            what_if.claim(draft)
