"""Compare the same jobs under another policy or with more nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from core.domain.ids import NodeId
from core.domain.sharing.policy import Policy
from scheduler.planning import NodeSnapshot
from scheduler.planning.model import Account
from scheduler.simulator.engine import Simulation
from scheduler.simulator.estimates import Knowledge
from scheduler.simulator.metrics import Summary
from scheduler.simulator.outcome import SimulationOutcome
from scheduler.simulator.reading.arrival import Arrival
from scheduler.simulator.reading.scenario import DEFAULT_START, Scenario

# Planning interval: enough for jobs that run for minutes, and simulating a year takes minutes.
_TICK_S = 10.0


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
    whole = [replace(node, free=node.allocatable, is_schedulable=True, why_not="") for node in (*nodes, *more_nodes)]
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


def more_like(nodes: Sequence[NodeSnapshot], count: int, like: str | None = None) -> tuple[NodeSnapshot, ...]:
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
    return tuple(replace(model, id=name, free=model.allocatable, is_schedulable=True, why_not="") for name in free)


@dataclass(frozen=True, slots=True)
class Case:
    """One row of a comparison."""

    name: str
    figures: Summary


def table(cases: Sequence[Case]) -> str:
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
                time_words(figures.completion.mean) + change,
                time_words(figures.completion.p50),
                time_words(figures.completion.p99),
                time_words(figures.makespan_s),
                time_words(figures.waiting.mean),
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


def time_words(seconds: float) -> str:
    """Such as ``90 s``, ``12.5 min``, ``3.1 h``."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
