"""Who is stopped, or made smaller, so that blocked jobs start: by right, only if that surely helps, as little as possible.

Called once, at the end of the walk. `docs/planner.md`, "Preemption", tells the rules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from core.domain.ids import JobId
from scheduler.planning.clearing import Clearing, Piece
from scheduler.planning.cluster import Cluster
from scheduler.planning.demand import Demand
from scheduler.planning.draft import Draft
from scheduler.planning.ledger import NEVER, Ledger
from scheduler.planning.model import Move, Preempt, PreemptCode, QueuedGang, Reason, RunningGang, Shrink, Snapshot
from scheduler.planning.moves import find_moves, is_enough
from scheduler.planning.policy import Defragment, QueueOrder
from scheduler.planning.preempt_words import Teller
from scheduler.planning.promises import Promises
from scheduler.planning.ranking import Ranking
from scheduler.planning.replicas import held_by_index, indices, spare
from scheduler.planning.reservation import Holdings
from scheduler.planning.rights import Rights
from scheduler.planning.shares import Shares, of_draft
from scheduler.planning.victims import Choice, Victims

# Sets of victims looked for in one plan: each costs some 10 ms with 10,000 nodes. Whoever is behind these is looked at
# in the next plan, when the first ones have been promised their room.
MAX_CHOICES: Final = 16
# Kinds of claims for which nothing was found. A claim that was refused once is refused to all shapes like it at no cost.
MAX_REFUSALS: Final = 64
# Waiting gangs for which moves are looked for in one plan, in order.
MAX_MOVED_FOR: Final = 2
# What it costs an elastic gang to do with a replica less, in GPU-seconds per GPU: next to nothing, but the fewer the better.
_SHRINK_COST: Final = 1e-3


@dataclass(slots=True)
class Preempted:
    """What a plan says of others' places. ``reasons``: of the jobs for which somebody is stopped."""

    preempts: list[Preempt] = field(default_factory=list)
    shrinks: list[Shrink] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    reasons: dict[JobId, Reason] = field(default_factory=dict)

    @property
    def touched(self) -> set[JobId]:
        """Who is stopped or made smaller, and so does not grow."""
        return {one.job_id for one in self.preempts} | {one.job_id for one in self.shrinks}


class Preemption:
    """The state of one search for victims.

    Args:
        kept: jobs for which room is held already, and where.
        vain: jobs for which nobody is stopped: others would get the place.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        ledger: Ledger,
        holdings: Holdings,
        shares: Shares,
        promises: Promises,
        kept: Mapping[JobId, Draft],
        vain: frozenset[JobId] = frozenset(),
    ) -> None:
        self.snapshot = snapshot
        self.policy = snapshot.policy
        self.ledger = ledger
        self.cluster: Cluster = ledger.free.cluster
        self.rights = Rights(snapshot, shares)
        self.promises = promises
        self.kept = kept
        self.vain = vain
        self.teller = Teller(snapshot)
        self.made = Preempted()
        self._holdings = holdings
        self._all: list[Piece] | None = None
        self._more: list[Piece] = []
        self._rankings: dict[tuple[object, ...], Ranking] = {}
        self._gone: set[JobId] = set()
        self._accepted: list[tuple[Sequence[Piece], Draft]] = []
        self._clearings: dict[tuple[int, frozenset[int]], Clearing] = {}
        self._refused: set[tuple[object, ...]] = set()
        self._own = {reservation.job.job_id for reservation in ledger.reservations}

    def run(self, blocked: Sequence[tuple[QueuedGang, Demand]]) -> Preempted:
        """What becomes of ``blocked``: who waits for room, in order; not those that can never run or wait for a quota."""
        self._begin_bookings()
        for job in (job for job, _ in blocked if job.job_id in self.kept):
            self.made.reasons[job.job_id] = self.teller.promised(self.promises.still_stopping(job))
        self.rights = Rights(self.snapshot, self.rights.shares.copy())  # what is decided here is not yet so
        waiting = [
            (job, demand)
            for job, demand in blocked
            if job.job_id not in self.kept and job.job_id not in self.vain and not self.promises.still_stopping(job)
        ]
        self._take_by_right(waiting)
        if self.policy.defragment is not Defragment.OFF:
            self._move(waiting)
        return self.made

    def _take_by_right(self, waiting: Sequence[tuple[QueuedGang, Demand]]) -> None:
        running = [gang for gang in self.snapshot.running if gang.is_preemptible]
        least = min((gang.priority for gang in running), default=1 << 30)
        has_growth = self.policy.shrinks and any(spare(gang) for gang in running)
        choices = 0
        for job, demand in waiting:
            if not has_growth and not self.rights.has_any(job, least):
                continue
            key = self._claim(job, demand)
            if key in self._refused:
                continue
            if choices >= MAX_CHOICES or len(self._refused) >= MAX_REFUSALS:
                break
            choice = self._choose(job, demand)
            if choice is None:
                self._refused.add(key)
            elif choice.pieces:
                choices += 1
                self._accept(job, choice)

    def _move(self, waiting: Sequence[tuple[QueuedGang, Demand]]) -> None:
        """Moves with which gangs start that nobody is stopped for."""
        tried = 0
        asked: set[int] = set()
        for job, demand in waiting:
            if id(demand) in asked or job.job_id in self.made.reasons or self._starts_soon(job):
                continue
            asked.add(id(demand))
            clearing = self._clearing(job)
            if not is_enough(demand, clearing):
                continue
            if tried >= MAX_MOVED_FOR:
                return
            tried += 1
            moved = find_moves(job, demand, [piece for piece in self._whole() if self._is_there(piece)], clearing)
            if moved is None:
                continue
            self.made.moves += moved.moves
            if self.policy.defragment is Defragment.APPLY:
                self._accept(job, Choice(moved.pieces, moved.draft), PreemptCode.MOVE)
            return  # one at a time: where the others would go is not free any more

    def _starts_soon(self, job: QueuedGang) -> bool:
        """Whether room is reserved for it from a moment on that comes before a move would be over."""
        soon_s = self.policy.grace_s + self.policy.restart_cost_s
        return any(
            held.job.job_id == job.job_id and held.start_s is not None and held.start_s <= soon_s
            for held in self.ledger.reservations
        )

    # ---- who may be stopped ----

    def _whole(self) -> list[Piece]:
        """Everybody who may be stopped."""
        if self._all is None:
            self._list_pieces()
        return self._all or []

    def _growth(self) -> list[Piece]:
        """Every replica of those that have more than they need."""
        if self._all is None:
            self._list_pieces()
        return self._more

    def _list_pieces(self) -> None:
        self._all = []
        # Who gives back replicas already is left alone until these are gone: they stand beside it as one that stops.
        busy = {piece.gang.job_id for piece in self.promises.stopping}
        restart_s = self.policy.restart_cost_s
        for gang, held in self._holdings:
            if gang.job_id in busy or gang.job_id in self._gone or not held:
                continue
            if self.rights.may_stop(gang):
                gpus = sum(members * (request.gpu_count + request.gpu_milli / 1000) for _, request, _, members in held)
                self._all.append(Piece(gang, tuple(held), gang.lost_gpu_s + restart_s * (gpus or 1.0)))
            if self.policy.shrinks and gang.is_preemptible and gang.gang.elastic is not None:
                self._more += self._replicas(gang)

    def _replicas(self, gang: RunningGang) -> list[Piece]:
        """The elastic replicas of a gang that has more than it needs."""
        role = gang.gang.elastic
        if role is None:
            return []
        found: list[Piece] = []
        for index, held in held_by_index(gang, self.cluster):
            cost = _SHRINK_COST * max(1, held[1].gpu_count)
            found.append(Piece(gang, (held,), cost, index))
        return found if spare(gang) else []

    def _claim(self, job: QueuedGang, demand: Demand) -> tuple[object, ...]:
        """Equal for jobs that may take the same places in the same way."""
        return (id(demand), job.job_id in self._own, job.max_run_time_s, *self._standing(job))

    def _standing(self, job: QueuedGang) -> tuple[object, ...]:
        """Equal for jobs of one shape that have the same rights over everybody."""
        if self.rights.is_by_priority_only:
            return (job.priority,)
        turn: tuple[object, ...] = ()
        if self.policy.time_slice_s is not None:
            is_fifo = self.policy.order is QueueOrder.FIFO
            turn = (self.rights.level(job), job.estimate, job.queued_at if is_fifo else None)
        return (job.priority, job.project, job.user, job.shape, *turn)

    def _ranked(self, job: QueuedGang, *, with_whole: bool, barred: frozenset[JobId] = frozenset()) -> Ranking:
        """Whom ``job`` has a right over."""
        key: tuple[object, ...] = (with_whole, barred, *self._standing(job))
        if not self.rights.is_by_priority_only:
            key = (*key, len(self._accepted))  # rights change with shares
        known = self._rankings.get(key)
        if known is None:
            pieces = [p for p in self._growth() if self._is_there(p) and self.rights.over_growth(job, p.gang)]
            if with_whole:
                pieces += [
                    piece
                    for piece in self._whole()
                    if piece.gang.job_id not in barred and self._is_there(piece) and self.rights.over(job, piece.gang)
                ]
            known = self._rankings[key] = Ranking(pieces)
        return known

    # ---- one job ----

    def _choose(self, job: QueuedGang, demand: Demand) -> Choice | None:
        """Who goes for ``job``; nobody, if what is stopping already is enough."""
        clearing = self._clearing(job)
        soon = clearing.fits(demand)
        if soon is not None:
            clearing.take(soon)
            self._accepted.append(((), soon))
            return Choice((), soon)
        growth = self._ranked(job, with_whole=False)
        if growth.pieces:
            choice = self._within_bounds(demand, growth, clearing)
            if choice is not None:
                return choice
        barred: frozenset[JobId] = frozenset()
        while True:
            ranking = self._ranked(job, with_whole=True, barred=barred)
            if not ranking.pieces:
                return None
            choice = self._within_bounds(demand, ranking, clearing)
            if choice is None:
                return None
            wrong = self._first_without_right(job, choice)
            if wrong is None:
                return choice
            barred |= {wrong}

    def _is_there(self, piece: Piece) -> bool:
        return piece.gang.job_id not in self._gone

    def _within_bounds(self, demand: Demand, ranking: Ranking, clearing: Clearing) -> Choice | None:
        """A choice that leaves every elastic gang as many replicas as it needs, or none at all."""
        choice = Victims(demand, ranking, clearing).choose()
        if choice is None or not self._too_small(choice):
            return choice
        # With as many as it can do without in any case: those of the largest numbers.
        kept = [piece for piece in ranking.alive if piece.index is None or self._is_one_of_the_last(piece)]
        choice = Victims(demand, Ranking(kept), clearing).choose()
        return None if choice is None or self._too_small(choice) else choice

    @staticmethod
    def _too_small(choice: Choice) -> bool:
        whole = {piece.gang.job_id for piece in choice.pieces if piece.index is None}
        taken: dict[JobId, list[Piece]] = {}
        for piece in choice.pieces:
            if piece.index is not None and piece.gang.job_id not in whole:
                taken.setdefault(piece.gang.job_id, []).append(piece)
        return any(len(pieces) > spare(pieces[0].gang) for pieces in taken.values())

    @staticmethod
    def _is_one_of_the_last(piece: Piece) -> bool:
        present = sorted(index for index, _ in indices(piece.gang))
        return piece.index is not None and piece.index in present[len(present) - spare(piece.gang) :]

    def _first_without_right(self, job: QueuedGang, choice: Choice) -> JobId | None:
        """Each must be over the other one's limit when those before it are gone: the first who is not."""
        shares, done = self.rights.shares, list[RunningGang]()
        wrong: JobId | None = None
        for piece in choice.pieces:
            if piece.index is not None:
                continue
            if self.rights.over(job, piece.gang) is None:
                wrong = piece.gang.job_id
                break
            shares.add(piece.gang.project, piece.gang.user, self.rights.held(piece.gang), -1)
            done.append(piece.gang)
        for gang in done:
            shares.add(gang.project, gang.user, self.rights.held(gang))
        return wrong

    def _accept(self, job: QueuedGang, choice: Choice, by: PreemptCode | None = None) -> None:
        shares = self.rights.shares
        whole = [piece for piece in choice.pieces if piece.index is None]
        gone = {piece.gang.job_id for piece in whole}
        for piece in whole:
            code = by or self.rights.over(job, piece.gang) or PreemptCode.PRIORITY
            sentence = self.teller.stopped(piece.gang, job, code)
            self.made.preempts.append(Preempt(piece.gang.job_id, job.job_id, code, sentence))
            shares.add(piece.gang.project, piece.gang.user, self.rights.held(piece.gang), -1)
        smaller: dict[JobId, list[Piece]] = {}
        for piece in choice.pieces:
            if piece.index is not None and piece.gang.job_id not in gone:
                smaller.setdefault(piece.gang.job_id, []).append(piece)
        for pieces in smaller.values():
            self._shrink(pieces, job)
        self.made.reasons[job.job_id] = self.teller.preempting(
            [piece.gang for piece in whole], [pieces[0].gang for pieces in smaller.values()]
        )
        shares.add(job.project, job.user, of_draft(choice.draft))
        # One that was made smaller in this plan is left alone for the rest of it.
        self._gone |= gone | smaller.keys()
        taken = [piece for piece in choice.pieces if piece.index is None or piece.gang.job_id not in gone]
        self._accepted.append((taken, choice.draft))
        for clearing in self._clearings.values():
            clearing.clear(taken)
            clearing.take(choice.draft)
        for ranking in self._rankings.values():
            ranking.drop(self._gone)

    def _shrink(self, pieces: list[Piece], job: QueuedGang) -> None:
        gang = pieces[0].gang
        role = gang.gang.elastic
        if role is None:
            return
        taken = tuple(sorted(piece.index for piece in pieces if piece.index is not None))
        sentence = self.teller.shrunk(gang, len(taken), job)
        self.made.shrinks.append(Shrink(gang.job_id, role.role, taken, job.job_id, sentence))

    def _clearing(self, job: QueuedGang) -> Clearing:
        """What ``job`` would find: what is free for it, with the room that is becoming free and is not promised."""
        ledger = self.ledger
        if job.job_id in self._own or self.rights.is_owed(job):
            level, closed = 0, frozenset[int]()
        else:
            level = ledger.level(NEVER if job.max_run_time_s is None else job.max_run_time_s)
            closed = ledger.held_nodes
        clearing = self._clearings.get((level, closed))
        if clearing is None:
            clearing = self._clearings[level, closed] = Clearing(ledger.views[level], closed)
            clearing.clear(self.promises.stopping)
            for pieces, draft in self._accepted:
                clearing.clear(pieces)
                clearing.take(draft)
        return clearing

    # ---- bookings ----

    def _begin_bookings(self) -> None:
        """Nodes that are reserved from now on: whoever else is there goes, however short it ran."""
        now = self.snapshot.now
        for booking in sorted(self.snapshot.bookings, key=lambda booking: booking.id):
            if not booking.begins_at <= now < booking.ends_at:
                continue
            for gang in sorted(self.snapshot.running, key=lambda gang: gang.job_id):
                nodes = sorted({node for _, node in gang.nodes if node in booking.nodes})
                is_theirs = gang.project == booking.project
                if is_theirs or not nodes or gang.is_stopping or not gang.is_preemptible or gang.job_id in self._gone:
                    continue
                self._gone.add(gang.job_id)
                sentence = self.teller.booked(booking, nodes)
                self.made.preempts.append(Preempt(gang.job_id, None, PreemptCode.BOOKING, sentence))
