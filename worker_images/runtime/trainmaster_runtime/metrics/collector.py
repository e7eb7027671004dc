"""Everything that a replica reports without a line of code in its script, as items for the reporter's spool.

All of it runs in the reporter's thread, a bounded piece at a time: what the job prints and how it ends is never held
up.
"""

from __future__ import annotations

import base64
import json
import os
from collections import deque

from trainmaster_runtime import clock
from trainmaster_runtime.metrics.eventfiles import EventFileReader, FileClaims
from trainmaster_runtime.metrics.patterns import PROGRESS, LinePatterns
from trainmaster_runtime.metrics.sampler import Sampler, groups_of
from trainmaster_runtime.prepare import OUTPUT
from trainmaster_runtime.process.job_user import check_owner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Deque, Dict, List, Optional, Set, Tuple

    from trainmaster_runtime.order import RuntimeOrder
    from trainmaster_runtime.prepare import PreparedReplica

# What the job's spec says under `metric_patterns`, as JSON.
PATTERNS_VARIABLE = "TRAINMASTER_METRIC_PATTERNS"
# Set for a study's trial, which reports the counts of each metric source where its metric is missing.
TRIAL_VARIABLE = "TRAINMASTER_TRIAL"

_NAMES = 8
_NAME_CHARS = 100

SAMPLE_S = 10.0  # a report with a sample is as good as a heartbeat, and comes as often
_FIRST_SAMPLE_S = 2.5
_EVENTS_S = 0.5
_LINES = 2_000  # that wait to be looked at; of a flood the newest count
_BAR_S = 0.5  # so often the numbers of a bar become points; its end always does
_ITEM_POINTS = 5_000
_FAILURES = 10  # of one source in a row, until it is looked at no more
_SYSTEM = "system/"
_HYPERTUNE_BYTES = 256 * 1024
_KNOWN_REPORTS = 1000
_HYPERTUNE_KEYS = ("timestamp", "trial", "global_step", "checkpoint_path")


class SourceCounts:
    """Counters by source, with the first names only. Each source is written by one thread."""

    def __init__(self) -> None:
        self._values: Dict[str, Dict[str, int]] = {}
        self._counts: Dict[str, Dict[str, int]] = {}

    def count_value(self, source: str, name: str) -> None:
        """Count one value of ``name``."""
        names = self._values.setdefault(source, {})
        name = name[:_NAME_CHARS]
        # Above the limit, one empty name stands for all further ones.
        key = name if name in names or len(names) < 10 * _NAMES else ""
        names[key] = names.get(key, 0) + 1

    def count(self, source: str, counter: str, more: int = 1) -> None:
        counts = self._counts.setdefault(source, {})
        counts[counter] = counts.get(counter, 0) + more

    def summary(self) -> Dict[str, Any]:
        """By source: ``names``, at most eight; ``name_count``, ``values``; and its counts."""
        summary_by_source = {}
        for source in sorted(set(self._values) | set(self._counts)):
            names = dict(self._values.get(source, {}))
            summary_by_source[source] = {
                "names": [name for name in names if name][:_NAMES],
                "name_count": len(names),
                "values": sum(names.values()),
                **self._counts.get(source, {}),
            }
        return summary_by_source


class SeriesBuffer:
    """Points by series, as a report item carries them."""

    def __init__(self) -> None:
        self._series: Dict[str, Tuple[List[int], List[float], List[Any]]] = {}
        self.objects: List[Dict[str, Any]] = []
        self.count = 0

    def add(self, name: str, step: int, time_s: float, value: float) -> None:
        columns = self._series.setdefault(name, ([], [], []))
        columns[0].append(max(-(2**53), min(2**53, step)))
        columns[1].append(time_s if 0 <= time_s < 2.5e11 else clock.now())
        columns[2].append(_plain(value))
        self.count += 1

    def items(self) -> List[Dict[str, Any]]:
        """Report items, with about so many points each as one line of the spool should have. Empties this."""
        made: List[Dict[str, Any]] = []
        part: List[Dict[str, Any]] = []
        size = 0
        for name, (steps, times, values) in self._series.items():
            for start in range(0, len(steps), _ITEM_POINTS):
                end = start + _ITEM_POINTS
                part.append(
                    {"name": name, "steps": steps[start:end], "times_s": times[start:end], "values": values[start:end]}
                )
                size += len(steps[start:end])
                if size >= _ITEM_POINTS:
                    made.append({"series": part})
                    part, size = [], 0
        if part:
            made.append({"series": part})
        made += [{"objects": [object_point]} for object_point in self.objects]
        self._series, self.objects, self.count = {}, [], 0
        return made


class HypertuneFile:
    """The file of ``cloudml-hypertune``: the last 100 reports, one JSON object a line, rewritten each time.

    It may be seen empty or cut inside of a line, and what has fallen out of its hundred is gone, so it is read whole
    and what was seen already is known by its time and step.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._fingerprint: Tuple[int, int] = (0, 0)
        self._known: Dict[Tuple[str, str, str], None] = {}

    def collect(self) -> List[Tuple[str, int, float, float]]:
        """(name, step, time in seconds, value) of what is new."""
        try:
            with open(self._path, "rb") as stream:
                check_owner(stream.fileno())
                status = os.fstat(stream.fileno())
                fingerprint = (status.st_mtime_ns, status.st_size)
                if fingerprint == self._fingerprint:
                    return []
                # The newest count: of a file that is larger than a hundred reports should be, the end.
                stream.seek(max(0, status.st_size - _HYPERTUNE_BYTES))
                data = stream.read(_HYPERTUNE_BYTES)
        except OSError:
            return []
        self._fingerprint = fingerprint
        items = []
        for line in data.splitlines():
            items += self._take(line)
        while len(self._known) > _KNOWN_REPORTS:
            del self._known[next(iter(self._known))]
        return items

    def _take(self, line: bytes) -> List[Tuple[str, int, float, float]]:
        try:
            entry = json.loads(line)
            time_s = float(entry["timestamp"])
            step = int(float(entry.get("global_step") or 0))
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
            return []  # the line that is just being written, or none of hypertune's
        items = []
        for name, value in entry.items():
            if name in _HYPERTUNE_KEYS or not isinstance(value, (str, int, float)):
                continue
            key = (name, str(time_s), str(step))
            try:
                number = float(value)
            except (ValueError, OverflowError):
                continue
            if key not in self._known:
                self._known[key] = None
                items.append((name, step, time_s, number))
        return items


class Collector:
    """Args: each source; ``None``: the replica does not have it. ``sources``: counts the values of each."""

    def __init__(
        self,
        *,
        sampler: Optional[Sampler] = None,
        events: Optional[EventFileReader] = None,
        hypertune: Optional[HypertuneFile] = None,
        patterns: Optional[LinePatterns] = None,
        sources: Optional[SourceCounts] = None,
    ) -> None:
        self.sources = sources
        self._sampler = sampler
        self._events = events
        self._hypertune = hypertune
        self._patterns = patterns
        self._lines: Deque[Tuple[float, bytes]] = deque(maxlen=_LINES)
        self._started_at = self._events_at = clock.monotonic()
        self._sample_at = self._started_at + _FIRST_SAMPLE_S
        if sampler is not None:
            sampler.sample(self._started_at)  # what rates are counted from
        self._unnumbered = 0
        self._has_printed = False
        self._bar_at = 0.0
        self._last_points: Dict[str, Tuple[int, float]] = {}  # of printed lines, by name
        self._names: Set[str] = set()  # that files tell
        self.reports_metrics = False  # the script reports metrics itself
        self.reports_step = False  # and how far it is
        self.troubles: List[str] = []  # sentences for the job's log
        self._failures: Dict[str, int] = {}

    def note(self, lines: List[bytes]) -> None:
        """Lines that the job printed, from the thread that keeps the log: it must not wait."""
        patterns = self._patterns
        if self.sources is not None:
            self.sources.count("log", "lines", len(lines))
        if patterns is not None:
            now = clock.now()
            self._lines.extend((now, line) for line in lines if patterns.may_match(line))

    def collect(self, *, is_last: bool) -> List[Dict[str, Any]]:
        """Items (kind and data) of what is new."""
        now = clock.monotonic()
        columns, printed = SeriesBuffer(), SeriesBuffer()
        progress: Dict[str, float] = {}
        self._guarded("printed lines", lambda: self._take_lines(columns, printed, progress, is_last=is_last))
        self._guarded("hypertune's file", lambda: self._take_hypertune(columns))
        if is_last or now >= self._events_at:
            self._events_at = now + _EVENTS_S
            self._guarded("event files", lambda: self._take_events(columns, now, is_last=is_last))
        if now >= self._sample_at and not is_last:
            self._sample_at = now + SAMPLE_S
            self._guarded("resources", lambda: self._take_sample(columns, now))
        items = [{"kind": "metrics", "data": data} for data in columns.items()]
        items += [{"kind": "metrics", "data": {**data, "is_printed": True}} for data in printed.items()]
        if progress:
            items.append({"kind": "progress", "data": dict(progress)})
        return items

    def suggestions(self) -> List[Dict[str, str]]:
        """Patterns for lines that look like metrics, where the script reported no metric at all."""
        if self._patterns is None or self.reports_metrics or self._names or self._has_printed:
            return []
        return [{"line": line, "pattern": pattern} for line, pattern in self._patterns.suggestions.items()]

    def close(self) -> None:
        if self._sampler is not None:
            self._sampler.close()
        if self._events is not None:
            self._events.close()

    def _guarded(self, source: str, take: Callable[[], None]) -> None:
        """Read one source; its errors do not stop the others, and after ten in a row it is read no more."""
        if self._failures.get(source, 0) >= _FAILURES:
            return
        try:
            take()
        except Exception as error:  # noqa: BLE001 - whatever it is, the job goes on, and so do the other sources
            self._failures[source] = failures = self._failures.get(source, 0) + 1
            if failures in (1, _FAILURES):
                again = "" if failures == 1 else ", %d times in a row: they are not read any more" % failures
                self.troubles.append("metrics of %s: %s: %s%s" % (source, type(error).__name__, error, again))
        else:
            self._failures.pop(source, None)

    def _count_value(self, source: str, name: str) -> None:
        if self.sources is not None:
            self.sources.count_value(source, name)

    def _take_hypertune(self, columns: SeriesBuffer) -> None:
        if self._hypertune is None:
            return
        for name, step, time_s, value in self._hypertune.collect():
            self._names.add(name)
            self._count_value("hypertune", name)
            columns.add(name, step, time_s, value)

    def _take_sample(self, columns: SeriesBuffer, now: float) -> None:
        if self._sampler is None:
            return
        step, time_s = int(now - self._started_at), clock.now()
        for name, value in self._sampler.sample(now).items():
            columns.add(_SYSTEM + name, step, time_s, value)

    def _take_lines(
        self, columns: SeriesBuffer, printed: SeriesBuffer, progress: Dict[str, float], *, is_last: bool
    ) -> None:
        patterns = self._patterns
        if patterns is None:
            return
        time_s = clock.now()
        for _ in range(_LINES):
            try:
                time_s, line = self._lines.popleft()
            except IndexError:
                break
            self._take_values(patterns.find(line), time_s, columns, printed, progress)
        if is_last and not self._lines:
            self._take_values(patterns.finish(), time_s, columns, printed, progress)

    def _take_values(
        self,
        values: Dict[str, float],
        time_s: float,
        columns: SeriesBuffer,
        printed: SeriesBuffer,
        progress: Dict[str, float],
    ) -> None:
        """The numbers of one line."""
        patterns = self._patterns
        if patterns is None or not values:
            return
        progress_values = {name: int(values[name]) for name in PROGRESS if name in values and abs(values[name]) < 2**53}
        if patterns.has_own or not self.reports_step:
            progress.update(progress_values)
        if "step" in progress_values:
            step = progress_values["step"]
        elif "epoch" in progress_values:
            step = progress_values["epoch"]
        else:
            step = self._unnumbered
            self._unnumbered += 1
        metrics = {name: value for name, value in values.items() if name not in PROGRESS}
        self._has_printed |= bool(metrics)
        if metrics and self.sources is not None:
            self.sources.count("matching", "lines")
        if patterns.is_bar:
            if abs(time_s - self._bar_at) < _BAR_S:
                return
            self._bar_at = time_s
        for name, value in metrics.items():
            self._count_value("log", name)
            if patterns.has_own:
                columns.add(name, step, time_s, value)
            elif not (self.reports_metrics or name in self._names) and self._last_points.get(name) != (step, value):
                # A metric that the script reports itself counts once; and MLflow may report it, which only the
                # platform knows. Processes that share an output print the same line several times.
                self._last_points[name] = (step, value)
                printed.add(name, step, time_s, value)

    def _take_events(self, columns: SeriesBuffer, now: float, *, is_last: bool) -> None:
        if self._events is None:
            return
        for name, value in self._events.collect(now, is_last=is_last):
            if value.kind == "scalar":
                self._names.add(name)
                self._count_value("events", name)
                columns.add(name, value.step, value.time_s, value.data)
                continue
            data = base64.b64encode(value.data).decode() if value.kind == "image" else value.data
            columns.objects.append(
                {"name": name, "kind": value.kind, "step": value.step, "time_s": max(0.0, value.time_s), "data": data}
            )


def _plain(value: float) -> Any:
    if value - value == 0:
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124 - NaN is unlike itself


def make_collector(
    order: RuntimeOrder, prepared: PreparedReplica, say: Callable[[str], None], began: float
) -> Collector:
    """The collector of a replica whose processes started at ``began``, in seconds since 1970.

    Call it in a thread that may wait for disks and drivers.
    """
    output = OUTPUT if order.view == "as_is" else order.source_of(OUTPUT)
    work = os.path.dirname(prepared.job_folder)
    folder = (output or work) + "/.trainmaster/metrics/" + order.job_id
    owner = "%d/%s-%d" % (order.attempt_number, order.role, order.index)
    groups = groups_of(order.view, prepared.groups.by_controller)
    visible = order.env.get("CUDA_VISIBLE_DEVICES", None if order.view == "as_is" else "")
    return Collector(
        sampler=Sampler(groups, visible, has_own_network=order.view == "as_is"),
        events=EventFileReader(output, work, FileClaims(folder, owner), say, now=clock.monotonic(), began=began),
        hypertune=HypertuneFile(prepared.job_folder + "/hypertune/output.metric"),
        patterns=LinePatterns(read_patterns(order.env.get(PATTERNS_VARIABLE, ""))),
        sources=SourceCounts() if order.env.get(TRIAL_VARIABLE) else None,
    )


def read_patterns(text: str) -> list[str]:
    """The job's own patterns; none of a text that is not ours."""
    try:
        patterns = json.loads(text) if text else []
    except ValueError:
        return []
    return [pattern for pattern in patterns if isinstance(pattern, str)] if isinstance(patterns, list) else []
