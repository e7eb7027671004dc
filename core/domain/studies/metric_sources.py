"""What each metric source of a trial delivered, as its replicas counted it, and a message for a missing metric."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

# Keys in a replica's progress; internal.
KEY: Final = "_metric_sources"
SUGGESTIONS_KEY: Final = "_metric_suggestions"

_SUGGESTIONS: Final = 3
_SUGGESTION_CHARS: Final = 200

_NAMES: Final = 8
_NAMES_SHOWN: Final = 3
_NAME_CHARS: Final = 60
# The runtime's names of the sources.
LIBRARY, HYPERTUNE, EVENTS, LOG, MATCHING = "library", "hypertune", "events", "log", "matching"
_FIELDS: Final = ("values", "name_count", "lines")


@dataclass(frozen=True, slots=True)
class MetricSource:
    """``names``: the first of ``name_count``; ``values``: total number; ``lines``: number of log lines."""

    names: tuple[str, ...] = ()
    name_count: int = 0
    values: int = 0
    lines: int = 0


@dataclass(frozen=True, slots=True)
class MetricSources:
    """By source, of all replicas together. ``is_known``: a replica reported them, which it does at its end."""

    by_source: Mapping[str, MetricSource] = field(default_factory=dict)
    is_known: bool = False

    @classmethod
    def of(cls, progress: Sequence[Mapping[str, Any]]) -> MetricSources:
        """From what :func:`parse_sources` stored in the replicas' progress."""
        reported = [report[KEY] for report in progress if KEY in report]
        sources: dict[str, MetricSource] = {}
        for source in (LIBRARY, HYPERTUNE, EVENTS, LOG, MATCHING):
            parts = [report[source] for report in reported if source in report]
            names = tuple(dict.fromkeys(name for part in parts for name in part["names"]))
            sources[source] = MetricSource(
                names,
                max([len(names), *(part["name_count"] for part in parts)]),
                sum(part["values"] for part in parts),
                sum(part["lines"] for part in parts),
            )
        return cls(sources, bool(reported))

    def words(self, stored: Collection[str], *, more: bool) -> str:
        """Each source with what it delivered. ``stored``: names of the stored metrics; ``more``: there are others."""
        by_source, log = self.by_source, self.by_source[LOG]
        # MLflow's client sends to the API, which does not count: its metrics are the stored ones that no other source
        # reported.
        others = [
            name for name in stored if not any(name[:_NAME_CHARS] in source.names for source in by_source.values())
        ]
        is_all_known = not more and all(len(source.names) == source.name_count for source in by_source.values())
        mlflow = "nothing" if not (others or more) else _shown(others, len(others)) if is_all_known else "not known"
        return "; ".join(
            (
                f"training library: {_brought(by_source[LIBRARY])}",
                f"hypertune's file: {_brought(by_source[HYPERTUNE])}",
                f"MLflow: {mlflow}",
                f"TensorBoard's event files: {_brought(by_source[EVENTS])}",
                f"log: {by_source[MATCHING].lines:,} of {log.lines:,} lines matched"
                + (f", with {_shown(log.names, log.name_count)}" if log.names else ""),
            )
        )


def parse_sources(reported: Any) -> dict[str, Any] | None:
    """A replica's report of its metric sources, bounded; ``None``: malformed."""
    if not isinstance(reported, dict):
        return None
    by_source: dict[str, Any] = {}
    for source in (LIBRARY, HYPERTUNE, EVENTS, LOG, MATCHING):
        part = reported.get(source)
        if isinstance(part, dict):
            names = part.get("names")
            names = [name[:_NAME_CHARS] for name in names if isinstance(name, str)] if isinstance(names, list) else []
            by_source[source] = {"names": names[:_NAMES], **{name: _whole(part.get(name)) for name in _FIELDS}}
    return by_source


def parse_suggestions(reported: Any) -> list[dict[str, str]]:
    """A replica's lines that look like metrics, each with a pattern that reads it; bounded, without malformed ones."""
    suggestions = []
    for entry in reported[:_SUGGESTIONS] if isinstance(reported, list) else ():
        texts = [entry.get(name) for name in ("line", "pattern")] if isinstance(entry, dict) else [None]
        if all(isinstance(text, str) and text for text in texts):
            line, pattern = (str(text).replace("\0", "")[:_SUGGESTION_CHARS] for text in texts)
            suggestions.append({"line": line, "pattern": pattern})
    return suggestions


def _whole(value: Any) -> int:
    return max(0, min(2**53, value)) if isinstance(value, int) and not isinstance(value, bool) else 0


def _brought(source: MetricSource) -> str:
    if not source.values:
        return "nothing"
    return f"{_shown(source.names, source.name_count)}, {source.values:,} value{'s' if source.values > 1 else ''}"


def _shown(names: Sequence[str], count: int) -> str:
    shown = ", ".join(f"`{name[:_NAME_CHARS]}`" for name in names[:_NAMES_SHOWN])
    left = count - min(len(names), _NAMES_SHOWN)
    return f"{shown} and {left} more" if left > 0 else shown
