"""The production planner in virtual time: jobs come, are planned, run and end; nothing waits on a clock."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from core.domain.ids import JobId
from scheduler.planning import Plan, QueuedGang, Reason, Snapshot, plan
from scheduler.simulator.arrival import Arrival
from scheduler.simulator.metrics import Usage
from scheduler.simulator.scenario import Scenario
from scheduler.simulator.world import World

Planner = Callable[[Snapshot], Plan]


@dataclass(slots=True)
class History:
    """What became of one job. Times in seconds from the start; ``None``: not yet."""

    arrival: Arrival
    started_s: float | None = None
    ended_s: float | None = None
    nodes: tuple[str, ...] = ()  # one per replica, in rank order
    gpu_models: tuple[str | None, ...] = ()
    reasons: list[tuple[float, Reason]] = field(default_factory=list)  # each change, and when

    def reason_at(self, at_s: float) -> Reason | None:
        """Why it waited at that moment, after the plan that was made then."""
        if self.started_s is not None and self.started_s <= at_s:
            return None
        told = [reason for since_s, reason in self.reasons if since_s <= at_s]
        return told[-1] if told else None


@dataclass(slots=True)
class Outcome:
    """Everything a report and expectations are made of."""

    scenario: Scenario
    jobs: dict[str, History]
    usage: Usage
    end_s: float = 0.0
    plans: int = 0


class Simulation:
    """One run of one scenario.

    Args:
        planner: what is simulated; the production planner unless a test says otherwise.
        on_plan: told every snapshot with its plan, for checks and measurements.
    """

    def __init__(
        self,
        scenario: Scenario,
        planner: Planner = plan,
        on_plan: Callable[[Snapshot, Plan], None] | None = None,
    ) -> None:
        self.scenario = scenario
        self.planner = planner
        self.on_plan = on_plan
        self.world = World(scenario.nodes)
        self.outcome = Outcome(
            scenario, {arrival.name: History(arrival) for arrival in scenario.arrivals}, Usage(scenario.nodes)
        )
        self._arrivals = sorted(scenario.arrivals, key=lambda arrival: (arrival.at_s, arrival.name))
        self._next = 0
        self._ends: list[tuple[float, str]] = []
        self._is_dirty = False  # something changed since the last plan

    def run(self) -> Outcome:
        """Until nothing is left to happen, or the scenario's ``until``. A job that can never run waits for ever."""
        now_s = 0.0
        last_plan_s = -math.inf
        while True:
            happens_s = self._next_event_s()
            if self.world.queued and self._is_dirty:
                happens_s = min(happens_s, max(now_s, last_plan_s + self.scenario.tick_s))
            if happens_s > self.scenario.until_s or math.isinf(happens_s):
                break
            self.outcome.usage.advance(happens_s)
            now_s = happens_s
            self._let_happen(now_s)
            if self._is_dirty and now_s >= last_plan_s + self.scenario.tick_s:
                self._plan(now_s)
                last_plan_s = now_s
        self.outcome.end_s = now_s if math.isinf(self.scenario.until_s) else self.scenario.until_s
        self.outcome.usage.advance(self.outcome.end_s)
        return self.outcome

    def _next_event_s(self) -> float:
        arrival_s = self._arrivals[self._next].at_s if self._next < len(self._arrivals) else math.inf
        return min(arrival_s, self._ends[0][0] if self._ends else math.inf)

    def _let_happen(self, now_s: float) -> None:
        while self._ends and self._ends[0][0] <= now_s:
            _, name = heapq.heappop(self._ends)
            ended = self.world.finish(JobId(name))
            self.outcome.jobs[name].ended_s = now_s
            self.outcome.usage.end(ended)
            self._is_dirty = True
        while self._next < len(self._arrivals) and self._arrivals[self._next].at_s <= now_s:
            self.world.enqueue(self._queued(self._arrivals[self._next]))
            self._next += 1
            self._is_dirty = True

    def _queued(self, arrival: Arrival) -> QueuedGang:
        return QueuedGang(
            job_id=JobId(arrival.name),
            name=arrival.name,
            project=arrival.project,
            user=arrival.user,
            priority=arrival.priority,
            queued_at=self._moment(arrival.at_s),
            gang=arrival.gang,
            shape=arrival.shape,
            max_run_time_s=arrival.max_run_time_s,
        )

    def _plan(self, now_s: float) -> None:
        self._is_dirty = False
        now = self._moment(now_s)
        snapshot = self.world.snapshot(now)
        if not snapshot.queued and not snapshot.growing:
            return
        made = self.planner(snapshot)
        if self.on_plan is not None:
            self.on_plan(snapshot, made)
        self.world.apply(made, now)
        self.outcome.plans += 1
        for start in made.starts:
            history = self.outcome.jobs[start.job_id]
            history.started_s = now_s
            history.nodes = tuple(placement.node for placement in start.placements)
            history.gpu_models = tuple(placement.gpu_model for placement in start.placements)
            self.outcome.usage.start(self.world.running[start.job_id])
            arrival = history.arrival
            runs_s = min(arrival.duration_s, arrival.max_run_time_s or math.inf)
            if math.isfinite(runs_s):
                heapq.heappush(self._ends, (now_s + runs_s, arrival.name))
        for grow in made.grows:
            role = self.world.running[grow.job_id].job.gang.elastic
            if role is not None:
                self.outcome.usage.grow(role.request, len(grow.placements))
        for job_id, reason in made.waits.items():
            told = self.outcome.jobs[job_id].reasons
            if not told or told[-1][1] != reason:
                told.append((now_s, reason))
        self.outcome.usage.wait({job_id: reason.code for job_id, reason in made.waits.items()}, self.world)

    def _moment(self, at_s: float) -> datetime:
        return self.scenario.start + timedelta(seconds=at_s)
