"""Worlds of an elastic gang: who trains together now, and when that changes. Pure.

A *world* is one layout of an attempt: members in rank order with fresh addresses, and a number that grows. What is lost
is taken out of the next world, what has joined and stands ready is added to it; those who stay keep their order and come
first, so that rank 0 is one who has the state. The attempt goes on all the while.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from core.domain.jobs.exits import ExitCause
from core.domain.jobs.states import AttemptState, ReplicaState
from executors.base import Phase
from scheduler.control.attempts.attempt_snapshot import AttemptFacts, Member, Sight

GONE = (ReplicaState.FAILED, ReplicaState.LOST, ReplicaState.STOPPED)
# One that joins and cannot be created gives its place back after this time; it is longer where the engine has it, for
# it may pull an image and import for long (trainmaster_train.elastic waits as long for its world).
CREATE_PATIENCE: Final = timedelta(minutes=10)
JOIN_PATIENCE: Final = timedelta(minutes=30)
# No call to an engine is under way for so long: what has not come by then does not come.
LATEST: Final = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class WorldChange:
    """The next world: ``members`` in rank order. ``reason``: why, for people."""

    members: tuple[Member, ...]
    reason: str


def elastic_role(sight: Sight) -> str | None:
    """The role whose replicas may come and go; ``None`` where the gang, or the engine, cannot do that."""
    return sight.job.spec.elastic_role if sight.can_change else None


def is_in_world(sight: Sight, member: Member) -> bool:
    """Whether the others count on it: what joins is not in yet, what was given up is not in any more."""
    return not may_do_without(sight.attempt, member)


def has_left(sight: Sight, member: Member) -> bool:
    """Whether it was asked to give its place, and the others go on without it: then it may end."""
    return bool(member.leaves) and sight.attempt.layout is not None and not is_in_world(sight, member)


def may_go_on_without(sight: Sight, members: Iterable[Member], lost: Member) -> bool:
    """Whether the gang may lose this one: it is elastic, it runs, and nobody of it has finished its work."""
    role = elastic_role(sight)
    return (
        lost.role == role
        and sight.attempt.state is AttemptState.RUNNING
        and not any(m.role == role and m.state is ReplicaState.SUCCEEDED for m in members)
    )


def next_world(sight: Sight, members: Sequence[Member], why: Sequence[str]) -> WorldChange | str | None:
    """The world that follows from ``members`` as they are now.

    Args:
        why: a sentence for each that was lost just now.

    Returns:
        ``None``: it stays as it is. A sentence: too few are left to go on.
    """
    role, layout = elastic_role(sight), sight.attempt.layout
    if role is None or layout is None or sight.attempt.state is not AttemptState.RUNNING:
        return None
    if any(m.role == role and m.state is ReplicaState.SUCCEEDED for m in members):
        return None
    by_name = {(m.role, m.index): m for m in members}
    inside = [by_name[r.role, r.index] for r in layout.replicas]
    left = [m for m in inside if m.role != role or m.state not in GONE]
    ready = [m for m in members if not is_in_world(sight, m) and not m.leaves and _is_ready(sight, m)]
    spec = sight.job.spec.roles[role]
    left, why = _without_leavers(left, role, (spec.min_replicas or 1) - len(ready), why)
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


def _without_leavers(
    members: list[Member], role: str, least: int, why: Sequence[str]
) -> tuple[list[Member], Sequence[str]]:
    """Those who stay, and ``why`` with what the leavers leave for. Not below ``least``: what was lost meanwhile may have
    taken the place of a leaver, who then stays.
    """
    spare = sum(m.role == role for m in members) - max(1, least)
    leavers = [m for m in members if m.leaves and m.role == role][-spare:] if spare > 0 else []
    if not leavers:
        return members, why
    sentences = dict.fromkeys(m.leaves for m in leavers)
    told = f"{_names(leavers)} {'gives its place' if len(leavers) == 1 else 'give their places'}: {' '.join(sentences)}"
    gone = {m.id for m in leavers}
    return [m for m in members if m.id not in gone], (*why, told)


def untold(sight: Sight, members: Iterable[Member]) -> tuple[Member, ...]:
    """Who has not heard of the newest world yet. Those that join come last: until then their rows tell of the change."""
    attempt = sight.attempt
    if attempt.world <= 1:
        return ()
    late = []
    for member in members:
        seen = sight.seen.get((member.role, member.index))
        if (
            not member.is_over
            and is_in_world(sight, member)
            and seen is not None
            and seen.phase in (Phase.PENDING, Phase.RUNNING)
            and seen.key.generation == member.generation
            and int(seen.facts.get("world", attempt.world)) < attempt.world
        ):
            late.append(member)
    return tuple(sorted(late, key=lambda m: m.state is not ReplicaState.RUNNING))


def given_up(sight: Sight, members: Iterable[Member], change: WorldChange | None) -> tuple[Member, ...]:
    """Who has ended, is in no world any more, and still holds its place.

    One that nobody ever saw keeps its place for a while, for its creation may still be on the way; unless the engine
    refused it at its first word.
    """
    return tuple(
        m
        for m in outside(sight, members, change)
        if m.is_holding
        and (
            m.has_facts
            or m.started_at is not None
            or _was_refused(m)
            or (m.ended_at is not None and m.ended_at + LATEST <= sight.now)
        )
    )


def outside(sight: Sight, members: Iterable[Member], change: WorldChange | None) -> tuple[Member, ...]:
    """Who has ended, and is in no world any more."""
    role = elastic_role(sight)
    if role is None or sight.attempt.state is not AttemptState.RUNNING:
        return ()
    stays = {m.id for m in change.members} if change is not None else set()
    return tuple(
        m
        for m in members
        if m.role == role
        and m.state in GONE
        and m.id not in stays
        and (change is not None or not is_in_world(sight, m))
    )


def left_behind(sight: Sight, members: Iterable[Member], change: WorldChange | None) -> tuple[Member, ...]:
    """Who is in no world any more, and yet the engine shows something of it: that must end, and never come back."""
    found = []
    for member in outside(sight, members, change):
        seen = sight.seen.get((member.role, member.index))
        if seen is not None and seen.key.generation == member.generation:
            found.append(member)
    return tuple(found)


def too_late(sight: Sight, member: Member) -> datetime | None:
    """When one that joins has had its time to get ready; ``None``: it does not join, or nobody knows since when."""
    since = sight.joining_since.get(member.id)
    if since is None or member.is_over or member.leaves or is_in_world(sight, member):
        return None
    return since + (CREATE_PATIENCE if member.state is ReplicaState.PENDING else JOIN_PATIENCE)


def may_do_without(attempt: AttemptFacts, member: Member) -> bool:
    """Whether ``member`` joins a gang that has begun without it."""
    layout = attempt.layout
    return layout is not None and not any(r.role == member.role and r.index == member.index for r in layout.replicas)


def _was_refused(member: Member) -> bool:
    """Nothing of it can still come: no call to create it was left without an answer, or its row would tell of that."""
    return member.exit is not None and member.exit.cause is ExitCause.ENGINE_REFUSED and not member.detail


def _is_ready(sight: Sight, member: Member) -> bool:
    """Whether one that joins stands ready: it waits for nothing but its place in the next world."""
    seen = sight.seen.get((member.role, member.index))
    return (
        member.state is ReplicaState.STARTING
        and seen is not None
        and seen.key.generation == member.generation
        and bool(seen.facts.get("is_ready"))
    )


def _names(members: Sequence[Member]) -> str:
    *most, last = [member.name for member in members]
    return f"{', '.join(most)} and {last}" if most else last
