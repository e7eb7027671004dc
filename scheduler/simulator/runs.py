"""Runs of a scenario: alone, or compared under another policy or with more nodes, and their reports in text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from core.domain.ids import NodeId
from core.domain.sharing.policy import Policy
from scheduler.planning import NodeSnapshot
from scheduler.planning.model import Account
from scheduler.simulator.engine import Simulation
from scheduler.simulator.estimates import Knowledge
from scheduler.simulator.expectations import failures
from scheduler.simulator.metrics import Spread, Summary, summarise
from scheduler.simulator.outcome import SimulationOutcome
from scheduler.simulator.reading.arrival import Arrival
from scheduler.simulator.reading.scenario import DEFAULT_START, Scenario

# Planning interval: enough for jobs that run for minutes, and simulating a year takes minutes.
_TICK_S = 10.0
_SLOWEST = 5


def replay(
    history: Sequence[Arrival],
    nodes: Sequence[NodeSnapshot],
    policy: Policy,
    *,
    more_nodes: Iterable[NodeSnapshot] = (),
    accounts: Iterable[Account] = (),
    knowledge: Knowledge = Knowledge.HISTORY,
    cpu_clock: Callable[[], float] | None = None,
) -> SimulationOutcome:
    """How the jobs of ``history`` would have run on ``nodes`` and ``more_nodes``, all empty at first, under ``policy``.

    A preempted job pays ``policy.restart_cost_s`` when it restarts. Pure: equal arguments give equal figures.

    Args:
        history: finished jobs, as :func:`scheduler.simulator.traces.own.arrivals` makes them. knowledge: what the
        planner knows of their durations; by default what it would have learnt meanwhile.
    """
    whole = [
        replace(node, free=node.allocatable, is_schedulable=True, is_draining=False, why_not="")
        for node in (*nodes, *more_nodes)
    ]
    scenario = Scenario(
        name="history",
        nodes=tuple(whole),
        arrivals=tuple(history),
        tick_s=_TICK_S,
        start=DEFAULT_START,
        policy=policy,
        accounts=tuple(accounts),
        restart_cost_s=policy.restart_cost_s,
        knowledge=knowledge,
    )
    return run(scenario, cpu_clock=cpu_clock)


def run(scenario: Scenario, *, cpu_clock: Callable[[], float] | None = None) -> SimulationOutcome:
    """One run that keeps only the last reasons: all of them are many."""
    return Simulation(scenario, cpu_clock=cpu_clock, keeps_reasons=False).run()


def copies_of(nodes: Sequence[NodeSnapshot], count: int, like: str | None = None) -> tuple[NodeSnapshot, ...]:
    """``count`` empty nodes like the named one, or of the most frequent size.

    Raises:
        ValueError: there is no such node.
    """
    if not nodes or (like is not None and all(node.id != like for node in nodes)):
        raise ValueError(f"there is no node {like!r}" if nodes else "there are no nodes")
    kinds: dict[tuple[object, ...], list[NodeSnapshot]] = {}
    for node in nodes:
        whole = node.allocatable
        kinds.setdefault((whole.cpu_milli, whole.memory_bytes, tuple(sorted(whole.gpus.items()))), []).append(node)
    if like is None:
        model = max(kinds.values(), key=lambda same: (len(same), same[0].allocatable.gpu_count))[0]
    else:
        model = next(node for node in nodes if node.id == like)
    taken = {node.id for node in nodes}
    names = (NodeId(f"more-{number}") for number in range(count + len(taken)))
    free = [name for name in names if name not in taken][:count]
    return tuple(
        replace(model, id=name, free=model.allocatable, is_schedulable=True, is_draining=False, why_not="")
        for name in free
    )


@dataclass(frozen=True, slots=True)
class Case:
    """One row of a comparison."""

    name: str
    figures: Summary


def comparison_table(cases: Sequence[Case]) -> str:
    """The figures of several runs side by side; changes against the first in per cent."""
    heads = ["", "JCT mean", "p50", "p99", "makespan", "waiting", "GPUs in use", "preempted", "worst rho", "unfair"]
    rows = [heads]
    first = cases[0].figures
    for case in cases:
        figures = case.figures
        change = ""
        if case is not cases[0] and first.completion.mean:
            change = f" ({figures.completion.mean / first.completion.mean - 1:+.0%})"
        rows.append(
            [
                case.name,
                _time_words(figures.completion.mean) + change,
                _time_words(figures.completion.p50),
                _time_words(figures.completion.p99),
                _time_words(figures.makespan_s),
                _time_words(figures.waiting.mean),
                f"{figures.gpu_utilisation:.1%}",
                str(figures.preemptions),
                f"{figures.fairness.worst:.2f}",
                f"{figures.fairness.unfair:.1%}",
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _time_words(seconds: float) -> str:
    """Such as ``90 s``, ``12.5 min``, ``3.1 h``."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"


def report(outcome: SimulationOutcome) -> str:
    """The figures, the longest waits with their reasons, and which expectations were met."""
    figures, scenario = summarise(outcome), outcome.scenario
    gpus = sum(node.allocatable.gpu_count for node in scenario.nodes)
    lines = [scenario.name]
    if scenario.about:
        lines.append(scenario.about)
    lines += [
        (
            f"{len(scenario.nodes)} nodes with {gpus} GPUs; {figures.jobs} jobs, {figures.finished} finished, "
            f"{figures.never_started} never started; {figures.plans} plans"
        ),
        "",
        _spread("waiting", figures.waiting),
        _spread("completion", figures.completion),
        f"{'makespan':<14}{_time_words(figures.makespan_s):>10}",
        f"{'GPUs in use':<14}{figures.gpu_utilisation:>10.1%}",
        f"{'CPUs in use':<14}{figures.cpu_utilisation:>10.1%}",
        (
            f"{'GPUs idle':<14}{figures.idle_while_waiting:>10.1%}   while jobs wait for room; "
            f"{figures.fragmentation:.0%} of these on nodes that are partly used"
        ),
    ]
    if figures.preemptions:
        lines.append(
            f"{'preempted':<14}{figures.preemptions:>10}   times; {figures.lost:.1%} of the work was done again"
        )
    if figures.finished and gpus:
        reason = figures.fairness
        lines.append(
            f"{'fairness':<14}{reason.worst:>10.2f}   worst finish-time fairness, {reason.mean:.2f} mean; "
            f"{reason.unfair:.0%} of the jobs above 1.05"
        )
    if figures.decision_cpu is not None:
        lines.append(
            f"{'CPU of a plan':<14}{1000 * figures.decision_cpu.mean:>7.3g} ms   mean, "
            f"{1000 * figures.decision_cpu.p99:.3g} ms p99"
        )
    if figures.waiting_job_seconds:
        total = sum(figures.waiting_job_seconds.values()) or 1.0
        shares = [
            f"{code} {seconds / total:.0%}"
            for code, seconds in sorted(figures.waiting_job_seconds.items(), key=lambda item: -item[1])
        ]
        lines.append(f"{'waited for':<14}{', '.join(shares)}")
    lines += _slowest(outcome)
    if scenario.expect:
        wrong = failures(outcome)
        lines += ["", f"{len(scenario.expect) - len(wrong)} of {len(scenario.expect)} expectations hold"]
        lines += [f"  {sentence}" for sentence in wrong]
    return "\n".join(lines)


def _slowest(outcome: SimulationOutcome) -> list[str]:
    def waited_s(name: str) -> float:
        job = outcome.jobs[name]
        return (outcome.end_s if job.started_s is None else job.started_s) - job.arrival.at_s

    names = sorted((n for n in outcome.jobs if waited_s(n) > 0), key=lambda n: (-waited_s(n), n))[:_SLOWEST]
    if not names:
        return []
    lines = ["", "waited longest"]
    for name in names:
        job = outcome.jobs[name]
        reason = job.reasons[-1][1] if job.reasons else None
        lines.append(f"  {name}: {_time_words(waited_s(name))}" + (f": {reason.sentence}" if reason else ""))
    return lines


def _spread(name: str, spread: Spread) -> str:
    return (
        f"{name:<14}{_time_words(spread.mean):>10}   mean, {_time_words(spread.p50)} median, "
        f"{_time_words(spread.p99)} p99, {_time_words(spread.largest)} longest"
    )
