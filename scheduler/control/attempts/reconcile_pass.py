"""One round of a look at an attempt: what was loaded, what the executor shows, and what comes of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

import structlog

from core.domain.errors import (
    AttemptRemoved,
    ExecutorError,
    ExecutorRefused,
    ExecutorTryAgain,
    TrainmasterError,
    Unavailable,
)
from core.domain.jobs.layout import Layout, Ports, ReplicaAddress
from core.domain.jobs.lifecycle import ReplicaEvent
from core.domain.jobs.states import AttemptState, JobState, ReplicaState, Wanted
from core.wakeups import TOPIC_TICK
from executors.base import Observation, Phase
from scheduler.control.attempts.attempt_snapshot import Member, Sight
from scheduler.control.attempts.backoff import retry_delay
from scheduler.control.attempts.decide import START_PATIENCE, decide
from scheduler.control.attempts.decision import Decision
from scheduler.control.attempts.ending import End
from scheduler.control.attempts.launching.addresses import addresses_of
from scheduler.control.attempts.launching.commands import Asks
from scheduler.control.attempts.launching.create import batch_size, create_batch
from scheduler.control.attempts.launching.environment import attempt_context, environment_note
from scheduler.control.attempts.launching.replica_orders import OrderBook, check_places
from scheduler.control.attempts.launching.resume import ResumeSources, find_resume_path, given_path, load_sources
from scheduler.control.attempts.launching.startup_status import STARTS_WITHIN, tell_wait, waits_for
from scheduler.control.attempts.reconcile_result import Look, Memory, Verdict, fingerprint
from scheduler.control.attempts.spooled_reports import drop_kept, take_kept
from scheduler.control.attempts.storage.attempt_loader import AttemptRows
from scheduler.control.attempts.storage.attempt_writer import AttemptWriter
from scheduler.control.attempts.storage.effects import Gather, Gathered, Prepare, Read, Renew, Steps, Write, WriteAlone
from scheduler.control.attempts.unkilled_replicas import forget_leftovers, leftovers
from scheduler.control.attempts.worlds import WorldChange, may_do_without
from scheduler.control.context import Control

log = structlog.get_logger(__name__)

# What a replica that was just created waits for is worth a line when it waits for so long.
_TELL_AFTER: Final = timedelta(seconds=2)


class Round:
    """One round: what was loaded, and what comes of it. What it asks of the database it yields (``steps.py``)."""

    def __init__(self, control: Control, rows: AttemptRows, memory: Memory) -> None:
        self.control = control
        self.rows = rows
        self.memory = memory
        self.began = control.clock()

    def run(self) -> Steps[Look]:
        attempt, job = self.rows.attempt, self.rows.job
        is_stuck = self.began - attempt.created_at >= START_PATIENCE and any(m.detail for m in self.rows.members)
        is_meant = job.wanted is Wanted.RUN and attempt.stop is None and self.memory.refusal is None
        try:
            if attempt.state is AttemptState.PLACED and is_meant and not is_stuck:
                yield from self._prepare()
            seen = self._observe()
            decision = decide(self._sight(seen))
            look = yield from self._carry_out(decision, seen)
        except ExecutorTryAgain as away:
            return (yield from self._try_again(away.sentence, away.retry_after_s))
        except ExecutorRefused as refused:
            # Kept in memory only: after a restart the executor refuses again.
            if self.memory.refusal is not None:
                return (yield from self._try_again(refused.sentence))
            self.memory.refusal = refused.sentence
            self.memory.is_removed = isinstance(refused, AttemptRemoved)
            return Look(Verdict.AGAIN)
        if look.verdict is Verdict.SETTLED:
            self.memory.tries = 0
        return look

    # Before the first replica

    def _prepare(self) -> Steps[None]:
        """Give the attempt its addresses and its checkpoint, before anything is created."""
        control, job, attempt = self.control, self.rows.job, self.rows.attempt
        given, sources = yield Prepare(job, attempt.number)
        layout = control.executor.assign_addresses(self._layout(self.rows.members), frozenset(given.ports), attempt.id)
        addresses = frozenset(addresses_of(layout)) if control.executor.shares_hosts else frozenset()
        given.add(addresses)
        resume_from = self._ready_output(sources)
        note = environment_note(job, layout, attempt_context(control, job, attempt, resume_from))
        writer = self._writer()
        writer.start(layout, resume_from, note)
        yield Write(writer.writes, addresses)
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
        return find_resume_path(job, sources) if self.rows.attempt.number > 1 else given_path(job, sources)

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
            can_change=self.control.can_change_worlds and all(map(_hears_of_worlds, seen)),
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

    def _carry_out(self, decision: Decision, seen: Sequence[Observation]) -> Steps[Look]:
        if decision.has_writes:
            layout = None if decision.world is None else (yield from self._new_world(decision.world))
            resume_from = (yield from self._newest_checkpoint()) if self._begins_anew(decision) else None
            writer = self._writer()
            writer.record(decision, layout, resume_from)
            yield Write(writer.writes)
            self._log(decision)
            if decision.given_up:
                self.control.bell.notify(TOPIC_TICK, "")  # there is room, and somebody lacks a replica
            attempt = self.rows.attempt
            resume_from = resume_from or attempt.resume_from
            self.rows = replace(
                self.rows, attempt=replace(attempt, generation=attempt.generation + 1, resume_from=resume_from)
            )
            if decision.end is not None:
                return Look(Verdict.AGAIN)  # the end is written on fresh rows: recording may have moved the job
        if decision.end is not None:
            is_over = yield from self._end(decision.end)
            return Look(Verdict.GONE if is_over else Verdict.AGAIN)
        yield from self._tell_wait(decision, seen)
        asks = Asks(self.control, self.rows, self.memory)
        asks.stop(decision.stops)
        asks.tell(decision.tells)
        asks.leave(decision.leaves, seen)
        is_created = yield from self._create(decision.creates, seen)
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

    def _tell_wait(self, decision: Decision, seen: Sequence[Observation]) -> Steps[None]:
        """Once per reason: this process remembers what it wrote, and another one reads it first."""
        attempt, job = self.rows.attempt, self.rows.job
        is_starting = job.state is JobState.STARTING and not decision.is_running and not (attempt.stop or decision.stop)
        if not is_starting or self.began - attempt.created_at < STARTS_WITHIN:
            return
        sentence = waits_for(self.rows.members, seen)
        if sentence and sentence != self.memory.wait:
            rows, now = self.rows, self.control.clock()
            yield WriteAlone(lambda session: tell_wait(session, rows, sentence, now))
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

    def _end(self, end: End) -> Steps[bool]:
        """Write the end; false where it has to be decided anew, for replicas had told more than was known."""
        executor = self.control.executor
        executor.remove(self.rows.attempt.id)
        if (yield from take_kept(self.control, self.rows, self.memory)):
            return False
        left = leftovers(executor, self.rows.attempt.id)
        writer = self._writer()
        rings = writer.end(end, left)
        yield Write(writer.writes)
        forget_leftovers(executor, self.rows.attempt.id)
        drop_kept(self.rows, self.memory)
        log.info(
            "attempt.ended",
            attempt=self.rows.attempt.id,
            job=self.rows.job.id,
            outcome=end.event.value,
            kind=end.kind.value,
        )
        for topic, key in rings:
            self.control.bell.notify(topic, key)
        return True

    def _new_world(self, change: WorldChange) -> Steps[Layout]:
        """Addresses for the next world: all of them fresh, for whoever died may still be remembered at the old ones."""
        control = self.control
        taken: set[tuple[str, int]] = set()
        if control.executor.shares_hosts:
            given, _ = yield Prepare(self.rows.job, self.rows.attempt.number)
            taken = given.addresses
        ports = frozenset(port for _, port in taken)
        attempt = self.rows.attempt
        layout = self._layout(change.members)
        return control.executor.assign_addresses(layout, ports, attempt.id, world=attempt.world + 1)

    def _begins_anew(self, decision: Decision) -> bool:
        """Whether processes start again within the attempt."""
        return decision.world is not None or any(m.event is ReplicaEvent.RESTART for m in decision.moves)

    def _newest_checkpoint(self) -> Steps[str | None]:
        """What they go on from. Looked for once and kept in the rows: all of one world must be told the same."""
        job = self.rows.job
        sources = yield Read(lambda session: load_sources(session, job))
        return find_resume_path(job, sources)

    def _create(self, members: Sequence[Member], seen: Sequence[Observation]) -> Steps[bool]:
        """Create what is missing; true when the executor took any. What it did not take is told in its detail."""
        if not members:
            return False
        created: list[Member] = []
        details: dict[str, str] = {}
        refused: ExecutorRefused | None = None
        given_up = False
        try:
            book = yield from self._order_book()
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
                yield Renew()
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
            writer = self._writer()
            writer.created(created, news)
            yield Write(writer.writes)
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

    def _order_book(self) -> Steps[OrderBook]:
        job = self.rows.job
        found: Gathered = yield Gather(job)
        if isinstance(found.secrets, TrainmasterError):
            raise ExecutorRefused(f"secrets: {found.secrets.sentence}") from found.secrets
        book = OrderBook(job, self.rows.attempt, found.volumes, found.secrets, found.database_id)
        return replace(book, inodes=check_places(self.control, book))

    def _try_again(self, why: str, after_s: float | None = None) -> Steps[Look]:
        self.memory.tries += 1
        wait = retry_delay(self.memory.tries) if after_s is None else timedelta(seconds=after_s)
        log.warning("executor.away", attempt=self.rows.attempt.id, why=why, again_in_s=wait.total_seconds())
        news = {m.id: why for m in self.rows.members if m.state is ReplicaState.PENDING and m.detail != why}
        if news and self.rows.attempt.stop is None:
            writer = self._writer()
            writer.created((), news)
            yield Write(writer.writes)
        return Look(Verdict.AGAIN, self.control.clock() + wait, is_hot=True)

    # Small things

    def _writer(self) -> AttemptWriter:
        return AttemptWriter(self.rows, self.control.clock())

    def _log(self, decision: Decision) -> None:
        attempt, job = self.rows.attempt.id, self.rows.job.id
        if decision.is_running:
            log.info("attempt.running", attempt=attempt, job=job)
        if decision.stop is not None:
            log.info("attempt.stopping", attempt=attempt, job=job, cause=decision.stop.cause.value)


def _hears_of_worlds(seen: Observation) -> bool:
    """Whether it would learn of another world: not what was started before this driver could tell of any."""
    return seen.phase is not Phase.RUNNING or "world" in seen.facts
