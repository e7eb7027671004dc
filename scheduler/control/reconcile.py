"""Making one attempt real: rows against what the executor shows, until both agree.

Each round loads in a short transaction, works outside of any, and writes fenced. A round may die between any two
steps: the next one, here or in another process, sees the same truth and goes on.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Final

import structlog
from sqlalchemy import select
from sqlalchemy.orm import Session

from core import secrets
from core.bell import TOPIC_RECONCILE, TOPIC_TICK
from core.db import leases
from core.db.engine import unit_of_work
from core.db.identity import ensure_id, find_id
from core.db.leases import HeldLease
from core.db.repositories.events import last_events_of_job
from core.db.tables import Attempt
from core.domain.errors import (
    AttemptRemoved,
    ExecutorError,
    ExecutorRefused,
    ExecutorTryAgain,
    IllegalTransition,
    StaleWrite,
    TrainmasterError,
    Unavailable,
)
from core.domain.ids import AttemptId
from core.domain.layout import Layout, Ports, ReplicaAddress
from core.domain.lifecycle import ReplicaEvent
from core.domain.states import AttemptState, JobState, ReplicaState, Wanted
from executors.base import ChangesWorlds, Observation, Phase, ReplicaKey
from scheduler.control import fence
from scheduler.control.addresses import TakenAddresses, addresses_of
from scheduler.control.backoff import retry_delay
from scheduler.control.context import Control
from scheduler.control.create import batch_size, create_batch
from scheduler.control.decide import START_PATIENCE, Decision, decide
from scheduler.control.environment import attempt_context, environment_note
from scheduler.control.facts import Member, Sight
from scheduler.control.leftovers import forget_leftovers, leftovers, log_leftovers
from scheduler.control.orders import OrderBook, check_places, load_volumes, world_order
from scheduler.control.resume import ResumeSources, find_resume_path, load_sources
from scheduler.control.rows import AttemptRows, SpecCache, load_attempt
from scheduler.control.waits import STARTS_WITHIN, tell_wait, waits_for
from scheduler.control.worlds import WorldChange, may_do_without
from scheduler.control.write import AttemptWriter

log = structlog.get_logger(__name__)

# A look needs a handful of rounds; one that finds more to do each time gives the others their turn.
_MAX_ROUNDS: Final = 12
# Stopping is asked again this often, in case the engine lost it.
_STOP_AGAIN: Final = timedelta(seconds=5)
_PORTS_LEASE: Final = "ports"
# The same of a new world. Its members show that they know it within a tenth of a second.
_TELL_AGAIN: Final = timedelta(seconds=2)
_LONG_AGO: Final = datetime.min.replace(tzinfo=UTC)
# What a replica that was just created waits for is worth a line when it waits for so long.
_TELL_AFTER: Final = timedelta(seconds=2)
_TOLD_EVENTS: Final = 20  # of a job whose move was illegal

# What the executor shows of an attempt, comparable: a change is worth a look.
Fingerprint = frozenset[tuple[str, int, int, str, str]]


class Verdict(Enum):
    """How a look ended."""

    SETTLED = auto()  # rows and executor agree for now
    AGAIN = auto()  # there is more to do; look again at ``next_look``
    BUSY = auto()  # somebody else holds the attempt
    GONE = auto()  # it has ended, or there is no such attempt


@dataclass(frozen=True, slots=True)
class Look:
    """``seen``: what the executor showed last. ``next_look``: when time alone will change something."""

    verdict: Verdict
    next_look: datetime | None = None
    seen: Fingerprint = frozenset()
    is_hot: bool = False  # starting or ending: changes are expected soon


@dataclass(slots=True)
class _Memory:
    """What this process remembers of an attempt. Losing it costs a repeated call, nothing else."""

    tries: int = 0
    refusal: str | None = None
    wait: str = ""  # what was told of a gang that is being started
    is_removed: bool = False
    stops: dict[ReplicaKey, datetime] = field(default_factory=dict)
    refused: dict[tuple[str, int], str] = field(default_factory=dict)  # one that was to join, by id and generation
    told: dict[tuple[str, int], datetime] = field(default_factory=dict)  # replica and world -> when it was told
    left: dict[ReplicaKey, datetime] = field(default_factory=dict)  # when it was ended, the gang going on without
    joining: dict[tuple[str, int], datetime] = field(default_factory=dict)  # by id and generation -> since when


class Reconciler:
    """Reconciles attempts; one per process, safe for many threads."""

    def __init__(self, control: Control) -> None:
        self.control = control
        self._specs = SpecCache()
        self._taken = TakenAddresses()
        self._memories: dict[AttemptId, _Memory] = {}
        self._active: set[AttemptId] = set()
        self._asked_again: set[AttemptId] = set()
        self._lock = threading.Lock()

    def reconcile(self, attempt_id: AttemptId) -> Look:
        """Bring the attempt as far as it goes now. Harmless to repeat, and to call from two threads at once.

        Raises:
            Unavailable: the database is away.
        """
        if not self._enter(attempt_id):
            return Look(Verdict.BUSY)
        try:
            return self._look(attempt_id)
        except IllegalTransition as illegal:
            # A bug, and who looks for it needs to know what the job went through.
            illegal.history = self._history(attempt_id)
            raise
        finally:
            self._leave(attempt_id)

    def _history(self, attempt_id: AttemptId) -> tuple[dict[str, object], ...]:
        with unit_of_work(self.control.sessions, read_only=True) as session:
            job_id = session.execute(select(Attempt.job_id).where(Attempt.id == attempt_id)).scalar_one_or_none()
            return () if job_id is None else tuple(last_events_of_job(session, job_id, limit=_TOLD_EVENTS))

    def _enter(self, attempt_id: AttemptId) -> bool:
        with self._lock:
            if attempt_id in self._active:
                self._asked_again.add(attempt_id)
                return False
            self._active.add(attempt_id)
            return True

    def _leave(self, attempt_id: AttemptId) -> None:
        with self._lock:
            self._active.discard(attempt_id)
            is_asked = attempt_id in self._asked_again
            self._asked_again.discard(attempt_id)
        if is_asked:
            self.control.bell.ring(TOPIC_RECONCILE, attempt_id)

    def _look(self, attempt_id: AttemptId) -> Look:
        """Rounds under one lease, until there is nothing more to do now."""
        lease: HeldLease | None = None
        look = Look(Verdict.AGAIN)
        for _ in range(_MAX_ROUNDS):
            try:
                lease, rows = self._load(attempt_id, lease)
                if rows is None:
                    look = Look(Verdict.GONE)
                elif lease is None:
                    look = Look(Verdict.BUSY)
                else:
                    memory = self._memories.setdefault(attempt_id, _Memory())
                    this = _Round(self.control, lease, rows, memory, self._taken)
                    look = this.run()
                    lease = this.lease  # renewed, when the round took long
            except StaleWrite as stale:
                log.debug("attempt.stale", attempt=attempt_id, why=str(stale))
                lease = None  # somebody moved it meanwhile: look again, if we still may
                continue
            if look.verdict is not Verdict.AGAIN or look.next_look is not None:
                break
        if lease is not None:
            self._release(lease)
        if look.verdict is Verdict.GONE:
            self._memories.pop(attempt_id, None)
            log_leftovers(self.control.executor, attempt_id)  # of an end that another process has written meanwhile
        elif look.verdict is Verdict.AGAIN and look.next_look is None:
            return replace(look, next_look=self.control.clock())
        return look

    def _load(self, attempt_id: AttemptId, lease: HeldLease | None) -> tuple[HeldLease | None, AttemptRows | None]:
        control = self.control
        # With the lease in hand this only reads: what is written later is fenced anyway.
        with unit_of_work(control.sessions, read_only=lease is not None) as session:
            now = control.clock()
            rows = load_attempt(session, attempt_id, self._specs, now=now, node_grace=control.node_grace)
            if rows is not None and lease is None:
                name = f"attempt:{attempt_id}"
                lease = leases.acquire(session, name, holder=control.holder, now=now, ttl=control.lease_ttl)
        return lease, rows

    def _release(self, lease: HeldLease) -> None:
        try:
            fence.release(self.control, lease)
        except Unavailable:
            pass  # it expires by itself


class _Round:
    """One round: what was loaded, and what comes of it."""

    def __init__(
        self, control: Control, lease: HeldLease, rows: AttemptRows, memory: _Memory, taken: TakenAddresses
    ) -> None:
        self.control = control
        self.taken = taken
        self.lease = lease
        self.rows = rows
        self.memory = memory
        self.began = control.clock()

    def run(self) -> Look:
        attempt, job = self.rows.attempt, self.rows.job
        is_stuck = self.began - attempt.created_at >= START_PATIENCE and any(m.detail for m in self.rows.members)
        is_meant = job.wanted is Wanted.RUN and attempt.stop is None and self.memory.refusal is None
        try:
            if attempt.state is AttemptState.PLACED and is_meant and not is_stuck:
                self._prepare()
            seen = self._observe()
            decision = decide(self._sight(seen))
            look = self._carry_out(decision, seen)
        except ExecutorTryAgain as away:
            return self._try_again(away.sentence)
        except ExecutorRefused as refused:
            # Kept in memory only: after a restart the executor refuses again.
            if self.memory.refusal is not None:
                return self._try_again(refused.sentence)
            self.memory.refusal = refused.sentence
            self.memory.is_removed = isinstance(refused, AttemptRemoved)
            return Look(Verdict.AGAIN)
        if look.verdict is Verdict.SETTLED:
            self.memory.tries = 0
        return look

    # Before the first replica

    def _prepare(self) -> None:
        """Give the attempt its addresses and its checkpoint, before anything is created."""
        control, job, attempt = self.control, self.rows.job, self.rows.attempt
        with unit_of_work(control.sessions, read_only=True) as session:
            taken = self.taken.read(session, except_attempt=attempt.id) if control.executor.shares_hosts else set()
            sources = load_sources(session, job)
        ports = frozenset(port for _, port in taken)
        layout = control.executor.assign_addresses(self._layout(self.rows.members), ports, attempt.id)
        resume_from = self._ready_output(sources)
        note = environment_note(job, layout, attempt_context(control, job, attempt, resume_from))
        with fence.fenced(control, self.lease) as session:
            if control.executor.shares_hosts:
                # Two gangs that start at once may have been given the same port: the second looks again.
                leases.acquire(session, _PORTS_LEASE, holder=_PORTS_LEASE, now=control.clock(), ttl=control.lease_ttl)
                if self.taken.read(session, except_attempt=attempt.id) & addresses_of(layout):
                    raise StaleWrite("another gang was given one of these ports in the same moment")
            self._writer(session).start(layout, resume_from, note)
        self.rows = self.rows.started(layout, resume_from)

    def _layout(self, members: Sequence[Member]) -> Layout:
        roles = self.rows.job.spec.roles
        return Layout(
            tuple(
                ReplicaAddress(m.role, m.index, "", Ports(), m.node, m.gpus, roles[m.role].process_count)
                for m in members
            )
        )

    def _ready_output(self, sources: ResumeSources) -> str | None:
        """Make the output folder; the checkpoint in it to go on from."""
        job = self.rows.job
        try:
            is_shared = job.output_volume == self.control.default_volume
            sources.make_output(is_shared=is_shared, owner=self.control.output_owner)
        except Unavailable as away:
            raise ExecutorTryAgain(away.sentence) from away
        except TrainmasterError as error:
            raise ExecutorRefused(f"output: {error.sentence}") from error
        return find_resume_path(job, sources) if self.rows.attempt.number > 1 else job.resume_from

    # What was decided

    def _observe(self) -> Sequence[Observation]:
        """What the executor shows. Somebody missing is looked for again: a driver's copy may lag behind another process."""
        attempt_id = self.rows.attempt.id
        seen = self.control.executor.observe(attempt_id)
        shown = {(o.key.role, o.key.index, o.key.generation) for o in seen}
        live = (m for m in self.rows.members if not m.is_over and m.state is not ReplicaState.PENDING)
        if all((m.role, m.index, m.generation) in shown for m in live):
            return seen
        return self.control.executor.observe(attempt_id, fresh=True)

    def _sight(self, seen: Sequence[Observation]) -> Sight:
        rows = self.rows
        return Sight(
            now=self.control.clock(),
            job=rows.job,
            attempt=rows.attempt,
            members=rows.members,
            seen={(o.key.role, o.key.index): o for o in seen},
            lost_nodes=rows.lost_nodes,
            previous=rows.previous,
            has_checkpoint=rows.has_checkpoint,
            refusal=self.memory.refusal,
            is_removed=self.memory.is_removed,
            refused={
                m.id: self.memory.refused[m.id, m.generation]
                for m in rows.members
                if (m.id, m.generation) in self.memory.refused
            },
            wish=rows.wish,
            can_change=isinstance(self.control.executor, ChangesWorlds) and all(map(_hears_of_worlds, seen)),
            joining_since=self._joining_since(),
        )

    def _joining_since(self) -> dict[str, datetime]:
        """As far as this process has seen it: another one that takes over waits once more."""
        attempt, known = self.rows.attempt, self.memory.joining
        if attempt.state is not AttemptState.RUNNING:
            return {}
        joining = [m for m in self.rows.members if not m.is_over and may_do_without(attempt, m)]
        self.memory.joining = {(m.id, m.generation): known.get((m.id, m.generation), self.began) for m in joining}
        return {name: since for (name, _), since in self.memory.joining.items()}

    def _carry_out(self, decision: Decision, seen: Sequence[Observation]) -> Look:
        if decision.has_writes:
            layout = None if decision.world is None else self._new_world(decision.world)
            resume_from = self._newest_checkpoint() if self._begins_anew(decision) else None
            with fence.fenced(self.control, self.lease) as session:
                self._writer(session).record(decision, layout, resume_from)
            self._log(decision)
            if decision.given_up:
                self.control.bell.ring(TOPIC_TICK, "")  # there is room, and somebody lacks a replica
            attempt = self.rows.attempt
            resume_from = resume_from or attempt.resume_from
            self.rows = replace(
                self.rows, attempt=replace(attempt, generation=attempt.generation + 1, resume_from=resume_from)
            )
            if decision.end is not None:
                return Look(Verdict.AGAIN)  # the end is written on fresh rows: recording may have moved the job
        if decision.end is not None:
            self._end(decision)
            return Look(Verdict.GONE)
        self._tell_wait(decision, seen)
        self._stop(decision.stops)
        self._tell(decision.tells)
        self._leave(decision.leaves, seen)
        is_created = self._create(decision.creates, seen)
        look = Look(
            Verdict.AGAIN if decision.has_writes or is_created else Verdict.SETTLED,
            None if decision.has_writes or is_created else decision.next_look,
            fingerprint(seen),
            self._is_hot(decision),
        )
        if is_created and not decision.has_writes:
            return self._after_creation(look)
        if decision.creates and not is_created:
            return replace(look, verdict=Verdict.AGAIN, next_look=self.control.clock() + retry_delay(self.memory.tries))
        return look

    def _tell_wait(self, decision: Decision, seen: Sequence[Observation]) -> None:
        """Once per reason: this process remembers what it wrote, and another one reads it first."""
        attempt, job = self.rows.attempt, self.rows.job
        is_starting = job.state is JobState.STARTING and not decision.is_running and not (attempt.stop or decision.stop)
        if not is_starting or self.began - attempt.created_at < STARTS_WITHIN:
            return
        sentence = waits_for(self.rows.members, seen)
        if sentence and sentence != self.memory.wait:
            with fence.fenced(self.control, self.lease) as session:
                tell_wait(session, self.rows, sentence, self.control.clock())
            self.memory.wait = sentence

    def _after_creation(self, look: Look) -> Look:
        """Another round only if there is something to write: mostly the engine has just begun, and will tell."""
        seen = self.control.executor.observe(self.rows.attempt.id)
        if any(one.phase is not Phase.PENDING for one in seen):
            return look
        return Look(Verdict.SETTLED, self.control.clock() + _TELL_AFTER, fingerprint(seen), is_hot=True)

    def _is_hot(self, decision: Decision) -> bool:
        attempt = self.rows.attempt
        return bool(
            attempt.state is not AttemptState.RUNNING
            or attempt.stop
            or decision.stop
            or decision.stops
            or decision.tells
            or any(m.state is ReplicaState.STARTING for m in self.rows.members)
        )

    def _end(self, decision: Decision) -> None:
        if decision.end is None:
            return
        executor = self.control.executor
        executor.remove(self.rows.attempt.id)
        left = leftovers(executor, self.rows.attempt.id)
        with fence.fenced(self.control, self.lease) as session:
            rings = self._writer(session).end(decision.end, left)
        forget_leftovers(executor, self.rows.attempt.id)
        log.info(
            "attempt.ended",
            attempt=self.rows.attempt.id,
            job=self.rows.job.id,
            outcome=decision.end.event.value,
            kind=decision.end.kind.value,
        )
        for topic, key in rings:
            self.control.bell.ring(topic, key)

    def _stop(self, members: Sequence[Member]) -> None:
        now = self.control.clock()
        grace = timedelta(seconds=self.rows.job.spec.grace.stop)
        for member in members:
            key = self._key(member)
            asked = self.memory.stops.get(key)
            if asked is None or now - asked >= _STOP_AGAIN:
                self.control.executor.stop(key, grace=grace)
                self.memory.stops[key] = now

    def _new_world(self, change: WorldChange) -> Layout:
        """Addresses for the next world: all of them fresh, for whoever died may still be remembered at the old ones."""
        control = self.control
        taken: set[tuple[str, int]] = set()
        if control.executor.shares_hosts:
            with unit_of_work(control.sessions, read_only=True) as session:
                taken = self.taken.read(session, except_attempt="")
        ports = frozenset(port for _, port in taken)
        attempt = self.rows.attempt
        layout = self._layout(change.members)
        return control.executor.assign_addresses(layout, ports, attempt.id, world=attempt.world + 1)

    def _begins_anew(self, decision: Decision) -> bool:
        """Whether processes start again within the attempt."""
        return decision.world is not None or any(m.event is ReplicaEvent.RESTART for m in decision.moves)

    def _newest_checkpoint(self) -> str | None:
        """What they go on from. Looked for once and kept in the rows: all of one world must be told the same."""
        with unit_of_work(self.control.sessions, read_only=True) as session:
            sources = load_sources(session, self.rows.job)
        return find_resume_path(self.rows.job, sources)

    def _tell(self, members: Sequence[Member]) -> None:
        """Tell running replicas of the newest world; the engine shows what each of them knows."""
        executor = self.control.executor
        if not members or not isinstance(executor, ChangesWorlds):
            return
        now = self.control.clock()
        due = [
            m for m in members if now - self.memory.told.get((m.id, self.rows.attempt.world), _LONG_AGO) >= _TELL_AGAIN
        ]
        if not due:
            return
        # What else has changed since they were started, such as a secret or a volume that is gone, is not their business.
        job = self.rows.job
        book = OrderBook(job, self.rows.attempt, {}, dict.fromkeys(job.spec.secrets, ""))
        for member in due:
            executor.change_world(world_order(self.control, book, member))
            self.memory.told[member.id, self.rows.attempt.world] = now

    def _leave(self, members: Sequence[Member], seen: Sequence[Observation]) -> None:
        """End what is left of those that the gang goes on without; again, while the engine shows it as alive."""
        executor = self.control.executor
        if not members or not isinstance(executor, ChangesWorlds):
            return
        now = self.control.clock()
        live = {o.key for o in seen if o.exit is None and o.phase is not Phase.LOST}
        for member in members:
            key = self._key(member)
            asked = self.memory.left.get(key)
            if asked is None or (key in live and now - asked >= _STOP_AGAIN):
                executor.give_up(key)
                self.memory.left[key] = now

    def _create(self, members: Sequence[Member], seen: Sequence[Observation]) -> bool:
        """Create what is missing; true when the executor took any. What it did not take is told in its detail."""
        if not members:
            return False
        created: list[Member] = []
        details: dict[str, str] = {}
        refused: ExecutorRefused | None = None
        given_up = False
        try:
            book = self._order_book()
        except ExecutorRefused as no:
            if not all(may_do_without(self.rows.attempt, member) for member in members):
                raise
            self.memory.refused |= {(member.id, member.generation): no.sentence for member in members}
            return True
        # Those that run show whether their program goes from world to world by itself.
        book = replace(book, joins_warm=any(o.facts.get("keeps_processes") for o in seen))
        size = batch_size(self.control)
        for begin in range(0, len(members), size):
            if self.control.clock() - self.began > self.control.lease_ttl / 2:
                self.lease = fence.renew(self.control, self.lease)
                self.began = self.control.clock()
            batch = members[begin : begin + size]
            for member, error in zip(batch, create_batch(self.control, book, batch), strict=True):
                if error is None:
                    created.append(member)
                    continue
                if self._goes_on_without(member, error):
                    given_up = True
                    continue
                details[member.id] = error.sentence
                if isinstance(error, ExecutorRefused):
                    refused = error
            if refused is not None:
                break
        news = {m.id: details[m.id] for m in members if m.id in details and details[m.id] != m.detail}
        if created or news:
            with fence.fenced(self.control, self.lease) as session:
                self._writer(session).created(created, news)
        if refused is not None:
            raise refused
        self.memory.tries = self.memory.tries + 1 if details else 0
        return (bool(created) or given_up) and not details

    def _goes_on_without(self, member: Member, error: ExecutorError) -> bool:
        """Whether it is only one that was to join which the executor refused: no reason to end those that train."""
        if not isinstance(error, ExecutorRefused) or isinstance(error, AttemptRemoved):
            return False
        if not may_do_without(self.rows.attempt, member):
            return False
        self.memory.refused[member.id, member.generation] = error.sentence
        return True

    def _order_book(self) -> OrderBook:
        job = self.rows.job
        with unit_of_work(self.control.sessions, read_only=True) as session:
            volumes = load_volumes(session, job)
            try:
                opened = secrets.open_secrets(session, self.control.secret_key, job.project_id, job.spec.secrets)
            except TrainmasterError as error:
                raise ExecutorRefused(f"secrets: {error.sentence}") from error
            database_id = find_id(session)
        database_id = database_id or ensure_id(self.control.sessions)
        book = OrderBook(job, self.rows.attempt, volumes, opened, database_id)
        return replace(book, inodes=check_places(self.control, book))

    def _try_again(self, why: str) -> Look:
        self.memory.tries += 1
        wait = retry_delay(self.memory.tries)
        log.warning("executor.away", attempt=self.rows.attempt.id, why=why, again_in_s=wait.total_seconds())
        news = {m.id: why for m in self.rows.members if m.state is ReplicaState.PENDING and m.detail != why}
        if news and self.rows.attempt.stop is None:
            with fence.fenced(self.control, self.lease) as session:
                self._writer(session).created((), news)
        return Look(Verdict.AGAIN, self.control.clock() + wait, is_hot=True)

    # Small things

    def _writer(self, session: Session) -> AttemptWriter:
        return AttemptWriter(session, self.rows, self.control.clock())

    def _key(self, member: Member) -> ReplicaKey:
        return ReplicaKey(self.rows.job.id, self.rows.attempt.id, member.role, member.index, member.generation)

    def _log(self, decision: Decision) -> None:
        attempt, job = self.rows.attempt.id, self.rows.job.id
        if decision.is_running:
            log.info("attempt.running", attempt=attempt, job=job)
        if decision.stop is not None:
            log.info("attempt.stopping", attempt=attempt, job=job, cause=decision.stop.cause.value)


def fingerprint(seen: Sequence[Observation]) -> Fingerprint:
    """What of ``seen`` matters to a decision."""
    return frozenset((o.key.role, o.key.index, o.key.generation, _stage(o), o.detail) for o in seen)


def _stage(seen: Observation) -> str:
    """Its phase, and how far it is on its way into a world."""
    world = f" in world {seen.facts['world']}" if "world" in seen.facts else ""
    return f"{seen.phase.value}{world}{' and ready' if seen.facts.get('is_ready') else ''}"


def _hears_of_worlds(seen: Observation) -> bool:
    """Whether it would learn of another world: not what was started before this driver could tell of any."""
    return seen.phase is not Phase.RUNNING or "world" in seen.facts
