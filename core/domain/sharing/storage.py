"""Storage quotas: the disk usage of a project by kind, against the limit ``storage`` of its quota. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from trainmaster.sizes import format_size

from core.domain.errors import InvalidRequest, StorageQuotaExceeded
from core.domain.sharing.quota import STORAGE, check_amount, written_name

# Levels of a project's usage, in percent of its quota: from the first it is warned, from the second refused.
WARNING_LEVEL: Final = 80
FULL_LEVEL: Final = 100
# Percentage points below a level at which it is left: usage that swings about a level is announced once.
_HYSTERESIS: Final = 5

# Time until the next measurement: of projects without running jobs, with them, near their quota, and at it: users
# whose jobs are refused delete files.
_IDLE_INTERVAL: Final = timedelta(hours=1)
_ACTIVE_INTERVAL: Final = timedelta(minutes=5)
_NEAR_INTERVAL: Final = timedelta(minutes=2)
_FULL_INTERVAL: Final = timedelta(minutes=1)
# A measurement may take this part of the time, at most.
_DUTY: Final = 0.1


class StorageKind(StrEnum):
    """``outputs``: the project's folder with logs and checkpoints, and its jobs' outputs elsewhere. ``archives``: code.
    ``uploads``: unfinished. ``models``: registered versions. ``metrics``: in the database.
    """

    OUTPUTS = "outputs"
    ARCHIVES = "archives"
    UPLOADS = "uploads"
    MODELS = "models"
    METRICS = "metrics"


def storage_limit(quota: Mapping[str, Any] | None) -> int | None:
    """The storage quota, in bytes, in the stored ``quota`` of a project; ``None``: unlimited, or unreadable.

    Reads nothing else of the quota, since every submission needs it.
    """
    name = written_name(STORAGE)
    value = ((quota or {}).get("limit") or {}).get(name)
    if value is None:
        return None
    try:
        return check_amount(name, value, field=name)
    except InvalidRequest:  # another version wrote it; the quota's page says so
        return None


@dataclass(frozen=True, slots=True)
class StorageState:
    """The usage of one project. ``used_bytes``: last measured, and added by uploads since. ``limit_bytes``: ``None`` is
    unlimited.
    """

    project: str
    used_bytes: int
    limit_bytes: int | None = None
    measured_at: datetime | None = None

    def percent(self) -> float:
        """Of the quota; 0 without one."""
        if self.limit_bytes is None:
            return 0.0
        return 100.0 * self.used_bytes / self.limit_bytes if self.limit_bytes else 100.0

    def level(self, before: int = 0) -> int:
        """0, ``WARNING_LEVEL`` or ``FULL_LEVEL``. ``before``: the level until now, which is left a little later than it
        is reached.
        """
        percent = self.percent()
        reached = max((level for level in (WARNING_LEVEL, FULL_LEVEL) if percent >= level), default=0)
        if self.limit_bytes is not None and reached < before and percent >= before - _HYSTERESIS:
            return before
        return reached

    @property
    def is_full(self) -> bool:
        return self.limit_bytes is not None and self.used_bytes >= self.limit_bytes

    def demand_room(self, size_bytes: int = 0) -> None:
        """Check that ``size_bytes`` more may be stored; 0: that the quota is not used up.

        Raises:
            StorageQuotaExceeded: with what to do.
        """
        if self.limit_bytes is None:
            return
        if self.is_full:
            raise StorageQuotaExceeded(f"{self.sentence()} {self._advice()}")
        if self.used_bytes + size_bytes > self.limit_bytes:
            raise StorageQuotaExceeded(
                f"{self.sentence()} {format_size(size_bytes)} more do not fit. {self._advice()}", field="size"
            )

    def sentence(self) -> str:
        """Project, usage and quota in one sentence."""
        if self.limit_bytes is None:
            return f"Project {self.project} uses {format_size(self.used_bytes)} of storage."
        return (
            f"Project {self.project} uses {format_size(self.used_bytes)} of its storage quota of "
            f"{format_size(self.limit_bytes)} ({self.percent():.0f} %)."
        )

    def _advice(self) -> str:
        return (
            "Delete jobs with their files (`trainmaster delete JOB --files`), checkpoints or model versions, or ask a "
            f"platform admin for more (`trainmaster quota set {self.project} storage=…`)."
        )

    def warnings(self) -> list[str]:
        """One sentence from ``WARNING_LEVEL`` on."""
        if self.limit_bytes is None or self.percent() < WARNING_LEVEL:
            return []
        if self.percent() < FULL_LEVEL:
            return [f"{self.sentence()} At 100 % new jobs, uploads and models are refused."]
        return [f"{self.sentence()} New jobs, uploads and models are refused; running jobs continue. {self._advice()}"]

    def next_measurement(self, now: datetime, *, is_active: bool, duration_s: float) -> datetime:
        """When to measure again. ``is_active``: it has running jobs. ``duration_s``: of the last measurement."""
        interval = _ACTIVE_INTERVAL if is_active else _IDLE_INTERVAL
        if is_active and self.percent() >= WARNING_LEVEL:
            interval = _NEAR_INTERVAL
        if self.percent() >= FULL_LEVEL:
            interval = _FULL_INTERVAL
        return _after(now, interval, duration_s)


def due_when_active(measured_at: datetime, duration_s: float) -> datetime:
    """When a project is due that has got running jobs since its last measurement."""
    return _after(measured_at, _ACTIVE_INTERVAL, duration_s)


def _after(measured_at: datetime, interval: timedelta, duration_s: float) -> datetime:
    return measured_at + max(interval, timedelta(seconds=duration_s / _DUTY))
