"""Warnings about valid quotas that are probably mistakes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from api.quotas.amounts import in_words, models_of
from core.domain.sharing.policy import Policy
from core.domain.sharing.quota import GPUS, JOBS, Quota, keys_in, written_name


def warnings_of(
    project: str, quota: Quota, others: Iterable[Quota], capacity: Mapping[str, int], policy: Policy
) -> list[str]:
    """One sentence each. ``others``: the quotas of all other projects."""
    return [
        *_unknown_models(quota, capacity),
        *_beyond_the_cluster(project, quota, list(others), capacity),
        *_users(quota),
        *_users_together(project, quota),
        *_without_effect(quota, capacity, policy),
    ]


def _unknown_models(quota: Quota, capacity: Mapping[str, int]) -> list[str]:
    known = models_of(capacity)
    present = f"the nodes have {', '.join(known)}" if known else "the nodes have no GPUs at all"
    return [
        f"No node has the GPU model {model}; {present}." for model in models_of(keys_in(quota)) if model not in known
    ]


def _beyond_the_cluster(project: str, quota: Quota, others: list[Quota], capacity: Mapping[str, int]) -> list[str]:
    found = []
    for key, amount in quota.guaranteed.items():
        has = capacity.get(key, 0)
        if has == 0 and "/" in key:
            continue  # a model that no node has: already in another warning
        name = written_name(key)
        if amount > has:
            found.append(
                f"{name}: {in_words(key, amount)} are guaranteed to {project}, but all nodes together have "
                f"{in_words(key, has)}."
            )
            continue
        together = amount + sum(other.guaranteed.get(key, 0) for other in others)
        if together > has:
            found.append(
                f"{name}: the guarantees of all projects add up to {in_words(key, together)}, but the nodes have "
                f"{in_words(key, has)}; they cannot all be met at once."
            )
    return found


def _users(quota: Quota) -> list[str]:
    limits = [("each user", quota.user_limit), *sorted(quota.user_limits.items())]
    return [
        f"{written_name(key)}: {holder} may use {in_words(key, amount)}, but the whole project only "
        f"{in_words(key, quota.limit[key])}; the smaller limit applies."
        for holder, limit in limits
        for key, amount in limit.items()
        if amount > quota.limit.get(key, amount)
    ]


def _users_together(project: str, quota: Quota) -> list[str]:
    """Users' guarantees are met within their project: other projects give back no more than the project's guarantee."""
    together: dict[str, int] = {}
    for of_user in quota.user_guaranteed.values():
        for key, amount in of_user.items():
            together[key] = together.get(key, 0) + amount
    return [
        f"{written_name(key)}: the guarantees of {project}'s users add up to {in_words(key, amount)}, but the project "
        f"is guaranteed {in_words(key, quota.guaranteed[key]) if key in quota.guaranteed else 'nothing'}; beyond that "
        "they reclaim only from other users of the project."
        for key, amount in sorted(together.items())
        if amount > quota.guaranteed.get(key, 0)
    ]


def _without_effect(quota: Quota, capacity: Mapping[str, int], policy: Policy) -> list[str]:
    found = [
        f"{written_name(key)}: the limit of {in_words(key, amount)} is above the capacity of all nodes "
        f"({in_words(key, capacity[key])}) and has no effect."
        for key, amount in quota.limit.items()
        if key != JOBS and amount > capacity.get(key, amount)
    ]
    found += [
        f"{written_name(key)}: with a limit of 0 no job {'with GPUs ' if key.startswith(GPUS) else ''}of this project "
        "can start."
        for key, amount in quota.limit.items()
        if amount == 0
    ]
    if (quota.guaranteed or quota.user_guaranteed) and not policy.reclaims:
        found.append(
            "Guaranteed resources are not reclaimed from borrowers, as the policy's setting `reclaims` is off."
        )
    return found
