"""A policy, or more nodes, tried on the platform's own history: what is needed for it, and the figures of both runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.tables import Job, Project, User
from core.domain.policy import Policy, parse_policy
from core.domain.resources import Gang
from core.domain.states import JobState
from scheduler.control.snapshot import TickCache, load_snapshot
from scheduler.planning.model import Account, NodeView
from scheduler.simulator.compare import more_like, simulate, time_words
from scheduler.simulator.metrics import Summary
from scheduler.simulator.traces.own import FinishedJob, arrivals

# The newest of them: a simulation of so many jobs takes minutes.
_MOST_JOBS: Final = 20_000
_ENDED: Final = (JobState.SUCCEEDED.value, JobState.FAILED.value, JobState.CANCELLED.value, JobState.EXPIRED.value)


@dataclass(frozen=True, slots=True)
class Trial:
    """Everything that a simulation needs."""

    jobs: tuple[FinishedJob, ...]
    nodes: tuple[NodeView, ...]
    accounts: tuple[Account, ...]
    before: Policy
    after: Policy
    more_nodes: tuple[NodeView, ...]
    without: frozenset[str]
    since: datetime
    until: datetime


def load_trial(session: Session, ask: Mapping[str, Any], now: datetime) -> Trial:
    """The jobs that have ended lately, and the cluster and policy as they are and as they would be.

    Raises:
        ValueError: a node that is named is not there, or no job has ended; it begins with the field.
    """
    snapshot = load_snapshot(session, TickCache(), now).snapshot
    since = now - timedelta(days=ask["days"])
    nodes = snapshot.nodes
    cluster = ask.get("cluster") or {}
    missing = sorted(set(cluster.get("without", ())) - {node.id for node in nodes})
    if missing:
        raise ValueError(f"cluster.without: there is no node {missing[0]}")
    more: tuple[NodeView, ...] = ()
    if cluster.get("more_nodes"):
        try:
            more = more_like(nodes, cluster["more_nodes"], cluster.get("like"))
        except ValueError as error:
            raise ValueError(f"cluster.like: {error}") from error
    accounts = tuple(replace(account, usage=0.0, user_usage={}) for account in snapshot.accounts)
    after = parse_policy(ask.get("policy", {}), base=snapshot.policy)
    jobs = _history(session, since)
    if not jobs:
        raise ValueError("days: no job has ended in that time, so there is nothing to try it on")
    return Trial(
        jobs, nodes, accounts, snapshot.policy, after, more, frozenset(cluster.get("without", ())),
        since, now,
    )  # fmt: skip


def _history(session: Session, since: datetime) -> tuple[FinishedJob, ...]:
    rows = session.execute(
        select(
            Job.id, Job.name, Job.created_at, Job.run_s, Job.gang, Job.priority, Job.max_run_time_s,
            Project.name.label("project"), User.name.label("user"), Job.spec["code"].as_string().label("code"),
            Job.spec["preemptible"].as_boolean().label("preemptible"),
        )
        .join(Project, Project.id == Job.project_id)
        .join(User, User.id == Job.user_id)
        .where(Job.state.in_(_ENDED), Job.run_s > 0, Job.finished_at >= since)
        .order_by(Job.finished_at.desc(), Job.id)
        .limit(_MOST_JOBS)
    ).all()  # fmt: skip
    return tuple(
        FinishedJob(
            r.id, r.name, r.created_at, r.run_s, Gang.from_json(r.gang), r.project, r.user, r.priority, r.code or "",
            r.max_run_time_s, r.preemptible is not False,
        )
        for r in rows
    )  # fmt: skip


def try_out(trial: Trial, tell: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """The same jobs twice: as things are, and as they would be. ``tell`` hears in words which of it is being done."""
    jobs = arrivals(trial.jobs)
    count = f"{len(jobs):,} {'job' if len(jobs) == 1 else 'jobs'}"
    tell(f"runs {count} through the planner with the policy and the nodes as they are (1 of 2)")
    before = simulate(jobs, trial.nodes, trial.before, accounts=trial.accounts)
    tell(f"runs {count} through the planner with the changes (2 of 2)")
    kept = [node for node in trial.nodes if node.id not in trial.without]
    after = simulate(jobs, kept, trial.after, more_nodes=trial.more_nodes, accounts=trial.accounts)
    return {
        "since": trial.since.isoformat(),
        "until": trial.until.isoformat(),
        "jobs": len(jobs),
        "before": _report(before),
        "after": _report(after),
        "sentences": sentences(before, after),
    }


def _report(figures: Summary) -> dict[str, Any]:
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


def sentences(before: Summary, after: Summary) -> list[str]:
    """What the change would have done, for people."""
    done, done_before = time_words(after.completion.mean), time_words(before.completion.mean)
    told = [
        f"A job would have waited {time_words(after.waiting.mean)} on the average instead of {time_words(before.waiting.mean)}.",
        f"It would have been done {done} after its submission instead of {done_before}.",
    ]
    for what, now, then in (
        ("GPUs", before.gpu_utilisation, after.gpu_utilisation),
        ("CPUs", before.cpu_utilisation, after.cpu_utilisation),
    ):
        if now or then:
            told.append(f"Of the {what} {then:.0%} would have been in use instead of {now:.0%}.")
    if after.preemptions or before.preemptions:
        told.append(f"{after.preemptions} jobs would have been preempted instead of {before.preemptions}.")
    unfinished = after.jobs - after.finished
    if unfinished:
        told.append(f"{unfinished} of the {after.jobs} jobs would never have run.")
    return told
