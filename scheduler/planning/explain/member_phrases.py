"""Phrases for the members of a gang that have equal requests."""

from __future__ import annotations

from scheduler.planning import phrases
from scheduler.planning.placement.demand import MemberGroup


def each_member(group: MemberGroup) -> str:
    """``for each of 2 workers``, ``for its chief``, ``for each of 3 replicas (chief, worker)``."""
    if group.count == 1:
        return f"for its {group.roles[0][0]}"
    return f"for each of {members(group)}"


def members(group: MemberGroup) -> str:
    """``2 workers``."""
    roles = [role for role, _ in group.roles]
    if len(roles) > 1:
        return f"{group.count} replicas ({', '.join(roles)})"
    return f"{group.count} {phrases.plural(roles[0], group.count)}"
