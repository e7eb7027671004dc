"""One reconcile pass about an attempt: rows and observations in, decision, commands and writes out."""

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
    InsufficientStorage,
    TrainmasterError,
    Unavailable,
)
from core.domain.jobs.exits import ExitKind, classify
from core.domain.jobs.layout import Layout, Ports, ReplicaAddress
from core.domain.jobs.lifecycle import ReplicaEvent
from core.domain.jobs.states import AttemptState, DesiredState, JobState, ReplicaState
from core.domain.jobs.volume_room import VolumeRoom
from core.storage.volumes import read_room
from core.wakeups import TOPIC_TICK
from executors.base import Observation, Phase
from scheduler.control.attempts.attempt_snapshot import AttemptSnapshot, GangMember
from scheduler.control.attempts.backoff import retry_delay
from scheduler.control.attempts.completion_rules import START_PATIENCE
from scheduler.control.attempts.decide import decide_attempt
from scheduler.control.attempts.decision import Decision
from scheduler.control.attempts.ending import AttemptEnd
from scheduler.control.attempts.launching.commands import (
    ExecutorCommands,
    batch_size,
    create_batch,
    forget_unkilled_replicas,
    unkilled_replicas,
)
from scheduler.control.attempts.launching.environment import attempt_context, environment_note
from scheduler.control.attempts.launching.replica_orders import OrderContext, addresses_of, check_paths
from scheduler.control.attempts.launching.resume import (
    ResumeSources,
    explicit_path,
    find_resume_path,
    load_outputs,
    load_sources,
)
from scheduler.control.attempts.reconcile_result import ReconcileOutcome, ReconcilerCache, ReconcileResult, fingerprint
from scheduler.control.attempts.spool_drain import delete_spool, drain_spool
from scheduler.control.attempts.storage.attempt_loader import AttemptRows
from scheduler.control.attempts.storage.attempt_writer import (
    STARTUP_QUIET_TIME,
    AttemptWriter,
    startup_status,
    write_startup_status,
)
from scheduler.control.attempts.storage.effects import (
    Effects,
    LoadOrderInputs,
    LoadStartInputs,
    OrderInputs,
    RenewLease,
    RunRead,
    RunWrite,
    WriteStatements,
)
from scheduler.control.attempts.worlds import WorldChange, is_joining
from scheduler.control.context import ControlContext

log = structlog.get_logger(__name__)

# The detail of a just created replica is worth a recheck when it still waits after this time.
_RECHECK_AFTER_CREATE: Final = timedelta(seconds=2)


class _VolumeFull(ExecutorRefused):
    """The output folder cannot be made now: the volume has no room."""


class ReconcilePass:
    """One pass. Its database accesses are effects, which it yields (``storage/effects.py``)."""

    def __init__(self, control: ControlContext, rows: AttemptRows, cache: ReconcilerCache) -> None:
        self.control = control
        self.rows = rows
        self.cache = cache
        self.began = control.clock()

    def run(self) -> Effects[ReconcileResult]:
        attempt, job = self.rows.attempt, self.rows.job
        is_stuck = self.began - attempt.created_at >= START_PATIENCE and any(m.detail for m in self.rows.members)
        is_wanted = job.wanted is DesiredState.RUN and attempt.stop is None and self.cache.refusal is None
        try:
            if attempt.state is AttemptState.PLACED and is_wanted and not is_stuck:
                yield from self._prepare()
            observations = self._observe()
            room = yield from self._output_room()
            decision = decide_attempt(replace(self._snapshot(observations), output_room=room))
            result = yield from self._apply(decision, observations)
        except ExecutorTryAgain as away:
            return (yield from self._retry_later(away.sentence, away.retry_after_s))
        except ExecutorRefused as refused:
            # Cached in memory only: after a restart of this process the executor refuses again.
            if self.cache.refusal is not None:
                return (yield from self._retry_later(refused.sentence))
            self.cache.refusal = refused.sentence
            self.cache.is_removed = isinstance(refused, AttemptRemoved)
            self.cache.is_volume_full = isinstance(refused, _VolumeFull)
            return ReconcileResult(ReconcileOutcome.REQUEUE)
        if result.outcome is ReconcileOutcome.IN_SYNC:
            self.cache.tries = 0
        return result

    # Before the first replica

    def _prepare(self) -> Effects[None]:
        """Assign the attempt's addresses and its checkpoint, before anything is created."""
        control, job, attempt = self.control, self.rows.job, self.rows.attempt
        taken, sources = yield LoadStartInputs(job, attempt.number)
        ports = frozenset(port for _, port in taken)
        layout = control.executor.assign_addresses(self._layout(self.rows.members), ports, attempt.id)
        addresses = frozenset(addresses_of(layout)) if control.executor.shares_hosts else frozenset()
        taken.update(addresses)
        resume_from = self._ready_output(sources)
        note = environment_note(job, layout, attempt_context(control, job, attempt, resume_from))
        writer = self._writer()
        writer.start(layout, resume_from, note)
        yield WriteStatements(writer.writes, addresses)
        self.rows = self.rows.started(layout, resume_from)

    def _layout(self, members: Sequence[GangMember]) -> Layout:
        roles = self.rows.job.spec.roles
        return Layout(
            tuple(
                ReplicaAddress(m.role, m.index, "", Ports(), m.node, m.gpus, roles[m.role].process_count)
                for m in members
            )
        )

    def _ready_output(self, sources: ResumeSources) -> str | None:
        """Make the output folder; returns the checkpoint in it to resume from."""
        job = self.rows.job
        try:
            is_shared = job.output_volume == self.control.default_volume
            sources.make_output(is_shared=is_shared, owner=self.control.output_owner)
        except Unavailable as away:
            raise ExecutorTryAgain(away.sentence) from away
        except InsufficientStorage as full:
            raise _VolumeFull(f"The output volume {job.output_volume} has no room: {full.sentence}") from full
        except TrainmasterError as error:
            raise ExecutorRefused(f"output: {error.sentence}") from error
        return find_resume_path(job, sources) if self.rows.attempt.number > 1 else explicit_path(job, sources)

    # Applying the decision

    def _observe(self) -> Sequence[Observation]:
        """The executor's observations. Where a replica is missing, a fresh list is read: a driver's cache may lag
        behind another process.
        """
        attempt_id = self.rows.attempt.id
        observations = self.control.executor.observe(attempt_id)
        shown = {(o.key.role, o.key.index, o.key.generation) for o in observations}
        live = (m for m in self.rows.members if not m.is_over and m.state is not ReplicaState.PENDING)
        if all((m.role, m.index, m.generation) in shown for m in live):
            return observations
        return self.control.executor.observe(attempt_id, fresh=True)

    def _snapshot(self, observations: Sequence[Observation]) -> AttemptSnapshot:
        rows = self.rows
        return AttemptSnapshot(
            now=self.control.clock(),
            job=rows.job,
            attempt=rows.attempt,
            members=rows.members,
            observed={(o.key.role, o.key.index): o for o in observations},
            lost_nodes=rows.lost_nodes,
            draining_nodes=rows.draining_nodes,
            previous=rows.previous,
            has_checkpoint=rows.has_checkpoint,
            refusal=self.cache.refusal,
            is_removed=self.cache.is_removed,
            is_volume_full=self.cache.is_volume_full,
            refused={
                m.id: self.cache.refused_joins[m.id, m.generation]
                for m in rows.members
                if (m.id, m.generation) in self.cache.refused_joins
            },
            user_request=rows.user_request,
            can_change_worlds=self.control.can_change_worlds and all(map(_supports_worlds, observations)),
            joining_since=self._joining_since(),
        )

    def _output_room(self) -> Effects[VolumeRoom | None]:
        """Space on the output's volume, where a replica of an attempt that ends found a disk full."""
        rows = self.rows
        exits = [member.exit for member in rows.members if member.exit is not None]
        if rows.attempt.stop is None or not any(classify(exit_).kind is ExitKind.CAPACITY for exit_ in exits):
            return None
        sources = yield RunRead(lambda session: load_outputs(session, [rows.job])[0])
        try:
            return None if sources.volume is None else read_room(sources.volume)
        except TrainmasterError:
            return None

    def _joining_since(self) -> dict[str, datetime]:
        """As far as this process has observed: a process that takes over starts the patience again."""
        attempt, known = self.rows.attempt, self.cache.joining
        if attempt.state is not AttemptState.RUNNING:
            return {}
        joining = [m for m in self.rows.members if not m.is_over and is_joining(attempt, m)]
        self.cache.joining = {(m.id, m.generation): known.get((m.id, m.generation), self.began) for m in joining}
        return {name: since for (name, _), since in self.cache.joining.items()}

    def _apply(self, decision: Decision, observations: Sequence[Observation]) -> Effects[ReconcileResult]:
        if decision.has_writes:
            layout = None if decision.world is None else (yield from self._new_world(decision.world))
            resume_from = (yield from self._newest_checkpoint()) if self._restarts_processes(decision) else None
            writer = self._writer()
            writer.record(decision, layout, resume_from)
            yield WriteStatements(writer.writes)
            self._log(decision)
            if decision.releases:
                self.control.wakeup.notify(TOPIC_TICK, "")  # resources are free, and this gang lacks a replica
            attempt = self.rows.attempt
            resume_from = resume_from or attempt.resume_from
            self.rows = replace(
                self.rows, attempt=replace(attempt, generation=attempt.generation + 1, resume_from=resume_from)
            )
            if decision.end is not None:
                # The end is written on fresh rows: recording may have moved the job.
                return ReconcileResult(ReconcileOutcome.REQUEUE)
        if decision.end is not None:
            is_over = yield from self._end(decision.end)
            return ReconcileResult(ReconcileOutcome.ENDED if is_over else ReconcileOutcome.REQUEUE)
        yield from self._write_startup_status(decision, observations)
        commands = ExecutorCommands(self.control, self.rows, self.cache)
        commands.stop(decision.stops)
        commands.update_world(decision.world_updates)
        commands.discard(decision.discards, observations)
        is_created = yield from self._create(decision.creates, observations)
        result = ReconcileResult(
            ReconcileOutcome.REQUEUE if decision.has_writes or is_created else ReconcileOutcome.IN_SYNC,
            None if decision.has_writes or is_created else decision.recheck_at,
            fingerprint(observations),
            self._is_changing(decision),
        )
        if is_created and not decision.has_writes:
            return self._after_creation(result)
        if decision.creates and not is_created:
            return replace(
                result,
                outcome=ReconcileOutcome.REQUEUE,
                recheck_at=self.control.clock() + retry_delay(self.cache.tries),
            )
        return result

    def _write_startup_status(self, decision: Decision, observations: Sequence[Observation]) -> Effects[None]:
        """Once per reason: this process caches what it wrote, and another process compares with the row."""
        attempt, job = self.rows.attempt, self.rows.job
        is_starting = job.state is JobState.STARTING and not decision.is_running and not (attempt.stop or decision.stop)
        if not is_starting or self.began - attempt.created_at < STARTUP_QUIET_TIME:
            return
        sentence = startup_status(self.rows.members, observations)
        if sentence and sentence != self.cache.startup_status:
            rows, now = self.rows, self.control.clock()
            yield RunWrite(lambda session: write_startup_status(session, rows, sentence, now))
            self.cache.startup_status = sentence

    def _after_creation(self, result: ReconcileResult) -> ReconcileResult:
        """Another pass only if there is something to write: mostly the engine has just begun, and will push changes."""
        observations = self.control.executor.observe(self.rows.attempt.id)
        if any(observation.phase is not Phase.PENDING for observation in observations):
            return result
        return ReconcileResult(
            ReconcileOutcome.IN_SYNC,
            self.control.clock() + _RECHECK_AFTER_CREATE,
            fingerprint(observations),
            is_changing=True,
        )

    def _is_changing(self, decision: Decision) -> bool:
        attempt = self.rows.attempt
        return bool(
            attempt.state is not AttemptState.RUNNING
            or attempt.stop
            or decision.stop
            or decision.stops
            or decision.world_updates
            or any(m.state is ReplicaState.STARTING for m in self.rows.members)
        )

    def _end(self, end: AttemptEnd) -> Effects[bool]:
        """Write the end; false where it has to be decided again, as spooled reports contained news."""
        executor = self.control.executor
        executor.remove(self.rows.attempt.id)
        if (yield from drain_spool(self.control, self.rows, self.cache)):
            return False
        left = unkilled_replicas(executor, self.rows.attempt.id)
        writer = self._writer()
        wakeups = writer.end(end, left)
        yield WriteStatements(writer.writes)
        forget_unkilled_replicas(executor, self.rows.attempt.id)
        delete_spool(self.rows, self.cache)
        log.info(
            "attempt.ended",
            attempt=self.rows.attempt.id,
            job=self.rows.job.id,
            outcome=end.event.value,
            kind=end.kind.value,
        )
        for topic, key in wakeups:
            self.control.wakeup.notify(topic, key)
        return True

    def _new_world(self, change: WorldChange) -> Effects[Layout]:
        """Fresh addresses for the next world: peers may still hold connections to the old address of a dead replica."""
        control = self.control
        taken: set[tuple[str, int]] = set()
        if control.executor.shares_hosts:
            taken, _ = yield LoadStartInputs(self.rows.job, self.rows.attempt.number)
        ports = frozenset(port for _, port in taken)
        attempt = self.rows.attempt
        layout = self._layout(change.members)
        return control.executor.assign_addresses(layout, ports, attempt.id, world=attempt.world + 1)

    def _restarts_processes(self, decision: Decision) -> bool:
        """Whether processes start again within the attempt."""
        return decision.world is not None or any(m.event is ReplicaEvent.RESTART for m in decision.moves)

    def _newest_checkpoint(self) -> Effects[str | None]:
        """The checkpoint to resume from. Read once and stored: all replicas of one world must get the same."""
        job = self.rows.job
        sources = yield RunRead(lambda session: load_sources(session, job))
        return find_resume_path(job, sources)

    def _create(self, members: Sequence[GangMember], observations: Sequence[Observation]) -> Effects[bool]:
        """Create missing replicas; true when the executor took any. The detail of the others says why not."""
        if not members:
            return False
        created: list[GangMember] = []
        details: dict[str, str] = {}
        refused: ExecutorRefused | None = None
        given_up = False
        try:
            order_context = yield from self._order_context()
        except ExecutorRefused as no:
            if not all(is_joining(self.rows.attempt, member) for member in members):
                raise
            self.cache.refused_joins |= {(member.id, member.generation): no.sentence for member in members}
            return True
        # Running replicas show whether their program goes from world to world without a restart.
        order_context = replace(order_context, joins_warm=any(o.facts.get("keeps_processes") for o in observations))
        size = batch_size(self.control)
        for begin in range(0, len(members), size):
            if self.control.clock() - self.began > self.control.lease_ttl / 2:
                yield RenewLease()
                self.began = self.control.clock()
            batch = members[begin : begin + size]
            for member, error in zip(batch, create_batch(self.control, order_context, batch), strict=True):
                if error is None:
                    created.append(member)
                    continue
                if self._skips_joining(member, error):
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
            yield WriteStatements(writer.writes)
        if refused is not None:
            raise refused
        self.cache.tries = self.cache.tries + 1 if details else 0
        return (bool(created) or given_up) and not details

    def _skips_joining(self, member: GangMember, error: ExecutorError) -> bool:
        """Whether the executor refused only a joining replica: no reason to end those that train."""
        if not isinstance(error, ExecutorRefused) or isinstance(error, AttemptRemoved):
            return False
        if not is_joining(self.rows.attempt, member):
            return False
        self.cache.refused_joins[member.id, member.generation] = error.sentence
        return True

    def _order_context(self) -> Effects[OrderContext]:
        job = self.rows.job
        found: OrderInputs = yield LoadOrderInputs(job)
        if isinstance(found.secrets, TrainmasterError):
            raise ExecutorRefused(f"secrets: {found.secrets.sentence}") from found.secrets
        order_context = OrderContext(
            job, self.rows.attempt, found.volumes, found.secrets, found.database_id, owners=found.owners
        )
        return replace(order_context, inodes=check_paths(self.control, order_context))

    def _retry_later(self, why: str, after_s: float | None = None) -> Effects[ReconcileResult]:
        self.cache.tries += 1
        wait = retry_delay(self.cache.tries) if after_s is None else timedelta(seconds=after_s)
        log.warning("executor.away", attempt=self.rows.attempt.id, why=why, again_in_s=wait.total_seconds())
        news = {m.id: why for m in self.rows.members if m.state is ReplicaState.PENDING and m.detail != why}
        if news and self.rows.attempt.stop is None:
            writer = self._writer()
            writer.created((), news)
            yield WriteStatements(writer.writes)
        return ReconcileResult(ReconcileOutcome.REQUEUE, self.control.clock() + wait, is_changing=True)

    # Helpers

    def _writer(self) -> AttemptWriter:
        return AttemptWriter(self.rows, self.control.clock())

    def _log(self, decision: Decision) -> None:
        attempt, job = self.rows.attempt.id, self.rows.job.id
        if decision.is_running:
            log.info("attempt.running", attempt=attempt, job=job)
        if decision.stop is not None:
            log.info("attempt.stopping", attempt=attempt, job=job, cause=decision.stop.cause.value)


def _supports_worlds(observation: Observation) -> bool:
    """Whether the replica would receive a new world: not if it was started before the driver could send any."""
    return observation.phase is not Phase.RUNNING or "world" in observation.facts
