"""What is allowed in a quota and probably not meant, in words."""

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
            continue  # a model that no node has: said already
        name = written_name(key)
        if amount > has:
            found.append(
                f"{name}: {in_words(key, amount)} are guaranteed to {project}, and all nodes together have {in_words(key, has)}."
            )
            continue
        together = amount + sum(other.guaranteed.get(key, 0) for other in others)
        if together > has:
            found.append(
                f"{name}: all projects together are guaranteed {in_words(key, together)}, and the nodes have "
                f"{in_words(key, has)}; not everybody can get back at once what is guaranteed to them."
            )
    return found


def _users(quota: Quota) -> list[str]:
    limits = [("each user", quota.user_limit), *sorted(quota.user_limits.items())]
    return [
        f"{written_name(key)}: {who} may use {in_words(key, amount)}, and the whole project {in_words(key, quota.limit[key])}; "
        "the smaller one counts."
        for who, limit in limits
        for key, amount in limit.items()
        if amount > quota.limit.get(key, amount)
    ]


def _users_together(project: str, quota: Quota) -> list[str]:
    """What is guaranteed to users is kept free by their own project; nobody else gives more than is guaranteed to that."""
    together: dict[str, int] = {}
    for of_one in quota.user_guaranteed.values():
        for key, amount in of_one.items():
            together[key] = together.get(key, 0) + amount
    return [
        f"{written_name(key)}: users of {project} are guaranteed {in_words(key, amount)} together, and the project "
        f"{in_words(key, quota.guaranteed[key]) if key in quota.guaranteed else 'nothing'}; beyond that they get back only what "
        "other users of the project have."
        for key, amount in sorted(together.items())
        if amount > quota.guaranteed.get(key, 0)
    ]


def _without_effect(quota: Quota, capacity: Mapping[str, int], policy: Policy) -> list[str]:
    found = [
        f"{written_name(key)}: the limit of {in_words(key, amount)} is above what all nodes have ({in_words(key, capacity[key])}); "
        "it limits nothing."
        for key, amount in quota.limit.items()
        if key != JOBS and amount > capacity.get(key, amount)
    ]
    found += [
        f"{written_name(key)}: with a limit of 0 no job {'with GPUs ' if key.startswith(GPUS) else ''}of this project can start."
        for key, amount in quota.limit.items()
        if amount == 0
    ]
    if (quota.guaranteed or quota.user_guaranteed) and not policy.reclaims:
        found.append(
            "What is guaranteed is not taken back from those who borrow it, as the policy's setting `reclaims` is off."
        )
    return found
