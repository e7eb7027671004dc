"""Who is stopped, or made smaller, so that blocked jobs start: by right, only if that surely helps, as little as possible.

Called once, at the end of the walk. `docs/planner.md`, "Preemption", tells the rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from zlib import crc32

from core.domain.ids import JobId
from scheduler.planning.elastic import shrink_candidates
from scheduler.planning.elastic.replicas import spare
from scheduler.planning.explain.preemption_messages import Teller
from scheduler.planning.forecast.reservation import Holdings
from scheduler.planning.model import Move, Preempt, PreemptCode, QueuedGang, Reason, Shrink, Snapshot
from scheduler.planning.placement.cluster import Cluster
from scheduler.planning.placement.demand import Demand
from scheduler.planning.placement.eligibility import Sights
from scheduler.planning.placement.ledger import Ledger
from scheduler.planning.placement.partial import Draft
from scheduler.planning.policy import Defragment, QueueOrder
from scheduler.planning.preemption.eviction import Clearing, Piece
from scheduler.planning.preemption.migration import find_moves, is_enough
from scheduler.planning.preemption.node_ranking import Ranking
from scheduler.planning.preemption.nominations import Promises
from scheduler.planning.preemption.policy import Rights
from scheduler.planning.preemption.victims import Choice, Victims
from scheduler.planning.preemption.within_quota import Freeing
from scheduler.planning.queue.job_classes import Entry, Kind
from scheduler.planning.queue.shares import Shares, of_draft

# Sets of victims looked for in one plan: each costs some 10 ms with 10,000 nodes. Whoever is behind these is looked at
# in the next plan, when the first ones have been promised their room. All rounds of a plan count together.
MAX_CHOICES: Final = 16
# What may be spent in one plan on kinds of claims for which nothing is found, in units of a look at all nodes; a look at all
# who run, as rights by shares and turns take, costs more. A kind that was refused once costs nothing after that.
MAX_SPENT: Final = 512
_LOOK_AT_RUNNING: Final = 8
# Waiting gangs for which moves are looked for in one plan, in order.
MAX_MOVED_FOR: Final = 2


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
        over: jobs that wait for what their project, or user, may have at once.
        helped: jobs for which others are stopped already in what is one plan in the end.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        ledger: Ledger,
        holdings: Holdings,
        shares: Shares,
        promises: Promises,
        kept: Mapping[JobId, Draft],
        vain: frozenset[JobId],
        sights: Sights,
        over: Collection[JobId],
        helped: int = 0,
    ) -> None:
        self.snapshot = snapshot
        self.policy = snapshot.policy
        self.ledger = ledger
        self.cluster: Cluster = ledger.free.cluster
        self.rights = Rights(snapshot, shares)
        self.promises = promises
        self.kept = kept
        self.vain = vain
        self.sights = sights
        self.over = over
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
        self._choices = helped
        self._spent = 0
        self._own = {reservation.job.job_id for reservation in ledger.reservations}

    def run(self, blocked: Sequence[Entry], demands: Mapping[Kind, Demand]) -> Preempted:
        """What becomes of ``blocked``: who waits for room, in order; not those that can never run. ``demands``: of each kind."""
        self._begin_bookings()
        self._drain()
        for job in [job for _, job, _ in blocked if job.job_id in self.kept] if self.kept else ():
            self.made.reasons[job.job_id] = self.teller.promised(self.promises.still_stopping(job))
        self.rights = Rights(self.snapshot, self._shares_at_last())
        seen_to = self.kept.keys() | self.vain | self.promises.made_for
        waiting = [entry for entry in blocked if entry[1].job_id not in seen_to] if seen_to else blocked
        self._take_by_right(waiting, demands)
        if self.policy.defragment is not Defragment.OFF:
            self._move((job, demands[kind]) for _, job, kind in waiting if job.job_id not in self.over)
        return self.made

    def _shares_at_last(self) -> Shares:
        """Who holds what when all that is decided has come about: who is stopping is gone, and the others are in their places.

        Were it counted as it is now, a project would be taken more than it borrowed while the first of it stops.
        """
        shares = self.rights.shares.copy()  # what is decided here is not yet so
        for piece in self.promises.stopping:
            shares.add(piece.gang.project, piece.gang.user, shares.of_running(piece.gang), -1)
        for job_id, draft in self.kept.items():
            job = self.promises.jobs[job_id]
            shares.add(job.project, job.user, of_draft(draft))
        return shares

    def _take_by_right(self, waiting: Sequence[Entry], demands: Mapping[Kind, Demand]) -> None:
        """The first half of what may be spent goes to the first in order; the other half to those behind them, from another
        one on in every plan: were nobody helped but the first, ten large gangs that nothing helps would bar all others.
        """
        running = [gang for gang in self.snapshot.running if gang.is_preemptible]
        least = min((gang.priority for gang in running), default=1 << 30)
        has_growth = self.policy.shrinks and any(spare(gang) for gang in running)
        kinds = {kind for kind in demands if has_growth or self.rights.has_any(kind.first, least)}
        able = [(job, demands[kind]) for _, job, kind in waiting if kind in kinds]
        done = self._take_in_order(able, MAX_SPENT // 2)
        if done < len(able):
            behind = [pair for pair in able[done:] if self._claim(*pair) not in self._refused]
            first = crc32(self.snapshot.now.isoformat().encode()) % max(1, len(behind))
            self._take_in_order([*behind[first:], *behind[:first]], MAX_SPENT)

    def _take_in_order(self, waiting: Sequence[tuple[QueuedGang, Demand]], most: int) -> int:
        """Until ``most`` is spent in all; how many of them were looked at."""
        for at, (job, demand) in enumerate(waiting):
            key = self._claim(job, demand)
            if key in self._refused:
                continue
            if self._spent >= most or self._choices >= MAX_CHOICES:
                return at
            rankings = len(self._rankings)
            choice = self._free_quota(job) if job.job_id in self.over else self._choose(job, demand)
            if choice is None:
                self._refused.add(key)
                is_by_all = not self.rights.is_by_priority_only
                self._spent += 1 + _LOOK_AT_RUNNING * is_by_all * (len(self._rankings) - rankings)
            elif choice.pieces:
                self._choices += 1
                self._accept(job, choice)
        return len(waiting)

    def _move(self, waiting: Iterable[tuple[QueuedGang, Demand]]) -> None:
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
                self._more += shrink_candidates.replicas_of(gang, self.cluster)

    def _claim(self, job: QueuedGang, demand: Demand) -> tuple[object, ...]:
        """Equal for jobs that may take the same places in the same way."""
        whose = (job.project, job.user) if job.job_id in self.over else ()
        return (id(demand), job.job_id in self._own, job.holds_s, whose, *self._standing(job))

    def _standing(self, job: QueuedGang) -> tuple[object, ...]:
        """Equal for jobs of one shape that have the same rights over everybody."""
        if self.rights.is_by_priority_only:
            return (job.priority,)
        turn: tuple[object, ...] = ()
        if self.policy.rotation_s is not None:
            turn = (self.rights.level(job), job.estimate, self.rights.standing_of(job))
        elif self.policy.time_slice_s is not None:
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
            choice = self._within_bounds(job, demand, growth, clearing)
            if choice is not None:
                return choice
        barred: frozenset[JobId] = frozenset()
        while True:
            ranking = self._ranked(job, with_whole=True, barred=barred)
            if not ranking.pieces:
                return None
            choice = self._within_bounds(job, demand, ranking, clearing)
            if choice is None:
                return None
            wrong = self._first_without_right(job, choice)
            if wrong is None:
                return choice
            barred |= {wrong}

    def _free_quota(self, job: QueuedGang) -> Choice | None:
        """Who of its own project goes for one that waits for what this may have at once, and who else for its place."""
        clearing = self._clearing(job)
        freeing = Freeing(job, self.sights, self.rights, clearing)
        taken = freeing.enough_of(
            [p for p in self._growth() if self._is_there(p) and self.rights.over_growth(job, p.gang)]
            + [p for p in self._whole() if self._is_there(p) and self.rights.over(job, p.gang) is PreemptCode.PRIORITY]
        )
        if taken is None:
            return None
        pieces, demand = taken
        if freeing.works(pieces) is None:
            keys = {piece.key for piece in pieces}
            others = [p for p in self._ranked(job, with_whole=True).alive if p.key not in keys]
            clearing.clear(pieces)
            more = self._within_bounds(job, demand, Ranking(others), clearing)
            clearing.restore(pieces)
            if more is None:
                return None
            pieces = [*pieces, *more.pieces]
        choice = freeing.pruned(pieces)
        if choice is None or not self._is_within_bounds(job, choice) or self._first_without_right(job, choice):
            return None
        return choice

    def _is_there(self, piece: Piece) -> bool:
        return piece.gang.job_id not in self._gone

    def _within_bounds(self, job: QueuedGang, demand: Demand, ranking: Ranking, clearing: Clearing) -> Choice | None:
        """A choice that leaves every elastic gang as many replicas as it needs, or none at all, and every other project the
        replicas that are guaranteed to it.
        """
        choice = Victims(demand, ranking, clearing).choose()
        if choice is None or self._is_within_bounds(job, choice):
            return choice
        # With those that can be done without in any case.
        kept = shrink_candidates.those_to_give(job, ranking.alive, self.rights)
        choice = Victims(demand, Ranking(kept), clearing).choose()
        return choice if choice is not None and self._is_within_bounds(job, choice) else None

    def _is_within_bounds(self, job: QueuedGang, choice: Choice) -> bool:
        given = [piece for mine in shrink_candidates.by_gang(choice.pieces).values() for piece in mine]
        return not shrink_candidates.are_too_many(given) and len(
            shrink_candidates.not_guaranteed(job, given, self.rights)
        ) == len(given)

    def _first_without_right(self, job: QueuedGang, choice: Choice) -> JobId | None:
        """Each must be over the other one's limit when those before it are gone: the first who is not."""
        shares, done = self.rights.shares, list[tuple[Piece, Mapping[str, int]]]()
        wrong: JobId | None = None
        for piece in shrink_candidates.each_once(choice.pieces):
            if piece.index is None and self.rights.over(job, piece.gang) is None:
                wrong = piece.gang.job_id
                break
            amounts = self.rights.held(piece.gang) if piece.index is None else shrink_candidates.amounts_of(piece)
            shares.add(piece.gang.project, piece.gang.user, amounts, -1)
            done.append((piece, amounts))
        for piece, amounts in done:
            shares.add(piece.gang.project, piece.gang.user, amounts)
        return wrong

    def _accept(self, job: QueuedGang, choice: Choice, by: PreemptCode | None = None) -> None:
        shares = self.rights.shares
        whole = [piece for piece in choice.pieces if piece.index is None]
        gone = {piece.gang.job_id for piece in whole}
        for piece in whole:
            code = by or self.rights.over(job, piece.gang) or PreemptCode.PRIORITY
            turns = self.rights.had_less(job, piece.gang) if code is PreemptCode.TIME_SLICE else None
            sentence = self.teller.stopped(piece.gang, job, code, turns)
            self.made.preempts.append(Preempt(piece.gang.job_id, job.job_id, code, sentence))
            shares.add(piece.gang.project, piece.gang.user, self.rights.held(piece.gang), -1)
        smaller = shrink_candidates.by_gang(choice.pieces)
        for pieces in smaller.values():
            self._shrink(pieces, job)
            for piece in pieces:
                shares.add(piece.gang.project, piece.gang.user, shrink_candidates.amounts_of(piece), -1)
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
        if job.job_id in self._own or self.rights.is_owed(job) or self._is_passed_over(job):
            level, closed = 0, frozenset[int]()
        else:
            level = ledger.level(job.holds_s)
            closed = ledger.held_nodes
        clearing = self._clearings.get((level, closed))
        if clearing is None:
            clearing = self._clearings[level, closed] = Clearing(ledger.views[level], closed)
            clearing.clear(self.promises.stopping)
            for pieces, draft in self._accepted:
                clearing.clear(pieces)
                clearing.take(draft)
        return clearing

    def _is_passed_over(self, job: QueuedGang) -> bool:
        """Whether room is held only for jobs that come after it, and were met first since it waits for a limit."""
        return job.job_id in self.over and all(held.job.priority < job.priority for held in self.ledger.reservations)

    # ---- bookings and drained nodes ----

    def _drain(self) -> None:
        """Whoever is on a node that the administrator empties goes on elsewhere, however short it ran; who is not
        preemptible ends there.
        """
        draining = {node.id for node in self.snapshot.nodes if node.is_draining}
        if not draining:
            return
        for gang in sorted(self.snapshot.running, key=lambda gang: gang.job_id):
            nodes = sorted({node for _, node in gang.nodes if node in draining})
            if not nodes or gang.is_stopping or not gang.is_preemptible or gang.job_id in self._gone:
                continue
            self._gone.add(gang.job_id)
            self.made.preempts.append(Preempt(gang.job_id, None, PreemptCode.DRAIN, self.teller.drained(nodes)))

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
