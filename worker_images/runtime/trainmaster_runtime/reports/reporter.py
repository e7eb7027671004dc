"""Reports the replica's progress to the API: in order, each item once, over an unreliable network.

A thread collects what user code appends to the report file into a queue on disk and sends it in numbered batches. A
batch keeps its numbers until the server has it, so a repeated one is recognised there. Heartbeats are never queued:
only the newest means something. The queue is bounded; when the API stays away too long, progress is thinned out and
checkpoints are kept. Unsent items are saved in the output as well, periodically and at the end: see ``spool``.
"""

from __future__ import annotations

import json
import threading
from collections import deque

from trainmaster_runtime import clock
from trainmaster_runtime.process import syscalls
from trainmaster_runtime.process.job_user import check_owner
from trainmaster_runtime.reports.batch_sender import DRAIN_TIMEOUT_S, BatchSender, DrainDeadline
from trainmaster_runtime.reports.report_connection import ReportConnection
from trainmaster_runtime.reports.send_queue import SendQueue
from trainmaster_runtime.reports.spool import SpoolSaver

READ_S = 0.5  # of what is read at the end, before it is sent
_EARLY_LINES = 1_000  # printed before the collector exists

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from trainmaster_runtime.metrics.collector import Collector


class MetricFeed:
    """Holds the collector from :meth:`start` until its last look. ``make_collector``: ``None`` for no metrics."""

    def __init__(
        self, make_collector: Callable[[], Collector] | None, queue: SendQueue, say: Callable[[str], None]
    ) -> None:
        self._make_collector = make_collector
        self._queue = queue
        self._say = say
        self._early_lines: deque[bytes] = deque(maxlen=_EARLY_LINES)
        self.collector: Collector | None = None

    def note(self, lines: list[bytes]) -> None:
        """Lines that the job printed. From another thread; never waits."""
        if self.collector is not None:
            self.collector.note(lines)
        elif self._make_collector is not None:
            self._early_lines.extend(lines)

    def start(self) -> None:
        if self._make_collector is not None:
            try:
                self.collector = collector = self._make_collector()
                while self._early_lines:
                    collector.note([self._early_lines.popleft()])
            except Exception as error:  # noqa: BLE001 - the job goes on, and so do the reports
                self._say("metrics are not collected: %s: %s" % (type(error).__name__, error))

    def note_report(self, item: dict[str, Any]) -> None:
        """User code reported this itself: of the same kind, nothing is read from printed lines."""
        collector = self.collector
        if collector is None:
            return
        # A checkpoint's metrics belong to it: they draw no curve that printed lines would double.
        collector.reports_metrics |= item["kind"] != "checkpoint" and bool(item["data"].get("metrics"))
        collector.reports_step |= item["kind"] == "progress" and "step" in item["data"]
        if collector.sources is not None:
            for name in _reported_names(item):
                collector.sources.count_value("library", name)

    def collect(self, is_last: bool) -> None:
        """Look at each source once; at the end, ``is_last``, for a while or until nothing is left."""
        if self.collector is None:
            return
        read_until = clock.monotonic() + READ_S
        try:
            while True:
                at = clock.stamp(clock.now())
                items = self.collector.collect(is_last=is_last)
                while self.collector.troubles:
                    self._say(self.collector.troubles.pop(0))
                for item in items:
                    self._queue.add({"at": at, **item})
                # A look reads a piece of each file: at the end all that is left, and what was read is sent meanwhile.
                if not is_last or not items or clock.monotonic() >= read_until:
                    break
            if is_last and not items:
                self._report_sources(self.collector)
                self.collector.close()
                self.collector = None
        except Exception as error:  # noqa: BLE001 - the same
            self._say("metrics are not collected any more: %s: %s" % (type(error).__name__, error))
            self.collector = None

    def _report_sources(self, collector: Collector) -> None:
        """At the end, report the counts of each metric source, and patterns for lines that look like metrics.

        An API of an older version ignores this progress.
        """
        if collector.sources is not None:
            data = {"metric_sources": collector.sources.summary()}
            self._queue.add({"at": clock.stamp(clock.now()), "kind": "progress", "data": data})
        suggestions = collector.suggestions()
        if suggestions:
            found = {"metric_suggestions": suggestions}
            self._queue.add({"at": clock.stamp(clock.now()), "kind": "progress", "data": found})


def _reported_names(item: dict[str, Any]) -> list[str]:
    """Names of the metrics that user code reported in an item, one for each value."""
    data = item["data"]
    if item["kind"] == "progress" and isinstance(data.get("metrics"), dict):
        return [str(name) for name in data["metrics"]]
    names = []
    series = data.get("series") if item["kind"] == "metrics" else None
    for series_entry in series if isinstance(series, list) else ():
        if isinstance(series_entry, dict) and isinstance(series_entry.get("values"), list):
            names += [str(series_entry.get("name", ""))] * len(series_entry["values"])
    return names


_LINE_BYTES = 1024 * 1024  # an image is such a line
_ROUND_BYTES = 8 * 2**20  # a flood of lines must not hold up the heartbeat
_FREE_BYTES = 4 * 2**20  # so much of the file is read before its room is given back
_BLOCK = 4_096
_KINDS = ("progress", "checkpoint", "event", "metrics")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any


class ReportFile:
    """Reads complete lines as they appear, a bounded piece at a time. ``say`` writes into the replica's log."""

    def __init__(self, path: str, say: Callable[[str], None]) -> None:
        self._path = path
        self._say = say
        self._freed_to = 0
        self._is_in_long_line = False
        self.offset = 0

    def read(self, is_last: bool) -> Iterator[dict[str, Any]]:
        """The items that were appended since the last call. ``is_last``: nothing is appended any more. Raises
        ``OSError``.
        """
        start = self.offset
        with open(self._path, "rb") as stream:
            check_owner(stream.fileno())
            stream.seek(start)
            while is_last or self.offset - start < _ROUND_BYTES:
                line = stream.readline(_LINE_BYTES + 1)
                is_partial = len(line) <= _LINE_BYTES and not line.endswith(b"\n")
                if not line or (is_partial and not (is_last or self._is_in_long_line)):
                    break  # a partial line is read again at the next call
                item = self._take(line)
                if item is not None:
                    yield item
        if self.offset - self._freed_to >= _FREE_BYTES:
            self._free()

    def _take(self, line: bytes) -> dict[str, Any] | None:
        self.offset += len(line)
        is_long = len(line) > _LINE_BYTES
        continues_long_line = self._is_in_long_line
        if is_long and not continues_long_line:
            self._say("a line of more than %d bytes in %s was left out" % (_LINE_BYTES, self._path))
        self._is_in_long_line = not line.endswith(b"\n") and (is_long or continues_long_line)
        return None if is_long or continues_long_line else _item(line)

    def _free(self) -> None:
        """Free the disk space of read lines. Truncating the file could lose a line that is appended in that moment."""
        end = self.offset // _BLOCK * _BLOCK
        try:
            with open(self._path, "r+b") as stream:
                syscalls.punch_hole(stream.fileno(), 0, end)
        except OSError:  # a file system that cannot: a report file is small compared with a job's output
            pass
        self._freed_to = end


def _item(line: bytes) -> dict[str, Any] | None:
    """A report item of what user code wrote; ``None`` when it is none (the server would refuse it)."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):  # thousands of brackets
        return None
    if not isinstance(data, dict) or data.get("kind") not in _KINDS:
        return None
    kind = data.pop("kind")
    at = data.pop("at", None)
    if kind == "event" and "event" in data:
        data["kind"] = data.pop("event")
    return {"at": at if isinstance(at, str) else clock.stamp(clock.now()), "kind": kind, "data": data}


_SAVE_S = 4.0  # for saving what was not sent, where the platform waits for the end
_SAVE_CALMLY_S = 20.0  # and where it does not wait: on a machine that gives this process next to no time it takes long
_STUCK_S = 6.0  # so long a request takes behind the end of all sending that cannot be interrupted
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

    def add_progress(self, data: dict[str, Any]) -> None:
        """Report this, which the runtime itself knows."""
        self.queue.add({"at": clock.stamp(clock.now()), "kind": "progress", "data": data})

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
            # It does not end though it was interrupted, as where names are not resolved: what was saved before is all.
            if since is not None and clock.monotonic() - max(since, drain.flush_by) > _STUCK_S:
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
