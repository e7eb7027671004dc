"""Many looks side by side: each goes on by itself, and what they ask of the database is answered for all at once.

Nothing is less safe for that. Leases are checked in each transaction that writes, each attempt's rows are compared with what
was read, and where one does not match, that transaction is rolled back and everybody's part is written alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import structlog

from core import secrets
from core.db import leases
from core.db.engine import unit_of_work
from core.db.identity import ensure_id, find_id
from core.db.leases import HeldLease
from core.domain.errors import StaleWrite, TrainmasterError, Unavailable
from core.domain.ids import AttemptId
from scheduler.control import fence
from scheduler.control.addresses import Given, TakenAddresses
from scheduler.control.context import Control
from scheduler.control.look import Look
from scheduler.control.orders import load_volumes
from scheduler.control.resume import load_outputs, load_sources
from scheduler.control.rows import AttemptRows, SpecCache, load_attempts
from scheduler.control.steps import Busy, Gather, Gathered, Load, Prepare, Read, Renew, Step, Steps, Write, WriteAlone
from scheduler.control.writes import flush

log = structlog.get_logger(__name__)

_PORTS_LEASE: Final = "ports"
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
        self._asked: dict[AttemptId, Step] = {}
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

    def run(self, looks: Mapping[AttemptId, Steps[Look]], on_end: Callable[[AttemptId], None]) -> None:
        """Until each has its outcome. ``on_end``: called of each as soon as it has, its lease given back."""
        self._looks = dict(looks)
        self._go_on(dict.fromkeys(looks), on_end)
        while self._asked:
            for kind, answer in self._answers.items():
                asked = {name: step for name, step in self._asked.items() if type(step) is kind}
                if not asked:
                    continue
                try:
                    answers = answer(asked)
                except Exception as error:  # noqa: BLE001 (theirs to handle, each by itself)
                    answers = dict.fromkeys(asked, error)
                self._go_on(answers, on_end)

    # Going on

    def _go_on(self, answers: Mapping[AttemptId, Any], on_end: Callable[[AttemptId], None]) -> None:
        """Send each its answer; who has come to an end is done."""
        for name in answers:
            self._asked.pop(name, None)
        # Talking with an engine is mostly waiting.
        at_once = min(len(answers), self.control.create_at_once)
        if at_once > 1:
            with ThreadPoolExecutor(at_once, thread_name_prefix="look") as pool:
                list(pool.map(self._step, answers, answers.values()))
        else:
            for name, answer in answers.items():
                self._step(name, answer)
                self._keep_leases()
        ended = [name for name in answers if name in self.outcomes]
        held = [self._leases.pop(name) for name in ended if name in self._leases]
        if held:
            self._release(held)
        for name in ended:
            on_end(name)

    def _step(self, name: AttemptId, answer: Any) -> None:
        look = self._looks[name]
        try:
            self._asked[name] = look.throw(answer) if isinstance(answer, Exception) else look.send(answer)
        except StopIteration as end:
            self.outcomes[name] = end.value
        except Exception as error:  # noqa: BLE001 (told by whoever asked for this look)
            self._leases.pop(name, None)  # it expires by itself, so that what failed is not tried again at once
            self.outcomes[name] = error

    def _keep_leases(self) -> None:
        """A batch may last longer than a lease: the ones of those that wait for their turn are renewed in time."""
        control = self.control
        if control.clock() - self._renewed_at > control.lease_ttl / 3:
            try:
                self._renew(self._leases)
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
        """All that are held, while we are at it."""
        control = self.control
        now = control.clock()
        with unit_of_work(control.sessions) as session:
            ours = leases.check_all(session, list(self._leases.values()))
            again = leases.acquire_all(session, ours, holder=control.holder, now=now, ttl=control.lease_ttl)
        self._renewed_at = now
        self._leases = {name: again[lease.name] for name, lease in self._leases.items() if lease.name in again}
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
        try:
            return answers | self._write_these(ready, asked)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 (whose it is, is found out one by one)
            if len(ready) == 1:
                return answers | {ready[0]: error}
            log.debug("batch.apart", why=repr(error), attempts=len(ready))
        for name in ready:
            try:
                answers |= self._write_these([name], asked)
            except Unavailable:
                raise
            except Exception as error:  # noqa: BLE001 (this one's)
                answers[name] = error
        return answers

    def _write_these(self, names: Sequence[AttemptId], asked: _Asked) -> dict[AttemptId, Any]:
        """All of them in one transaction, but those whose lease somebody else has taken."""
        control = self.control
        with unit_of_work(control.sessions) as session:
            ours = leases.check_all(session, [self._leases[name] for name in names])
            written = [name for name in sorted(names) if self._leases[name].name in ours]
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


def _taken_over(name: AttemptId) -> StaleWrite:
    return StaleWrite(f"lease attempt:{name} has been taken over")
