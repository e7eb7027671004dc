"""Moves what the collector of metrics finds into the reporter's queue."""

from __future__ import annotations

from collections import deque

from trainmaster_runtime import clock

READ_S = 0.5  # of what is read at the end, before it is sent
_EARLY_LINES = 1_000  # printed before the collector exists

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from trainmaster_runtime.metrics.collector import Collector
    from trainmaster_runtime.reports.send_queue import SendQueue


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
        """At the end, report the counts of each metric source. An API of an older version ignores this progress."""
        if collector.sources is not None:
            data = {"metric_sources": collector.sources.summary()}
            self._queue.add({"at": clock.stamp(clock.now()), "kind": "progress", "data": data})


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
