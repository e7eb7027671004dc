"""What is due for a study now, from its facts. Pure: values in, decisions out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from trainmaster.studies import Algorithm, Space, StudySpec

from core.domain.jobs.states import JobState
from core.domain.studies.budget import evaluate_budget
from core.domain.studies.curves import make_curve, step_of, thinned
from core.domain.studies.results import values_of
from core.domain.studies.states import StudyEvent, TrialState
from core.domain.studies.trials import text_of
from scheduler.control.studies.facts import RunningTrial, StudyFacts
from scheduler.control.studies.reported_metrics import ReportedMetrics
from scheduler.tuning import choose_algorithm, chosen_algorithm
from scheduler.tuning.propose import key_of
from scheduler.tuning.proposers import REPLACED_PROPOSER

# The last report of a replica that did not list its metric sources may still be on its way when the end is noticed.
METRIC_GRACE: Final = timedelta(seconds=10)
# In the memo of a point that is tried once more. Not a third time: the point itself may kill its programs.
RETRY_KEY: Final = "again"
# Points that are drawn ahead for clients that ask over REST, and for an algorithm that takes its time.
_PREFETCHED_POINTS: Final = 16
# This part of them may be taken before new ones are drawn, where no result has come.
_REFILL_FRACTION: Final = 4
_NO_GP: Final = "Its points are TPE's: GP needs torch for several metrics, which the control plane has not."
_GP_FAILED: Final = "GP could not draw some of its points; they are TPE's."
_FAILED: Final = "could not draw some of its points; others stand in their place."
_NOTHING_LEFT: Final = (
    "It went on from trial {}: where a script finds nothing left to train behind a checkpoint, let it report the "
    "metric of that checkpoint"
)
_BY_INDEX: Final = (Algorithm.GRID, Algorithm.QMC, Algorithm.RANDOM)


@dataclass(frozen=True, slots=True)
class TrialEnd:
    """The end of a trial; ``values``: its other columns."""

    number: int
    state: TrialState
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PointChoice:
    """Prefetched points: ``starting`` become trials now, ``remaining`` stay. ``slots``: how many new points may start
    in all.
    """

    starting: Sequence[Mapping[str, Any]]
    remaining: Sequence[Mapping[str, Any]]
    slots: int


@dataclass(frozen=True, slots=True)
class Prefetch:
    """How many points to draw ahead now, and how many are wanted in all.

    ``is_stale``: those that are there do not know the last results. They are a reserve then, behind the new ones.
    """

    count: int
    wanted: int
    is_stale: bool


def is_metric_pending(trial: RunningTrial, now: datetime, *, is_fully_reported: bool) -> bool:
    """Whether the last report of a trial without a result may still be on its way."""
    is_fresh = trial.finished_at is not None and now - trial.finished_at < METRIC_GRACE
    return is_fresh and not is_fully_reported


def trial_end(trial: RunningTrial, spec: StudySpec, reported: ReportedMetrics, missing_metric: str | None) -> TrialEnd:
    """What becomes of a trial whose job is over.

    Args:
        missing_metric: why it has no result, although its job has succeeded; ``None``: it has one.
    """
    result = reported.final(spec)
    first = spec.metrics[0].name
    has_values = values_of(result, [metric.name for metric in spec.metrics]) is not None
    is_early = trial.stop is not None and trial.stop.get("kind") == "early"
    sentence = str((trial.exit or {}).get("sentence", ""))
    match trial.job_state:
        case JobState.SUCCEEDED if missing_metric is None:
            state, reason = TrialState.SUCCEEDED, ""
        case JobState.SUCCEEDED:
            state, reason = TrialState.FAILED, missing_metric or ""
            if trial.memo.get("parent") is not None:
                reason += f". {_NOTHING_LEFT.format(trial.memo['parent'])}"
        case JobState.CANCELLED if is_early and has_values:
            state, reason = TrialState.STOPPED, str((trial.stop or {}).get("sentence", sentence))
        case JobState.CANCELLED:
            state, reason = TrialState.CANCELLED, sentence
        case _:
            state, reason = TrialState.FAILED, sentence
    if has_values and state.has_result:
        # Its best value counts; that the trial diverged later is worth a sentence all the same.
        reason = " ".join(text for text in (reason, reported.divergence(first)) if text)
    whole = make_curve(trial.number, reported.points.get(first, ()), is_over=state is TrialState.SUCCEEDED)
    curve, counted = thinned(whole), result.get(first)
    columns = {"steps": list(curve.steps), "values": list(curve.values), "counted": step_of(whole, counted)}
    return TrialEnd(
        trial.number,
        state,
        {
            "result": result if has_values else None,
            "curve": columns if curve else None,
            "reason": reason,
            "gpu_s": trial.gpu_s,
        },
    )


def end_without_points(facts: StudyFacts) -> tuple[str, StudyEvent] | None:
    """How the study ends where no point is left to draw, and no trial runs that could change that."""
    spec = facts.spec
    what = "every point of the space was tried"
    if facts.prior_results:
        what += ", by trials of the studies that it was warm-started from"
        what += ", too" if facts.spent.trial_count else ""
    if spec.population is not None:
        what = "its population has come to its end"
    elif spec.algorithm is not Algorithm.GRID and Space.of(spec).size is None:
        what = "chance found no point any more that satisfies the constraints"
    ended = evaluate_budget(spec.budget, facts.spent, exhausted=what)
    if ended.end is StudyEvent.FAIL and facts.prior_results and not facts.spent.trial_count:
        # The question what is best here has its answer.
        none = " No model is registered, since no trial of its own has run." if spec.winner is not None else ""
        return f"Nothing new to try: {what}. {_best_prior_result(facts)}{none}", StudyEvent.SUCCEED
    return None if ended.end is None else (as_sentence(ended.reason), ended.end)


def _best_prior_result(facts: StudyFacts) -> str:
    """The best result that warm-starting brought; of several metrics, by the first."""
    metrics = facts.spec.metrics
    best = min(facts.prior_results, key=lambda result: metrics[0].sign * result["values"][0])
    point = ", ".join(f"{name}={text_of(value)}" for name, value in best["parameters"].items())
    values = ", ".join(f"{metric.name} {value:.6g}" for metric, value in zip(metrics, best["values"], strict=True))
    return f"The best of those has {values}: {point}."


def choose_points(facts: StudyFacts, slots: int) -> PointChoice:
    """Which of the prefetched points start now, where ``slots`` new points may start."""
    prepared = facts.prepared
    count = prefetched_to_start(len(prepared), slots, facts.ended_count - facts.prepared_at, facts.spec.budget.parallel)
    if count >= min(len(prepared), slots):
        return PointChoice(prepared[:count], prepared[count:], slots)
    # The user's own points are as good as ever; of the others one starts, and the next pass draws the rest again.
    initial = [point for point in prepared if is_initial(point)]
    starting = initial[:slots] or prepared[:count]
    return PointChoice(starting, initial[len(starting) :], len(starting))


def prefetched_to_start(ready: int, room: int, missed: int, parallel: int) -> int:
    """How many prefetched points start now; the remaining slots are drawn again.

    All slots are filled while the points lack only a few results. Where many trials end together, as in rounds, one
    point starts at once so that no machine is idle, and the others wait for what these results teach.

    Args:
        ready: number of prefetched points. missed: results that came since they were drawn. parallel: parallel trials
        of the study.
    """
    most = min(ready, room)
    return most if missed <= max(1, parallel // 4) else min(1, most)


def prefetch(facts: StudyFacts, algorithm: Algorithm) -> Prefetch:
    """How many points to draw ahead, so that no client and no free slot waits for them.

    Points from before the last results are a reserve: the next client gets a point that knows the results. Drawn is one
    point for each result, as each client that tells a result asks for a point, and one more, so that no point of the
    reserve grows old. Drawing all of them again for each result would take longer than short trials do.
    """
    spec = facts.spec
    is_ask_tell = spec.template is None
    wanted = min(_PREFETCHED_POINTS, max(1, spec.budget.parallel) * (2 if is_ask_tell else 1))
    if spec.budget.trials is not None:
        wanted = min(wanted, spec.budget.trials - facts.trial_count)
    initial = sum(is_initial(point) for point in facts.prepared)
    is_stale = facts.prepared_at != facts.ended_count and algorithm not in _BY_INDEX
    lacking = wanted - len(facts.prepared)
    if is_stale:
        lacking = min(wanted - initial, max(lacking, facts.ended_count - facts.prepared_at + 1))
    elif is_ask_tell and lacking <= wanted // _REFILL_FRACTION:
        lacking = 0  # they would be drawn once more with the next result
    return Prefetch(lacking, wanted, is_stale)


def algorithm_of(spec: StudySpec) -> Algorithm:
    """The algorithm that draws the points: of ``auto`` the chosen one."""
    return chosen_algorithm(Space.of(spec), spec.algorithm, spec.goals, spec.budget.trials)


def auto_choice(spec: StudySpec) -> dict[str, str] | None:
    """Which algorithm ``auto`` is, and why; ``None``: the user has chosen. A larger budget may change it."""
    if spec.algorithm is not Algorithm.AUTO:
        return None
    choice = choose_algorithm(Space.of(spec), spec.algorithm, spec.goals, spec.budget.trials)
    return {"algorithm": choice.algorithm.value, "reason": choice.reason}


def note_on_points(facts: StudyFacts, *, has_torch: bool) -> str:
    """A sentence where another algorithm had to draw points. It stays in the note, though the trials concerned end."""
    spec = facts.spec
    if spec.algorithm is Algorithm.GP and len(spec.metrics) > 1 and not has_torch:
        return _NO_GP
    memos = [*(trial.memo for trial in facts.running), *(point["memo"] for point in facts.prepared)]
    failed = _GP_FAILED
    if spec.algorithm not in (Algorithm.GP, Algorithm.AUTO):
        failed = f"{spec.algorithm.value} {_FAILED}"
    return failed if failed in facts.note or any(REPLACED_PROPOSER in memo for memo in memos) else ""


def initial_points(facts: StudyFacts) -> Sequence[Mapping[str, Any]]:
    """The user's points that are tried first, without those of which warm-starting brought a result."""
    initial = facts.spec.initial
    if not facts.prior_results or facts.proposed >= len(initial):
        return initial
    tried = {key_of(result["parameters"]) for result in facts.prior_results}
    return [point for point in initial if key_of(point) not in tried]


def is_initial(point: Mapping[str, Any]) -> bool:
    """Whether a point comes before all drawn ones: the user's own points, and those whose trials were lost."""
    return bool(point["memo"].get("origin") == "initial" or RETRY_KEY in point["memo"])


def as_sentence(reason: str) -> str:
    text = f"{reason[:1].upper()}{reason[1:]}"
    return text if text.endswith(".") else f"{text}."
