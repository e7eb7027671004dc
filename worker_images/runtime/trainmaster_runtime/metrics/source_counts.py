"""Counts the values of each metric source, to explain a missing metric: names, values, lines and files."""

from __future__ import annotations

_NAMES = 8
_NAME_CHARS = 100

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict


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
