"""Replicas that elastic gangs give back: the newest first, no more than a gang can do without, nothing that is guaranteed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from core.domain.ids import JobId
from scheduler.planning.elastic.replicas import held_by_index, indices, spare
from scheduler.planning.model import QueuedGang, RunningGang
from scheduler.planning.placement.cluster import Cluster
from scheduler.planning.preemption.eviction import Piece
from scheduler.planning.preemption.policy import Rights
from scheduler.planning.queue.shares import JOBS, total_of

# What it costs an elastic gang to do with a replica less, in GPU-seconds per GPU: next to nothing, but the fewer the better.
_COST: Final = 1e-3
# The oldest replica costs so much more than the newest. Less than one more replica: fewer are better than newer ones.
_OLDEST: Final = 0.5
# Rank 0 tells the others of the state and writes the checkpoint: it goes only where nobody else's place will do.
_FIRST_RANK: Final = 0.9


def replicas_of(gang: RunningGang, cluster: Cluster) -> list[Piece]:
    """The elastic replicas of a gang that has more than it needs, the newest the cheapest."""
    if not spare(gang):
        return []
    places = dict(indices(gang))
    newest = {index: at for at, index in enumerate(sorted(places, reverse=True))}
    found: list[Piece] = []
    for index, held in held_by_index(gang, cluster):
        older = _FIRST_RANK if places[index] == 0 else _OLDEST * newest[index] / len(newest)
        found.append(Piece(gang, (held,), _COST * max(1, held[1].gpu_count) * (1 + older), index))
    return found


def amounts_of(piece: Piece) -> dict[str, int]:
    """What a replica holds, by the keys of quotas."""
    amounts = total_of((request, model, members) for _, request, model, members in piece.held)
    if piece.index is not None:
        del amounts[JOBS]  # its job runs on
    return amounts


def each_once(pieces: Iterable[Piece]) -> list[Piece]:
    """Without replicas that go with their whole gangs."""
    pieces = list(pieces)
    whole = {piece.gang.job_id for piece in pieces if piece.index is None}
    return [piece for piece in pieces if piece.index is None or piece.gang.job_id not in whole]


def by_gang(pieces: Iterable[Piece]) -> dict[JobId, list[Piece]]:
    """The replicas among ``pieces`` whose gangs do not go whole."""
    found: dict[JobId, list[Piece]] = {}
    for piece in each_once(pieces):
        if piece.index is not None:
            found.setdefault(piece.gang.job_id, []).append(piece)
    return found


def are_too_many(pieces: Iterable[Piece]) -> bool:
    """Whether some gang would be left with fewer replicas than it needs."""
    return any(len(mine) > spare(mine[0].gang) for mine in by_gang(pieces).values())


def those_to_give(job: QueuedGang, pieces: Sequence[Piece], rights: Rights) -> list[Piece]:
    """Of ``pieces`` those that all may go together for ``job``, the newest of each gang; whole gangs as they are."""
    last: list[Piece] = []
    for mine in by_gang(piece for piece in pieces if piece.index is not None).values():
        present = sorted(index for index, _ in indices(mine[0].gang))
        newest = set(present[len(present) - spare(mine[0].gang) :])
        last += [piece for piece in sorted(mine, key=lambda piece: piece.order) if piece.index in newest]
    return [piece for piece in pieces if piece.index is None] + not_guaranteed(job, last, rights)


def not_guaranteed(job: QueuedGang, pieces: Iterable[Piece], rights: Rights) -> list[Piece]:
    """Without the replicas with which, once those before them are gone, another project would give what is guaranteed to it,
    or another user of the same project, but for a larger priority, what is guaranteed to that one.
    """
    shares, given = rights.shares, list[Piece]()
    for piece in pieces:
        if rights.is_guaranteed_part(job, piece.gang, amounts_of(piece)):
            continue
        shares.add(piece.gang.project, piece.gang.user, amounts_of(piece), -1)
        given.append(piece)
    for piece in given:
        shares.add(piece.gang.project, piece.gang.user, amounts_of(piece))
    return given
