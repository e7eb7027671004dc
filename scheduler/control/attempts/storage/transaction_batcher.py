"""Runs many reconcile passes in parallel and batches their database effects into shared transactions.

This is as safe as a transaction for each. Leases are checked in each transaction that writes, rows are compared with
what was read, and where a transaction fails because of one attempt, it is rolled back and each effect runs alone. The
others wait a moment for a pass that is slow, because an engine or a volume does not answer; then they go on without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import replace
from typing import Any, Final

import structlog

from core import secrets
from core.db import leases
from core.db.bootstrap import ensure_database_id, find_database_id
from core.db.engine import unit_of_work
from core.db.leases import LeaseGrant
from core.domain.errors import RowsLocked, StaleWrite, TrainmasterError, Unavailable
from core.domain.ids import AttemptId
from core.job_users import FolderOwners, demand_uids
from core.work_queue import run_together
from scheduler.control import fence
from scheduler.control.attempts.launching.replica_orders import AddressCache, load_volumes, projects_of
from scheduler.control.attempts.launching.resume import load_outputs, load_sources
from scheduler.control.attempts.reconcile_result import ReconcileResult
from scheduler.control.attempts.storage.attempt_loader import AttemptRows, SpecCache, load_attempts
from scheduler.control.attempts.storage.effects import (
    DatabaseEffect,
    Effects,
    LeaseTaken,
    LoadAttempt,
    LoadOrderInputs,
    LoadStartInputs,
    OrderInputs,
    RenewLease,
    RunRead,
    RunWrite,
    WriteStatements,
)
from scheduler.control.attempts.storage.statement_batch import flush, lock_attempts
from scheduler.control.context import ControlContext

log = structlog.get_logger(__name__)

_PORTS_LEASE: Final = "ports"
# Seconds. For how long the others wait for a pass that talks to an engine, to share their next transaction with it.
SLOW_S: Final = 2.0
# Seconds without another ended pass until the ended ones are finished.
_GATHER_S: Final = 0.1
_Requests = Mapping[AttemptId, Any]  # effects of one kind
ResultOrError = ReconcileResult | Exception


class TransactionBatcher:
    """Drives the passes of some attempts to their ends. For one thread; used once."""

    def __init__(self, control: ControlContext, specs: SpecCache, taken: AddressCache) -> None:
        self.control = control
        self._specs = specs
        self._taken = taken
        self._leases: dict[AttemptId, LeaseGrant] = {}
        self._renewed_at = control.clock()
        self._passes: dict[AttemptId, Effects[ReconcileResult]] = {}
        self._on_end: Callable[[AttemptId, ResultOrError], None] = lambda _name, _outcome: None
        self._ready_answers: dict[AttemptId, Any] = {}  # results of effects that have not been sent to their pass
        # (attempt, since when in seconds)
        self._working: dict[Future[DatabaseEffect | ResultOrError], tuple[AttemptId, float]] = {}
        self._pending: dict[AttemptId, DatabaseEffect] = {}
        self._ended: list[AttemptId] = []  # not finished yet
        self.outcomes: dict[AttemptId, ResultOrError] = {}
        self._answers: dict[type[DatabaseEffect], Callable[[_Requests], Mapping[AttemptId, Any]]] = {
            LoadAttempt: self._load,
            RenewLease: self._renew,
            LoadStartInputs: self._prepare,
            LoadOrderInputs: self._gather,
            RunRead: self._read,
            RunWrite: self._write_alone,
            WriteStatements: self._write,
        }

    def run(
        self, passes: Mapping[AttemptId, Effects[ReconcileResult]], on_end: Callable[[AttemptId, ResultOrError], None]
    ) -> None:
        """Run until each has its result. ``on_end``: called with each result, once its lease is released."""
        self._passes, self._on_end, self._ready_answers = dict(passes), on_end, dict.fromkeys(passes)
        # Talking to an engine is mostly waiting.
        if min(len(passes), self.control.create_at_once) < 2:
            self._run(self._advance_separately)
            return
        # One thread for each pass: else a few slow ones would delay all others.
        pool = self.control.make_pool(len(passes), thread_name_prefix="reconcile")
        try:
            self._run(lambda: self._advance_in_parallel(pool))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, advance: Callable[[], None]) -> None:
        advance()
        while self._pending:
            for kind, answer in self._answers.items():
                requests = {name: step for name, step in self._pending.items() if type(step) is kind}
                if requests:
                    for name in requests:
                        del self._pending[name]
                    self._ready_answers |= run_together(requests, answer, _affects_all, self._renew_leases_if_due)
                    advance()

    # Advancing

    def _advance_separately(self) -> None:
        """Send each pass its result, until all have yielded another effect or ended."""
        while self._ready_answers:
            name = next(iter(self._ready_answers))
            self._on_yield(name, self._step(name, self._ready_answers.pop(name)))
            self._renew_leases_if_due()
        self._finish_ended()

    def _advance_in_parallel(self, pool: Executor) -> None:
        """The same in parallel; slow passes are not waited for while others have yielded effects."""
        while self._ready_answers or self._working:
            now_s = time.monotonic()
            quick = [since_s for _, since_s in self._working.values() if now_s - since_s < SLOW_S]
            while self._ready_answers and len(quick) < self.control.create_at_once:
                name = next(iter(self._ready_answers))
                self._working[pool.submit(self._step, name, self._ready_answers.pop(name))] = name, now_s
                quick.append(now_s)
            if not quick and self._pending:
                break
            left_s = SLOW_S - (now_s - min(quick, default=now_s))
            done, _ = wait(self._working, min(left_s, _GATHER_S) if self._ended else left_s, FIRST_COMPLETED)
            for future in [future for future in self._working if future in done]:  # in the order of their start
                name, _ = self._working.pop(future)
                self._on_yield(name, future.result())
            if not done:
                self._finish_ended()
            self._renew_leases_if_due()
        self._finish_ended()

    def _step(self, name: AttemptId, answer: Any) -> DatabaseEffect | ResultOrError:
        generator = self._passes[name]
        try:
            return generator.throw(answer) if isinstance(answer, Exception) else generator.send(answer)
        except StopIteration as end:
            outcome: ReconcileResult = end.value
            return outcome
        except Exception as error:  # noqa: BLE001 (the result of this attempt)
            return error

    def _on_yield(self, name: AttemptId, yielded: DatabaseEffect | ResultOrError) -> None:
        if not isinstance(yielded, (ReconcileResult, Exception)):
            self._pending[name] = yielded
            return
        if isinstance(yielded, Exception):
            self._leases.pop(name, None)  # it expires by itself, so that a failed attempt is not retried at once
        self.outcomes[name] = yielded
        self._ended.append(name)

    def _finish_ended(self) -> None:
        """Release the leases of the ended passes, and report their results."""
        ended, self._ended = self._ended, []
        grants = [self._leases.pop(name) for name in ended if name in self._leases]
        if grants:
            self._release(grants)
        for name in ended:
            self._on_end(name, self.outcomes[name])

    def _renew_leases_if_due(self) -> None:
        """A batch may last longer than a lease: leases of waiting passes are renewed in time."""
        control = self.control
        if self._leases and control.clock() - self._renewed_at > control.lease_ttl / 3:
            try:
                self._renew({})
            except Unavailable:
                pass  # each later write is compared with the lease

    def _release(self, grants: Sequence[LeaseGrant]) -> None:
        try:
            with unit_of_work(self.control.sessions) as session:
                leases.release_all(session, grants, now=self.control.clock())
        except Unavailable:
            pass  # they expire by themselves

    # Leases

    def _renew(self, requests: _Requests) -> Mapping[AttemptId, Any]:
        """Renew all held leases at once, except those of passes that have been stuck for longer than a lease lasts:
        another process may succeed with them, and what they write at last is compared with the lease.
        """
        control = self.control
        now = control.clock()
        stuck_since_s = time.monotonic() - control.lease_ttl.total_seconds()
        stuck = {name for name, since_s in self._working.values() if since_s < stuck_since_s}
        grants = {name: lease for name, lease in self._leases.items() if name not in stuck}
        with unit_of_work(control.sessions) as session:
            valid = leases.check_all(session, list(grants.values()))
            again = leases.acquire_all(session, valid, holder=control.holder, now=now, ttl=control.lease_ttl)
        self._renewed_at = now
        for name, lease in grants.items():
            if lease.name in again:
                self._leases[name] = again[lease.name]
            else:
                del self._leases[name]
        return {name: None if name in self._leases else _taken_over(name) for name in requests}

    def _load(self, requests: _Requests) -> Mapping[AttemptId, Any]:
        control = self.control
        fresh = [name for name, step in requests.items() if step.acquires_lease]
        for name in fresh:
            self._leases.pop(name, None)
        # With the lease held this only reads: later writes are fenced anyway.
        with unit_of_work(control.sessions, read_only=not fresh) as session:
            now = control.clock()
            rows = load_attempts(session, list(requests), self._specs, now=now, node_grace=control.node_grace)
            names = {f"attempt:{name}": name for name in fresh if name in rows}
            grants = leases.acquire_all(session, names, holder=control.holder, now=now, ttl=control.lease_ttl)
        self._leases |= {names[name]: lease for name, lease in grants.items()}
        answers: dict[AttemptId, AttemptRows | LeaseTaken | None] = {}
        for name in requests:
            answers[name] = rows.get(name) if name in self._leases or name not in rows else LeaseTaken()
        return answers

    # Reading

    def _prepare(self, requests: _Requests) -> Mapping[AttemptId, Any]:
        first = [name for name, step in requests.items() if step.number == 1]
        with unit_of_work(self.control.sessions, read_only=True) as session:
            allocated = self._taken.read(session) if self.control.executor.shares_hosts else set()
            sources = dict(zip(first, load_outputs(session, [requests[name].job for name in first]), strict=True))
            sources |= {name: load_sources(session, step.job) for name, step in requests.items() if name not in sources}
        owners = self._owners(requests)
        return {
            name: (
                allocated,
                replace(found, owner=owners[name].of(requests[name].job.output_volume, found.output_path))
                if name in owners
                else found,
            )
            for name, found in sources.items()
        }

    def _owners(self, requests: _Requests) -> Mapping[AttemptId, FolderOwners]:
        """Who owns the folders of each job, where projects have user ids."""
        control = self.control
        if control.job_users is None:
            return {}
        used = {name: projects_of(step.job, control.default_volume) for name, step in requests.items()}
        uids = demand_uids(control.sessions, control.job_users, set().union(*used.values()))
        return {
            name: FolderOwners(control.job_users, uids[step.job.project], uids, control.default_volume)
            for name, step in requests.items()
        }

    def _gather(self, requests: _Requests) -> Mapping[AttemptId, Any]:
        control = self.control
        with unit_of_work(control.sessions, read_only=True) as session:
            volumes = load_volumes(session, [step.job for step in requests.values()], control.default_volume)
            opened: dict[AttemptId, Mapping[str, str] | TrainmasterError] = {}
            for name, step in requests.items():
                job = step.job
                try:
                    opened[name] = (
                        secrets.open_secrets(session, control.secret_key, job.project_id, job.spec.secrets)
                        if job.spec.secrets
                        else {}
                    )
                except TrainmasterError as error:
                    opened[name] = error
            database_id = find_database_id(session)
        database_id = database_id or ensure_database_id(control.sessions)
        owners = self._owners(requests)
        return {
            name: OrderInputs(facts, opened[name], database_id, owners.get(name))
            for name, facts in zip(requests, volumes, strict=True)
        }

    def _read(self, requests: _Requests) -> Mapping[AttemptId, Any]:
        with unit_of_work(self.control.sessions, read_only=True) as session:
            return {name: step.work(session) for name, step in requests.items()}

    # Writing

    def _write(self, requests: _Requests) -> Mapping[AttemptId, Any]:
        answers: dict[AttemptId, Any] = {name: _taken_over(name) for name in requests if name not in self._leases}
        ready = [name for name in requests if name not in answers]
        return answers | self._write_group(ready, requests)

    def _write_group(self, names: Sequence[AttemptId], requests: _Requests) -> dict[AttemptId, Any]:
        """Write all in one transaction; skip those whose lease was lost."""
        control = self.control
        with unit_of_work(control.sessions) as session:
            valid = leases.check_all(session, [self._leases[name] for name in names])
            written = [name for name in sorted(names) if self._leases[name].name in valid]
            lock_attempts(session, written)
            self._check_addresses(session, [requests[name] for name in written])
            flush(session, [requests[name].writes for name in written])
        return {name: None if name in written else _taken_over(name) for name in names}

    def _check_addresses(self, session: Any, steps: Sequence[WriteStatements]) -> None:
        """Two gangs that start at once may have been given the same port: the second one allocates again."""
        if not any(step.addresses for step in steps):
            return
        control = self.control
        leases.acquire(session, _PORTS_LEASE, holder=_PORTS_LEASE, now=control.clock(), ttl=control.lease_ttl)
        taken = self._taken.read(session)
        for step in steps:
            if taken & step.addresses:
                raise StaleWrite("another gang was given one of these ports in the same moment")
            taken |= step.addresses

    def _write_alone(self, requests: _Requests) -> Mapping[AttemptId, Any]:
        answers: dict[AttemptId, Any] = {}
        for name, step in requests.items():
            if name not in self._leases:
                answers[name] = _taken_over(name)
                continue
            try:
                with fence.fenced(self.control, self._leases[name]) as session:
                    answers[name] = step.work(session)
            except Exception as error:  # noqa: BLE001 (of this attempt)
                answers[name] = error
        return answers


def _affects_all(error: Exception) -> bool:
    """Whether the others would fare no better: the database is away, and not only rows of one attempt locked."""
    return isinstance(error, Unavailable) and not isinstance(error, RowsLocked)


def _taken_over(name: AttemptId) -> StaleWrite:
    return StaleWrite(f"lease attempt:{name} has been taken over")
