"""Training speed and estimated time of completion, with confidence bounds.

A few samples of (time, step), denser towards now, are stored with a replica's progress. The time per step is their
weighted mean, in which recent intervals weigh more; the variance of the intervals gives the bounds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

Sample: TypeAlias = list[float]  # seconds since 1970, steps

KEY: Final = "_pace"  # in a replica's progress; keys with an underscore are internal
_SAMPLES: Final = 24
# Closer samples would measure the report interval, not the training.
_SPACING_S: Final = 2.0
# The newest interval has weight 1, each one before it a seventh less.
_FADE: Final = 6 / 7
_FEW: Final = 3  # intervals; fewer give no variance
_FEW_SPREAD: Final = 0.5
_SPREADS: Final = 2.0  # standard errors to either side: 95 %, if intervals vary at random


def with_sample(progress: Mapping[str, Any], at_s: float) -> list[Sample]:
    """The samples of ``progress``, with its current position."""
    samples: list[Sample] = [list(sample) for sample in progress.get(KEY, [])]
    done = _done_and_all(progress)
    if done is None:
        return []
    step = done[0]
    if samples and (step < samples[-1][1] or at_s < samples[-1][0]):
        samples = []  # restarted, or the clock was set back: earlier samples are meaningless
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
    """``progress`` as users see it: with ``fraction``, ``steps_per_s`` and, while running, ``remaining_s``, ``done_at``
    and their bounds (``_low``, ``_high``; upper bounds are left out if they cannot be estimated).

    Times are relative to ``at``, so that the answer does not change while nothing happens.
    """
    view = {name: value for name, value in progress.items() if not name.startswith("_")}
    done = _done_and_all(progress)
    if done is None or done[1] is None:
        return view
    view["fraction"] = max(0.0, min(1.0, done[0] / done[1]))
    samples = progress.get(KEY, [])
    if len(samples) < 2 or not is_running:
        return view
    mean, error = _seconds_per_step(samples)
    if mean <= 0:
        return view
    if "step" in progress and progress.get("steps"):
        view["steps_per_s"] = 1 / mean
    left = max(0.0, done[1] - samples[-1][1])
    for name, seconds in (("", left * mean), ("_low", left * max(0.0, mean - error)), ("_high", left * (mean + error))):
        if seconds < timedelta.max.total_seconds() / 1000:
            view[f"remaining_s{name}"] = round(seconds, 3)
            at = _time(samples[-1][0] + seconds)
            if at is not None:
                view[f"done_at{name}"] = at
    return view


def _done_and_all(progress: Mapping[str, Any]) -> tuple[float, float | None] | None:
    """(done, total) in steps, or in epochs if only these are reported with their total."""
    for name, whole in (("step", "steps"), ("epoch", "epochs")):
        done, all_ = progress.get(name), progress.get(whole)
        if done is not None and all_ is not None and all_ > 0:
            return float(done), float(all_)
    return (float(progress["step"]), None) if progress.get("step") is not None else None


def _seconds_per_step(samples: Sequence[Sample]) -> tuple[float, float]:
    """The weighted mean, and the half-width of its confidence interval."""
    stretches = [
        (after[0] - before[0], after[1] - before[1])
        for before, after in itertools.pairwise(samples)
        if after[1] > before[1] and after[0] > before[0]
    ]
    if not stretches:
        return 0.0, 0.0
    # Weighted by steps: the mean is time over steps, so that long intervals weigh more.
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
        return None  # beyond the largest date
