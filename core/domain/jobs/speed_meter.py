"""Steps per second of an elastic job, attributed to the number of replicas with which it ran them. Pure.

The reports of rank 0 count. Its state is part of the replica's progress, so that no other row is read or written for
a report that measures nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

KEY: Final = "_meter"  # in a replica's progress; keys with an underscore are internal
# After a change of the world: until processes have it, have met again and have warmed up.
_SETTLE_S: Final = 10.0
# A measurement is written this often at most.
_EVERY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class SpeedMeasurement:
    replicas: int
    steps: float
    seconds: float


def meter_of(progress: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The state of the present world, ``None`` before its first report."""
    meter = progress.get(KEY)
    return meter if isinstance(meter, Mapping) else None


def is_current(meter: Mapping[str, Any], world: tuple[int, int]) -> bool:
    """Whether ``meter`` is of this world. ``world``: its number, and the start of the replica."""
    return [meter["world"], meter["start"]] == list(world)


def new_meter(world: tuple[int, int], replicas: int, at_s: float) -> dict[str, Any]:
    """A meter that measures once the world has settled."""
    return {"world": world[0], "start": world[1], "replicas": replicas, "settles_s": at_s + _SETTLE_S}


def advance_meter(meter: Mapping[str, Any], step: float, at_s: float) -> tuple[dict[str, Any], SpeedMeasurement | None]:
    """The meter after a report of ``step`` at ``at_s``, and what it has measured since the last measurement."""
    moved = dict(meter)
    if at_s < meter["settles_s"]:
        return moved, None
    if "at_s" not in meter or step < meter["step"] or at_s < meter["at_s"]:
        return {**moved, "at_s": at_s, "step": step}, None  # the first report, or the program began again
    seconds, steps = at_s - meter["at_s"], step - meter["step"]
    if seconds < _EVERY_S or steps <= 0:
        return moved, None
    return {**moved, "at_s": at_s, "step": step}, SpeedMeasurement(int(meter["replicas"]), steps, seconds)
