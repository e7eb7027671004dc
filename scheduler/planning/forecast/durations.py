"""Run time prediction, learnt from finished jobs: by project, user, name, code and requested resources.

The simple equivalent: the quantiles of the run times of similar jobs that ran at least as long as this job has run
already. The additions make that robust with few samples:

- *Similar* is a chain from narrow to wide (`_levels`). Each level's samples count as many as they are, all wider
  samples
  together as one: with a single namesake half of the prediction is what this user's jobs do at large, with ten
  namesakes a tenth. (The predictive distribution of a hierarchical Dirichlet process with concentration 1, in which a
  sample counts at its narrowest level only.)
- Jobs that still run count, too, as censored samples: what has run for t lasts longer, so its weight goes to the
  samples beyond t (the redistribution of the Kaplan-Meier estimator). Otherwise a batch of long jobs would be expected
  to be as short as its user's earlier ones until the first of it ends.
- A sample stands for jobs of about its length: it is spread out in the logarithm, the wider the fewer samples there
  are
  (Silverman's bandwidth, where a spread of a factor of 1.6 counts as two prior samples).
- A job may run longer than all before it: with probability one in n + 4, and then typically as long again (a Pareto
  tail
  with exponent 1: what has lasted for t lasts for another t in half of all cases).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from core.domain.jobs.name_patterns import pattern_of
from scheduler.planning.model import Estimate

_SAMPLES: Final = 48  # the newest of a level; more would hardly move its quantiles
_FEWEST_UNNAMED: Final = 5  # no prediction from fewer jobs without a namesake
_CACHED: Final = 1000
_QUANTILES: Final = (0.1, 0.5, 0.9)
_PRIOR_SPREAD: Final = 0.5  # in the logarithm
_PRIOR_SAMPLES: Final = 2
_LEAST_SPREAD: Final = 0.02
# Centres of five equal parts of a normal distribution's mass.
_NORMAL: Final = np.array([-1.2816, -0.5244, 0.0, 0.5244, 1.2816])
_PARETO: Final = 1 / (1 - np.array([0.1, 0.3, 0.5, 0.7, 0.9]))
_LONGER_THAN_ALL: Final = 4  # probability 1 / (n + this)
_SHORTEST_S: Final = 1.0
# A training's report of its own progress is not more exact than this.
_LEAST_DOUBT: Final = 0.05

_Numbers = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class JobTraits:
    """The traits that define similar jobs. ``code``: the archive's digest, or the command, or empty. ``shape``: of its
    gang.
    """

    project: str
    user: str
    name: str
    code: str = ""
    shape: str = ""


@dataclass(frozen=True, slots=True)
class UnfinishedRun:
    """A job that still runs: the time for which it has held resources, over all attempts."""

    traits: JobTraits
    ran_s: float


@dataclass(frozen=True, slots=True)
class PastRun:
    """A finished job, however it ended: its total time of holding resources, over all attempts.

    ``is_cut_off``: ended by its own ``max_run_time``, or by a preemption after which it never resumed: a censored
    sample.
    """

    traits: JobTraits
    ran_s: float
    ended_at: datetime
    is_cut_off: bool = False


@dataclass(frozen=True, slots=True)
class _Known:
    """Distribution of the run times of similar jobs: ascending times, and the probability mass at each."""

    at_s: _Numbers
    weights: _Numbers
    source: str


class DurationModel:
    """The predictor. Reading the history takes milliseconds per thousand jobs; an estimate takes microseconds.

    Independent of the order of the history. ``unfinished``: what running jobs have run so far.
    """

    def __init__(self, history: Iterable[PastRun], unfinished: Iterable[UnfinishedRun] = ()) -> None:
        self._levels: dict[tuple[str, ...], list[PastRun]] = defaultdict(list)
        self._unfinished: dict[tuple[str, ...], list[UnfinishedRun]] = defaultdict(list)
        for run in sorted(unfinished, key=lambda run: run.ran_s, reverse=True):
            for key, _ in _levels(run.traits):
                if len(self._unfinished[key]) < _SAMPLES:
                    self._unfinished[key].append(run)
        # Newest first; ties in an order that does not depend on the input's.
        for past in sorted(history, key=_newest_last, reverse=True):
            for key, _ in _levels(past.traits):
                level = self._levels[key]
                if len(level) < _SAMPLES:
                    level.append(past)
        self._cache: dict[JobTraits, _Known | None] = {}

    def estimate(
        self, traits: JobTraits, *, ran_s: float = 0.0, max_run_time_s: float | None = None
    ) -> Estimate | None:
        """Remaining run time of a job that has run for ``ran_s`` seconds; ``None`` if nothing is known of similar jobs.

        Args:
            max_run_time_s: the job is stopped after this time in any case.
        """
        alike = replace(traits, name=pattern_of(traits.name))
        if alike not in self._cache:
            if len(self._cache) >= _CACHED:
                self._cache.clear()
            self._cache[alike] = self._learn(traits)
        known = self._cache[alike]
        if known is None:
            return None
        early, likely, late = (max(0.0, total - ran_s) for total in _quantiles(known, ran_s))
        if max_run_time_s is not None:
            left = max(0.0, max_run_time_s - ran_s)
            early, likely, late = min(early, left), min(likely, left), min(late, left)
        return Estimate(likely, early, late, known.source)

    def _learn(self, traits: JobTraits) -> _Known | None:
        levels: list[tuple[list[PastRun], list[UnfinishedRun], str]] = []
        used: set[int] = set()
        for key, words in _levels(traits):
            fresh = [past for past in self._levels.get(key, ()) if id(past) not in used]
            running = [run for run in self._unfinished.get(key, ()) if id(run) not in used]
            used.update(map(id, (*fresh, *running)))
            if fresh or running:
                levels.append((fresh, running, words))
        named = sum(len(fresh) for fresh, _, words in levels if words.startswith("named"))
        count = sum(len(fresh) for fresh, _, _ in levels)
        if not named and count < _FEWEST_UNNAMED:
            return None
        atoms: list[_Numbers] = []
        weights: list[_Numbers] = []
        censored: list[tuple[float, float]] = []  # time and weight of each running job
        left = 1.0
        for number, (fresh, running, _) in enumerate(levels):
            samples = len(fresh) + len(running)
            is_widest = number == len(levels) - 1
            share = left if is_widest else left * samples / (samples + 1)
            if fresh:
                spread = _spread_out(fresh)
                atoms.append(spread)
                weights.append(np.full(len(spread), share * len(fresh) / samples / len(spread)))
            censored += [(run.ran_s, share / samples) for run in running]
            left -= share
        ends_s = [past.ran_s for fresh, _, _ in levels for past in fresh]
        longest = max(*ends_s, *(ran_s for ran_s, _ in censored), _SHORTEST_S)
        beyond = 1 / (count + _LONGER_THAN_ALL)
        weights = [weight * (1 - beyond) for weight in weights]
        atoms.append(longest * _PARETO)
        weights.append(np.full(len(_PARETO), beyond / len(_PARETO)))
        at_s, weight = np.concatenate(atoms), np.concatenate(weights)
        for ran_s, own in sorted(censored):
            later = at_s > ran_s
            weight[later] *= 1 + own * (1 - beyond) / float(weight[later].sum())
        order = np.argsort(at_s, kind="stable")
        widths = [(len(fresh), words) for fresh, _, words in levels if fresh]
        many, words = (named, f"named {pattern_of(traits.name)}") if named else widths[0]
        return _Known(at_s[order], weight[order], f"{many} finished {'job' if many == 1 else 'jobs'} {words}")


def _newest_last(past: PastRun) -> tuple[object, ...]:
    traits = past.traits
    return (
        past.ended_at,
        past.ran_s,
        past.is_cut_off,
        traits.name,
        traits.user,
        traits.project,
        traits.code,
        traits.shape,
    )


def _levels(traits: JobTraits) -> Iterator[tuple[tuple[str, ...], str]]:
    """Keys from narrow to wide, each with a phrase for the jobs that it covers."""
    project, user, code, shape = traits.project, traits.user, traits.code, traits.shape
    name = pattern_of(traits.name)
    named = f"named {name}"
    yield ("code and shape", project, user, name, code, shape), named
    yield ("code", project, user, name, code), named
    yield ("name", project, user, name), named
    yield ("anybody's", project, name), named
    yield ("shape", project, user, shape), f"of {user} that ask for the same"
    yield ("user", project, user), f"of {user}"
    yield ("project", project), f"of project {project}"


def _spread_out(samples: Sequence[PastRun]) -> _Numbers:
    logs = np.log([max(past.ran_s, _SHORTEST_S) for past in samples])
    count = len(logs)
    quarter, three_quarters = np.quantile(logs, (0.25, 0.75))
    spread = min(float(np.std(logs)), float(three_quarters - quarter) / 1.34)
    variance = (_PRIOR_SAMPLES * _PRIOR_SPREAD**2 + (count - 1) * spread**2) / (_PRIOR_SAMPLES + count - 1)
    width = max(_LEAST_SPREAD, float(np.sqrt(variance)) * count**-0.2)
    is_cut_off = np.array([past.is_cut_off for past in samples])
    around = logs[:, None] + width * _NORMAL
    # A censored sample says only that the job would have run longer.
    around[is_cut_off] = logs[is_cut_off, None] + np.log(_PARETO)
    spread_out: _Numbers = np.exp(around).ravel()
    return spread_out


def _quantiles(known: _Known, ran_s: float) -> tuple[float, float, float]:
    """Quantiles of the total run time, given that it exceeds ``ran_s``."""
    first = int(np.searchsorted(known.at_s, ran_s, side="right"))
    at_s, weights = known.at_s[first:], known.weights[first:]
    if not len(at_s):  # longer than the whole history: as long again
        early, likely, late = (ran_s / (1 - q) for q in _QUANTILES)
        return early, likely, late
    reached = np.cumsum(weights)
    early, likely, late = (
        float(at_s[min(int(np.searchsorted(reached, q * reached[-1])), len(at_s) - 1)]) for q in _QUANTILES
    )
    return early, likely, late


def estimate_from_progress(progress: Mapping[str, Any], now: datetime) -> Estimate | None:
    """The estimate from a training's own progress report (``core.domain.jobs.progress_rate``).

    ``None`` if the report has no expected end.
    """
    if "done_at" not in progress:
        return None
    likely = max(0.0, (datetime.fromisoformat(progress["done_at"]) - now).total_seconds())
    low = max(0.0, (datetime.fromisoformat(progress.get("done_at_low", progress["done_at"])) - now).total_seconds())
    high = max(0.0, (datetime.fromisoformat(progress.get("done_at_high", progress["done_at"])) - now).total_seconds())
    early, late = min(low, likely * (1 - _LEAST_DOUBT)), max(high, likely * (1 + _LEAST_DOUBT))
    return Estimate(likely, early, late, "its own progress")


def capped(estimate: Estimate | None, left_s: float | None) -> Estimate | None:
    """``estimate`` of a job that is stopped after ``left_s`` seconds in any case (``None``: it is not)."""
    if estimate is None or left_s is None or estimate.late_s <= left_s:
        return estimate
    left_s = max(0.0, left_s)
    return replace(
        estimate,
        likely_s=min(estimate.likely_s, left_s),
        early_s=min(estimate.early_s, left_s),
        late_s=min(estimate.late_s, left_s),
    )
