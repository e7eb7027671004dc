"""What-if simulation: another policy, or other nodes, replayed on the platform's own history, and both runs'
figures.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.tables import Job, Project, User
from core.domain.ids import JobId
from core.domain.jobs.states import JobState
from core.domain.sharing.policy import Policy, parse_policy
from core.domain.sharing.resources import Gang
from scheduler.control.planning.estimates import HAS_CHECKPOINTS
from scheduler.control.planning.snapshot import SnapshotCache, load_snapshot
from scheduler.planning.model import Account, NodeSnapshot
from scheduler.simulator.metrics import Summary, summarise
from scheduler.simulator.outcome import SimulationOutcome
from scheduler.simulator.runs import copies_of, replay
from scheduler.simulator.traces.own import FinishedJob, arrivals

# The newest jobs: simulating so many takes minutes.
_MAX_JOBS: Final = 20_000
_MAX_NAMES: Final = 3  # of jobs, or of reasons, in one sentence
_ENDED: Final = (JobState.SUCCEEDED.value, JobState.FAILED.value, JobState.CANCELLED.value, JobState.EXPIRED.value)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The inputs of a simulation. ``since``: the jobs came and ended after that."""

    jobs: tuple[FinishedJob, ...]
    nodes: tuple[NodeSnapshot, ...]
    accounts: tuple[Account, ...]
    before: Policy
    after: Policy
    more_nodes: tuple[NodeSnapshot, ...]
    without: frozenset[str]
    since: datetime
    until: datetime


def load_what_if(session: Session, ask: Mapping[str, Any], now: datetime) -> WhatIf:
    """The jobs that have ended lately, and the cluster and policy without and with the changes.

    Raises:
        ValueError: a named node does not exist, or no job has ended; the message begins with the field.
    """
    snapshot = load_snapshot(session, SnapshotCache(), now).snapshot
    since = now - timedelta(days=ask["days"])
    nodes = snapshot.nodes
    cluster = ask.get("cluster") or {}
    missing = sorted(set(cluster.get("without", ())) - {node.id for node in nodes})
    if missing:
        raise ValueError(f"cluster.without: there is no node {missing[0]}")
    more: tuple[NodeSnapshot, ...] = ()
    if cluster.get("more_nodes"):
        try:
            more = copies_of(nodes, cluster["more_nodes"], cluster.get("like"))
        except ValueError as error:
            raise ValueError(f"cluster.like: {error}") from error
    accounts = tuple(replace(account, usage=0.0, user_usage={}) for account in snapshot.accounts)
    after = parse_policy(ask.get("policy", {}), base=snapshot.policy)
    jobs = _history(session, since)
    if not jobs:
        raise ValueError("days: no job has ended in that time, so there is nothing to try it on")
    since = max(since, min(job.queued_at for job in jobs))
    return WhatIf(
        jobs, nodes, accounts, snapshot.policy, after, more, frozenset(cluster.get("without", ())),
        since, now,
    )  # fmt: skip


def _history(session: Session, since: datetime) -> tuple[FinishedJob, ...]:
    rows = session.execute(
        select(
            Job.id, Job.name, Job.created_at, Job.run_s, Job.gang, Job.priority, Job.max_run_time_s,
            Project.name.label("project"), User.name.label("user"), Job.spec["code"].as_string().label("code"),
            Job.spec["preemptible"].as_boolean().label("preemptible"),
            HAS_CHECKPOINTS,
        )
        .join(Project, Project.id == Job.project_id)
        .join(User, User.id == Job.user_id)
        .where(Job.state.in_(_ENDED), Job.run_s > 0, Job.finished_at >= since)
        .order_by(Job.finished_at.desc(), Job.id)
        .limit(_MAX_JOBS)
    ).all()  # fmt: skip
    return tuple(
        FinishedJob(
            r.id, r.name, r.created_at, r.run_s, Gang.from_json(r.gang), r.project, r.user, r.priority, r.code or "",
            r.max_run_time_s, r.preemptible is not False, r.has_checkpoints,
        )
        for r in rows
    )  # fmt: skip


def run_what_if(what_if: WhatIf, tell: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Replay the same jobs without and with the changes. ``tell`` gets the progress in words."""
    jobs = arrivals(what_if.jobs)
    count = f"{len(jobs):,} {'job' if len(jobs) == 1 else 'jobs'}"
    tell(f"runs {count} through the planner with the policy and the nodes as they are (1 of 2)")
    as_now = replay(jobs, what_if.nodes, what_if.before, accounts=what_if.accounts)
    tell(f"runs {count} through the planner with the changes (2 of 2)")
    remaining = [node for node in what_if.nodes if node.id not in what_if.without]
    changed = replay(jobs, remaining, what_if.after, more_nodes=what_if.more_nodes, accounts=what_if.accounts)
    # The same end for both: in a run with a job that never starts, the observed time is open.
    until_s = max(as_now.last_end_s, changed.last_end_s)
    before, after = summarise(as_now, until_s), summarise(changed, until_s)
    return {
        "since": what_if.since.isoformat(),
        "until": what_if.until.isoformat(),
        "jobs": len(jobs),
        "before": _report(before, as_now),
        "after": _report(after, changed),
        "sentences": [*_never(as_now, changed), *_sentences(before, after)],
    }


def _report(figures: Summary, outcome: SimulationOutcome) -> dict[str, Any]:
    """``None``: the figure does not exist, as nothing or not everything was done, or there are no GPUs or CPUs."""
    report = _figures(figures)
    if figures.jobs == figures.never_started:
        report.update(dict.fromkeys(("wait_mean_s", "wait_p50_s", "wait_p99_s")))
    if not figures.finished:
        report.update(dict.fromkeys(("jct_mean_s", "jct_p50_s", "jct_p99_s", "worst_fairness")))
    if figures.finished < figures.jobs:
        report["makespan_s"] = None
    if not (figures.finished and outcome.usage.gpus):
        report["gpu_allocation"] = None
    if not (figures.finished and outcome.usage.cpu_milli):
        report["cpu_allocation"] = None
    return report


def _figures(figures: Summary) -> dict[str, Any]:
    return {
        "jobs": figures.jobs,
        "finished": figures.finished,
        "wait_mean_s": figures.waiting.mean,
        "wait_p50_s": figures.waiting.p50,
        "wait_p99_s": figures.waiting.p99,
        "jct_mean_s": figures.completion.mean,
        "jct_p50_s": figures.completion.p50,
        "jct_p99_s": figures.completion.p99,
        "makespan_s": figures.makespan_s,
        "gpu_allocation": figures.gpu_utilisation,
        "cpu_allocation": figures.cpu_utilisation,
        "fragmentation": figures.fragmentation,
        "preemptions": figures.preemptions,
        "worst_fairness": figures.fairness.worst,
        "gpus_over_time": [[round(at), round(part, 4)] for at, part in figures.allocation],
        "cpus_over_time": [[round(at), round(part, 4)] for at, part in figures.cpu_allocation],
        "waiting_over_time": [[round(at), round(count, 2)] for at, count in figures.queue],
    }


def _never(before: SimulationOutcome, after: SimulationOutcome) -> list[str]:
    """The jobs that would not be done, and why."""
    was, would = _not_done(before), _not_done(after)
    lines = [
        _never_run(names, outcome, when)
        for names, outcome, when in (
            ([name for name in would if name not in was], after, "with the changes"),
            ([name for name in was if name not in would], before, "as things are"),
            ([name for name in would if name in was], after, "neither as things are nor with the changes"),
        )
        if names
    ]
    if set(was) != set(would):
        lines.append(
            "The times of each side are those of the jobs that are done there, so they are not of the same jobs."
        )
    return lines


def _not_done(outcome: SimulationOutcome) -> list[str]:
    return [name for name, job in outcome.jobs.items() if job.ended_s is None]


def _never_run(names: Collection[str], outcome: SimulationOutcome, when: str) -> str:
    would = "would be done" if when.startswith("neither") else "would never be done"
    titles = list(dict.fromkeys(outcome.jobs[name].arrival.title or name for name in names))
    listed = ", ".join(titles[:_MAX_NAMES]) + (f" and {len(titles) - _MAX_NAMES} more" if titles[_MAX_NAMES:] else "")
    # One for each kind of reason: most of them differ only by numbers.
    reasons = {
        reason.code: f"{outcome.jobs[name].arrival.title or name}: {reason.sentence}"
        for name in reversed(tuple(names))
        if (reason := outcome.last_waits.get(JobId(name))) is not None
    }
    why = [reasons[code] for code in sorted(reasons)[:_MAX_NAMES]]
    return " ".join([f"{len(names)} of the {len(outcome.jobs)} jobs {would} {when}: {listed}.", *why])


def _sentences(before: Summary, after: Summary) -> list[str]:
    """The effect of the changes, for users."""
    lines = []
    if before.jobs > before.never_started and after.jobs > after.never_started:
        lines.append(
            _both("A job would have waited {} on the average", _span(before.waiting.mean), _span(after.waiting.mean))
        )
    if before.finished and after.finished:
        done_before, done = _span(before.completion.mean), _span(after.completion.mean)
        lines.append(_both("It would have been done {} after its submission", done_before, done))
        for what, now, then in (
            ("GPUs", before.gpu_utilisation, after.gpu_utilisation),
            ("CPUs", before.cpu_utilisation, after.cpu_utilisation),
        ):
            if now or then:
                lines.append(_both(f"Of the {what} {{}} would have been in use", f"{now:.1%}", f"{then:.1%}"))
    if after.preemptions or before.preemptions:
        lines.append(_both("Jobs would have been preempted {} times", str(before.preemptions), str(after.preemptions)))
    return lines


def _both(sentence: str, now: str, then: str) -> str:
    comparison = ", with the changes as without them" if now == then else f" instead of {now}"
    return f"{sentence.format(then)}{comparison}."


def _span(seconds: float) -> str:
    """As the command line formats times: ``9.5 s``, ``3 m 05 s``, ``2 h 10 m``, ``5 d 3 h``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    hours, minutes_left = divmod(minutes, 60)
    if not hours:
        return f"{minutes} m {rest:02d} s"
    days, hours_left = divmod(hours, 24)
    return f"{hours} h {minutes_left:02d} m" if not days else f"{days} d {hours_left} h"
