"""Retention rules of checkpoints."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """A checkpoint stays if any criterion selects it; ``None``: no such criterion. Without any criterion all stay."""

    last: int | None = None
    best: int | None = None
    metric: str | None = None
    mode: Literal["min", "max"] = "min"
    every: int | None = None

    @property
    def is_empty(self) -> bool:
        return self.last is None and self.best is None and self.every is None

    def to_json(self) -> dict[str, Any]:
        return {"last": self.last, "best": self.best, "metric": self.metric, "mode": self.mode, "every": self.every}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> RetentionRule:
        mode: Literal["min", "max"] = "max" if data.get("mode") == "max" else "min"
        return cls(data.get("last"), data.get("best"), data.get("metric"), mode, data.get("every"))


@dataclass(frozen=True, slots=True)
class RetentionCandidate:
    """A complete checkpoint."""

    path: str
    step: int | None
    at: datetime
    metrics: Mapping[str, Any] = field(default_factory=dict)


def checkpoints_to_delete(
    rule: RetentionRule, complete: Sequence[RetentionCandidate], protected: Collection[str]
) -> list[RetentionCandidate]:
    """Checkpoints that ``rule`` does not retain, oldest first; never the newest, nor ``protected`` paths.

    Newest is the largest step; checkpoints without a step sort before all with one, by time. Checkpoints without a
    numeric metric are not among the best; if no checkpoint has the metric, ``best`` deletes none.
    """
    if rule.is_empty or not complete:
        return []
    ordered = sorted(complete, key=_age)
    stay = {ordered[-1].path, *protected}
    if rule.last is not None:
        stay |= {candidate.path for candidate in ordered[-rule.last :]}
    if rule.every is not None:
        stay |= {
            candidate.path for candidate in ordered if candidate.step is not None and candidate.step % rule.every == 0
        }
    if rule.best is not None:
        best = _best_first(ordered, rule.metric or "", rule.mode)
        if not best:
            return []
        stay |= {candidate.path for candidate in best[: rule.best]}
    return [candidate for candidate in ordered if candidate.path not in stay]


def _age(candidate: RetentionCandidate) -> tuple[bool, int, datetime, str]:
    return (candidate.step is not None, candidate.step or 0, candidate.at, candidate.path)


def _best_first(ordered: Sequence[RetentionCandidate], metric: str, mode: str) -> list[RetentionCandidate]:
    valued = []
    for age, candidate in enumerate(ordered):
        value = candidate.metrics.get(metric)
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            valued.append((value if mode == "min" else -value, -age, candidate))
    return [candidate for _, _, candidate in sorted(valued, key=lambda item: item[:2])]
