"""Discrete-event simulation of the production planner: jobs arrive, are planned, run, are preempted and end."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TypedDict

from core.domain.ids import JobId
from core.domain.jobs.name_patterns import pattern_of
from core.domain.jobs.speed_curve import UNMEASURED, SpeedCurve, SpeedPoint
from core.domain.sharing.policy import Policy, QueueOrder
from scheduler.planning import NodeSnapshot, Plan, QueuedGang, Snapshot, plan
from scheduler.planning.elastic_balance import next_balance
from scheduler.planning.model import Account
from scheduler.planning.queue.overtaking import next_overtaken_s
from scheduler.planning.queue.policy_key import (
    BY_LENGTH,
    CLOCK_S,
    RUN_TIME_BUCKETS,
    next_comparison_s,
    run_time_bucket,
)
from scheduler.simulator.cluster import SimulatedCluster, SimulatedRun, WrongPlan
from scheduler.simulator.estimates import Estimator, Progress
from scheduler.simulator.outcome import ClusterUsage, JobHistory, SimulationOutcome
from scheduler.simulator.reading.arrival import Arrival
from scheduler.simulator.reading.scenario import Scenario
from scheduler.simulator.work_rate import SpeedProfile, WorkRate


@dataclass(slots=True)
class _Usage:
    project: float = 0.0
    users: dict[str, float] = field(default_factory=dict)


class UsageHistory:
    """Means of dominant shares with exponential decay by half-life.

    With a single user, or if past usage has no weight, nothing is recorded: it would change nothing.
    """

    def __init__(
        self, policy: Policy, accounts: Iterable[Account], nodes: Iterable[NodeSnapshot], arrivals: Iterable[Arrival]
    ) -> None:
        self._given = {account.project: account for account in accounts}
        nodes = tuple(nodes)
        self._gpus = sum(node.allocatable.gpu_count for node in nodes)
        self._cpu_milli = sum(node.allocatable.cpu_milli for node in nodes) or 1
        self._half_life_s = policy.usage_half_life_s
        owners = {(arrival.project, arrival.user) for arrival in arrivals}
        self._counts = policy.is_fair and policy.usage_weight > 0 and len(owners) > 1
        self._usage: dict[str, _Usage] = {
            account.project: _Usage(account.usage, dict(account.user_usage)) for account in self._given.values()
        }
        for project, user in owners if self._counts else ():
            self._usage.setdefault(project, _Usage()).users.setdefault(user, 0.0)
        self._now_s = 0.0

    def advance(self, to_s: float, running: Mapping[JobId, SimulatedRun]) -> None:
        """``running``: what ran from the last call to ``to_s``."""
        past_s = to_s - self._now_s
        self._now_s = to_s
        if not self._counts or past_s <= 0:
            return
        decay = 0.5 ** (past_s / self._half_life_s)
        for usage in self._usage.values():
            usage.project *= decay
            for user in usage.users:
                usage.users[user] *= decay
        for run in running.values():
            share = (1 - decay) * self._share(run)
            usage = self._usage.setdefault(run.job.project, _Usage())
            usage.project += share
            usage.users[run.job.user] = usage.users.get(run.job.user, 0.0) + share

    def accounts(self) -> tuple[Account, ...]:
        if not self._counts:
            return tuple(self._given.values())
        return tuple(
            replace(self._given.get(project, Account(project)), usage=usage.project, user_usage=dict(usage.users))
            for project, usage in sorted(self._usage.items())
        )

    def _share(self, running: SimulatedRun) -> float:
        requests = {role.role: role.request for role in running.job.gang.roles}
        own_requests = [requests[placement.role] for placement in running.placements]
        gpus = sum(request.gpu_count + request.gpu_milli / 1000 for request in own_requests)
        cpu = sum(request.cpu_milli for request in own_requests) / self._cpu_milli
        return max(gpus / self._gpus if self._gpus else 0.0, cpu)


Planner = Callable[[Snapshot], Plan]

# A plan that preempts without grace is followed by another at the same moment. More than this many in a row are an
# endless loop.
_MOST_PLANS_AT_ONCE = 1000
_SOON_S = 1e-6  # events closer than this are simultaneous: sums of floats are not exact


class Simulation:
    """One run of one scenario.

    Args:
        planner: the planner under simulation; the production planner unless a test says otherwise. on_plan: called
        with every snapshot and its plan, for checks and measurements. cpu_clock: such as ``time.process_time``, to
        measure the cost of plans. keeps_reasons: whether each job's history records its wait reasons.
    """

    def __init__(
        self,
        scenario: Scenario,
        planner: Planner = plan,
        on_plan: Callable[[Snapshot, Plan], None] | None = None,
        *,
        cpu_clock: Callable[[], float] | None = None,
        keeps_reasons: bool = True,
    ) -> None:
        self.scenario = scenario
        self.planner = planner
        self.on_plan = on_plan
        self.cpu_clock = cpu_clock
        self.keeps_reasons = keeps_reasons
        self.world = SimulatedCluster(
            scenario.nodes, policy=scenario.policy, accounts=scenario.accounts, bookings=scenario.bookings
        )
        self.estimator = Estimator(scenario.knowledge, scenario.learnt_after_s, scenario.start)
        self.outcome = SimulationOutcome(
            scenario, {arrival.name: JobHistory(arrival) for arrival in scenario.arrivals}, ClusterUsage(scenario.nodes)
        )
        self._past = UsageHistory(scenario.policy, scenario.accounts, scenario.nodes, scenario.arrivals)
        self._progress: dict[str, Progress] = {}
        self._began_s: dict[str, float] = {}  # of the present attempt
        self._arrivals = sorted(scenario.arrivals, key=lambda arrival: (arrival.at_s, arrival.name))
        self._next = 0
        self._ends: list[tuple[float, int, str]] = []  # end, version of that end, job name
        self._version: dict[str, int] = {}
        self._stops: list[tuple[float, str]] = []
        self._look_s = math.inf
        self._has_elastic = any(arrival.gang.elastic is not None for arrival in scenario.arrivals)
        self._is_dirty = False  # something changed since the last plan
        self._finished = [0] * (len(RUN_TIME_BUCKETS) + 1)  # jobs that have ended, by run time
        self._job_seconds = 0.0  # integral of the number of jobs over time
        self._jobs_there = 0
        self._speeds_before: dict[tuple[str, str, str], tuple[SpeedPoint, ...]] = {}
        self._job_seconds_before: dict[str, float] = {}  # ``_job_seconds`` at the job's arrival

    def run(self) -> SimulationOutcome:
        """Run until no event is left, or the scenario's ``until``. A job that can never run waits for ever."""
        now_s = 0.0
        last_plan_s = -math.inf
        at_once = 0
        while True:
            happens_s = self._next_event_s()
            if (self.world.queued or self._stops or self._has_elastic) and self._is_dirty:
                happens_s = min(happens_s, max(now_s, last_plan_s + self.scenario.tick_s))
            if happens_s > self.scenario.until_s or math.isinf(happens_s):
                break
            at_once = at_once + 1 if happens_s <= now_s else 0
            if at_once > _MOST_PLANS_AT_ONCE:
                raise WrongPlan(f"plans go in circles at {now_s:g} s")
            self._pass(now_s, happens_s)
            now_s = max(now_s, happens_s)
            self._process_events(now_s)
            if self._is_dirty and now_s >= last_plan_s + self.scenario.tick_s:
                self._plan(now_s)
                last_plan_s = now_s
        self.outcome.end_s = now_s if math.isinf(self.scenario.until_s) else self.scenario.until_s
        self.outcome.usage.advance(self.outcome.end_s, waiting=len(self.world.queued))
        return self.outcome

    def _next_event_s(self) -> float:
        while self._ends and self._version.get(self._ends[0][2]) != self._ends[0][1]:
            heapq.heappop(self._ends)
        arrival_s = self._arrivals[self._next].at_s if self._next < len(self._arrivals) else math.inf
        end_s = self._ends[0][0] if self._ends else math.inf
        stop_s = self._stops[0][0] if self._stops else math.inf
        return min(arrival_s, end_s, stop_s, self._look_s)

    def _pass(self, now_s: float, to_s: float) -> None:
        self._job_seconds += max(0.0, to_s - now_s) * self._jobs_there
        self.outcome.usage.advance(to_s, waiting=len(self.world.queued))
        self._past.advance(to_s, self.world.running)

    def _process_events(self, now_s: float) -> None:
        while self._ends and self._ends[0][0] <= now_s + _SOON_S:
            _, version, name = heapq.heappop(self._ends)
            if self._version.get(name) == version:
                self._end(name, now_s)
        while self._stops and self._stops[0][0] <= now_s + _SOON_S:
            _, name = heapq.heappop(self._stops)
            if JobId(name) in self.world.running:
                self._release(name, now_s)
        while self._next < len(self._arrivals) and self._arrivals[self._next].at_s <= now_s:
            self._arrive(self._arrivals[self._next], now_s)
            self._next += 1
        if self._look_s <= now_s + _SOON_S:
            self._look_s = math.inf
            self._is_dirty = True

    def _arrive(self, arrival: Arrival, now_s: float) -> None:
        progress = Progress(arrival, self.scenario.checkpoint_every_s, now_s=now_s)
        self._progress[arrival.name] = progress
        self._job_seconds_before[arrival.name] = self._job_seconds
        self._jobs_there += 1
        self.world.enqueue(self._queued(progress, now_s))
        self._is_dirty = True

    def _end(self, name: str, now_s: float) -> None:
        ended = self.world.finish(JobId(name))
        del self._version[name], self._began_s[name]
        history = self.outcome.jobs[name]
        history.ended_s = now_s
        there_s = now_s - history.arrival.at_s
        meanwhile = self._job_seconds - self._job_seconds_before.pop(name)
        history.concurrent_jobs = meanwhile / there_s if there_s > 0 else 1.0
        self._jobs_there -= 1
        self.outcome.usage.end(ended)
        progress = self._progress.pop(name)
        progress.advance(now_s)
        self._finished[run_time_bucket(progress.ran_s)] += 1
        if progress.measured:
            self._speeds_before[_owner(progress.arrival)] = tuple(progress.measured.values())
        self.estimator.ended(progress, now_s, is_cut_off=progress.remaining_s > _SOON_S, others=self._progress.values())
        self._is_dirty = True

    def _release(self, name: str, now_s: float) -> None:
        """A preempted job has stopped."""
        del self._version[name], self._began_s[name]
        progress = self._progress[name]
        progress.stop(now_s)
        running = self.world.release(JobId(name), self._queued(progress, now_s))
        history = self.outcome.jobs[name]
        history.preemptions += 1
        history.lost_s = progress.lost_s
        self.outcome.usage.end(running)
        self._is_dirty = True

    def _queued(self, progress: Progress, now_s: float) -> QueuedGang:
        arrival = progress.arrival
        return QueuedGang(
            job_id=JobId(arrival.name),
            name=arrival.title or arrival.name,
            project=arrival.project,
            user=arrival.user,
            priority=arrival.priority,
            queued_at=self._moment(arrival.at_s),
            gang=arrival.gang,
            shape=arrival.shape,
            max_run_time_s=arrival.max_run_time_s,
            attained_gpu_s=progress.attained_gpu_s,
            estimate=self.estimator.of(progress),
            waits_since=self._moment(now_s) if progress.starts else None,
            is_preemptible=arrival.is_preemptible,
            is_resumable=arrival.is_resumable,
            earlier_s=progress.allocated_s,
            speed=self._curve(progress),
        )

    def _snapshot(self, now_s: float) -> Snapshot:
        """The planner's snapshot at this moment."""
        for job_id, running in self.world.running.items():
            progress = self._progress[job_id]
            progress.advance(now_s)
            self.world.update_view(
                replace(
                    self.world.view(job_id),
                    attained_gpu_s=progress.attained_gpu_s,
                    lost_gpu_s=progress.unsaved_s * progress.rate,
                    estimate=self.estimator.of(progress),
                    is_preemptible=progress.arrival.is_preemptible and running.stops_at is None,
                    speed=self._curve(progress),
                )
            )
        self.world.accounts = self._past.accounts()
        self.world.finished_run_times = tuple(self._finished)
        return self.world.snapshot(self._moment(now_s))

    def _plan(self, now_s: float) -> None:
        self._is_dirty = False
        snapshot = self._snapshot(now_s)
        if not snapshot.queued and not self._has_elastic:
            return
        before_s = self.cpu_clock() if self.cpu_clock is not None else 0.0
        made = self.planner(snapshot)
        if self.cpu_clock is not None:
            self.outcome.decision_cpu_s.append(self.cpu_clock() - before_s)
        if self.on_plan is not None:
            self.on_plan(snapshot, made)
        self._apply(made, snapshot.now, now_s)
        self.outcome.plans += 1
        self.outcome.last_waits = made.waits
        if self.keeps_reasons:
            for job_id, reason in made.waits.items():
                reasons = self.outcome.jobs[job_id].reasons
                if not reasons or reasons[-1][1] != reason:
                    reasons.append((now_s, reason))
        self.outcome.usage.wait({job_id: reason.code for job_id, reason in made.waits.items()}, self.world)
        self._look_s = self._next_look_s(now_s)

    def _apply(self, made: Plan, now: datetime, now_s: float) -> None:
        self.world.apply(made, now)
        for start in made.starts:
            history = self.outcome.jobs[start.job_id]
            running = self.world.running[start.job_id]
            if history.started_s is None:
                history.started_s = now_s
                history.nodes = tuple(placement.node for placement in start.placements)
                history.gpu_models = tuple(placement.gpu_model for placement in start.placements)
            self.outcome.usage.start(running)
            self._began_s[start.job_id] = now_s
            progress = self._progress[start.job_id]
            progress.start(now_s, **self._speed(running), cost_s=self.scenario.restart_cost_s)
            self._expect_end(start.job_id)
        for grow in made.grows:
            role = self.world.running[grow.job_id].job.gang.elastic
            if role is not None:
                self.outcome.usage.hold(role.request, len(grow.placements))
            self._resize(grow.job_id, now_s)
        for shrink in made.shrinks:
            role = self.world.running[shrink.job_id].job.gang.elastic
            if role is not None:
                self.outcome.usage.hold(role.request, -len(shrink.indices))
            self._resize(shrink.job_id, now_s)
            self._is_dirty = True
        for preempt in made.preempts:
            heapq.heappush(self._stops, (now_s + self.scenario.policy.grace_s, preempt.job_id))

    def _resize(self, job_id: JobId, now_s: float) -> None:
        running = self.world.running[job_id]
        self._progress[job_id].resize(now_s, **self._speed(running), cost_s=self.scenario.resize_cost_s)
        self._expect_end(job_id)

    def _speed(self, running: SimulatedRun) -> _Speed:
        return _speed_of(running, self._progress[running.job.job_id].arrival.profile)

    def _curve(self, progress: Progress) -> SpeedCurve:
        """Speeds as the platform measures them: at sizes at which the job ran, else of the last job of its name."""
        if progress.arrival.gang.elastic is None:
            return UNMEASURED
        return SpeedCurve.measured(progress.measured.values(), self._speeds_before.get(_owner(progress.arrival), ()))

    def _expect_end(self, name: str) -> None:
        progress = self._progress[name]
        ends_s = progress.ends_s
        if progress.arrival.max_run_time_s is not None:
            ends_s = min(ends_s, self._began_s[name] + progress.arrival.max_run_time_s)
        self._version[name] = self._version.get(name, progress.starts * 1_000_000) + 1
        if math.isfinite(ends_s):
            heapq.heappush(self._ends, (ends_s, self._version[name], name))

    def _next_balance_s(self, now_s: float) -> float:
        now = self._moment(now_s)
        at = next_balance((self.world.view(job_id) for job_id in self.world.running), self.scenario.policy, now)
        return math.inf if at is None else now_s + (at - now).total_seconds()

    def _next_look_s(self, now_s: float) -> float:
        """The next moment at which the planner may decide differently though nothing arrives, ends or changes: only
        time has passed. Infinity if there is none.

        The control loop plans every second; a simulation of a year cannot. Instead it plans again when an answer may
        change: a minimum run time or a time slice is over, in this attempt or in all of them together, a job reaches
        the next level of attained service or starves, its progress reveals its length, a reservation begins or ends.
        """
        policy = self.scenario.policy
        nearest_s = self._next_balance_s(now_s)
        if not self.world.queued:
            return nearest_s
        soon_s = now_s + _SOON_S
        after_s = {policy.min_run_time_s}
        for span_s in (policy.time_slice_s, policy.rotation_s):
            if span_s is not None:
                after_s.add(max(span_s, policy.min_run_time_s))
        has_levels = policy.order is QueueOrder.ATTAINED_SERVICE
        is_by_length = policy.order in BY_LENGTH and policy.time_slice_s is not None
        for job_id, running in self.world.running.items():
            if running.stops_at is not None:
                continue
            progress = self._progress[job_id]
            moments = [self._began_s[job_id] + passed_s for passed_s in after_s]
            moments.append(self.estimator.changes_s(progress))
            if policy.rotation_s is not None:
                turns = (
                    progress.allocated_s + CLOCK_S
                ) // policy.rotation_s  # its total run time may complete a turn later
                moments.append(now_s + (turns + 1) * policy.rotation_s - progress.allocated_s)
            if is_by_length:
                began_s = self._began_s[job_id]
                moments.append(began_s + next_comparison_s(now_s - began_s, policy))
            if has_levels and progress.rate > 0:
                moments += [
                    now_s + (end - progress.attained_gpu_s) / progress.rate
                    for end in policy.levels_gpu_s
                    if end > progress.attained_gpu_s
                ][:1]
            nearest_s = min(nearest_s, *(moment for moment in moments if moment > soon_s), math.inf)
        start = self.scenario.start
        if policy.order is not QueueOrder.FIFO or policy.rotation_s is not None:
            nearest_s = min(nearest_s, self._next_starving_s(now_s))
        if policy.order in BY_LENGTH:
            nearest_s = min(nearest_s, now_s + next_overtaken_s(self.world.queued.values(), self._moment(now_s)))
        for booking in self.scenario.bookings:
            for moment in (booking.begins_at, booking.ends_at):
                if (at_s := (moment - start).total_seconds()) > soon_s:
                    nearest_s = min(nearest_s, at_s)
        return min(nearest_s, now_s + self.scenario.look_s)

    def _next_starving_s(self, now_s: float) -> float:
        start, starvation_s = self.scenario.start, self.scenario.policy.starvation_s
        since_s = [((job.waits_since or job.queued_at) - start).total_seconds() for job in self.world.queued.values()]
        return min((at_s + starvation_s for at_s in since_s if at_s + starvation_s - _SOON_S > now_s), default=math.inf)

    def _moment(self, at_s: float) -> datetime:
        return self.scenario.start + timedelta(seconds=at_s)


class _Speed(TypedDict):
    pace: WorkRate
    replicas: int
    rate: float


def _speed_of(running: SimulatedRun, profile: SpeedProfile | None) -> _Speed:
    """Without a profile the speed is 1 with the maximum of replicas of an elastic job, and proportional with fewer."""
    role, rate = running.job.gang.elastic, _rate(running)
    if role is None or not role.most:
        return {"pace": WorkRate.constant(1.0), "replicas": 0, "rate": rate}
    replicas = sum(placement.role == role.role for placement in running.placements)
    pace = WorkRate.constant(replicas / role.most)
    if profile is not None:
        pace = profile.rate(replicas, len({placement.node for placement in running.placements}))
    return {"pace": pace, "replicas": replicas, "rate": rate}


def _owner(arrival: Arrival) -> tuple[str, str, str]:
    return arrival.project, arrival.user, pattern_of(arrival.title or arrival.name)


def _rate(running: SimulatedRun) -> float:
    """GPUs that a job holds; 1 where it requests none."""
    requests = {role.role: role.request for role in running.job.gang.roles}
    gpus = sum(requests[p.role].gpu_count + requests[p.role].gpu_milli / 1000 for p in running.placements)
    return gpus or 1.0
