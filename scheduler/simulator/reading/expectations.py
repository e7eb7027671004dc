"""The `expect` lines of a scenario, as they are written; :mod:`scheduler.simulator.expectations` checks them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from scheduler.simulator.errors import ScenarioError

# The options that each kind of line takes besides its own value.
_OPTIONS: Final[Mapping[str, set[str]]] = {
    "started": {"by", "at", "after", "nodes"},
    "waiting": {"at", "code", "says"},
    "order": set(),
    "beside": {"spread"},
    "free": {"gpus", "at"},
    "nodes_of": {"count"},
    "racks_of": {"count"},
    "model_of": {"is"},
    "max_wait": set(),
    "finished": set(),
    "utilisation": set(),
}
_OF_A_JOB = frozenset({"started", "waiting", "beside", "nodes_of", "racks_of", "model_of"})


@dataclass(frozen=True, slots=True)
class Expectation:
    """``kind``: the keyword of the line, such as ``started``; ``line``: all of it."""

    kind: str
    line: Mapping[str, Any]

    def __str__(self) -> str:
        return ", ".join(f"{key}: {value}" for key, value in self.line.items())


def parse_expectations(lines: Any, jobs: frozenset[str], nodes: frozenset[str]) -> tuple[Expectation, ...]:
    """Raises :class:`ScenarioError` for an unknown keyword, job or node."""
    made: list[Expectation] = []
    for position, line in enumerate(lines):
        where = f"expect[{position}]"
        if not isinstance(line, Mapping):
            raise ScenarioError(f"{where}: is a mapping such as {{started: big, by: 2h}}")
        kind = next((key for key in line if key in _OPTIONS), None)
        if kind is None:
            raise ScenarioError(f"{where}: has none of the words {', '.join(sorted(_OPTIONS))}")
        unknown = set(line) - {kind} - _OPTIONS[kind]
        if unknown:
            raise ScenarioError(f"{where}: {kind} does not take {', '.join(sorted(map(str, unknown)))}")
        value = line[kind]
        named = value if isinstance(value, list) else [value]
        if kind in _OF_A_JOB and named[0] not in jobs:
            raise ScenarioError(f"{where}: there is no job {named[0]!r}")
        if kind == "order" and not set(named) <= jobs:
            raise ScenarioError(f"{where}: there is no job {', '.join(sorted(set(named) - jobs))}")
        if kind == "free" and value not in nodes:
            raise ScenarioError(f"{where}: there is no node {value!r}")
        made.append(Expectation(kind, dict(line)))
    return tuple(made)
