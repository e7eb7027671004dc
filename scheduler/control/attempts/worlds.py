"""Worlds of an elastic gang: which replicas train together now, and when that changes. Pure.

A *world* is one layout of an attempt: members in rank order with fresh addresses, and a growing number. Lost replicas
are left out of the next world, joining replicas that are ready are added to it. Remaining replicas keep their order and
come first, so that rank 0 has the training state. The attempt goes on all the while.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from core.domain.jobs.exits import ExitCause
from core.domain.jobs.states import AttemptState, ReplicaState
from executors.base import Phase
from scheduler.control.attempts.attempt_snapshot import AttemptFacts, AttemptSnapshot, GangMember
from scheduler.planning.phrases import all_of

DEPARTED = (ReplicaState.FAILED, ReplicaState.LOST, ReplicaState.STOPPED)
# A joining replica that cannot be created gives its place back after this time. The time is longer once the engine has
# it, as it may pull an image and import for long (trainmaster_train.elastic waits as long for its world).
CREATE_PATIENCE: Final = timedelta(minutes=10)
JOIN_PATIENCE: Final = timedelta(minutes=30)
# No call to create a replica is under way for longer: what has not appeared by then will not appear.
CREATE_CALL_TIMEOUT: Final = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class WorldChange:
    """The next world: ``members`` in rank order. ``reason``: why, for users."""

    members: tuple[GangMember, ...]
    reason: str


def elastic_role(snapshot: AttemptSnapshot) -> str | None:
    """The role whose replicas may join and leave; ``None`` where the gang, or the engine, cannot do that."""
    return snapshot.job.spec.elastic_role if snapshot.can_change_worlds else None


def is_in_world(snapshot: AttemptSnapshot, member: GangMember) -> bool:
    """Whether the world counts on it: joining replicas are not in it yet, lost ones are not in it any more."""
    return not is_joining(snapshot.attempt, member)


def has_left(snapshot: AttemptSnapshot, member: GangMember) -> bool:
    """Whether it was asked to leave, and the others go on without it: then it may end."""
    return bool(member.leave_reason) and snapshot.attempt.layout is not None and not is_in_world(snapshot, member)


def tolerates_loss(snapshot: AttemptSnapshot, members: Iterable[GangMember], lost: GangMember) -> bool:
    """Whether the gang may lose this replica: it is elastic and running, and no replica has finished its work."""
    role = elastic_role(snapshot)
    return (
        lost.role == role
        and snapshot.attempt.state is AttemptState.RUNNING
        and not any(m.role == role and m.state is ReplicaState.SUCCEEDED for m in members)
    )


def next_world(
    snapshot: AttemptSnapshot, members: Sequence[GangMember], why: Sequence[str]
) -> WorldChange | str | None:
    """The world that follows from ``members`` as they are now.

    Args:
        why: a sentence for each replica that was lost just now.

    Returns:
        ``None``: the world stays as it is. A sentence: too few replicas are left to go on.
    """
    role, layout = elastic_role(snapshot), snapshot.attempt.layout
    if role is None or layout is None or snapshot.attempt.state is not AttemptState.RUNNING:
        return None
    if any(m.role == role and m.state is ReplicaState.SUCCEEDED for m in members):
        return None
    by_name = {(m.role, m.index): m for m in members}
    inside = [by_name[r.role, r.index] for r in layout.replicas]
    left = [m for m in inside if m.role != role or m.state not in DEPARTED]
    ready = [m for m in members if not is_in_world(snapshot, m) and not m.leave_reason and _is_ready(snapshot, m)]
    spec = snapshot.job.spec.roles[role]
    left, why = _release_leaving(left, role, (spec.min_replicas or 1) - len(ready), why)
    if len(left) == len(inside) and not ready:
        return None
    if not left:
        return " ".join((*why, "None of those that trained is left."))
    count = sum(m.role == role for m in left) + len(ready)
    if count < (spec.min_replicas or 1):
        return f"{' '.join(why)} {count} of at least {spec.min_replicas} {role}s {'is' if count == 1 else 'are'} left."
    joined = f"{_names(ready)} joined." if ready else ""
    now = f"{count} of {spec.min_replicas} to {spec.replicas} {role}s go on."
    return WorldChange((*left, *ready), " ".join(part for part in (*why, joined, now) if part))


def _release_leaving(
    members: list[GangMember], role: str, least: int, why: Sequence[str]
) -> tuple[list[GangMember], Sequence[str]]:
    """The remaining members, and ``why`` with the reasons of the leaving ones. Not below ``least``: where replicas were
    lost meanwhile, leaving members stay in their place.
    """
    spare = sum(m.role == role for m in members) - max(1, least)
    leavers = [m for m in members if m.leave_reason and m.role == role][-spare:] if spare > 0 else []
    if not leavers:
        return members, why
    sentences = dict.fromkeys(m.leave_reason for m in leavers)
    left = f"{_names(leavers)} {'gives its place' if len(leavers) == 1 else 'give their places'}: {' '.join(sentences)}"
    leaver_ids = {m.id for m in leavers}
    return [m for m in members if m.id not in leaver_ids], (*why, left)


def members_to_update(snapshot: AttemptSnapshot, members: Iterable[GangMember]) -> tuple[GangMember, ...]:
    """Members that do not know the newest world yet. Joining ones come last: until then their rows show the change."""
    attempt = snapshot.attempt
    if attempt.world <= 1:
        return ()
    late = []
    for member in members:
        observation = snapshot.observed.get((member.role, member.index))
        if (
            not member.is_over
            and is_in_world(snapshot, member)
            and observation is not None
            and observation.phase in (Phase.PENDING, Phase.RUNNING)
            and observation.key.generation == member.generation
            and int(observation.facts.get("world", attempt.world)) < attempt.world
        ):
            late.append(member)
    return tuple(sorted(late, key=lambda m: m.state is not ReplicaState.RUNNING))


def released_members(
    snapshot: AttemptSnapshot, members: Iterable[GangMember], change: WorldChange | None
) -> tuple[GangMember, ...]:
    """Ended replicas that are in no world any more and still hold resources.

    A replica that was never observed keeps its resources for a while, as its creation may still be under way, unless
    the engine refused it at once.
    """
    return tuple(
        m
        for m in outside_world(snapshot, members, change)
        if m.holds_resources
        and (
            m.has_facts
            or m.started_at is not None
            or _was_refused(m)
            or (m.ended_at is not None and m.ended_at + CREATE_CALL_TIMEOUT <= snapshot.now)
        )
    )


def outside_world(
    snapshot: AttemptSnapshot, members: Iterable[GangMember], change: WorldChange | None
) -> tuple[GangMember, ...]:
    """Ended replicas that are in no world any more."""
    role = elastic_role(snapshot)
    if role is None or snapshot.attempt.state is not AttemptState.RUNNING:
        return ()
    stays = {m.id for m in change.members} if change is not None else set()
    return tuple(
        m
        for m in members
        if m.role == role
        and m.state in DEPARTED
        and m.id not in stays
        and (change is not None or not is_in_world(snapshot, m))
    )


def remnants(
    snapshot: AttemptSnapshot, members: Iterable[GangMember], change: WorldChange | None
) -> tuple[GangMember, ...]:
    """Replicas in no world any more that the engine still shows: they must end, and never come back."""
    found = []
    for member in outside_world(snapshot, members, change):
        observation = snapshot.observed.get((member.role, member.index))
        if observation is not None and observation.key.generation == member.generation:
            found.append(member)
    return tuple(found)


def join_deadline(snapshot: AttemptSnapshot, member: GangMember) -> datetime | None:
    """When a joining replica must be ready; ``None``: it does not join, or its start is not known."""
    since = snapshot.joining_since.get(member.id)
    if since is None or member.is_over or member.leave_reason or is_in_world(snapshot, member):
        return None
    return since + (CREATE_PATIENCE if member.state is ReplicaState.PENDING else JOIN_PATIENCE)


def is_joining(attempt: AttemptFacts, member: GangMember) -> bool:
    """Whether ``member`` joins a gang that has begun without it."""
    layout = attempt.layout
    return layout is not None and not any(r.role == member.role and r.index == member.index for r in layout.replicas)


def _was_refused(member: GangMember) -> bool:
    """Whether nothing of it can still appear: a call to create it without an answer would have left a detail."""
    return member.exit is not None and member.exit.cause is ExitCause.ENGINE_REFUSED and not member.detail


def _is_ready(snapshot: AttemptSnapshot, member: GangMember) -> bool:
    """Whether a joining replica is ready: it only waits for the next world."""
    observation = snapshot.observed.get((member.role, member.index))
    return (
        member.state is ReplicaState.STARTING
        and observation is not None
        and observation.key.generation == member.generation
        and bool(observation.facts.get("is_ready"))
    )


def _names(members: Sequence[GangMember]) -> str:
    return all_of([member.name for member in members])
