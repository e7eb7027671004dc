"""How long the last reports may take, once the job has ended."""

from __future__ import annotations

from trainmaster_runtime import clock

FLUSH_S = 2.0  # how long a finished job may wait for its last reports
# The same while the API takes one batch after the other, or there is still something to read: the control loop allows
# 15 s behind `max_run_time` before it ends a container itself.
_DRAIN_S = 10.0
DRAIN_TIMEOUT_S = 2.0  # of a request meanwhile
_TIMEOUT_S = 10.0  # of a request before


class DrainDeadline:
    """Monotonic times. ``flush_by``: of an API that takes nothing; ``end_by``: of any, ``None`` while the job runs."""

    def __init__(self) -> None:
        self.flush_by = 0.0
        self.end_by: float | None = None

    def begin(self, *, is_stopped: bool) -> None:
        """The job has ended. ``is_stopped``: by the platform, which waits for it."""
        now = clock.monotonic()
        self.flush_by = now + FLUSH_S
        self.end_by = self.flush_by if is_stopped else now + _DRAIN_S

    def hurry(self) -> None:
        self.flush_by = self.end_by = min(self.flush_by, clock.monotonic())

    def may_send(self, *, is_failing: bool) -> bool:
        """Whether there is time for a request. ``is_failing``: the last one was not taken."""
        if self.end_by is None:
            return True
        now = clock.monotonic()
        return now < self.flush_by or (not is_failing and now < self.end_by)

    def may_read(self) -> bool:
        """Whether there is time to read what the job left."""
        return clock.monotonic() < (self.end_by or 0.0)

    def request_timeout_s(self) -> float:
        if self.end_by is None:
            return _TIMEOUT_S
        return max(0.1, min(DRAIN_TIMEOUT_S, max(self.flush_by, self.end_by) - clock.monotonic()))
