"""Whom of its own project to stop for a job that waits for what its project, or its user in it, may have at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from scheduler.planning.elastic.shrink_candidates import amounts_of, each_once, those_to_give
from scheduler.planning.model import QueuedGang
from scheduler.planning.placement.demand import Demand
from scheduler.planning.placement.eligibility import Sights
from scheduler.planning.placement.partial import Draft
from scheduler.planning.preemption.eviction import Clearing, Piece
from scheduler.planning.preemption.policy import Rights
from scheduler.planning.preemption.victims import Choice
from scheduler.planning.queue.quota import Excess, Limit, Quotas
from scheduler.planning.queue.shares import amount_in


class Freeing:
    """What limits leave to one job when others are gone. ``rights.shares`` and ``clearing`` are left as they were."""

    def __init__(self, job: QueuedGang, sights: Sights, rights: Rights, clearing: Clearing) -> None:
        self.job = job
        self.sights = sights
        self.rights = rights
        self.clearing = clearing

    def enough_of(self, pieces: Sequence[Piece]) -> tuple[list[Piece], Demand] | None:
        """The cheapest of its own project with which no limit holds it back, and what it asks for then.

        ``None``: not even all of them; or nobody need go, as enough is given back already.
        """
        own = [piece for piece in pieces if piece.gang.project == self.job.project]
        taken: list[Piece] = []
        seen = self._seen(taken)
        if not isinstance(seen, Excess):
            return None
        left = sorted(those_to_give(self.job, own, self.rights), key=lambda piece: piece.order)
        while isinstance(seen, Excess):
            limit = seen.limit
            piece = next((piece for piece in left if self._counts(piece, limit)), None)
            if piece is None:
                return None
            left.remove(piece)
            taken = each_once([*taken, piece])
            seen = self._seen(taken)
        return taken, self.sights.demand(self.job, seen)

    def works(self, pieces: Sequence[Piece]) -> Draft | None:
        """Where the job would be without all of ``pieces``; ``None``: a limit, or the room, is not enough."""
        seen = self._seen(pieces)
        if isinstance(seen, Excess):
            return None
        self.clearing.clear(pieces)
        draft = self.clearing.fits(self.sights.demand(self.job, seen))
        self.clearing.restore(pieces)
        return draft

    def pruned(self, pieces: Sequence[Piece]) -> Choice | None:
        """Of these, those without whose end it would not start."""
        draft = self.works(pieces)
        if draft is None:
            return None
        kept = sorted(each_once(pieces), key=lambda piece: piece.order)
        for piece in reversed(list(kept)):
            fewer = [one for one in kept if one is not piece]
            found = self.works(fewer)
            if found is not None:
                kept, draft = fewer, found
        return Choice(tuple(kept), draft)

    def _counts(self, piece: Piece, limit: Limit) -> bool:
        if limit.user and piece.gang.user != limit.user:
            return False
        return amount_in(amounts_of(piece), limit.key) > 0

    def _seen(self, pieces: Iterable[Piece]) -> str | Excess:
        with self._without(pieces):
            return self.sights.by(self.job, Quotas(self.rights.shares))

    @contextmanager
    def _without(self, pieces: Iterable[Piece]) -> Iterator[None]:
        shares, pieces = self.rights.shares, each_once(pieces)
        for piece in pieces:
            shares.add(piece.gang.project, piece.gang.user, amounts_of(piece), -1)
        try:
            yield
        finally:
            for piece in pieces:
                shares.add(piece.gang.project, piece.gang.user, amounts_of(piece))
