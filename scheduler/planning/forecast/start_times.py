"""Start-time forecast: the production planner run forward over expected ends.

Three projections are run (`projection.py`): all jobs take their likely time, all late (nine in ten end sooner), all
early (one in ten does). A job's likely start is that of the first projection; its range spans all three. As all jobs
are early, or late, together, the range is wider than with independent deviations.

After the first plan the queue is cut to the first ``most`` jobs in planning order: later jobs may use what is left,
but delay no job before them. The cost is bounded by a budget of nodes and jobs looked at, never by a clock, so the
same snapshot has the same forecast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from math import inf
from typing import Final

from core.domain.ids import JobId, NodeId
from core.domain.sharing.gpus import accepted_models
from core.domain.sharing.wait_phrases import addressed_to
from scheduler.planning import phrases
from scheduler.planning.forecast.projection import DurationScenario, Projection
from scheduler.planning.model import Placement, Plan, QueuedGang, RunningGang, Snapshot
from scheduler.planning.planner import plan

MOST: Final = 200
# Nodes, running and waiting jobs that all plans of a forecast may look at: about two seconds of one core.
BUDGET: Final = 200_000
# Fraction of the budget that may be used up after the likely, the late and the early projection.
_PARTS: Final = ((DurationScenario.LIKELY, 0.5), (DurationScenario.LATE, 0.75), (DurationScenario.EARLY, 1.0))


class StartCode(StrEnum):
    """What is known of a job's start."""

    NOW = "now"
    EXPECTED = "expected"
    NOT_KNOWN = "not_known"  # it depends on ends that are unknown
    LATER = "later"  # behind so many others that it was not computed
    NEVER = "never"  # not on the present nodes


@dataclass(frozen=True, slots=True)
class StartForecast:
    """When a job is expected to start. ``latest`` is ``None`` next to a ``likely`` if there is no upper bound.

    ``sentence`` continues "it starts". ``position``: 1 is next; ``None``: it can never run. ``placements``: in the
    likely projection. ``run_s``: expected run time in seconds.
    """

    job_id: JobId
    position: int | None
    code: StartCode
    sentence: str
    earliest: datetime | None = None
    likely: datetime | None = None
    latest: datetime | None = None
    placements: tuple[Placement, ...] = ()
    run_s: float | None = None

    @property
    def nodes(self) -> tuple[NodeId, ...]:
        return tuple(sorted({placement.node for placement in self.placements}))

    def on_grid(self, now: datetime) -> StartForecast:
        """The forecast as all readers see it: on the grid of :mod:`scheduler.planning.phrases`, with its sentence.

        Wait reasons name expected ends on the same grid, so an end and the start after it are the same time.
        """
        if self.code is not StartCode.EXPECTED or self.likely is None:
            return self
        early = None if self.earliest is None else phrases.down_to_grid(self.earliest, now)
        likely, late = (
            None if at is None else phrases.on_grid((at - now).total_seconds(), now)
            for at in (self.likely, self.latest)
        )
        if likely is None:
            return self
        is_brief = self.earliest == self.likely == self.latest
        sentence = _sentence(now, early or likely, likely, late, is_brief=is_brief)
        return replace(self, earliest=early, likely=likely, latest=late, sentence=sentence)


@dataclass(frozen=True, slots=True)
class QueueForecast:
    """The first jobs of the queue in planning order."""

    starts: tuple[StartForecast, ...]

    def forecast_of(self, job_id: JobId) -> StartForecast | None:
        return next((start for start in self.starts if start.job_id == job_id), None)


@dataclass(slots=True)
class _Run:
    """One projection, as far as it was run."""

    projection: Projection
    starts_s: dict[JobId, tuple[float, tuple[Placement, ...]]] = field(default_factory=dict)
    is_cut: bool = False  # the budget ran out
    last: Plan = field(default_factory=Plan)

    def start_s(self, job_id: JobId) -> float:
        return self.starts_s.get(job_id, (inf, ()))[0]


def forecast_starts(
    snapshot: Snapshot,
    current_plan: Plan | None = None,
    *,
    most: int = MOST,
    budget: int = BUDGET,
    only: JobId | None = None,
    is_brief: bool = False,
) -> QueueForecast:
    """When the first ``most`` jobs in the queue are expected to start.

    Args:
        current_plan: the plan of ``snapshot``, if there is one already. only: the one job that is asked for, whatever
        its place; those behind it are left out. is_brief: the likely projection alone, without bounds.
    """
    current_plan = plan(snapshot) if current_plan is None else current_plan
    order = [job_id for job_id in current_plan.order if job_id in current_plan.waits]
    if only is not None:
        order = order[: order.index(only) + 1] if only in order else []
    targets = [only] if only is not None else order[:most]
    considered = frozenset(order if only is not None else targets)
    total = budget
    runs: dict[DurationScenario, _Run] = {}
    for scenario, part in _PARTS:
        if is_brief and scenario is not DurationScenario.LIKELY:
            continue
        spare = budget - round(total * (1 - part))
        if targets and spare <= 0:
            continue
        runs[scenario], cost = _run(snapshot, current_plan, scenario, considered, frozenset(targets), spare)
        budget -= cost
    first = {start.job_id: start.placements for start in current_plan.starts}
    jobs = {job.job_id: job for job in snapshot.queued}
    forecasts: list[StartForecast] = []
    for job_id, placements in first.items():
        if only is None or only == job_id:
            duration_s = DurationScenario.LIKELY.duration_s(jobs[job_id].estimate, jobs[job_id].max_run_time_s)
            now, run_s = snapshot.now, None if duration_s == inf else duration_s
            forecasts.append(StartForecast(job_id, 1, StartCode.NOW, "now", now, now, now, placements, run_s))
    places = current_plan.positions()
    forecasts += [_expected(snapshot, jobs[job_id], places.get(job_id), runs, current_plan) for job_id in targets]
    return QueueForecast(tuple(forecasts))


def _run(
    snapshot: Snapshot,
    current_plan: Plan,
    scenario: DurationScenario,
    considered: frozenset[JobId],
    targets: frozenset[JobId],
    budget: int,
) -> tuple[_Run, int]:
    """Run one projection until all ``targets`` have started, nothing changes any more, or the budget is spent.

    Returns the run and its cost.
    """
    projection = Projection(snapshot, scenario)
    run = _Run(projection, last=current_plan)
    projection.apply(current_plan)
    for job_id in [job_id for job_id in projection.queued if job_id not in considered]:
        del projection.queued[job_id]
    pending, spent = set(targets), 0
    hopeless = {job_id for job_id in targets if current_plan.is_infeasible(job_id)}
    while pending - hopeless and projection.step():
        snapshot_then = projection.snapshot()
        spent += len(snapshot_then.nodes) + len(snapshot_then.running) + len(snapshot_then.queued)
        if spent > budget:
            run.is_cut = True
            break
        run.last = plan(snapshot_then)
        for start in run.last.starts:
            if start.job_id in pending:
                pending.discard(start.job_id)
                run.starts_s[start.job_id] = (projection.now_s, start.placements)
        projection.apply(run.last)
    return run, spent


def _expected(
    snapshot: Snapshot, job: QueuedGang, position: int | None, runs: Mapping[DurationScenario, _Run], current_plan: Plan
) -> StartForecast:
    job_id = job.job_id
    if current_plan.is_infeasible(job_id):
        return StartForecast(job_id, position, StartCode.NEVER, "never on the nodes and with the settings as they are")
    likely = runs.get(DurationScenario.LIKELY)
    if likely is None:
        return StartForecast(job_id, position, StartCode.LATER, _LATER)
    at_s, placements = likely.starts_s.get(job_id, (inf, ()))
    if at_s == inf:
        if likely.is_cut:
            after = likely.projection.at(likely.projection.now_s)
            sentence = (
                f"after {phrases.about(after, snapshot.now)}; how long after was not worked out" if after else _LATER
            )
            return StartForecast(job_id, position, StartCode.LATER, sentence, earliest=after)
        return StartForecast(
            job_id, position, StartCode.NOT_KNOWN, f"at a time that is not known: {_why_not(job, likely)}"
        )
    bounds = [run.start_s(job_id) for run in runs.values()]
    early_s, late_s = min(bounds), max(bounds)
    early, late = likely.projection.at(early_s), likely.projection.at(late_s) if late_s < inf else None
    expected_at = likely.projection.at(at_s)
    if early is None or expected_at is None:
        return StartForecast(job_id, position, StartCode.NOT_KNOWN, "at a time that is not known: it is years away")
    if len(runs) < len(_PARTS):
        late = None if len(runs) > 1 else expected_at
    duration_s = DurationScenario.LIKELY.duration_s(job.estimate, job.max_run_time_s)
    return StartForecast(
        job_id,
        position,
        StartCode.EXPECTED,
        _sentence(snapshot.now, early, expected_at, late, is_brief=len(runs) == 1),
        early,
        expected_at,
        late,
        placements,
        None if duration_s == inf else duration_s,
    )


_LATER: Final = "later than was worked out, as many jobs are before it"


def _sentence(now: datetime, early: datetime, likely: datetime, late: datetime | None, *, is_brief: bool) -> str:
    at = f"probably at {phrases.about(likely, now)}"
    if is_brief:
        return at
    if late is None:
        return f"{at}, but it may be much later, as not all ends before it are known"
    first, last = (phrases.about(at, now).removeprefix("about ") for at in (early, late))
    return at if first == last else f"{at}, between {first} and {last}"


def _why_not(job: QueuedGang, run: _Run) -> str:
    """Which running jobs would have to end whose ends are unknown."""
    nodes = {node.id: node for node in run.projection.snapshot().nodes}
    requested = {model for role in job.gang.roles for model in role.request.gpu_models}

    def competes(view: RunningGang) -> bool:
        for _, node_id in view.nodes:
            node = nodes.get(node_id)
            if node is None or any(node.labels.get(key) != value for key, value in job.gang.node_selector):
                continue
            if not requested or accepted_models(tuple(sorted(requested)), sorted(node.allocatable.gpus)):
                return True
        return False

    endless = [
        running for running in run.projection.running.values() if running.end_s == inf and competes(running.view)
    ]
    if not endless:
        reason = run.last.waits.get(job.job_id)
        # The job's own reason must not mention it by name like another job.
        words = reason and addressed_to(job.job_id, job.name, reason.sentence, reason.numbers)
        return f"it {words}" if words else "no end that can be told would make room for it"
    return endless_sentence([running.view for running in endless])


def endless_sentence(endless: Sequence[RunningGang]) -> str:
    """``jobs a and b on gpu-01 state no max_run_time, and no job like them has ended yet``."""
    views = sorted(endless, key=lambda view: (-len(view.nodes), view.name, view.job_id))
    names = phrases.jobs([view.name for view in views])
    on = phrases.shortlist(sorted({node for view in views[:2] for _, node in view.nodes}))
    is_single = len(views) == 1
    if all(view.is_endless for view in views):
        verbs = "serves an endpoint and has" if is_single else "serve endpoints and have"
        return f"{names} on {on} {verbs} no end of {'its' if is_single else 'their'} own"
    return (
        f"{names} on {on} {'states' if is_single else 'state'} no max_run_time, and no job like "
        f"{'it' if is_single else 'them'} "
        "has ended yet; a max_run_time there, or progress that is reported as a step of how many, would tell"
    )
