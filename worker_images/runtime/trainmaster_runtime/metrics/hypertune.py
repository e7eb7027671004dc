"""The file of ``cloudml-hypertune``: the last 100 reports, one JSON object a line, rewritten each time.

It may be seen empty or cut inside of a line, and what has fallen out of its hundred is gone, so it is read whole and
what was seen already is known by its time and step.
"""

from __future__ import annotations

import json
import os

_LIMIT_BYTES = 256 * 1024
_KNOWN = 1000
_OWN_KEYS = ("timestamp", "trial", "global_step", "checkpoint_path")

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Dict, List, Tuple


class HypertuneFile:
    def __init__(self, path: str) -> None:
        self._path = path
        self._seen_as: Tuple[int, int] = (0, 0)
        self._known: Dict[Tuple[str, str, str], None] = {}

    def look(self) -> List[Tuple[str, int, float, float]]:
        """(name, step, time in seconds, value) of what is new."""
        try:
            with open(self._path, "rb") as stream:
                status = os.fstat(stream.fileno())
                seen_as = (status.st_mtime_ns, status.st_size)
                if seen_as == self._seen_as:
                    return []
                # The newest count: of a file that is larger than a hundred reports should be, the end.
                stream.seek(max(0, status.st_size - _LIMIT_BYTES))
                data = stream.read(_LIMIT_BYTES)
        except OSError:
            return []
        self._seen_as = seen_as
        found = []
        for line in data.splitlines():
            found += self._take(line)
        while len(self._known) > _KNOWN:
            del self._known[next(iter(self._known))]
        return found

    def _take(self, line: bytes) -> List[Tuple[str, int, float, float]]:
        try:
            entry = json.loads(line)
            time_s = float(entry["timestamp"])
            step = int(float(entry.get("global_step") or 0))
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
            return []  # the line that is just being written, or none of hypertune's
        found = []
        for name, value in entry.items():
            if name in _OWN_KEYS or not isinstance(value, (str, int, float)):
                continue
            key = (name, str(time_s), str(step))
            try:
                number = float(value)
            except (ValueError, OverflowError):
                continue
            if key not in self._known:
                self._known[key] = None
                found.append((name, step, time_s, number))
        return found
