"""Reports the replica's progress to the API: in order, each item once, over an unreliable network.

A thread collects what user code appends to the report file into a queue on disk and sends it in numbered batches. A
batch keeps its numbers until the server has it, so a repeated one is recognised there. Heartbeats are never queued:
only the newest means something. The queue is bounded; when the API stays away too long, progress is thinned out and
checkpoints are kept. Unsent items are saved in the output as well, periodically and at the end: see ``spool``.
"""

from __future__ import annotations

import threading

from trainmaster_runtime import clock
from trainmaster_runtime.reports.batch_sender import BatchSender
from trainmaster_runtime.reports.drain_deadline import DRAIN_TIMEOUT_S, DrainDeadline
from trainmaster_runtime.reports.metric_feed import MetricFeed
from trainmaster_runtime.reports.report_connection import ReportConnection
from trainmaster_runtime.reports.report_file import ReportFile
from trainmaster_runtime.reports.send_queue import SendQueue
from trainmaster_runtime.reports.spool import SpoolSaver

_SAVE_S = 4.0  # for saving what was not sent, where the platform waits for the end
_SAVE_CALMLY_S = 20.0  # and where it does not wait: on a machine that gives this process next to no time it takes long
_STUCK_S = 6.0  # so long a request takes at the end that cannot be ended
FIRST_S = 0.4  # leaves the first moments of the job to the job
_ROUND_S = 0.5

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from trainmaster_runtime.metrics.collector import Collector
    from trainmaster_runtime.reports.spool import SpoolFile


class Reporter:
    """The thread. Nothing in it can delay or fail the job.

    Args:
        replica: ``role``, ``index`` and ``generation``.
        source: the report file; each line is ``{"kind": …, …}``.
        say: writes a line into the replica's log; called once for each API that refuses us for good.
        api_file: says where the API is when it has moved; read when a report does not arrive.
        collector: makes the collector of metrics; called in the thread. ``None``: no metrics.
        spool_file: where unsent items are saved; ``None``: nowhere.
    """

    def __init__(
        self,
        *,
        api_url: str,
        token: str,
        replica: dict[str, Any],
        source: str,
        spool_path: str,
        say: Callable[[str], None],
        api_file: str | None = None,
        collector: Callable[[], Collector] | None = None,
        spool_file: SpoolFile | None = None,
    ) -> None:
        self._say = say
        self._drain = DrainDeadline()
        self.queue = SendQueue(spool_path)
        self.report_file = ReportFile(source, say)
        self.metrics = MetricFeed(collector, self.queue, say)
        self.connection = ReportConnection(api_url, token, api_file)
        self.sender = BatchSender(self.connection, self.queue, self._drain, replica=replica, say=say)
        self.saver = None if spool_file is None else SpoolSaver(spool_file, self.sender, self.queue, replica)
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def has_attempt_ended(self) -> bool:
        """Whether the platform says so."""
        return self.sender.has_attempt_ended

    def start(self) -> None:
        self._thread.start()

    def note(self, lines: list[bytes]) -> None:
        """Lines that the job printed, for what is read from them. From another thread; never waits."""
        self.metrics.note(lines)

    def finish(self, must_end_now: Callable[[], bool] = bool, *, is_stopped: bool = False) -> None:
        """Send what is left; returns after two seconds at most, later only while it goes on, and saves the rest.

        Args:
            must_end_now: whether the replica is to end at once; called all the time. So does :meth:`hurry`.
            is_stopped: it was ended by the platform: it takes no longer than it must.
        """
        drain = self._drain
        started_at = clock.monotonic()
        drain.begin(is_stopped=is_stopped)
        self._wake.set()
        save_s = _SAVE_S if is_stopped else _SAVE_CALMLY_S
        while self._thread.is_alive() and clock.monotonic() < (drain.end_by or 0.0) + save_s:
            self._thread.join(max(0.05, min(_ROUND_S, drain.flush_by - clock.monotonic())))
            if must_end_now():
                save_s = _SAVE_S
                self.hurry()
            since = self.connection.request_since
            waited = 0.0 if since is None or clock.monotonic() < drain.flush_by else clock.monotonic() - since
            if since is not None and waited and (since < started_at or waited > DRAIN_TIMEOUT_S):
                self.connection.interrupt()
            if waited > _STUCK_S:  # as where names are not resolved: what was saved before is all
                return

    def hurry(self) -> None:
        """Stop sending, and save what is left."""
        self._drain.hurry()

    def read_reports(self, is_last: bool) -> None:
        """Move new lines of the report file into the queue."""
        try:
            for item in self.report_file.read(is_last):
                self.queue.add(item)
                self.metrics.note_report(item)
        except OSError:
            pass

    def _run(self) -> None:
        try:
            self._wake.wait(FIRST_S)
            self.metrics.start()
            while True:
                is_last = self._wake.is_set()
                self.read_reports(is_last)
                self.metrics.collect(is_last)
                if self.sender.failures or self.sender.is_refused:
                    self.sender.follow_api()
                self.sender.send_due(is_last)
                if is_last:
                    if not self._has_more():
                        break
                    clock.pause(0.0 if self.metrics.collector is not None else 0.1)
                else:
                    if self.saver is not None:
                        self.saver.save_periodically()
                    self._wake.wait(_ROUND_S)
            self._save_unsent()
        except Exception as error:  # noqa: BLE001 - whatever it is, the job goes on without reports
            self._say("reports stopped: %s: %s" % (type(error).__name__, error))

    def _has_more(self) -> bool:
        """Whether, at the end, there is still something to read or to send, and time for it."""
        if self.metrics.collector is not None and not self.has_attempt_ended:
            if self._drain.may_read():
                return True
            self._say("not all of its metrics were read: there was no time left for the rest")
            return False
        return self.sender.has_unsent and not self.sender.is_refused and self.sender.may_send()

    def _save_unsent(self) -> None:
        error = None if self.saver is None else self.saver.save()
        if error is not None:
            self._say("its last reports are lost: the API is away and they cannot be saved (%s)" % error)
