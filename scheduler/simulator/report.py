"""Text report of a run."""

from __future__ import annotations

from scheduler.simulator.compare import time_words
from scheduler.simulator.expectations import failures
from scheduler.simulator.metrics import Spread, summarise
from scheduler.simulator.outcome import SimulationOutcome

_SLOWEST = 5


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
        f"{'makespan':<14}{time_words(figures.makespan_s):>10}",
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
        lines.append(f"  {name}: {time_words(waited_s(name))}" + (f": {reason.sentence}" if reason else ""))
    return lines


def _spread(name: str, spread: Spread) -> str:
    return (
        f"{name:<14}{time_words(spread.mean):>10}   mean, {time_words(spread.p50)} median, "
        f"{time_words(spread.p99)} p99, {time_words(spread.largest)} longest"
    )
