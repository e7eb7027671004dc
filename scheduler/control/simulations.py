"""Trying a policy, or more nodes, on the platform's own history: in a process of its own, so that no tick waits for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from multiprocessing import get_context
from typing import Any, Final

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.engine import unit_of_work
from core.db.repositories import questions
from core.db.repositories.questions import ERROR, Kind
from core.db.tables import Job, Project, User
from core.domain.policy import Policy, parse_policy
from core.domain.resources import Gang
from core.domain.states import JobState
from scheduler.control.context import Control
from scheduler.control.snapshot import TickCache, load_snapshot
from scheduler.planning.model import Account, NodeView
from scheduler.simulator.compare import more_like, simulate, time_words
from scheduler.simulator.metrics import Summary
from scheduler.simulator.traces.own import FinishedJob, arrivals

log = structlog.get_logger(__name__)

# The newest of them: a simulation of so many jobs takes minutes.
_MOST_JOBS: Final = 20_000
_NICE: Final = 10
_ENDED: Final = (JobState.SUCCEEDED.value, JobState.FAILED.value, JobState.CANCELLED.value, JobState.EXPIRED.value)


@dataclass(frozen=True, slots=True)
class Trial:
    """Everything that a simulation needs: a value that goes to another process."""

    jobs: tuple[FinishedJob, ...]
    nodes: tuple[NodeView, ...]
    accounts: tuple[Account, ...]
    before: Policy
    after: Policy
    more_nodes: tuple[NodeView, ...]
    without: frozenset[str]
    since: datetime
    until: datetime


class Simulations:
    """Starts them; one per process. Each question is worked on by one process alone."""

    def __init__(self, control: Control, submit: Callable[[Trial], Future[dict[str, Any]]] | None = None) -> None:
        self._control = control
        self._pool: ProcessPoolExecutor | None = None
        self._submit = submit or self._in_a_process

    def start(self) -> None:
        """Begin with those that are asked for. Returns at once; the answers are written when they are there.

        Raises:
            Unavailable: the database is away.
        """
        control = self._control
        while True:
            with unit_of_work(control.sessions, read_only=True) as session:
                asked = questions.unanswered(session, control.clock(), 1, [Kind.SIMULATION])
            if not asked:
                return
            one = asked[0]
            with unit_of_work(control.sessions) as session:
                is_mine = questions.claim(session, one.id, control.holder, control.clock())
            if is_mine:
                self._begin(one.id, one.ask)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _begin(self, question_id: str, ask: Mapping[str, Any]) -> None:
        try:
            with unit_of_work(self._control.sessions, read_only=True) as session:
                trial = load_trial(session, ask, self._control.clock())
            future = self._submit(trial)
        except ValueError as error:
            field, _, _ = str(error).partition(":")
            told = {"code": "invalid_request", "sentence": str(error), "field": field}
            self._write(question_id, {ERROR: told})
        except Exception:
            log.exception("simulation.not_begun", question=question_id)
            self._write(question_id, _FAILED)
        else:
            future.add_done_callback(lambda done: self._done(question_id, done))

    def _done(self, question_id: str, done: Future[dict[str, Any]]) -> None:
        try:
            told: Mapping[str, Any] = done.result()
        except Exception:
            log.exception("simulation.failed", question=question_id)
            told = _FAILED
        try:
            self._write(question_id, told)
        except Exception:  # who asked hears at last that it takes too long
            log.exception("simulation.not_written", question=question_id)

    def _write(self, question_id: str, told: Mapping[str, Any]) -> None:
        with unit_of_work(self._control.sessions) as session:
            questions.answer(session, {question_id: told}, self._control.clock())

    def _in_a_process(self, trial: Trial) -> Future[dict[str, Any]]:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=os.nice, initargs=(_NICE,))
        return self._pool.submit(try_out, trial)


_FAILED: Final[Mapping[str, Any]] = {
    ERROR: {
        "code": "internal",
        "sentence": "The simulation failed, which is a bug; the scheduler's log says where (simulation.failed).",
        "field": None,
    }
}


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


def try_out(trial: Trial) -> dict[str, Any]:
    """The same jobs twice: as things are, and as they would be."""
    jobs = arrivals(trial.jobs)
    before = simulate(jobs, trial.nodes, trial.before, accounts=trial.accounts)
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
        "preemptions": figures.preemptions,
        "worst_fairness": figures.fairness.worst,
    }


def sentences(before: Summary, after: Summary) -> list[str]:
    """What the change would have done, for people."""
    done, done_before = time_words(after.completion.mean), time_words(before.completion.mean)
    told = [
        f"A job would have waited {time_words(after.waiting.mean)} on the average instead of {time_words(before.waiting.mean)}.",
        f"It would have been done {done} after its submission instead of {done_before}.",
        f"Of the GPUs {after.gpu_utilisation:.0%} would have been in use instead of {before.gpu_utilisation:.0%}.",
    ]
    if after.preemptions or before.preemptions:
        told.append(f"{after.preemptions} jobs would have been preempted instead of {before.preemptions}.")
    unfinished = after.jobs - after.finished
    if unfinished:
        told.append(f"{unfinished} of the {after.jobs} jobs would never have run.")
    return told
