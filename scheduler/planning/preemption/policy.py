"""The preemption policy: for which reason, if any, a waiting job may take the resources of a running one.

The relation is asymmetric: of two jobs at most one may preempt the other, so a victim can never preempt its preemptor
in return. `docs/decisions/0024-preemption.md` proves it, reason by reason.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from core.domain.ids import JobId
from core.domain.sharing.gpu_models import accepted_models
from scheduler.planning.model import PreemptCode, QueuedGang, RunningGang, Snapshot
from scheduler.planning.policy import Policy, QueueOrder
from scheduler.planning.queue.policy_key import CLOCK_S, long_job_s, policy_key, turns_taken
from scheduler.planning.queue.quota import (
    is_guaranteed,
    is_guaranteed_to_user,
    is_part_guaranteed,
    is_part_guaranteed_to_user,
)
from scheduler.planning.queue.shares import GPUS, JOBS, Shares, gpu_milli, model_key

# Where durations are estimates, the preemptor's remaining time must be at most half the victim's: a swap costs both
# jobs time, and an estimate is often off by as much. Where durations are known, it suffices that the swap pays for
# itself.
_CLEARLY_LESS: Final = 0.5
_BY_LENGTH: Final = (QueueOrder.SHORTEST_FIRST, QueueOrder.FAIR_FINISH)
# No job is started and stopped at the same moment, whatever the policy says.
_LEAST_RUN_S: Final = 1e-3
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
# Order of equal jobs: whole turns taken, queueing time, id.
_TurnRecord = tuple[int, datetime, str]


class PreemptionPolicy:
    """The preemption rules of one snapshot; amounts held are read from ``shares``, which may change meanwhile."""

    def __init__(self, snapshot: Snapshot, shares: Shares) -> None:
        self.policy: Policy = snapshot.policy
        self.now: datetime = snapshot.now
        self.shares = shares
        self._usage: dict[str, Mapping[str, int]] = {}
        self._needs: dict[tuple[str, tuple[str, ...]], Mapping[str, int]] = {}
        self._long_s = long_job_s(snapshot)
        self._mine: dict[JobId, float] = {}
        self._theirs: dict[JobId, tuple[float, float, bool]] = {}
        self._running = snapshot.running
        self._turn_records: dict[JobId, _TurnRecord] = {}
        self._running_turns: list[_TurnRecord] | None = None
        self._has_guarantees = any(account.quota.guaranteed for account in snapshot.accounts)
        self._has_user_guarantees = any(account.quota.user_guaranteed for account in snapshot.accounts)
        policy = self.policy
        self._by_share = policy.is_fair and policy.preempts_shares
        self.is_by_priority_only = not (
            self._by_share
            or policy.takes_turns
            or (policy.reclaims and (self._has_guarantees or self._has_user_guarantees))
        )
        projects = {job.project for job in snapshot.queued} | {gang.project for gang in snapshot.running}
        self._is_one_project = len(projects) < 2

    def may_stop(self, gang: RunningGang) -> bool:
        """Whether any job may preempt it: it is preemptible, not stopping yet, and had its minimum run time."""
        return (
            gang.is_preemptible
            and not gang.is_stopping
            and gang.started_at is not None
            and self.ran_s(gang) >= max(self.policy.min_run_time_s, _LEAST_RUN_S)
        )

    def ran_s(self, gang: RunningGang) -> float:
        """Seconds that the present attempt has run."""
        return 0.0 if gang.started_at is None else (self.now - gang.started_at).total_seconds()

    def usage_of(self, gang: RunningGang) -> Mapping[str, int]:
        known = self._usage.get(gang.job_id)
        if known is None:
            known = self._usage[gang.job_id] = self.shares.running_amounts(gang)
        return known

    def needs_of(self, job: QueuedGang) -> Mapping[str, int]:
        return self.shares.likely_amounts(job.gang, job.shape)

    def may_preempt_any(self, job: QueuedGang, least_priority: int) -> bool:
        """False if the job certainly may preempt no running job. ``least_priority``: lowest priority of the running
        jobs.
        """
        if self.policy.preempts_priority and job.priority > least_priority:
            return True
        return not self.is_by_priority_only and (
            self._by_share or self.policy.takes_turns or self.may_reclaim(job) or self._is_owed_inside(job)
        )

    def may_reclaim(self, job: QueuedGang) -> bool:
        """Whether its needs are covered by its project's guarantee, and borrowers have to return them."""
        return (
            self.policy.reclaims
            and self._has_guarantees
            and is_guaranteed(job.project, self.needs_of(job), self.shares, waits=job.gang)
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
        if is_apart and self.may_reclaim(job) and self._borrows(gang, self.needs_of(job)):
            return PreemptCode.GUARANTEE
        if is_apart and self._by_share and job.priority >= gang.priority and self._evens_out(job, gang, strictly=True):
            return PreemptCode.FAIR_SHARE
        if not is_apart and job.user != gang.user:
            if self._is_users_own(gang):
                return None
            code = self._inside(job, gang)
            if code is not None:
                return code
        if self._may_take_turns(job, gang):
            return PreemptCode.TIME_SLICE
        return None

    def _inside(self, job: QueuedGang, gang: RunningGang) -> PreemptCode | None:
        """The reason between two users of one project: as between projects, but never against a larger priority.

        Where shares preempt, the exchange must not enlarge the project's share: another project could then reclaim
        the difference, the victim get it back from there, and so on in a circle.
        """
        if job.priority < gang.priority or (self._by_share and not self._keeps_share(job, gang)):
            return None
        if self._is_owed_inside(job) and self._borrows(gang, self.needs_of(job), gang.user):
            return PreemptCode.GUARANTEE
        if self._by_share and self._evens_out_inside(job, gang):
            return PreemptCode.FAIR_SHARE
        return None

    def may_lend(self, job: QueuedGang, other: QueuedGang) -> bool:
        """Whether ``job``, which holds a reservation, may reclaim the room of ``other`` later if that starts there now.

        Only within one project, or where fair shares are off, since shares may change until then. Not once ``job``
        starves.
        """
        policy = self.policy
        if not other.is_preemptible or self._has_starved(job):
            return False  # a stream of short jobs could otherwise delay it for ever
        if job.priority != other.priority:
            return job.priority > other.priority and policy.preempts_priority
        if not policy.takes_turns or (policy.is_fair and job.project != other.project):
            return False
        there = _as_running(other, self.now)
        return self._comes_first(job, there) or self._will_pass(job, other) or self._will_have_had_less(job, there)

    def _will_pass(self, job: QueuedGang, other: QueuedGang) -> bool:
        """Whether ``job`` precedes ``other``, now on its level, once that has attained the service that the level
        allows.

        So ``job`` waits at most once per job and level.
        """
        by_level = self.policy.order is QueueOrder.ATTAINED_SERVICE or job.estimate is other.estimate is None
        if self.policy.order is QueueOrder.FIFO or not by_level:
            return False
        level = self.policy.level(other.attained_gpu_s)
        return self.level(job) <= level < len(self.policy.levels_gpu_s)

    def may_take_growth(self, job: QueuedGang, gang: RunningGang) -> bool:
        """Whether ``job`` may take the replicas that ``gang`` has above its minimum."""
        if job.project != gang.project and self._has_guarantees and self._is_protected(gang):
            return False
        is_other_user = job.project == gang.project and job.user != gang.user
        if is_other_user and job.priority <= gang.priority and self._is_users_own(gang):
            return False
        if job.priority >= gang.priority:
            return True
        return not self.is_by_priority_only and self.reason_to_preempt(job, gang) is not None

    def _is_protected(self, gang: RunningGang) -> bool:
        """Within its project's guarantee: no other project preempts it, whatever its priority."""
        return is_guaranteed(gang.project, self.usage_of(gang), self.shares)

    def _is_owed_inside(self, job: QueuedGang) -> bool:
        """Whether its needs are covered by its user's guarantee, and other users of the project have to return them."""
        if not (self.policy.reclaims and self._has_user_guarantees):
            return False
        return is_guaranteed_to_user(job.project, job.user, self.needs_of(job), self.shares, waits=job.gang)

    def _is_users_own(self, gang: RunningGang) -> bool:
        """Within its user's guarantee: other users of the project preempt it only by a larger priority."""
        return self._has_user_guarantees and is_guaranteed_to_user(
            gang.project, gang.user, self.usage_of(gang), self.shares
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

    def _borrows(self, gang: RunningGang, need: Mapping[str, int], user: str | None = None) -> bool:
        """Whether the gang's project (or ``user`` within it) exceeds its guarantee in a resource that ``need`` asks
        for and ``gang`` holds.
        """
        account = self.shares.accounts.get(gang.project)
        guaranteed: Mapping[str, int] = {}
        if account is not None:
            guaranteed = account.quota.guaranteed if user is None else account.quota.user_guaranteed.get(user, {})
        shares, project = self.shares, gang.project
        all_held = (
            shares.held_by_project.get(project, {}) if user is None else shares.held_by_user.get((project, user), {})
        )
        has = self.usage_of(gang)
        keys = [
            key
            for key, amount in need.items()
            if amount and has.get(key) and key != JOBS and (not need[GPUS] or key.startswith(GPUS))
        ]
        named = [key for key in keys if key in guaranteed]
        return bool(keys) and (not named or any(all_held.get(key, 0) > guaranteed[key] for key in named))

    def _evens_out(self, job: QueuedGang, gang: RunningGang, *, strictly: bool) -> bool:
        """Whether the preemptor's project, with the job, has a smaller share than the victim's project with the gang.

        Then the exchange lowers the larger of the two shares, and with it the sorted vector of all shares (max-min
        fairness).
        """
        need = self._need_there(job, gang)
        held_now = self.shares.held_by_project.setdefault(job.project, {})
        for key in need:
            held_now.setdefault(key, 0)
        mine = self.shares.project_share(job.project, {key: -amount for key, amount in need.items()})
        theirs = self.shares.project_share(gang.project)
        return mine < theirs if strictly else mine <= theirs

    def _need_there(self, job: QueuedGang, gang: RunningGang) -> Mapping[str, int]:
        """What ``job`` would hold in the place of ``gang``: GPUs of the models that are there, which may be scarce
        ones.
        """
        models = tuple(key.partition("/")[2] for key, amount in self.usage_of(gang).items() if "/" in key and amount)
        known = self._needs.get((job.shape, models))
        if known is None:
            found = dict(self.needs_of(job))
            parts = [(role, gpu_milli(role.request)) for role in job.gang.roles if gpu_milli(role.request)]
            if (
                models
                and parts
                and all(accepted_models(role.request.gpu_models or models, models) for role, _ in parts)
            ):
                found = {key: amount for key, amount in found.items() if "/" not in key}
                for role, milli in parts:
                    for model in accepted_models(role.request.gpu_models or models, models):
                        found[model_key(model)] = found.get(model_key(model), 0) + role.replicas * milli
            known = self._needs[job.shape, models] = found
        return known

    def _evens_out_inside(self, job: QueuedGang, gang: RunningGang) -> bool:
        """The same between two users of one project."""
        need, who = self._need_there(job, gang), (job.project, job.user)
        held_now = self.shares.held_by_user.setdefault(who, {})
        for key in need:
            held_now.setdefault(key, 0)
        mine = self.shares.user_share(*who, {key: -amount for key, amount in need.items()})
        return mine < self.shares.user_share(gang.project, gang.user)

    def _keeps_share(self, job: QueuedGang, gang: RunningGang) -> bool:
        """Whether the exchange leaves their common project with no more of any resource."""
        if self._is_one_project:
            return True
        has = self.usage_of(gang)
        return all(amount <= has.get(key, 0) for key, amount in self._need_there(job, gang).items() if key != JOBS)

    # ---- turns ----

    def _may_take_turns(self, job: QueuedGang, gang: RunningGang) -> bool:
        if job.priority != gang.priority or not self._has_turn(job, gang):
            return False
        # Time slices rotate within a share: a rotation never makes shares less even.
        return not self.policy.is_fair or job.project == gang.project or self._evens_out(job, gang, strictly=False)

    def _has_turn(self, job: QueuedGang, gang: RunningGang) -> bool:
        """Whether ``gang`` has run its time slice and ``job`` precedes it: one strict order of all jobs
        at each moment.
        """
        slice_s, rotation_s, ran_s = self.policy.time_slice_s, self.policy.rotation_s, self.ran_s(gang)
        is_rotated = rotation_s is not None and ran_s + CLOCK_S >= rotation_s
        if not is_rotated and (slice_s is None or ran_s < slice_s):
            return False
        return self._comes_first(job, gang) or (is_rotated and self._has_had_less(job, gang))

    def turn_counts(self, job: QueuedGang, gang: RunningGang) -> tuple[int, int] | None:
        """The whole turns of both jobs if ``job`` precedes ``gang`` by turns, or by age with equal turns.

        ``None`` where it precedes by the policy's order.
        """
        is_equal = self._are_equal(job, gang) and self._has_had_less(job, gang)
        return (self._turn_record(job)[0], self._turn_record(gang)[0]) if is_equal else None

    def _are_equal(self, job: QueuedGang, gang: RunningGang) -> bool:
        """Whether the policy's order leaves only turns and age to compare."""
        if self.policy.rotation_s is None:
            return False
        if self.policy.order is QueueOrder.FIFO:
            return True
        if self.policy.order in _BY_LENGTH and (job.estimate is not None or gang.estimate is not None):
            return False
        return self.level(job) == self.policy.level(gang.attained_gpu_s)

    def _has_had_less(self, job: QueuedGang, gang: RunningGang) -> bool:
        """Among equals; a strict order in which a running job only falls behind."""
        return self._are_equal(job, gang) and self._turn_record(job) < self._turn_record(gang)

    def _will_have_had_less(self, job: QueuedGang, there: RunningGang) -> bool:
        """Whether that holds once ``there``, which starts now, has run for one turn."""
        if not self._are_equal(job, there):
            return False
        turns, queued_at, job_id = self._turn_record_of(there)
        return self._turn_record(job) < (turns + 1, queued_at, job_id)

    def rank_among_running(self, job: QueuedGang) -> int:
        """How many running gangs precede it under equal priority and order; equal for jobs that no running gang
        separates.
        """
        if self._running_turns is None:
            self._running_turns = sorted(self._turn_record(gang) for gang in self._running if not gang.is_part)
        return bisect_left(self._running_turns, self._turn_record(job))

    def _turn_record(self, job: QueuedGang | RunningGang) -> _TurnRecord:
        known = self._turn_records.get(job.job_id)
        if known is None:
            known = self._turn_records[job.job_id] = self._turn_record_of(job)
        return known

    def _turn_record_of(self, job: QueuedGang | RunningGang) -> _TurnRecord:
        return turns_taken(job, self.policy, self.now), job.queued_at or _LONG_AGO, job.job_id

    def _comes_first(self, job: QueuedGang, gang: RunningGang) -> bool:
        """Strictly first by the policy's order, and by a margin that makes the exchange pay."""
        if self.policy.order is QueueOrder.FIFO and self.policy.rotation_s is not None:
            return self._turn_record_of(job) < self._turn_record_of(gang)
        if self.policy.order is QueueOrder.FIFO:
            return gang.queued_at is not None and job.queued_at < gang.queued_at
        if self.policy.order in _BY_LENGTH and (job.estimate is not None or gang.estimate is not None):
            return self._is_shorter(job, gang)
        return self.level(job) < self.policy.level(gang.attained_gpu_s)

    def level(self, job: QueuedGang) -> int:
        """The level of attained service; a starving job counts as level 0."""
        return 0 if self._has_starved(job) else self.policy.level(job.attained_gpu_s)

    def _has_starved(self, job: QueuedGang) -> bool:
        return (self.now - (job.waits_since or job.queued_at)).total_seconds() >= self.policy.starvation_s

    def _is_shorter(self, job: QueuedGang, gang: RunningGang) -> bool:
        """Compared by the queue's policy key, so that a job of unknown length gets the time in which it shows its
        length.

        The key of such a job only rises while it runs, that of the other only falls: no circle.
        """
        mine, (theirs, costs, is_known) = self._measured(job), self._running_measured(gang)
        if min(mine, theirs) < 0:
            return mine < 0 <= theirs  # a long job precedes the others; long jobs do not take turns
        mine += costs
        if job.estimate is None or gang.estimate is None:
            return mine < theirs
        are_known = is_known and job.estimate.early_s == job.estimate.late_s
        return mine < theirs * (1.0 if are_known else _CLEARLY_LESS)

    # Cached per job: every blocked job is compared with every running one.

    def _measured(self, job: QueuedGang) -> float:
        known = self._mine.get(job.job_id)
        if known is None:
            known = self._mine[job.job_id] = policy_key(job, self.policy, self._long_s)
        return known

    def _running_measured(self, gang: RunningGang) -> tuple[float, float, bool]:
        """Its policy key, the cost of stopping it, and whether its end is known."""
        known = self._theirs.get(gang.job_id)
        if known is None:
            is_known = gang.estimate is not None and gang.estimate.early_s == gang.estimate.late_s
            known = policy_key(gang, self.policy, self._long_s), self._costs(gang), is_known
            self._theirs[gang.job_id] = known
        return known

    def _costs(self, gang: RunningGang) -> float:
        """In the unit of the policy key."""
        costs = self.eviction_cost_gpu_s(gang)
        return (
            costs / (self.usage_of(gang)[GPUS] / 1000 or 1.0) if self.policy.order is QueueOrder.FAIR_FINISH else costs
        )

    def eviction_cost_gpu_s(self, gang: RunningGang) -> float:
        """GPU-seconds that stopping it loses: work since its last checkpoint plus restart time."""
        held_now = self.usage_of(gang)[GPUS] / 1000 or 1.0
        return gang.lost_gpu_s + self.policy.restart_cost_s * held_now


def _as_running(job: QueuedGang, now: datetime) -> RunningGang:
    """A waiting job as if it had just started."""
    return RunningGang(
        job_id=job.job_id,
        name=job.name,
        project=job.project,
        priority=job.priority,
        gang=job.gang,
        nodes=(),
        user=job.user,
        queued_at=job.queued_at,
        started_at=now,
        attained_gpu_s=job.attained_gpu_s,
        estimate=job.estimate,
        earlier_s=job.earlier_s,
    )
