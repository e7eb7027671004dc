"""What ends a replica that would go on: its deadline, its limits, and the end of its attempt."""

from __future__ import annotations

from trainmaster_runtime.process.exits import ReplicaEnd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from trainmaster_runtime.order import RuntimeOrder
    from trainmaster_runtime.replica.limits import Limits
    from trainmaster_runtime.replica.termination import Termination
    from trainmaster_runtime.reports.reporter import Reporter


class EndConditions:
    """Checked in the run's loop. ``started_at``: monotonic. ``reporter``: ``None`` where no API is."""

    def __init__(
        self,
        order: RuntimeOrder,
        limits: Limits,
        termination: Termination,
        *,
        started_at: float,
        reporter: Reporter | None,
    ) -> None:
        self._order = order
        self._limits = limits
        self._termination = termination
        self._deadline = None if order.deadline_s is None else started_at + order.deadline_s
        self._reporter = reporter

    def next_check_at(self) -> float | None:
        """When a check may find something; monotonic."""
        deadline = None if self._termination.is_decided else self._deadline
        return min((time for time in (deadline, self._limits.check_at) if time is not None), default=None)

    def check(self, now: float) -> None:
        """End the replica if a condition is met and nothing else has ended it before. ``now`` is monotonic."""
        termination = self._termination
        if self._deadline is not None and now >= self._deadline and not termination.is_decided:
            sentence = "It ran longer than its `max_run_time` of %g s." % (self._order.deadline_s or 0)
            termination.end(ReplicaEnd("deadline", None, sentence), self._order.stop_grace_s)
        if self._reporter is not None and self._reporter.has_attempt_ended and not termination.is_decided:
            sentence = (
                "The platform says that this attempt has ended, as when its node was cut off and the job went on "
                "elsewhere: the command is ended."
            )
            termination.end(ReplicaEnd("stopped", None, sentence), self._order.stop_grace_s)
        if self._limits.check_at is not None and now >= self._limits.check_at:
            ending = self._limits.check(now)
            if ending is not None and not termination.is_decided:
                termination.end(ending, 0.0)
