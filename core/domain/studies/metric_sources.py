"""What came on each road of a metric, as a trial's replicas counted it, and said in words where the metric is missing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

# In a replica's progress; nobody outside sees it.
KEY: Final = "_roads"

_NAMES: Final = 8
_NAMES_SHOWN: Final = 3
_NAME_CHARS: Final = 60
# As the runtime calls them, and as people do.
LIBRARY, HYPERTUNE, EVENTS, LOG, MATCHING = "library", "hypertune", "events", "log", "matching"
_FIELDS: Final = ("values", "name_count", "lines")


@dataclass(frozen=True, slots=True)
class MetricSource:
    """``names``: the first of ``name_count``; ``values`` in all, and of the log its ``lines``."""

    names: tuple[str, ...] = ()
    name_count: int = 0
    values: int = 0
    lines: int = 0


@dataclass(frozen=True, slots=True)
class MetricSources:
    """By road, of all replicas together. ``is_known``: one of them told at all; it does where it came to its end."""

    found: Mapping[str, MetricSource] = field(default_factory=dict)
    is_known: bool = False

    @classmethod
    def of(cls, progress: Sequence[Mapping[str, Any]]) -> MetricSources:
        """Of what :func:`kept` kept in the replicas' progress."""
        told = [one[KEY] for one in progress if KEY in one]
        found: dict[str, MetricSource] = {}
        for road in (LIBRARY, HYPERTUNE, EVENTS, LOG, MATCHING):
            parts = [one[road] for one in told if road in one]
            names = tuple(dict.fromkeys(name for part in parts for name in part["names"]))
            found[road] = MetricSource(
                names,
                max([len(names), *(part["name_count"] for part in parts)]),
                sum(part["values"] for part in parts),
                sum(part["lines"] for part in parts),
            )
        return cls(found, bool(told))

    def words(self, came: Collection[str], *, more: bool) -> str:
        """Each road with what it brought. ``came``: names of all that was kept; ``more``: there are others."""
        found, log = self.found, self.found[LOG]
        # Nobody counts what MLflow's client sent to the API: it is what came and no other road told.
        others = [name for name in came if not any(name[:_NAME_CHARS] in road.names for road in found.values())]
        is_all_known = not more and all(len(road.names) == road.name_count for road in found.values())
        mlflow = "nothing" if not (others or more) else _shown(others, len(others)) if is_all_known else "not known"
        return "; ".join(
            (
                f"training library: {_brought(found[LIBRARY])}",
                f"hypertune's file: {_brought(found[HYPERTUNE])}",
                f"MLflow: {mlflow}",
                f"TensorBoard's event files: {_brought(found[EVENTS])}",
                f"log: {found[MATCHING].lines:,} of {log.lines:,} lines matched"
                + (f", with {_shown(log.names, log.name_count)}" if log.names else ""),
            )
        )


def parse_sources(told: Any) -> dict[str, Any] | None:
    """What a replica told of its roads, bounded; ``None``: it is nothing of the kind."""
    if not isinstance(told, dict):
        return None
    found: dict[str, Any] = {}
    for road in (LIBRARY, HYPERTUNE, EVENTS, LOG, MATCHING):
        one = told.get(road)
        if isinstance(one, dict):
            names = one.get("names")
            names = [name[:_NAME_CHARS] for name in names if isinstance(name, str)] if isinstance(names, list) else []
            found[road] = {"names": names[:_NAMES], **{name: _whole(one.get(name)) for name in _FIELDS}}
    return found


def _whole(value: Any) -> int:
    return max(0, min(2**53, value)) if isinstance(value, int) and not isinstance(value, bool) else 0


def _brought(road: MetricSource) -> str:
    if not road.values:
        return "nothing"
    return f"{_shown(road.names, road.name_count)}, {road.values:,} value{'s' if road.values > 1 else ''}"


def _shown(names: Sequence[str], count: int) -> str:
    shown = ", ".join(f"`{name[:_NAME_CHARS]}`" for name in names[:_NAMES_SHOWN])
    left = count - min(len(names), _NAMES_SHOWN)
    return f"{shown} and {left} more" if left > 0 else shown
