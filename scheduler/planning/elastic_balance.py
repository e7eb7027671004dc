"""Moves of replicas between running elastic gangs, where no room is left in which the slower ones might grow.

Growth alone fills a cluster with the gangs that came first: a gang that starts later would stay at its minimum. So a
gang returns replicas from which another gang of its project gains clearly more. They leave with this plan, and the
other gang grows into their room with one of the next, as it then has the best claim. A resize costs both gangs time:
each waits until it has made up for its last one, and only clear gains count.

In orders by length a gang's gain counts the more, the shorter it will run, as in heSRPT (Berg et al., 2020), which
is optimal for the mean completion time where all speeds are powers of the number of replicas: with a square root, the
k-th longest of n jobs gets (2k - 1)/n² of the cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from core.domain.ids import JobId, NodeId
from core.domain.sharing.policy import Policy
from core.domain.sharing.resources import GangRole
from scheduler.planning.model import QueuedGang, RunningGang, Shrink, Snapshot
from scheduler.planning.preemption.shrink_candidates import elastic_indices
from scheduler.planning.queue.policy_key import BY_LENGTH

# A replica moves where it gains more than this many times what it adds where it is.
_LEAST_RATIO: Final = 1.25
# A gang gets replicas of others only if they make it faster by this part.
_LEAST_GAIN: Final = 0.2
# A gang returns replicas at most once in so many times the cost of a resize, and gets them after one such time: the
# first minutes at its minimum cost it more than a resize.
_GIVES_AFTER_COSTS: Final = 10
_GETS_AFTER_COSTS: Final = 1
_SETTLES_S: Final = 30.0  # where a resize is said to cost nothing: its speed is not known before


@dataclass(slots=True)
class ElasticShare:
    """A gang that may give or get replicas; ``size``: of its elastic role after the moves so far.

    ``claim``: priority and share of its user, the smaller the better. ``weight``: see :func:`weights_of`.
    """

    gang: RunningGang
    role: GangRole
    size: int
    claim: tuple[float, ...]
    weight: float

    @property
    def gain(self) -> float:
        """Weighted relative gain in speed by another replica."""
        return self.weight * self.gang.speed.gain(self.size)

    @property
    def loss(self) -> float:
        """The same of its last replica."""
        return self.weight * self.gang.speed.gain(self.size - 1)

    @property
    def can_grow(self) -> bool:
        return self.size < (self.role.most or 0) and not self.gang.speed.is_saturated(self.size)

    def may_give_to(self, other: ElasticShare) -> bool:
        """Whether its last replica would do clearly more for ``other``, which has no smaller claim."""
        return (
            self.gang.project == other.gang.project
            and self.gang.job_id != other.gang.job_id
            and self.role.request == other.role.request
            and self.claim >= other.claim
            and self.size > self.role.replicas
            and self.loss * _LEAST_RATIO < other.gain
        )


def weights_of(gangs: Iterable[RunningGang | QueuedGang], policy: Policy, now: datetime) -> dict[JobId, float]:
    """The factor by which the gain of each elastic gang counts: from near 0 for the longest to near 2 for the shortest
    in orders by length; empty in others, where all count the same.
    """
    if policy.order not in BY_LENGTH:
        return {}
    longest_first = sorted((-_left_s(gang, now), gang.job_id) for gang in gangs)
    return {job_id: (2 * place + 1) / len(longest_first) for place, (_, job_id) in enumerate(longest_first)}


def balance(
    snapshot: Snapshot,
    growing: Iterable[RunningGang],
    *,
    claim_of: Callable[[RunningGang], tuple[float, ...]],
    may_use: Callable[[RunningGang, NodeId], bool],
    changed: Collection[JobId],
    weights: Mapping[JobId, float],
) -> tuple[Shrink, ...]:
    """The replicas that leave gangs for others, each of which they make faster by a fifth or more.

    Args:
        growing: gangs that may grow and for which no room is left. claim_of: see :class:`ElasticShare`.
        may_use: whether the gang may have a replica on the node. changed: gangs that this plan changes already.
    """
    if not snapshot.moves_replicas or not snapshot.policy.shrinks or any(gang.is_part for gang in snapshot.running):
        return ()  # what leaves already is not yet where it is to be

    def shares_of(gangs: Iterable[RunningGang], costs: int) -> list[ElasticShare]:
        return [
            ElasticShare(gang, role, len(elastic_indices(gang)), claim_of(gang), weights.get(gang.job_id, 1.0))
            for gang in gangs
            if (role := gang.gang.elastic) is not None
            and gang.job_id not in changed
            and not gang.is_stopping
            and (settled := _settles_at(gang, snapshot.policy, costs)) is not None
            and settled <= snapshot.now
        ]

    givers = shares_of(snapshot.running, _GIVES_AFTER_COSTS)
    getters = shares_of(growing, _GETS_AFTER_COSTS)
    getting: set[JobId] = set()
    leaving: dict[JobId, list[int]] = {}
    names: dict[JobId, list[str]] = {}
    for getter in sorted(getters, key=lambda share: (share.claim, -share.gain, share.gang.job_id)):
        if getter.gang.job_id in leaving:
            continue  # it would get what it has just returned
        for giver, index in _taken(getter, [g for g in givers if g.gang.job_id not in getting], may_use):
            getting.add(getter.gang.job_id)
            leaving.setdefault(giver.gang.job_id, []).append(index)
            known = names.setdefault(giver.gang.job_id, [])
            known += [getter.gang.name] * (getter.gang.name not in known)
    return tuple(
        Shrink(job_id, giver.role.role, tuple(sorted(leaving[job_id])), None, _sentence(names[job_id]))
        for giver in givers
        if (job_id := giver.gang.job_id) in leaving
    )


def _sentence(names: list[str]) -> str:
    more = f" and {len(names) - 1} other jobs" if len(names) > 1 else ""
    return f"replicas make room for {names[0]}{more}, which they speed up more"


def next_balance(running: Iterable[RunningGang], policy: Policy, now: datetime) -> datetime | None:
    """When the next elastic gang has made up for its last resize, so that replicas may move; ``None``: never."""
    if not policy.shrinks:
        return None
    moments = (
        _settles_at(gang, policy, costs)
        for gang in running
        if gang.gang.elastic is not None and not gang.is_stopping
        for costs in (_GETS_AFTER_COSTS, _GIVES_AFTER_COSTS)
    )
    return min((at for at in moments if at is not None and at > now), default=None)


def _taken(
    getter: ElasticShare, givers: Iterable[ElasticShare], may_use: Callable[[RunningGang, NodeId], bool]
) -> list[tuple[ElasticShare, int]]:
    """The replicas that ``getter`` gets, with who gives them; none if they would not make it clearly faster."""
    givers = list(givers)
    speed = getter.gang.speed
    before, taken = speed.speed(getter.size), []
    while getter.can_grow:
        possible = [giver for giver in givers if giver.may_give_to(getter)]
        if not possible:
            break
        giver = min(possible, key=lambda share: (share.loss, share.gang.job_id))
        index, position = sorted(elastic_indices(giver.gang))[giver.size - 1]  # the newest that is left
        if not may_use(getter.gang, giver.gang.nodes[position][1]):
            givers.remove(giver)
            continue
        giver.size -= 1
        getter.size += 1
        taken.append((giver, index))
    if speed.speed(getter.size) >= (1 + _LEAST_GAIN) * before:
        return taken
    for giver, _ in taken:
        giver.size += 1
    return []


def _settles_at(gang: RunningGang, policy: Policy, costs: int) -> datetime | None:
    since = gang.size_changed_at or gang.started_at
    return None if since is None else since + timedelta(seconds=max(_SETTLES_S, costs * policy.restart_cost_s))


def _left_s(gang: RunningGang | QueuedGang, now: datetime) -> float:
    """How long the gang will run; as long as it ran, if nothing is known. Not scaled by its present size: a gang that
    has just returned replicas would count as shorter, and get them back.
    """
    if gang.estimate is not None:
        return gang.estimate.likely_s
    began = gang.started_at if isinstance(gang, RunningGang) else None
    return gang.earlier_s + (0.0 if began is None else max(0.0, (now - began).total_seconds()))
