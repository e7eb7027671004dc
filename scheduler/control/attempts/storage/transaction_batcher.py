"""Many looks side by side: each goes on by itself, and what they ask of the database is answered for all at once.

Nothing is less safe for that. Leases are checked in each transaction that writes, each attempt's rows are compared with what
was read, and where a transaction fails for one of them, it is rolled back and everybody is answered alone. A look that is
slow, for an engine or a volume does not answer it, is waited for a moment; then the others go on without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Final

import structlog

from core import secrets
from core.db import leases
from core.db.engine import unit_of_work
from core.db.identity import ensure_id, find_id
from core.db.leases import HeldLease
from core.domain.errors import RowsLocked, StaleWrite, TrainmasterError, Unavailable
from core.domain.ids import AttemptId
from scheduler.control import fence
from scheduler.control.attempts.launching.addresses import Given, TakenAddresses
from scheduler.control.attempts.launching.replica_orders import load_volumes
from scheduler.control.attempts.launching.resume import load_outputs, load_sources
from scheduler.control.attempts.reconcile_result import Look
from scheduler.control.attempts.storage.attempt_loader import AttemptRows, SpecCache, load_attempts
from scheduler.control.attempts.storage.effects import (
    Busy,
    Gather,
    Gathered,
    Load,
    Prepare,
    Read,
    Renew,
    Step,
    Steps,
    Write,
    WriteAlone,
)
from scheduler.control.attempts.storage.statement_batch import flush, lock_attempts
from scheduler.control.context import Control

log = structlog.get_logger(__name__)

_PORTS_LEASE: Final = "ports"
# Seconds. For how long the others wait for a look that talks with an engine, to share their next transaction with it.
_PATIENCE_S: Final = 2.0
# Seconds without another one that ends until those that have ended are let go of.
_TOGETHER_S: Final = 0.1
_Asked = Mapping[AttemptId, Any]  # a step of one kind of each
Outcome = Look | Exception


class Batch:
    """Drives the looks at some attempts to their ends. For one thread; used once."""

    def __init__(self, control: Control, specs: SpecCache, taken: TakenAddresses) -> None:
        self.control = control
        self._specs = specs
        self._taken = taken
        self._leases: dict[AttemptId, HeldLease] = {}
        self._renewed_at = control.clock()
        self._looks: dict[AttemptId, Steps[Look]] = {}
        self._on_end: Callable[[AttemptId, Outcome], None] = lambda _name, _outcome: None
        self._answered: dict[AttemptId, Any] = {}  # what they asked for, and have not been sent
        self._working: dict[Future[Step | Outcome], tuple[AttemptId, float]] = {}  # since when, in seconds
        self._asked: dict[AttemptId, Step] = {}
        self._ended: list[AttemptId] = []  # not let go of yet
        self.outcomes: dict[AttemptId, Outcome] = {}
        self._answers: dict[type[Step], Callable[[_Asked], Mapping[AttemptId, Any]]] = {
            Load: self._load,
            Renew: self._renew,
            Prepare: self._prepare,
            Gather: self._gather,
            Read: self._read,
            WriteAlone: self._write_alone,
            Write: self._write,
        }

    def run(self, looks: Mapping[AttemptId, Steps[Look]], on_end: Callable[[AttemptId, Outcome], None]) -> None:
        """Until each has its outcome. ``on_end``: called of each when it has, its lease given back, while slower ones go on."""
        self._looks, self._on_end, self._answered = dict(looks), on_end, dict.fromkeys(looks)
        # Talking with an engine is mostly waiting.
        if min(len(looks), self.control.create_at_once) < 2:
            self._run(self._go_on)
            return
        # A thread more for each that is slow: else a few of them would keep all the others waiting.
        pool = ThreadPoolExecutor(len(looks), thread_name_prefix="look")
        try:
            self._run(lambda: self._go_on_side_by_side(pool))
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _run(self, go_on: Callable[[], None]) -> None:
        go_on()
        while self._asked:
            for kind, answer in self._answers.items():
                asked = {name: step for name, step in self._asked.items() if type(step) is kind}
                if asked:
                    for name in asked:
                        del self._asked[name]
                    self._answered |= self._answer(answer, asked)
                    go_on()

    def _answer(self, answer: Callable[[_Asked], Mapping[AttemptId, Any]], asked: _Asked) -> Mapping[AttemptId, Any]:
        """What they asked for, of all at once; where that fails, of each alone, for it may be one attempt's rows."""
        try:
            return answer(asked)
        except Exception as error:  # noqa: BLE001 (theirs to handle, each by itself)
            if len(asked) == 1 or _is_everybodys(error):
                return dict.fromkeys(asked, error)
            log.debug("batch.apart", why=repr(error), attempts=len(asked))
        apart: dict[AttemptId, Any] = {}
        for name, step in asked.items():
            self._keep_leases()
            try:
                apart |= answer({name: step})
            except Exception as error:  # noqa: BLE001 (this one's)
                if _is_everybodys(error):
                    return dict.fromkeys(asked, error) | apart
                apart[name] = error
        return apart

    # Going on

    def _go_on(self) -> None:
        """Send each its answer, until all have asked for something else or ended."""
        while self._answered:
            name = next(iter(self._answered))
            self._hear(name, self._step(name, self._answered.pop(name)))
            self._keep_leases()
        self._let_go()

    def _go_on_side_by_side(self, pool: ThreadPoolExecutor) -> None:
        """The same, some at once; those that are slow are not waited for while others have asked."""
        while self._answered or self._working:
            now_s = time.monotonic()
            quick = [since_s for _, since_s in self._working.values() if now_s - since_s < _PATIENCE_S]
            while self._answered and len(quick) < self.control.create_at_once:
                name = next(iter(self._answered))
                self._working[pool.submit(self._step, name, self._answered.pop(name))] = name, now_s
                quick.append(now_s)
            if not quick and self._asked:
                break
            left_s = _PATIENCE_S - (now_s - min(quick, default=now_s))
            done, _ = wait(self._working, min(left_s, _TOGETHER_S) if self._ended else left_s, FIRST_COMPLETED)
            for future in [one for one in self._working if one in done]:  # in the order in which they were sent
                name, _ = self._working.pop(future)
                self._hear(name, future.result())
            if not done:
                self._let_go()
            self._keep_leases()
        self._let_go()

    def _step(self, name: AttemptId, answer: Any) -> Step | Outcome:
        look = self._looks[name]
        try:
            return look.throw(answer) if isinstance(answer, Exception) else look.send(answer)
        except StopIteration as end:
            outcome: Look = end.value
            return outcome
        except Exception as error:  # noqa: BLE001 (told by whoever asked for this look)
            return error

    def _hear(self, name: AttemptId, said: Step | Outcome) -> None:
        if not isinstance(said, (Look, Exception)):
            self._asked[name] = said
            return
        if isinstance(said, Exception):
            self._leases.pop(name, None)  # it expires by itself, so that what failed is not tried again at once
        self.outcomes[name] = said
        self._ended.append(name)

    def _let_go(self) -> None:
        """Of those that have ended."""
        ended, self._ended = self._ended, []
        held = [self._leases.pop(name) for name in ended if name in self._leases]
        if held:
            self._release(held)
        for name in ended:
            self._on_end(name, self.outcomes[name])

    def _keep_leases(self) -> None:
        """A batch may last longer than a lease: the ones of those that wait for their turn are renewed in time."""
        control = self.control
        if self._leases and control.clock() - self._renewed_at > control.lease_ttl / 3:
            try:
                self._renew({})
            except Unavailable:
                pass  # whatever they write next is compared with the lease

    def _release(self, held: Sequence[HeldLease]) -> None:
        try:
            with unit_of_work(self.control.sessions) as session:
                leases.release_all(session, held, now=self.control.clock())
        except Unavailable:
            pass  # they expire by themselves

    # Leases

    def _renew(self, asked: _Asked) -> Mapping[AttemptId, Any]:
        """All that are held, while we are at it; not of looks that are silent for longer than a lease lasts: another process
        may fare better with them, and what they write at last is compared with the lease.
        """
        control = self.control
        now = control.clock()
        silent_s = time.monotonic() - control.lease_ttl.total_seconds()
        silent = {name for name, since_s in self._working.values() if since_s < silent_s}
        held = {name: lease for name, lease in self._leases.items() if name not in silent}
        with unit_of_work(control.sessions) as session:
            ours = leases.check_all(session, list(held.values()))
            again = leases.acquire_all(session, ours, holder=control.holder, now=now, ttl=control.lease_ttl)
        self._renewed_at = now
        for name, lease in held.items():
            if lease.name in again:
                self._leases[name] = again[lease.name]
            else:
                del self._leases[name]
        return {name: None if name in self._leases else _taken_over(name) for name in asked}

    def _load(self, asked: _Asked) -> Mapping[AttemptId, Any]:
        control = self.control
        fresh = [name for name, step in asked.items() if step.is_anew]
        for name in fresh:
            self._leases.pop(name, None)
        # With the lease in hand this only reads: what is written later is fenced anyway.
        with unit_of_work(control.sessions, read_only=not fresh) as session:
            now = control.clock()
            rows = load_attempts(session, list(asked), self._specs, now=now, node_grace=control.node_grace)
            names = {f"attempt:{name}": name for name in fresh if name in rows}
            held = leases.acquire_all(session, names, holder=control.holder, now=now, ttl=control.lease_ttl)
        self._leases |= {names[name]: lease for name, lease in held.items()}
        answers: dict[AttemptId, AttemptRows | Busy | None] = {}
        for name in asked:
            answers[name] = rows.get(name) if name in self._leases or name not in rows else Busy()
        return answers

    # Reading

    def _prepare(self, asked: _Asked) -> Mapping[AttemptId, Any]:
        first = [name for name, step in asked.items() if step.number == 1]
        with unit_of_work(self.control.sessions, read_only=True) as session:
            given = Given()
            if self.control.executor.shares_hosts:
                given.add(self._taken.read(session))
            sources = dict(zip(first, load_outputs(session, [asked[name].job for name in first]), strict=True))
            sources |= {name: load_sources(session, step.job) for name, step in asked.items() if name not in sources}
        return {name: (given, found) for name, found in sources.items()}

    def _gather(self, asked: _Asked) -> Mapping[AttemptId, Any]:
        control = self.control
        with unit_of_work(control.sessions, read_only=True) as session:
            volumes = load_volumes(session, [step.job for step in asked.values()])
            opened: dict[AttemptId, Mapping[str, str] | TrainmasterError] = {}
            for name, step in asked.items():
                job = step.job
                try:
                    opened[name] = (
                        secrets.open_secrets(session, control.secret_key, job.project_id, job.spec.secrets)
                        if job.spec.secrets
                        else {}
                    )
                except TrainmasterError as error:
                    opened[name] = error
            database_id = find_id(session)
        database_id = database_id or ensure_id(control.sessions)
        return {name: Gathered(facts, opened[name], database_id) for name, facts in zip(asked, volumes, strict=True)}

    def _read(self, asked: _Asked) -> Mapping[AttemptId, Any]:
        with unit_of_work(self.control.sessions, read_only=True) as session:
            return {name: step.work(session) for name, step in asked.items()}

    # Writing

    def _write(self, asked: _Asked) -> Mapping[AttemptId, Any]:
        answers: dict[AttemptId, Any] = {name: _taken_over(name) for name in asked if name not in self._leases}
        ready = [name for name in asked if name not in answers]
        return answers | self._write_these(ready, asked)

    def _write_these(self, names: Sequence[AttemptId], asked: _Asked) -> dict[AttemptId, Any]:
        """All of them in one transaction, but those whose lease somebody else has taken."""
        control = self.control
        with unit_of_work(control.sessions) as session:
            ours = leases.check_all(session, [self._leases[name] for name in names])
            written = [name for name in sorted(names) if self._leases[name].name in ours]
            lock_attempts(session, written)
            self._check_addresses(session, [asked[name] for name in written])
            flush(session, [asked[name].writes for name in written])
        return {name: None if name in written else _taken_over(name) for name in names}

    def _check_addresses(self, session: Any, steps: Sequence[Write]) -> None:
        """Two gangs that start at once may have been given the same port: the second looks again."""
        if not any(step.addresses for step in steps):
            return
        control = self.control
        leases.acquire(session, _PORTS_LEASE, holder=_PORTS_LEASE, now=control.clock(), ttl=control.lease_ttl)
        taken = self._taken.read(session)
        for step in steps:
            if taken & step.addresses:
                raise StaleWrite("another gang was given one of these ports in the same moment")
            taken |= step.addresses

    def _write_alone(self, asked: _Asked) -> Mapping[AttemptId, Any]:
        answers: dict[AttemptId, Any] = {}
        for name, step in asked.items():
            if name not in self._leases:
                answers[name] = _taken_over(name)
                continue
            try:
                with fence.fenced(self.control, self._leases[name]) as session:
                    answers[name] = step.work(session)
            except Exception as error:  # noqa: BLE001 (this one's)
                answers[name] = error
        return answers


def _is_everybodys(error: Exception) -> bool:
    """Whether the others would fare no better: the database is away, and not only somebody at one's rows."""
    return isinstance(error, Unavailable) and not isinstance(error, RowsLocked)


def _taken_over(name: AttemptId) -> StaleWrite:
    return StaleWrite(f"lease attempt:{name} has been taken over")
