"""Time slicing: which of two jobs of equal priority comes first by the policy's order, turns and age.

:class:`ShareExchange`: amounts held and needed, and whether a preemption evens out fair shares.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from core.domain.ids import JobId
from core.domain.sharing.gpus import accepted_models
from core.domain.sharing.policy import Policy, QueueOrder
from scheduler.planning.model import QueuedGang, RunningGang, Snapshot
from scheduler.planning.queue.overtaking import Overtaking, has_passed
from scheduler.planning.queue.policy_key import BY_LENGTH, CLOCK_S, gittins_index, long_job_s, policy_key, turns_taken
from scheduler.planning.queue.shares import GPUS, JOBS, Shares, gpu_milli, gpus_of, model_key

# Where durations are estimates, the preemptor's remaining time must be at most half the victim's: a swap costs both
# jobs time, and an estimate is often off by as much. Where durations are known, it suffices that the swap pays for
# itself.
_CLEARLY_LESS: Final = 0.5
# Of a job of unknown length the index says little, and it rises from the first second that the job runs: with less
# hysteresis jobs of one age stop each other in turn and all end late.
_MUCH_LESS: Final = 1 / 16
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)


class ShareExchange:
    """Compares the shares of preemptor and victim; amounts held are read from ``shares``, which may
    change meanwhile.
    """

    def __init__(self, snapshot: Snapshot, shares: Shares) -> None:
        self.shares = shares
        self._usage: dict[str, Mapping[str, int]] = {}
        self._needs: dict[tuple[str, tuple[str, ...]], Mapping[str, int]] = {}
        projects = {job.project for job in snapshot.queued} | {gang.project for gang in snapshot.running}
        self._has_single_project = len(projects) < 2

    def usage_of(self, gang: RunningGang) -> Mapping[str, int]:
        amounts = self._usage.get(gang.job_id)
        if amounts is None:
            amounts = self._usage[gang.job_id] = self.shares.running_amounts(gang)
        return amounts

    def needs_of(self, job: QueuedGang) -> Mapping[str, int]:
        return self.shares.likely_amounts(job.gang, job.shape)

    def borrows(self, gang: RunningGang, need: Mapping[str, int], user: str | None = None) -> bool:
        """Whether the gang's project (or ``user`` within it) exceeds its guarantee in a resource that ``need`` asks
        for and ``gang`` holds.
        """
        account = self.shares.accounts.get(gang.project)
        guaranteed: Mapping[str, int] = {}
        if account is not None:
            guaranteed = account.quota.guaranteed if user is None else account.quota.user_guaranteed.get(user, {})
        shares, project = self.shares, gang.project
        occupied = (
            shares.occupied_by_project.get(project, {})
            if user is None
            else shares.occupied_by_user.get((project, user), {})
        )
        usage = self.usage_of(gang)
        keys = [
            key
            for key, amount in need.items()
            if amount and usage.get(key) and key != JOBS and (not need[GPUS] or key.startswith(GPUS))
        ]
        named = [key for key in keys if key in guaranteed]
        return bool(keys) and (not named or any(occupied.get(key, 0) > guaranteed[key] for key in named))

    def lowers_larger_share(self, job: QueuedGang, gang: RunningGang, *, strictly: bool) -> bool:
        """Whether the preemptor's project, with the job, has a smaller share than the victim's project with the gang.

        Then the exchange lowers the larger of the two shares, and with it the sorted vector of all shares (max-min
        fairness).
        """
        need = self._need_there(job, gang)
        occupied = self.shares.occupied_by_project.setdefault(job.project, {})
        for key in need:
            occupied.setdefault(key, 0)
        preemptor_share = self.shares.project_share(job.project, {key: -amount for key, amount in need.items()})
        victim_share = self.shares.project_share(gang.project)
        return preemptor_share < victim_share if strictly else preemptor_share <= victim_share

    def _need_there(self, job: QueuedGang, gang: RunningGang) -> Mapping[str, int]:
        """What ``job`` would hold in the place of ``gang``: GPUs of the models that are there, which may be scarce
        ones.
        """
        models = tuple(key.partition("/")[2] for key, amount in self.usage_of(gang).items() if "/" in key and amount)
        cached = self._needs.get((job.shape, models))
        if cached is None:
            needs = dict(self.needs_of(job))
            parts = [(role, gpu_milli(role.request)) for role in job.gang.roles if gpu_milli(role.request)]
            if (
                models
                and parts
                and all(accepted_models(role.request.gpu_models or models, models) for role, _ in parts)
            ):
                needs = {key: amount for key, amount in needs.items() if "/" not in key}
                for role, milli in parts:
                    for model in accepted_models(role.request.gpu_models or models, models):
                        needs[model_key(model)] = needs.get(model_key(model), 0) + role.replicas * milli
            cached = self._needs[job.shape, models] = needs
        return cached

    def lowers_larger_share_in_project(self, job: QueuedGang, gang: RunningGang) -> bool:
        """The same between two users of one project."""
        need, holder = self._need_there(job, gang), (job.project, job.user)
        occupied = self.shares.occupied_by_user.setdefault(holder, {})
        for key in need:
            occupied.setdefault(key, 0)
        preemptor_share = self.shares.user_share(*holder, {key: -amount for key, amount in need.items()})
        return preemptor_share < self.shares.user_share(gang.project, gang.user)

    def keeps_share(self, job: QueuedGang, gang: RunningGang) -> bool:
        """Whether the exchange leaves their common project with no more of any resource."""
        if self._has_single_project:
            return True
        usage = self.usage_of(gang)
        return all(amount <= usage.get(key, 0) for key, amount in self._need_there(job, gang).items() if key != JOBS)


# Order of equal jobs: whole turns taken, queueing time, id.
_TurnRecord = tuple[int, datetime, str]


class TimeSlicing:
    """Compares waiting with running jobs of equal priority. All comparisons are cached per job."""

    def __init__(self, snapshot: Snapshot, exchange: ShareExchange, overtaking: Overtaking) -> None:
        self.overtaking = overtaking
        self.policy: Policy = snapshot.policy
        self.now: datetime = snapshot.now
        self._exchange = exchange
        self._long_s = long_job_s(snapshot)
        self._index = gittins_index(snapshot.finished_run_times)
        self._waiting_keys: dict[JobId, float] = {}
        self._running_keys: dict[JobId, tuple[float, float, bool]] = {}
        self._running = snapshot.running
        self._turn_records: dict[JobId, _TurnRecord] = {}
        self._running_turns: list[_TurnRecord] | None = None

    def may_take_turn(self, job: QueuedGang, gang: RunningGang) -> bool:
        if job.priority != gang.priority or not gang.is_resumable:
            return False
        if not self._has_turn(job, gang) and not self._may_take_back(job, gang):
            return False
        # Time slices rotate within a share: a rotation never makes shares less even.
        return (
            not self.policy.is_fair
            or job.project == gang.project
            or self._exchange.lowers_larger_share(job, gang, strictly=False)
        )

    def _may_take_back(self, job: QueuedGang, gang: RunningGang) -> bool:
        """Whether ``gang`` passed ``job``, which others overtake, and is smaller: no wait for the end of its slice."""
        return (
            self.policy.time_slice_s is not None
            and gpus_of(gang.gang) < gpus_of(job.gang)
            and has_passed(gang, self.overtaking.since(job))
            and self.overtaking.may_take_back(job)
        )

    def may_take_back_from(self, job: QueuedGang, other: QueuedGang) -> bool:
        """Whether ``job`` may take its room back from ``other`` if that starts now."""
        return self.policy.time_slice_s is not None and gpus_of(other.gang) < gpus_of(job.gang)

    def _has_turn(self, job: QueuedGang, gang: RunningGang) -> bool:
        """Whether ``gang`` has run its time slice and ``job`` precedes it: one strict order of all jobs
        at each moment.
        """
        slice_s, rotation_s, ran_s = self.policy.time_slice_s, self.policy.rotation_s, self.ran_s(gang)
        is_rotated = rotation_s is not None and ran_s + CLOCK_S >= rotation_s
        if not is_rotated and (slice_s is None or ran_s < slice_s):
            return False
        return self._comes_first(job, gang) or (is_rotated and self._has_fewer_turns(job, gang))

    def turn_counts(self, job: QueuedGang, gang: RunningGang) -> tuple[int, int] | None:
        """The whole turns of both jobs if ``job`` precedes ``gang`` by turns, or by age with equal turns.

        ``None`` where it precedes by the policy's order.
        """
        is_equal = self._are_equal(job, gang) and self._has_fewer_turns(job, gang)
        return (self._turn_record(job)[0], self._turn_record(gang)[0]) if is_equal else None

    def _are_equal(self, job: QueuedGang, gang: RunningGang) -> bool:
        """Whether the policy's order leaves only turns and age to compare."""
        if self.policy.rotation_s is None:
            return False
        if self.policy.order is QueueOrder.FIFO:
            return True
        if self.policy.order in BY_LENGTH:
            # Of unknown lengths neither is much less than the other.
            waiting_key, running_key = self._waiting_key(job), self._running_key(gang)[0]
            is_unknown = job.estimate is None and gang.estimate is None
            return is_unknown and running_key * _MUCH_LESS <= waiting_key <= running_key / _MUCH_LESS
        return self.level(job) == self.policy.level(gang.attained_gpu_s)

    def _has_fewer_turns(self, job: QueuedGang, gang: RunningGang) -> bool:
        """Among equals; a strict order in which a running job only falls behind."""
        return self._are_equal(job, gang) and self._turn_record(job) < self._turn_record(gang)

    def _will_have_fewer_turns(self, job: QueuedGang, started: RunningGang) -> bool:
        """Whether that holds once ``started``, which starts now, has run for one turn."""
        if not self._are_equal(job, started):
            return False
        turns, queued_at, job_id = self._turn_record_of(started)
        return self._turn_record(job) < (turns + 1, queued_at, job_id)

    def rank_among_running(self, job: QueuedGang) -> int:
        """How many running gangs precede it under equal priority and order; equal for jobs that no running gang
        separates.
        """
        if self._running_turns is None:
            self._running_turns = sorted(self._turn_record(gang) for gang in self._running if not gang.is_part)
        return bisect_left(self._running_turns, self._turn_record(job))

    def _turn_record(self, job: QueuedGang | RunningGang) -> _TurnRecord:
        record = self._turn_records.get(job.job_id)
        if record is None:
            record = self._turn_records[job.job_id] = self._turn_record_of(job)
        return record

    def _turn_record_of(self, job: QueuedGang | RunningGang) -> _TurnRecord:
        return turns_taken(job, self.policy, self.now), job.queued_at or _LONG_AGO, job.job_id

    def _comes_first(self, job: QueuedGang, gang: RunningGang) -> bool:
        """Strictly first by the policy's order, and by a margin that makes the exchange pay."""
        if self.policy.order is QueueOrder.FIFO and self.policy.rotation_s is not None:
            return self._turn_record_of(job) < self._turn_record_of(gang)
        if self.policy.order is QueueOrder.FIFO:
            return gang.queued_at is not None and job.queued_at < gang.queued_at
        if self.policy.order in BY_LENGTH:
            return self._is_shorter(job, gang)
        return self.level(job) < self.policy.level(gang.attained_gpu_s)

    def level(self, job: QueuedGang) -> int:
        """The level of attained service; a starving job counts as level 0."""
        return 0 if self.has_starved(job) else self.policy.level(job.attained_gpu_s)

    def has_starved(self, job: QueuedGang) -> bool:
        return (self.now - (job.waits_since or job.queued_at)).total_seconds() >= self.policy.starvation_s

    def _is_shorter(self, job: QueuedGang, gang: RunningGang) -> bool:
        """Compared by the queue's policy key, with a margin: so a job of unknown length gets the time in which it shows
        its length, and two jobs do not stop each other in turn.
        """
        waiting_key, (running_key, cost, is_known) = self._waiting_key(job), self._running_key(gang)
        if min(waiting_key, running_key) < 0:
            return waiting_key < 0 <= running_key  # a long job precedes the others; long jobs do not take turns
        waiting_key += cost
        if job.estimate is None:
            return waiting_key < running_key * _MUCH_LESS
        are_known = is_known and job.estimate.early_s == job.estimate.late_s
        return waiting_key < running_key * (1.0 if are_known else _CLEARLY_LESS)

    def _waiting_key(self, job: QueuedGang) -> float:
        key = self._waiting_keys.get(job.job_id)
        if key is None:
            key = self._waiting_keys[job.job_id] = policy_key(job, self.policy, self._long_s, self._index)
        return key

    def rights(self, job: QueuedGang) -> tuple[object, ...]:
        """Equal for jobs with the same turns against every running gang."""
        if self.policy.order is QueueOrder.FIFO:
            return (job.queued_at,)
        if self.policy.order in BY_LENGTH:
            since = self.overtaking.since(job) if self.overtaking.may_take_back(job) else None
            return (self._waiting_key(job), job.estimate, since)
        return (self.level(job),)

    def cost_of_turn(self, job: QueuedGang, gang: RunningGang, cost: float) -> float:
        """``cost`` of stopping ``gang`` for a turn of ``job``: smaller the more the gang has left, of those that stop
        for a turn one with much left loses least by it.
        """
        if self.policy.order not in BY_LENGTH:
            return cost
        waiting_key, running_key = self._waiting_key(job), self._running_key(gang)[0]
        return cost * min(1.0, max(waiting_key, CLOCK_S) / running_key) if running_key > 0 else cost

    def _running_key(self, gang: RunningGang) -> tuple[float, float, bool]:
        """Its policy key, the cost of stopping it, and whether its end is known."""
        key = self._running_keys.get(gang.job_id)
        if key is None:
            is_known = gang.estimate is not None and gang.estimate.early_s == gang.estimate.late_s
            key = policy_key(gang, self.policy, self._long_s, self._index), self._eviction_cost(gang), is_known
            self._running_keys[gang.job_id] = key
        return key

    def _eviction_cost(self, gang: RunningGang) -> float:
        """In the unit of the policy key."""
        cost_gpu_s = self.eviction_cost_gpu_s(gang)
        return (
            cost_gpu_s / (self._exchange.usage_of(gang)[GPUS] / 1000 or 1.0)
            if self.policy.order is QueueOrder.FAIR_FINISH
            else cost_gpu_s
        )

    def eviction_cost_gpu_s(self, gang: RunningGang) -> float:
        """GPU-seconds that stopping it loses: work since its last checkpoint plus restart time."""
        gpus = self._exchange.usage_of(gang)[GPUS] / 1000 or 1.0
        return gang.lost_gpu_s + self.policy.restart_cost_s * gpus

    def ran_s(self, gang: RunningGang) -> float:
        """Seconds that the present attempt has run."""
        return 0.0 if gang.started_at is None else (self.now - gang.started_at).total_seconds()

    def _will_pass(self, job: QueuedGang, other: QueuedGang) -> bool:
        """Whether ``job`` precedes ``other``, now on its level, once that has attained the service that the level
        allows.

        So ``job`` waits at most once per job and level.
        """
        if self.policy.order is not QueueOrder.ATTAINED_SERVICE:
            return False
        level = self.policy.level(other.attained_gpu_s)
        return self.level(job) <= level < len(self.policy.levels_gpu_s)

    def will_come_first(self, job: QueuedGang, other: QueuedGang) -> bool:
        """Whether ``job`` will precede ``other`` once that has run for one turn, if it starts now."""
        started = other.running((), started_at=self.now)
        return (
            self._comes_first(job, started) or self._will_pass(job, other) or self._will_have_fewer_turns(job, started)
        )
