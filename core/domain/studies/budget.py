"""The budget of a study: when it is over, how many trials may begin, and why it failed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from trainmaster.studies import Budget

from core.domain.studies.states import StudyEvent, TrialState

# Without a failure limit, a study fails after so many failed trials without a success.
HOPELESS_AFTER: Final = 5
# Key next to the spec's fields: the number of failed trials when the study was extended.
IGNORED_FAILURES: Final = "forgiven_failures"
# Key: when the study was paused; its time stands still meanwhile.
PAUSED_AT: Final = "paused_at"
# Key: the resolution of `auto`: {"algorithm", "reason"}. The control loop resolves it, because it knows the installed
# packages.
CHOSEN: Final = "chosen_algorithm"
# With sign, fraction and exponent: errors quote a trial's own values.
_NUMBER: Final = re.compile(r"[-+]?\d[\d_]*(?:\.\d*)?(?:[eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class BudgetUsage:
    """``trial_count``: sum of ``counts``, by state. ``gpu_s``: their GPU-seconds. ``errors``: of failed trials,
    newest last.

    ``ignored_failures``: failed trials from before the study was extended after a failure.
    """

    counts: Mapping[TrialState, int]
    elapsed: timedelta = timedelta()
    gpu_s: float = 0.0
    errors: Sequence[str] = ()
    ignored_failures: int = 0

    @property
    def trial_count(self) -> int:
        return sum(self.counts.values())

    @property
    def running(self) -> int:
        return self.counts.get(TrialState.RUNNING, 0)

    @property
    def with_result(self) -> int:
        return self.counts.get(TrialState.SUCCEEDED, 0) + self.counts.get(TrialState.STOPPED, 0)

    @property
    def failed(self) -> int:
        return self.counts.get(TrialState.FAILED, 0)


def resumed_start(started_at: datetime, paused_at: str | None, now: datetime) -> datetime:
    """The start of the study's time after a pause, shifted so that the pause does not count.

    ``paused_at``: ISO 8601; ``None``: unknown.
    """
    if paused_at is None:
        return started_at
    return started_at + max(timedelta(), now - datetime.fromisoformat(paused_at))


@dataclass(frozen=True, slots=True)
class BudgetOutcome:
    """``room``: trials that may begin now. ``end``: how the study ends, with ``reason``; ``is_cutting``: running trials
    are cancelled.
    """

    room: int
    end: StudyEvent | None = None
    reason: str = ""
    is_cutting: bool = False


def evaluate_budget(budget: Budget, spent: BudgetUsage, *, exhausted: str = "") -> BudgetOutcome:
    """What follows from the usage.

    Args:
        exhausted: why no trial can begin any more, whatever the budget allows; empty: one can.
    """
    limit = budget.failed_trials
    if limit is not None and spent.failed > limit:
        words = f"{spent.failed} trials failed, and the budget allows {limit}"
        return BudgetOutcome(0, StudyEvent.FAIL, f"{words}; {commonest(spent.errors)}", is_cutting=True)
    failed = spent.failed - spent.ignored_failures
    if limit is None and failed >= HOPELESS_AFTER and not spent.with_result:
        trials = f"{failed} trials since it was extended" if spent.ignored_failures else f"first {failed} trials"
        words = f"the {trials} all failed"
        # The newest errors come first: the causes of older ones may have been fixed.
        return BudgetOutcome(0, StudyEvent.FAIL, f"{words}; {commonest(spent.errors[-failed:])}", is_cutting=True)
    over, is_cutting = _over(budget, spent)
    over = over or exhausted
    if not over:
        left = budget.parallel - spent.running
        if budget.trials is not None:
            left = min(left, budget.trials - spent.trial_count)
        return BudgetOutcome(max(0, left))
    if spent.running and not is_cutting:
        return BudgetOutcome(0, None, over)
    if spent.with_result:
        return BudgetOutcome(0, StudyEvent.SUCCEED, over, is_cutting)
    # Cancelled trials may have reported values: only ended ones count.
    why = f"{over}, and no trial {'had ended with' if is_cutting else 'has'} a result"
    return BudgetOutcome(0, StudyEvent.FAIL, f"{why}; {commonest(spent.errors)}" if spent.errors else why, is_cutting)


def _over(budget: Budget, spent: BudgetUsage) -> tuple[str, bool]:
    """Which part of the budget is used up, empty for none; and whether running trials end with it."""
    if budget.max_time is not None and spent.elapsed.total_seconds() >= budget.max_time:
        return f"its time of {budget.max_time:g} s is over", True
    if budget.gpu_hours is not None and spent.gpu_s >= budget.gpu_hours * 3600:
        return f"its {budget.gpu_hours:g} GPU-hours are spent", True
    if budget.trials is not None and spent.trial_count >= budget.trials:
        return f"all {budget.trials} trials are done", False
    return "", False


def commonest(errors: Sequence[str]) -> str:
    """The most frequent error, with its count. Numbers in it are ignored: each trial has its own."""
    if not errors:
        return "none of them said why"
    alike = Counter(_without_numbers(error) for error in errors)
    (kind, count), *_ = alike.most_common(1)
    sentence = next(error for error in errors if _without_numbers(error) == kind)
    often = "it" if len(errors) == 1 else f"{count} of {len(errors)}"
    return f"{often} said: {sentence}"


def _without_numbers(sentence: str) -> str:
    return _NUMBER.sub("#", sentence)
