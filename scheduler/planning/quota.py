"""Hard limits, and what is guaranteed: per project, per user of it, and per GPU model."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.planning.shares import GPUS, JOBS, Shares


def is_guaranteed(project: str, need: Mapping[str, int], shares: Shares, *, is_held: bool = False) -> bool:
    """Whether a job that holds ``need``, or would, is within what is guaranteed to its project.

    It is if a guarantee covers its GPUs (of one without GPUs: its CPUs or memory), and with it none of these is exceeded.
    """
    account = shares.accounts.get(project)
    if account is None or not account.quota.guaranteed:
        return False
    guaranteed, held = account.quota.guaranteed, shares.held.get(project, {})
    keys = [
        key
        for key, amount in need.items()
        if amount and key in guaranteed and key != JOBS and (not need[GPUS] or key.startswith(GPUS))
    ]
    return bool(keys) and all(held.get(key, 0) + (0 if is_held else need[key]) <= guaranteed[key] for key in keys)
