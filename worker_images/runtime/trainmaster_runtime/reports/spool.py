"""Spool of unsent reports: a file in the replica's output, which the platform reads before it records the attempt's
end.

A container holds its node's resources, so none stays until the API is back; and what is written while the job
still runs outlives its node. The file's lines:

- ``{"role", "index", "generation", "first_seq"}``;
- an item of a report each, without its number: the first has ``first_seq``, the next one more;
- HMAC-SHA256 of all before in hex, by the attempt's token, which stands nowhere in it: the output may be writable for
  other jobs too, and what they write is nothing that this one reports.
"""

from __future__ import annotations

import json
import os
from itertools import chain

from trainmaster_runtime import clock

_FOLDER = "/.trainmaster/reports"
_SAVE_EVERY_S = 30.0  # while the job runs and the API is away,
_AWAY_FAILURES = 3  # as so many failures in a row say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from trainmaster_runtime.order import RuntimeOrder
    from trainmaster_runtime.reports.batch_sender import BatchSender
    from trainmaster_runtime.reports.send_queue import SendQueue


class SpoolFile:
    """The file ``path``; it exists only while there are unsent reports."""

    def __init__(self, path: str, token: str) -> None:
        self.path = path
        self._token = token
        self.is_there = False

    def write(self, head: dict[str, Any], pieces: Iterable[bytes]) -> None:
        """Replace it, whole or not at all. ``pieces``: of its lines. Raises ``OSError``."""
        import hmac  # of the few that are cut off alone

        digest = hmac.new(self._token.encode(), digestmod="sha256")
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        draft = self.path + ".part"
        with open(draft, "wb") as stream:
            for piece in chain([json.dumps(head).encode() + b"\n"], pieces):
                digest.update(piece)
                stream.write(piece)
            stream.write(digest.hexdigest().encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())
        os.rename(draft, self.path)
        self.is_there = True

    def drop(self) -> None:
        """All of it has been sent."""
        if self.is_there:
            try:
                os.unlink(self.path)
            except OSError:  # its numbers say that it was sent
                pass
            self.is_there = False


class SpoolSaver:
    """Saves the items that ``sender`` and ``queue`` still have."""

    def __init__(self, file: SpoolFile, sender: BatchSender, queue: SendQueue, replica: dict[str, Any]) -> None:
        self._file = file
        self._sender = sender
        self._queue = queue
        self._replica = replica
        self._saved_extent: tuple[int, ...] = ()
        self._save_at = 0.0

    def save_periodically(self) -> None:
        """While the API is away: save unsent items, so that a lost node does not lose them."""
        now = clock.monotonic()
        is_away = self._sender.failures >= _AWAY_FAILURES or self._sender.is_refused
        if is_away and now >= self._save_at:
            self.save()
            # A slow volume spends a twentieth of its time on it.
            self._save_at = now + max(_SAVE_EVERY_S, 20 * (clock.monotonic() - now))
        elif not is_away and not self._sender.has_unsent:
            self._file.drop()

    def save(self) -> Exception | None:
        """Save unsent items, if there are any and the attempt lives; returns why they cannot be saved."""
        in_flight = self._sender.in_flight
        has_reports = self._queue or any(item["kind"] != "heartbeat" for item in in_flight)
        if self._sender.has_attempt_ended or not has_reports:
            self._file.drop()
            return None
        first_seq = in_flight[0]["seq"] if in_flight else self._sender.next_seq
        extent = (first_seq, self._sender.next_seq, *self._queue.extent)
        if self._file.is_there and extent == self._saved_extent:
            return None
        lines = [_line(item) for item in in_flight]
        try:
            self._file.write({**self._replica, "first_seq": first_seq}, chain(lines, self._queue.lines()))
        except (OSError, ImportError) as error:  # not all of the standard library is in every image
            return error
        self._saved_extent = extent
        return None


def _line(item: dict[str, Any]) -> bytes:
    return json.dumps({name: item[name] for name in ("at", "kind", "data")}).encode() + b"\n"


def spool_file_of(order: RuntimeOrder, output: str | None, token: str) -> SpoolFile | None:
    """The spool file of ``order``'s replica; ``None`` without an output."""
    if output is None:
        return None
    start = "%s-%d.%d" % (order.role, order.index, order.generation)
    return SpoolFile("%s%s/%s/%d/%s" % (output, _FOLDER, order.job_id, order.attempt_number, start), token)
