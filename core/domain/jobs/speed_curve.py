"""Speed of an elastic job by its number of replicas: measured where it ran, extrapolated elsewhere.

Amdahl's law gives the shape: seconds per unit of work are ``serial + parallel / replicas``. Both terms are fitted to
the measurements by weighted least squares. A prior counts like a short measurement of its own, so that one measured
size suffices and a second one decides.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

# Amdahl's serial fraction where nothing is known: 8 replicas are 6.6 times, 16 are 11 times as fast as one.
SERIAL_FRACTION: Final = 0.03
# The prior weighs like a measurement of this length at twice the largest measured size.
_PRIOR_S: Final = 20.0
# Shorter measurements are noise: a program's first steps compile, warm caches and open connections.
LEAST_MEASURED_S: Final = 10.0
# Older measurements fade, since a program may get faster or slower. It bounds the weight of a size, too.
MOST_MEASURED_S: Final = 600.0
# After so long at fewer replicas a measurement of more is forgotten: a program that was slow there, as it had just
# begun or the network was busy, is tried there again.
FORGOTTEN_AFTER_S: Final = 1800.0
# An earlier job of the same name is evidence, but weaker than the job's own measurements.
_EARLIER_MOST_S: Final = 60.0
# A job no longer grows when the next replica would add less than this part of what its replicas do on average.
LEAST_EFFICIENCY: Final = 0.1


@dataclass(frozen=True, slots=True)
class SpeedPoint:
    """Mean speed with so many replicas. ``work_per_s``: in any unit; ``measured_s``: seconds of measurement;
    ``at_s``: its end, in seconds on a clock of all points of a job.
    """

    replicas: int
    work_per_s: float
    measured_s: float
    at_s: float = 0.0

    def with_work(self, work: float, seconds: float, at_s: float) -> SpeedPoint:
        """After another measurement, which ended at ``at_s``. Beyond :data:`MOST_MEASURED_S` earlier ones fade."""
        before_s = 0.0 if at_s - seconds - self.at_s > FORGOTTEN_AFTER_S else self.measured_s
        total_s = before_s + seconds
        mean = (self.work_per_s * before_s + work) / total_s if total_s > 0 else 0.0
        return SpeedPoint(self.replicas, mean, min(total_s, MOST_MEASURED_S), at_s)


@dataclass(frozen=True, slots=True)
class SpeedCurve:
    """``points``: measurements, ascending by replicas, each size once. Without any the curve is the prior, whose unit
    is the speed of one replica.
    """

    points: tuple[SpeedPoint, ...] = ()

    @classmethod
    def measured(cls, points: Iterable[SpeedPoint], earlier: Iterable[SpeedPoint] = ()) -> SpeedCurve:
        """The curve of the usable measurements. ``earlier``: of a job of the same name, used for other sizes.

        Earlier speeds are scaled to the job's own, as its data or batch may be of another size.
        """
        own = _remembered(_usable(points))
        before = tuple(
            replace(point, measured_s=min(point.measured_s, _EARLIER_MOST_S)) for point in _remembered(_usable(earlier))
        )
        if not own or not before:
            return cls(own or before)
        reference = cls(before)
        total_s = sum(point.measured_s for point in own)
        ratio = sum(point.measured_s * point.work_per_s / reference.speed(point.replicas) for point in own) / total_s
        sizes = {point.replicas for point in own}
        scaled = (
            replace(point, work_per_s=ratio * point.work_per_s) for point in before if point.replicas not in sizes
        )
        return cls(tuple(sorted((*own, *scaled), key=lambda point: point.replicas)))

    def speed(self, replicas: int) -> float:
        """Work per second; 0 without replicas. Between measured sizes it is interpolated."""
        if replicas <= 0:
            return 0.0
        points = self.points
        if not points:
            return 1 / _amdahl_s(1.0, SERIAL_FRACTION, replicas)
        at = bisect_left(points, replicas, key=lambda point: point.replicas)
        if 0 < at < len(points):
            return _between(points[at - 1], points[at], replicas)
        nearest = points[min(at, len(points) - 1)]
        serial, parallel = _fitted(points)
        speed = nearest.work_per_s * (serial + parallel / nearest.replicas) / (serial + parallel / replicas)
        if at == len(points) > 1:
            # Diminishing returns: further replicas add no more than the last measured ones did.
            before = points[-2]
            slope = (nearest.work_per_s - before.work_per_s) / (nearest.replicas - before.replicas)
            speed = min(speed, nearest.work_per_s + max(0.0, slope) * (replicas - nearest.replicas))
        return speed

    def gain(self, replicas: int) -> float:
        """By how much the next replica speeds the job up, as a fraction of the present speed; 0 if it does not.

        The mean on the way to a larger measured size, if that is more: a dip in between does not stop growth.
        """
        now = self.speed(replicas)
        if now <= 0:
            return 0.0
        sizes = [replicas + 1, *(point.replicas for point in self.points if point.replicas > replicas + 1)]
        return max(0.0, *((self.speed(size) / now - 1) / (size - replicas) for size in sizes))

    def efficiency(self, replicas: int) -> float:
        """What the next replica adds, relative to what the present ones do on average: 1 if speed is linear."""
        return self.gain(replicas) * replicas

    def is_saturated(self, replicas: int) -> bool:
        """Whether measurements at two sizes or more show that further replicas make the job hardly faster."""
        return len(self.points) > 1 and self.efficiency(replicas) < LEAST_EFFICIENCY


UNMEASURED: Final = SpeedCurve()


def _usable(points: Iterable[SpeedPoint]) -> tuple[SpeedPoint, ...]:
    usable = (p for p in points if p.measured_s >= LEAST_MEASURED_S and p.work_per_s > 0 and p.replicas > 0)
    return tuple(sorted(usable, key=lambda point: point.replicas))


def _remembered(points: tuple[SpeedPoint, ...]) -> tuple[SpeedPoint, ...]:
    """Without sizes larger than the latest one that were measured long before it."""
    latest = max(points, key=lambda point: point.at_s, default=None)
    return tuple(
        replace(point, at_s=0.0)  # of no more use
        for point in points
        if latest is None or point.replicas <= latest.replicas or latest.at_s - point.at_s <= FORGOTTEN_AFTER_S
    )


def _amdahl_s(single_s: float, serial_fraction: float, replicas: float) -> float:
    """Seconds per unit of work, of which one replica needs ``single_s``."""
    return single_s * (serial_fraction + (1 - serial_fraction) / replicas)


def _between(low: SpeedPoint, high: SpeedPoint, replicas: int) -> float:
    """By Amdahl's law through both. A straight line would hide most of what the first replicas after ``low`` add."""
    part = (1 / low.replicas - 1 / replicas) / (1 / low.replicas - 1 / high.replicas)
    return 1 / ((1 - part) / low.work_per_s + part / high.work_per_s)


def _fitted(points: Sequence[SpeedPoint]) -> tuple[float, float]:
    """The serial and the parallel seconds per unit of work; neither is negative, and not both are 0."""
    last = points[-1]
    far = 2 * last.replicas
    prior_s = _amdahl_s(1 / last.work_per_s, SERIAL_FRACTION, far) / _amdahl_s(1.0, SERIAL_FRACTION, last.replicas)
    # (1 / replicas, seconds per unit of work, weight): errors are relative to the speed.
    samples = [(1 / p.replicas, 1 / p.work_per_s, p.measured_s * p.work_per_s**2) for p in points]
    samples.append((1 / far, prior_s, _PRIOR_S / prior_s**2))
    total = sum(weight for _, _, weight in samples)
    mean_x = sum(weight * x for x, _, weight in samples) / total
    mean_y = sum(weight * y for _, y, weight in samples) / total
    spread = sum(weight * (x - mean_x) ** 2 for x, _, weight in samples)
    parallel = sum(weight * (x - mean_x) * (y - mean_y) for x, y, weight in samples) / spread
    if parallel <= 0:
        return mean_y, 0.0
    serial = mean_y - parallel * mean_x
    if serial < 0:
        return 0.0, 1.0  # better than linear is linear
    return serial, parallel


def growth_note(curve: SpeedCurve, role: str, least: int, most: int) -> str:
    """For users: beyond which size the job does not grow, and why; empty if nothing is measured against it."""
    size = next((size for size in range(least, most) if curve.is_saturated(size)), None)
    if size is None:
        return ""
    return (
        f"It does not grow beyond {size} {role}{'' if size == 1 else 's'}: by the measured speeds the next one would "
        f"add less than {LEAST_EFFICIENCY:.0%} of what each does."
    )
