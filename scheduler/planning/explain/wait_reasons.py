"""A wait reason for every waiting job: that of its shape, or, where quotas, bookings or shares bind, of its project or
user.

Jobs that wait for the same cause share one :class:`Reason` object, so fifty thousand jobs cost a few sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from core.domain.ids import JobId
from scheduler.planning.explain.occupancy import GpuOccupancy
from scheduler.planning.explain.reasons import Explainer
from scheduler.planning.model import QueuedGang, Reason, Snapshot, WaitReasonCode
from scheduler.planning.placement.backfill import RunningUsage
from scheduler.planning.placement.eligibility import Eligibility
from scheduler.planning.placement.feasibility import Infeasibility
from scheduler.planning.placement.gang import place
from scheduler.planning.placement.ledger import Ledger
from scheduler.planning.placement.partial import PartialPlacement
from scheduler.planning.placement.search import SearchBudget
from scheduler.planning.queue.job_classes import JobFamily, QueueEntry
from scheduler.planning.queue.quota import QuotaExcess, amount_text, amount_with_unit
from scheduler.planning.queue.shares import Shares


class WaitReasons:
    """Builds the wait reasons after one finished walk."""

    def __init__(
        self,
        snapshot: Snapshot,
        *,
        infeasibility: Infeasibility,
        ledger: Ledger,
        running_usage: RunningUsage,
        starts: Sequence[tuple[QueuedGang, PartialPlacement]],
        eligibility: Eligibility,
        shares: Shares,
    ) -> None:
        self.snapshot = snapshot
        self.infeasibility = infeasibility
        self.ledger = ledger
        self.eligibility = eligibility
        self.shares = shares
        holders = GpuOccupancy(snapshot.now, running_usage, starts)
        self._explainer = Explainer(snapshot, infeasibility.empty, ledger, holders)
        self._reasons: dict[object, Reason] = {}
        self._weights = _weights(snapshot, shares)
        self._holding = {reservation.job.job_id: reservation.job for reservation in ledger.backfill_reservations}

    def reasons_for(self, waiting: Sequence[QueueEntry]) -> dict[JobId, Reason]:
        """One reason per job class; one per family where no nodes are booked."""
        if not self.eligibility.bookings.is_empty:
            by_class = {
                job_class: self.reason_for(job_class.first)
                for job_class in {job_class: None for _, _, job_class in waiting}
            }
            return {job.job_id: by_class[job_class] for _, job, job_class in waiting}
        by_family: dict[JobFamily, Reason] = {}
        reasons: dict[JobId, Reason] = {}
        for _, job, job_class in waiting:
            reason = by_family.get(job_class.job_family)
            if reason is None:
                reason = by_family[job_class.job_family] = self.reason_for(job_class.first)
            reasons[job.job_id] = reason
        return reasons

    def reason_for(self, job: QueuedGang) -> Reason:
        key = self.eligibility.key_of(job)
        if isinstance(key, QuotaExcess):
            excess_key = id(key)  # the quotas return one object per project, user and shape
            reason = self._reasons.get(excess_key)
            if reason is None:
                # An infeasible demand is reported first: a larger quota would not help.
                demand = self.eligibility.demand(job, job.shape)
                never = self.infeasibility.reason(job.shape, demand)
                excess = self.eligibility.quotas.with_current_usage(key)
                reason = excess.reason() if never is None else self._explainer.explain(demand, never)
                self._reasons[excess_key] = reason
            return reason
        # Projects may lack the same nodes because of different bookings, or models because of different limits.
        reason_key = key if self.eligibility.filter_of(key) is None else (key, job.project, job.user)
        reason = self._reasons.get(reason_key)
        if reason is None:
            reason = self._reasons[reason_key] = self._explain(job, key)
        if reason.code is WaitReasonCode.RESERVED and self.snapshot.policy.is_fair:
            share_key = (key, job.project, job.user, job.priority)
            with_shares = self._reasons.get(share_key)
            if with_shares is None:
                with_shares = self._reasons[share_key] = self._with_shares(job, reason)
            return with_shares
        return reason

    def _explain(self, job: QueuedGang, key: str) -> Reason:
        demand = self.eligibility.demand(job, key)
        refusal = self.infeasibility.reason(key, demand)
        node_filter = self.eligibility.filter_of(key)
        if node_filter is None:
            return self._explainer.explain(demand, refusal)
        full = self.eligibility.demand(job, job.shape)
        never = self.infeasibility.reason(job.shape, full)
        if never is not None:
            return self._explainer.explain(full, never)
        if refusal is None:
            draft = place(full, self.ledger.free, SearchBudget())
            if draft is None or place(demand, self.ledger.free, SearchBudget()) is not None:
                return self._explainer.explain(demand, None)
        else:
            draft = place(full, self.infeasibility.empty.capacity, SearchBudget())
        hidden_nodes = frozenset[int]() if draft is None else node_filter.hidden & draft.left.keys()
        allowed = self.eligibility.quotas.check(job)
        excess = allowed if isinstance(allowed, QuotaExcess) else allowed.excess
        if hidden_nodes or excess is None:
            run_time_s = job.max_hold_s
            is_free = refusal is None
            return self.eligibility.bookings.reason(
                job.project, run_time_s, hidden_nodes or node_filter.hidden, is_free=is_free
            )
        return self.eligibility.quotas.with_current_usage(excess).reason()

    def _with_shares(self, job: QueuedGang, reason: Reason) -> Reason:
        """Adds the shares of its project, or of its user, where those put another job first."""
        reserving_job = self._holding.get(reason.numbers.get("before", ""))
        if reserving_job is None or reserving_job.priority != job.priority:
            return reason
        shares = self.shares
        if reserving_job.project != job.project:
            if shares.project_share(job.project) <= shares.project_share(reserving_job.project):
                return reason
            holder, other_holder, amounts = (
                f"project {job.project}",
                f"project {reserving_job.project}",
                shares.occupied_by_project.get(job.project, {}),
            )
            entitled = self._weights.get(job.project, 0.0)
            numbers = {"project": job.project}
        elif reserving_job.user != job.user:
            if shares.user_share(job.project, job.user) <= shares.user_share(reserving_job.project, reserving_job.user):
                return reason
            holder, other_holder = f"user {job.user}", f"user {reserving_job.user}"
            amounts = shares.occupied_by_user.get((job.project, job.user), {})
            entitled = None
            numbers = {"project": job.project, "user": job.user}
        else:
            return reason
        part, key = shares.dominant_share(amounts)
        total = shares.totals[key]
        sentence = (
            f"{holder} has {amount_text(key, amounts.get(key, 0))} of {amount_with_unit(key, total)} ({part:.0%})"
        )
        if entitled is not None:
            sentence += f", and its share by weight is {entitled:.0%}"
        past = " or lately had" if self.snapshot.policy.usage_weight and self.snapshot.accounts else ""
        sentence += f"; jobs of {other_holder}, which has{past} less of its share, come first"
        share_numbers = {"resource": key, "held": amounts.get(key, 0), "total": total, "share": round(part, 4)}
        if entitled is not None:
            share_numbers["entitled"] = round(entitled, 4)
        return replace(
            reason, sentence=f"{reason.sentence}. {sentence}", numbers={**reason.numbers, **numbers, **share_numbers}
        )


def _weights(snapshot: Snapshot, shares: Shares) -> dict[str, float]:
    """The entitled fraction of the cluster by weight, among projects that hold or want anything."""
    projects = {job.project for job in snapshot.queued} | {
        name for name, amounts in shares.occupied_by_project.items() if any(amounts.values())
    }
    weights = {name: shares.accounts[name].weight if name in shares.accounts else 1.0 for name in projects}
    total = sum(weights[name] for name in sorted(weights)) or 1.0
    return {name: weight / total for name, weight in weights.items()}
