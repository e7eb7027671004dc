"""Sends queued items in numbered batches; a batch keeps its numbers until the server has it."""

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


HEARTBEAT_S = 10.0
_BACK_OFF_S = 30.0

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from trainmaster_runtime.reports.batch_sender import DrainDeadline
    from trainmaster_runtime.reports.report_connection import ReportConnection
    from trainmaster_runtime.reports.send_queue import SendQueue


class BatchSender:
    """Takes batches from the queue, and backs off while the API is away.

    Attributes:
        in_flight: the batch that was sent or is to be sent again, with its numbers.
        next_seq: the number of the next item behind it.
        failures: requests in a row that failed.
        is_refused: the API takes no more reports of this replica.
        has_attempt_ended: it said so: this replica's gang was replaced, as after a lost node.
    """

    def __init__(
        self,
        connection: ReportConnection,
        queue: SendQueue,
        drain: DrainDeadline,
        *,
        replica: dict[str, Any],
        say: Callable[[str], None],
    ) -> None:
        self._connection = connection
        self._queue = queue
        self._drain = drain
        self._replica = replica
        self._say = say
        self._heartbeat_at = 0.0
        self._retry_at = 0.0
        self.in_flight: list[dict[str, Any]] = []
        self.next_seq = 1
        self.failures = 0
        self.is_refused = False
        self.has_attempt_ended = False

    @property
    def has_unsent(self) -> bool:
        return bool(self.in_flight or self._queue)

    def may_send(self) -> bool:
        """Whether there is time for a request. After the job's end an API that takes nothing has little of it."""
        return self._drain.may_send(is_failing=bool(self.failures))

    def follow_api(self) -> None:
        """After failures: go on at the API's new address, if it has moved."""
        if self._connection.follow_move():
            self.is_refused = False
            self.failures = 0
            self._retry_at = 0.0

    def send_due(self, is_last: bool) -> None:
        """Send all batches, or a heartbeat if there are none, unless it has to back off. ``is_last``: the job has
        ended, which ends a back-off.
        """
        if is_last:
            self._retry_at = 0.0
        while not self.is_refused and self.may_send():
            now = clock.monotonic()
            if now < self._retry_at:
                return
            if not self.in_flight:
                items = self._queue.take() if self._queue else []
                if not items and now - self._heartbeat_at >= HEARTBEAT_S and not is_last:
                    items = [{"at": clock.stamp(clock.now()), "kind": "heartbeat", "data": {}}]
                if not items:
                    return
                for item in items:
                    item["seq"] = self.next_seq
                    self.next_seq += 1
                self.in_flight = items
            if not self._send():
                return

    def _send(self) -> bool:
        """Send the batch in flight; ``False``: not now."""
        body = {**self._replica, "items": self.in_flight}
        try:
            status, answer = self._connection.post(body, self._drain.request_timeout_s)
        except (OSError, ValueError, LookupError):
            return self._back_off()
        if status == 200:
            self.failures = 0
            self._heartbeat_at = clock.monotonic()
            acked = int(answer.get("acked", self.in_flight[-1]["seq"]))
            self.in_flight = [item for item in self.in_flight if item["seq"] > acked]
            return not self.in_flight or self._back_off()
        if status in (401, 403, 404, 410):
            self.is_refused = True
            self.has_attempt_ended = status == 410 and answer.get("code") == "attempt_ended"
            self._say("the platform takes no more reports of this replica (HTTP %d)" % status)
            return False
        if status in (400, 413, 422):
            return self._split_batch()
        return self._back_off()

    def _split_batch(self) -> bool:
        """The server rejects the batch: send its halves; replace a single item by a heartbeat."""
        if len(self.in_flight) > 1:
            middle = len(self.in_flight) // 2
            second_half = self.in_flight[middle:]
            self.in_flight = self.in_flight[:middle]
            is_sent = self._send()
            self.in_flight += second_half
            return is_sent
        if self.in_flight[0]["kind"] == "heartbeat":
            return self._back_off()
        # Numbers must stay without gaps: a heartbeat takes the place.
        self.in_flight[0].update(kind="heartbeat", data={})
        return True

    def _back_off(self) -> bool:
        """Back off; ``False``, as the answer of a failed request."""
        self.failures += 1
        self._retry_at = clock.monotonic() + min(_BACK_OFF_S, 0.5 * 2 ** min(self.failures, 8))
        return False
