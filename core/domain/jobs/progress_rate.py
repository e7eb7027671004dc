"""How fast a training goes, and when it will be done: with how far that may be off.

A few samples of (time, step) are kept, denser towards now, and go with a replica's progress. The time that a step takes is
their weighted mean, in which what was lately counts more; how much the stretches between the samples differ tells how
uncertain it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

Sample: TypeAlias = list[float]  # seconds since 1970, steps

KEY: Final = "_pace"  # in a replica's progress; what begins with an underscore nobody outside sees
_SAMPLES: Final = 24
# Nearer samples say more about the report's rhythm than about the training's.
_SPACING_S: Final = 2.0
# The newest stretch counts once, and each one before it a seventh less.
_FADE: Final = 6 / 7
_FEW: Final = 3  # stretches; of fewer nobody can tell how they differ
_FEW_SPREAD: Final = 0.5
_SPREADS: Final = 2.0  # standard errors to either side: 19 times of 20, if stretches differ by chance


def with_sample(progress: Mapping[str, Any], at_s: float) -> list[Sample]:
    """The samples of ``progress``, with where it is now."""
    samples: list[Sample] = [list(sample) for sample in progress.get(KEY, [])]
    done = _done_and_all(progress)
    if done is None:
        return []
    step = done[0]
    if samples and (step < samples[-1][1] or at_s < samples[-1][0]):
        samples = []  # begun anew, or the clock was set back: what was before tells nothing
    if samples and step == samples[-1][1]:
        return samples
    if len(samples) > 1 and at_s - samples[-2][0] < _SPACING_S:
        samples[-1] = [at_s, step]
    else:
        samples.append([at_s, step])
    if len(samples) > _SAMPLES:
        half = len(samples) // 2
        samples = samples[:half:2] + samples[half:]
    return samples


def progress_view(progress: Mapping[str, Any], *, is_running: bool) -> dict[str, Any]:
    """``progress`` as users see it: with ``fraction``, ``steps_per_s`` and, while it runs, ``remaining_s``, ``done_at`` and
    the bounds that they lie in (``_low``, ``_high``; the high ones are left out where there is no telling).

    Times count from ``at``, so the answer stays the same while nothing changes.
    """
    told = {name: value for name, value in progress.items() if not name.startswith("_")}
    done = _done_and_all(progress)
    if done is None or done[1] is None:
        return told
    told["fraction"] = max(0.0, min(1.0, done[0] / done[1]))
    samples = progress.get(KEY, [])
    if len(samples) < 2 or not is_running:
        return told
    mean, error = _seconds_per_step(samples)
    if mean <= 0:
        return told
    if "step" in progress and progress.get("steps"):
        told["steps_per_s"] = 1 / mean
    left = max(0.0, done[1] - samples[-1][1])
    for name, seconds in (("", left * mean), ("_low", left * max(0.0, mean - error)), ("_high", left * (mean + error))):
        if seconds < timedelta.max.total_seconds() / 1000:
            told[f"remaining_s{name}"] = round(seconds, 3)
            at = _time(samples[-1][0] + seconds)
            if at is not None:
                told[f"done_at{name}"] = at
    return told


def _done_and_all(progress: Mapping[str, Any]) -> tuple[float, float | None] | None:
    """(done, all) in steps, or in epochs where only these are told with their number."""
    for name, whole in (("step", "steps"), ("epoch", "epochs")):
        done, all_ = progress.get(name), progress.get(whole)
        if done is not None and all_ is not None and all_ > 0:
            return float(done), float(all_)
    return (float(progress["step"]), None) if progress.get("step") is not None else None


def _seconds_per_step(samples: Sequence[Sample]) -> tuple[float, float]:
    """The weighted mean, and how far it may be off to either side."""
    stretches = [
        (after[0] - before[0], after[1] - before[1])
        for before, after in itertools.pairwise(samples)
        if after[1] > before[1] and after[0] > before[0]
    ]
    if not stretches:
        return 0.0, 0.0
    # By steps, so that a long stretch counts as what it is: the mean is time over steps.
    weights = [_FADE**age * steps for age, (_, steps) in zip(range(len(stretches) - 1, -1, -1), stretches, strict=True)]
    paces = [seconds / steps for seconds, steps in stretches]
    total = sum(weights)
    mean = sum(weight * pace for weight, pace in zip(weights, paces, strict=True)) / total
    if len(stretches) < _FEW:
        return mean, mean * _FEW_SPREAD
    variance = sum(weight * (pace - mean) ** 2 for weight, pace in zip(weights, paces, strict=True)) / total
    independent = total**2 / sum(weight**2 for weight in weights)
    return mean, _SPREADS * math.sqrt(variance / max(1.0, independent - 1))


def _time(seconds: float) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        return None  # after the last year that a date can have
