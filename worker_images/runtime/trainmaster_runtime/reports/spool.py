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

_FOLDER = "/.trainmaster/reports"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from trainmaster_runtime.order import RuntimeOrder


class SpoolFile:
    """The file ``path``; it exists only while there are unsent reports."""

    def __init__(self, path: str, token: str) -> None:
        self.path = path
        self._token = token
        self.is_there = False

    def write(self, head: dict[str, Any], pieces: Iterable[bytes]) -> None:
        """Replace it, whole or not at all. ``pieces``: of its lines. Raises ``OSError``."""
        import hmac  # of the few that are cut off alone

        code = hmac.new(self._token.encode(), digestmod="sha256")
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        draft = self.path + ".part"
        with open(draft, "wb") as stream:
            for piece in chain([json.dumps(head).encode() + b"\n"], pieces):
                code.update(piece)
                stream.write(piece)
            stream.write(code.hexdigest().encode() + b"\n")
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


def spool_file_of(order: RuntimeOrder, output: str | None, token: str) -> SpoolFile | None:
    """The spool file of ``order``'s replica; ``None`` without an output."""
    if output is None:
        return None
    start = "%s-%d.%d" % (order.role, order.index, order.generation)
    return SpoolFile("%s%s/%s/%d/%s" % (output, _FOLDER, order.job_id, order.attempt_number, start), token)
