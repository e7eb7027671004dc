"""What replicas have had: GPU-seconds, or seconds of a gang without GPUs. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from scheduler.control.attempts.attempt_snapshot import GangMember
from scheduler.control.attempts.storage.attempt_loader import AttemptRows


def attained_service(rows: AttemptRows, members: Iterable[GangMember], now: datetime) -> float:
    """GPU-seconds that ``members`` have had since they were last started.

    Of a gang without GPUs, the seconds of the one that ran longest count, as those of the whole: what some of it had
    before the end, when others go on, does not count then.
    """
    roles = rows.job.spec.roles
    gpus = {name: float(role.resources.gpus or 0) for name, role in roles.items()}
    found = [m for m in members if m.started_at is not None and m.holds_resources]
    lasted = [(m.role, max(0.0, ((m.ended_at or now) - m.started_at).total_seconds())) for m in found if m.started_at]
    if any(gpus.values()):
        return sum(gpus.get(role, 0.0) * seconds for role, seconds in lasted)
    if len(found) < len(rows.members):
        return 0.0
    return max((seconds for _, seconds in lasted), default=0.0)
