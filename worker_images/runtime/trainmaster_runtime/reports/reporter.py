"""Reports the replica's progress to the API: in order, each item once, over an unreliable network.

A thread collects what user code appends to the report file into a spool on disk and sends it in numbered batches. A
batch keeps its numbers until the server has it, so a repeated one is recognised there. Heartbeats are never spooled:
only the newest means something. The spool is bounded; when the API stays away too long, progress is thinned out and
checkpoints are kept. Unsent items are saved in the output as well, periodically and at the end: see ``spool``.
"""

from __future__ import annotations

import json
import threading
from collections import deque
from itertools import chain

from trainmaster_runtime import clock
from trainmaster_runtime.process import syscalls

HEARTBEAT_S = 10.0
FLUSH_S = 2.0  # how long a finished job may wait for its last reports
_DRAIN_S = 10.0  # and while the API takes one after the other, or there is still something to read: the control loop
# allows 15 s behind `max_run_time` before it ends a container itself
_DRAIN_TIMEOUT_S = 2.0  # of a request meanwhile
_KEEP_S = 4.0  # for keeping what was not sent, where the platform waits for the end
_KEEP_CALMLY_S = 20.0  # and where it does not wait: on a machine that gives this process next to no time it takes long
_STUCK_S = 6.0  # so long a request takes at the end that cannot be ended
_KEEP_EVERY_S = 30.0  # while the job runs and the API is away,
_KEEP_FAILURES = 3  # as so many failures in a row say
READ_S = 0.5  # of what is read at the end, before it is sent
_EARLY_LINES = 1_000  # printed before that
FIRST_S = 0.4  # leaves the first moments of the job to the job
_LOOK_S = 0.5
_TIMEOUT_S = 10.0
_CONNECT_S = 3.0
BATCH_ITEMS = 500
_BATCH_BYTES = 512 * 1024
_LINE_BYTES = 1024 * 1024  # an image is such a line
_ROUND_BYTES = 8 * 2**20  # of the report file: a flood of lines must not hold up the heartbeat
_COMPRESS_FROM_BYTES = 1024  # bodies from here on are compressed
_SPOOL_BYTES = 16 * 2**20
_BACK_OFF_S = 30.0
_FREE_BYTES = 4 * 2**20  # so much of the report file is read before its room is given back
_BLOCK = 4_096
_KINDS = ("progress", "checkpoint", "event", "metrics")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from http.client import HTTPConnection
    from typing import Any

    from trainmaster_runtime.metrics.collector import Collector
    from trainmaster_runtime.reports.spool import SpoolFile


class SendQueue:
    """A file of items that were not sent yet, oldest first. Bounded: see :meth:`add`."""

    def __init__(self, path: str, limit_bytes: int = _SPOOL_BYTES) -> None:
        self._path = path
        self._limit = limit_bytes
        self._start = 0  # of what is not taken yet
        self._end = 0
        self._file = open(path, "w+b")  # noqa: SIM115 - lives as long as the reporter

    def add(self, item: dict[str, Any]) -> None:
        """Append; over the limit all but the newest progress goes, then the oldest of what is left."""
        line = json.dumps(item).encode() + b"\n"
        if self._end - self._start + len(line) > self._limit:
            self._thin()
        self._file.seek(self._end)
        self._file.write(line)
        self._file.flush()
        self._end += len(line)

    def take(self) -> list[dict[str, Any]]:
        """Remove and return the oldest items, at most a batch."""
        self._file.seek(self._start)
        items: list[dict[str, Any]] = []
        size = 0
        while self._start < self._end and len(items) < BATCH_ITEMS and size < _BATCH_BYTES:
            line = self._file.readline()
            self._start += len(line)
            size += len(line)
            items.append(json.loads(line))
        if self._start >= self._end and self._end:
            self._file.truncate(0)
            self._start = self._end = 0
        return items

    def lines(self) -> Iterator[bytes]:
        """The bytes of all items, a line each; they stay."""
        at = self._start
        while at < self._end:
            self._file.seek(at)
            piece = self._file.read(min(_BATCH_BYTES, self._end - at))
            at += len(piece)
            yield piece

    @property
    def place(self) -> tuple[int, int]:
        """Another one when the items are others."""
        return self._start, self._end

    def close(self) -> None:
        self._file.close()

    def __bool__(self) -> bool:
        return self._start < self._end

    def _thin(self) -> None:
        self._file.seek(self._start)
        lines = self._file.read(self._end - self._start).splitlines(keepends=True)
        last = max((n for n, line in enumerate(lines) if json.loads(line)["kind"] == "progress"), default=-1)
        remaining = [line for n, line in enumerate(lines) if n == last or json.loads(line)["kind"] != "progress"]
        while sum(map(len, remaining)) > self._limit // 2:
            del remaining[: max(1, len(remaining) // 4)]
        self._file.seek(0)
        self._file.truncate(0)
        self._file.write(b"".join(remaining))
        self._start, self._end = 0, sum(map(len, remaining))


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
        self._make_collector = collector
        self.collector: Collector | None = None
        self._early: deque[bytes] = deque(maxlen=_EARLY_LINES)
        self._url = _report_url(api_url)
        self._api_file = api_file
        self._token = token
        self._replica = replica
        self._source = source
        self._offset = 0
        self._freed_to = 0
        self._is_in_long_line = False
        self._send_queue = SendQueue(spool_path)
        self._say = say
        self._in_flight: list[dict[str, Any]] = []
        self._next_seq = 1
        self._beat_at = 0.0
        self._failures = 0
        self._retry_at = 0.0
        self._is_refused = False
        self.has_attempt_ended = False  # says the platform: this replica's gang was replaced, as after a lost node
        self._connection: HTTPConnection | None = None
        self._flush_by = 0.0
        self._end_by: float | None = None
        self._request_since: float | None = None
        self._spool_file = spool_file
        self._saved_state: tuple[int, ...] = ()
        self._keep_at = 0.0
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def note(self, lines: list[bytes]) -> None:
        """Lines that the job printed, for what is read from them. From another thread; never waits."""
        if self.collector is not None:
            self.collector.note(lines)
        elif self._make_collector is not None:
            self._early.extend(lines)

    def finish(self, must_end_now: Callable[[], bool] = bool, *, is_stopped: bool = False) -> None:
        """Send what is left; returns after two seconds at most, later only while it goes on, and keeps the rest.

        Args:
            must_end_now: whether the replica is to end at once; called all the time. So does :meth:`hurry`.
            is_stopped: it was ended by the platform: it takes no longer than it must.
        """
        now = clock.monotonic()
        self._flush_by = now + FLUSH_S
        self._end_by = self._flush_by if is_stopped else now + _DRAIN_S
        self._wake.set()
        keep_s = _KEEP_S if is_stopped else _KEEP_CALMLY_S
        while self._thread.is_alive() and clock.monotonic() < self._end_by + keep_s:
            self._thread.join(max(0.05, min(_LOOK_S, self._flush_by - clock.monotonic())))
            if must_end_now():
                keep_s = _KEEP_S
                self.hurry()
            since = self._request_since
            waited = 0.0 if since is None or clock.monotonic() < self._flush_by else clock.monotonic() - since
            if since is not None and waited and (since < now or waited > _DRAIN_TIMEOUT_S):
                self._cut()
            if waited > _STUCK_S:  # as where names are not resolved: what was saved before is all
                return

    def hurry(self) -> None:
        """Stop sending, and save what is left."""
        self._flush_by = min(self._flush_by, clock.monotonic())
        self._end_by = self._flush_by

    def _cut(self) -> None:
        """End the request that the thread waits for."""
        sock = getattr(self._connection, "sock", None)
        try:
            if sock is not None:
                sock.shutdown(2)  # SHUT_RDWR
        except OSError:
            pass

    def _run(self) -> None:
        try:
            self._wake.wait(FIRST_S)
            self._start_collector()
            while True:
                is_last = self._wake.is_set()
                self._collect(is_last)
                self._collect_metrics(is_last)
                if self._failures or self._is_refused:
                    self._follow_api_url()
                if is_last:
                    self._retry_at = 0.0
                if not self._is_refused:
                    self._send_due(is_last)
                if is_last:
                    if not self._has_more():
                        break
                    clock.pause(0.0 if self.collector is not None else 0.1)
                else:
                    self._save_periodically()
                    self._wake.wait(_LOOK_S)
            self._save_unsent()
        except Exception as error:  # noqa: BLE001 - whatever it is, the job goes on without reports
            self._say("reports stopped: %s: %s" % (type(error).__name__, error))

    def _has_more(self) -> bool:
        """Whether, at the end, there is still something to read or to send, and time for it."""
        if self.collector is not None and not self.has_attempt_ended:
            if clock.monotonic() < (self._end_by or 0.0):
                return True
            self._say("not all of its metrics were read: there was no time left for the rest")
            return False
        return bool(self._in_flight or self._send_queue) and not self._is_refused and self._may_send()

    def _may_send(self) -> bool:
        """Whether its time is not over. The job may have ended: then an API that does not take anything has little."""
        if self._end_by is None:
            return True
        now = clock.monotonic()
        return now < self._flush_by or (not self._failures and now < self._end_by)

    def _save_periodically(self) -> None:
        """While the API is away: save unsent items, so that a lost node does not lose them."""
        now = clock.monotonic()
        is_away = self._failures >= _KEEP_FAILURES or self._is_refused
        if is_away and now >= self._keep_at:
            self._save_unsent()
            took = clock.monotonic() - now
            self._keep_at = now + max(_KEEP_EVERY_S, 20 * took)  # of a slow volume it takes little
        elif not is_away and not self._in_flight and not self._send_queue and self._spool_file is not None:
            self._spool_file.drop()

    def _save_unsent(self) -> None:
        """Save unsent items, if there are any and the attempt lives."""
        if self._spool_file is None:
            return
        lines = [_line(item) for item in self._in_flight]
        if self.has_attempt_ended or not (
            self._send_queue or any(item["kind"] != "heartbeat" for item in self._in_flight)
        ):
            self._spool_file.drop()
            return
        first = self._in_flight[0]["seq"] if self._in_flight else self._next_seq
        place = (first, self._next_seq, *self._send_queue.place)
        if self._spool_file.is_there and place == self._saved_state:
            return
        try:
            self._spool_file.write({**self._replica, "first_seq": first}, chain(lines, self._send_queue.lines()))
            self._saved_state = place
        except (OSError, ImportError) as error:  # not all of the standard library is in every image
            if self._end_by is not None:
                self._say("its last reports are lost: the API is away and they cannot be saved (%s)" % error)

    def _start_collector(self) -> None:
        if self._make_collector is not None:
            try:
                self.collector = made = self._make_collector()
                while self._early:
                    made.note([self._early.popleft()])
            except Exception as error:  # noqa: BLE001 - the job goes on, and so do the reports
                self._say("metrics are not collected: %s: %s" % (type(error).__name__, error))

    def _collect_metrics(self, is_last: bool) -> None:
        """Move what the collector finds into the spool."""
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
                    self._send_queue.add({"at": at, **item})
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
            self._send_queue.add({"at": clock.stamp(clock.now()), "kind": "progress", "data": data})

    def _follow_api_url(self) -> None:
        """Go on at the API's new address, if it has moved: a server at the old one is another program."""
        try:
            with open(self._api_file or "", "rb") as stream:
                url = _report_url(json.loads(stream.read())["url"])
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return
        if url != self._url:
            self._url = url
            self._drop_connection()
            self._is_refused = False
            self._failures = 0
            self._retry_at = 0.0

    def _collect(self, is_last: bool) -> None:
        """Move complete lines of the report file into the spool, a bounded piece at a time."""
        began = self._offset
        try:
            with open(self._source, "rb") as stream:
                stream.seek(self._offset)
                while is_last or self._offset - began < _ROUND_BYTES:
                    line = stream.readline(_LINE_BYTES + 1)
                    if not line or not self._take_line(line, is_last):
                        break
        except OSError:
            return
        if self._offset - self._freed_to >= _FREE_BYTES:
            self._free_source()

    def _take_line(self, line: bytes, is_last: bool) -> bool:
        """``False``: it is being written, and is read again at the next look."""
        is_whole = line.endswith(b"\n")
        is_long = len(line) > _LINE_BYTES
        if not (is_whole or is_long or is_last or self._is_in_long_line):
            return False
        self._offset += len(line)
        if is_long and not self._is_in_long_line:
            self._say("a line of more than %d bytes in %s was left out" % (_LINE_BYTES, self._source))
        is_rest, self._is_in_long_line = self._is_in_long_line, not is_whole and (is_long or self._is_in_long_line)
        item = None if is_long or is_rest else _item(line)
        if item is not None:
            self._send_queue.add(item)
            if self.collector is not None:
                # A checkpoint's metrics belong to it: they draw no curve that printed lines would double.
                self.collector.reports_metrics |= item["kind"] != "checkpoint" and bool(item["data"].get("metrics"))
                self.collector.reports_step |= item["kind"] == "progress" and "step" in item["data"]
                if self.collector.sources is not None:
                    for name in _reported_names(item):
                        self.collector.sources.count_value("library", name)
        return True

    def _free_source(self) -> None:
        """Free the disk space of read lines. Truncating the file could lose a line that is appended in that moment."""
        end = self._offset // _BLOCK * _BLOCK
        try:
            with open(self._source, "r+b") as stream:
                syscalls.punch_hole(stream.fileno(), 0, end)
        except OSError:  # a file system that cannot: a report file is small compared with a job's output
            pass
        self._freed_to = end

    def _send_due(self, is_last: bool) -> None:
        while self._may_send():
            now = clock.monotonic()
            if now < self._retry_at:
                return
            if not self._in_flight:
                items = self._send_queue.take() if self._send_queue else []
                if not items and now - self._beat_at >= HEARTBEAT_S and not is_last:
                    items = [{"at": clock.stamp(clock.now()), "kind": "heartbeat", "data": {}}]
                if not items:
                    return
                for item in items:
                    item["seq"] = self._next_seq
                    self._next_seq += 1
                self._in_flight = items
            if not self._send():
                return

    def _send(self) -> bool:
        """Send the batch in flight; ``False``: not now."""
        self._request_since = clock.monotonic()
        try:
            status, answer = self._post({**self._replica, "items": self._in_flight})
        except (OSError, ValueError, LookupError):
            self._drop_connection()
            return self._back_off()
        finally:
            self._request_since = None
        if status == 200:
            self._failures = 0
            self._beat_at = clock.monotonic()
            acked = int(answer.get("acked", self._in_flight[-1]["seq"]))
            self._in_flight = [item for item in self._in_flight if item["seq"] > acked]
            return not self._in_flight or self._back_off()
        if status in (401, 403, 404, 410):
            self._is_refused = True
            self.has_attempt_ended = status == 410 and answer.get("code") == "attempt_ended"
            self._say("the platform takes no more reports of this replica (HTTP %d)" % status)
            return False
        if status in (400, 413, 422):
            return self._split_batch()
        return self._back_off()

    def _split_batch(self) -> bool:
        """The server rejects the batch: send its halves; replace a single item by a heartbeat."""
        if len(self._in_flight) > 1:
            back = self._in_flight[len(self._in_flight) // 2 :]
            self._in_flight = self._in_flight[: len(self._in_flight) // 2]
            done = self._send()
            self._in_flight += back
            return done
        if self._in_flight[0]["kind"] == "heartbeat":
            return self._back_off()
        # Numbers must stay without gaps: a heartbeat takes the place.
        self._in_flight[0].update(kind="heartbeat", data={})
        return True

    def _back_off(self) -> bool:
        """Back off; ``False``, as the answer of a failed request."""
        self._failures += 1
        self._retry_at = clock.monotonic() + min(_BACK_OFF_S, 0.5 * 2 ** min(self._failures, 8))
        return False

    def _post(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        from http.client import HTTPConnection, HTTPException, HTTPSConnection
        from urllib.parse import urlsplit

        parts = urlsplit(self._url)
        if self._connection is None:
            kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
            self._connection = kind(parts.hostname or "", parts.port, timeout=min(_CONNECT_S, self._timeout()))
            self._connection.connect()
        if self._connection.sock is not None:
            self._connection.sock.settimeout(self._timeout())
        headers = {"Authorization": "Bearer " + self._token, "Content-Type": "application/json"}
        data = json.dumps(body).encode()
        if len(data) >= _COMPRESS_FROM_BYTES:
            data = _compressed(data)
            headers["Content-Encoding"] = "gzip"
        try:
            self._connection.request("POST", parts.path, data, headers)
            response = self._connection.getresponse()
            text = response.read()
        except HTTPException as error:
            raise OSError(str(error)) from error
        answer = json.loads(text) if response.status in (200, 410) else {}
        return response.status, answer if isinstance(answer, dict) else {}

    def _timeout(self) -> float:
        if self._end_by is None:
            return _TIMEOUT_S
        return max(0.1, min(_DRAIN_TIMEOUT_S, max(self._flush_by, self._end_by) - clock.monotonic()))

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _report_url(api_url: str) -> str:
    return api_url.rstrip("/") + "/api/v1/runtime/report"


def _compressed(data: bytes) -> bytes:
    import zlib

    press = zlib.compressobj(1, zlib.DEFLATED, 31)  # gzip's frame
    return press.compress(data) + press.flush()


def _line(item: dict[str, Any]) -> bytes:
    return json.dumps({name: item[name] for name in ("at", "kind", "data")}).encode() + b"\n"


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
    return {"at": at if isinstance(at, str) else clock.stamp(clock.now()), "kind": kind, "data": data}
