"""Optuna's samplers on an in-memory study that is rebuilt from the known trials for each request, and
its evaluator of parameter importance.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState
from trainmaster.studies import Algorithm, Goal, Parameter, ParameterType, Scale, Space
from trainmaster.studies.space import bounds

from scheduler.tuning.request import ObservedTrial, Proposal, ProposalRequest, startup_trials, thinned

optuna.logging.set_verbosity(optuna.logging.ERROR)

# Longer histories are thinned to the best and the newest: TPE calls at most 25 trials good, and GP's cost grows with
# the cube.
_HISTORY_LIMIT: Final[Mapping[Algorithm, int]] = {Algorithm.TPE: 300, Algorithm.GP: 200, Algorithm.CMA_ES: 2_000}

_WHENEVER: Final = datetime(2000, 1, 1, tzinfo=UTC)  # no sampler uses trial times
# For the importance of a parameter.
_MIN_RESULTS: Final = 10
# Larger studies are sampled evenly: the answer changes little and takes a fraction of a second.
_RESULTS_LIMIT: Final = 2_000
# The evaluator needs at least five trials among the best.
_MIN_BEST: Final = 5
_QUANTILE: Final = 0.1


def sample_points(request: ProposalRequest, others: Sequence[Proposal] = ()) -> Iterator[Proposal]:
    """An endless stream of points; each counts as pending for the next ones.

    Args:
        others: points from another source, which count as pending too; read before each draw.
    """
    space = request.space
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for experimental arguments
        study = optuna.create_study(
            sampler=_sampler(request),
            directions=["minimize" if goal is Goal.MINIMIZE else "maximize" for goal in request.goals],
        )
    finished = thinned(request.finished, request.goals, _HISTORY_LIMIT[request.algorithm])
    distributions = distributions_of(space)
    templates = [frozen(space, distributions, trial.parameters, trial.values, trial.memo) for trial in finished]
    templates += [frozen(space, distributions, trial.parameters, None, trial.memo) for trial in request.pending]
    added = 0
    while True:
        templates += [frozen(space, distributions, point.parameters, None, point.memo) for point in others[added:]]
        added = len(others)
        for template in templates:  # what `add_trial` does, without validating our own data again
            study._storage.create_new_trial(study._study_id, template_trial=template)  # noqa: SLF001
        templates = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial = study.ask()
            drawn: dict[str, Any] = {}
            for name, parameter in space.parameters.items():
                if space.is_active(name, drawn):
                    # What suggest_float and the other public methods call.
                    inner = trial._suggest(name, distributions[name])  # noqa: SLF001
                    drawn[name] = _outer(parameter, inner)
        # Optuna 5 exposes them nowhere else.
        attrs = study._storage.get_trial_system_attrs(trial._trial_id)  # noqa: SLF001
        yield Proposal(drawn, _memo(attrs))


def _sampler(request: ProposalRequest) -> BaseSampler:
    # One seed per proposal number of the study: the same request has the same answer.
    seed = (request.seed * 1_000_003 + request.index) % 2**31
    startup = startup_trials(request.space)
    match request.algorithm:
        case Algorithm.GP:
            return GPSampler(seed=seed, n_startup_trials=startup, warn_independent_sampling=False)
        case Algorithm.CMA_ES:
            return CmaEsSampler(seed=seed, n_startup_trials=1, warn_independent_sampling=False)
        case _:
            # A pending trial counts as a bad one (constant liar), so that parallel trials explore different places.
            return TPESampler(
                seed=seed,
                n_startup_trials=startup,
                multivariate=True,
                group=request.space.is_conditional,
                constant_liar=True,
                warn_independent_sampling=False,
            )


class _Given(FrozenTrial):
    """A trial that nothing modifies: the storage's deep copies of it took longer than all of TPE."""

    def __deepcopy__(self, _: dict[int, Any]) -> FrozenTrial:
        return self


def distributions_of(space: Space) -> dict[str, BaseDistribution]:
    return {name: _distribution(parameter) for name, parameter in space.parameters.items()}


def frozen(
    space: Space,
    distributions: Mapping[str, BaseDistribution],
    point: Mapping[str, Any],
    values: Sequence[float] | None,
    memo: Mapping[str, Any],
) -> FrozenTrial:
    """A trial in Optuna's form; without ``values`` it is running. ``distributions``: those of the space."""
    names = [name for name in space.parameters if name in point]
    return _Given(
        number=-1,  # the storage numbers them
        trial_id=-1,
        state=TrialState.RUNNING if values is None else TrialState.COMPLETE,
        value=None,
        values=None if values is None else list(values),
        datetime_start=_WHENEVER,
        datetime_complete=None if values is None else _WHENEVER,
        params={name: _inner(space.parameters[name], point[name]) for name in names},
        distributions={name: distributions[name] for name in names},
        user_attrs={},
        system_attrs=dict(memo.get("optuna", {})),
        intermediate_values={},
    )


def _memo(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The sampler's notes on the trial: CMA-ES stores its whole state there."""
    state = {name: value for name, value in attrs.items() if name.startswith("cma")}
    return {"optuna": state} if state else {}


def _distribution(parameter: Parameter) -> BaseDistribution:
    match parameter.type:
        case ParameterType.CATEGORICAL:
            # By number: Optuna compares choices by equality, and True equals 1.
            return CategoricalDistribution(tuple(range(len(parameter.values))))
        case ParameterType.DISCRETE:
            return IntDistribution(0, len(parameter.values) - 1)
        case ParameterType.INTEGER:
            low, high = bounds(parameter)
            return IntDistribution(int(low), int(high), log=parameter.scale is not Scale.LINEAR)
        case ParameterType.FLOAT:
            low, high = bounds(parameter)
            return FloatDistribution(low, high, log=parameter.scale is not Scale.LINEAR)


def _inner(parameter: Parameter, value: Any) -> Any:
    """Encode for Optuna: choices by number, a reversed logarithm mirrored."""
    if not parameter.has_range:
        places = [
            place for place, choice in enumerate(_ordered(parameter)) if choice == value and type(choice) is type(value)
        ]
        return (
            places[0] if places else next(place for place, choice in enumerate(_ordered(parameter)) if choice == value)
        )
    if parameter.scale is Scale.REVERSE_LOG:
        value = _mirrored(parameter, value)
    return int(value) if parameter.type is ParameterType.INTEGER else float(value)


def _outer(parameter: Parameter, inner: Any) -> Any:
    if not parameter.has_range:
        return _ordered(parameter)[int(inner)]
    if parameter.scale is Scale.REVERSE_LOG:
        inner = _mirrored(parameter, inner)
    return int(inner) if parameter.type is ParameterType.INTEGER else inner


def _mirrored(parameter: Parameter, value: float) -> float:
    low, high = bounds(parameter)
    return min(high, max(low, low + high - value))


def _ordered(parameter: Parameter) -> tuple[Any, ...]:
    return tuple(sorted(parameter.values)) if parameter.type is ParameterType.DISCRETE else parameter.values


@dataclass(frozen=True, slots=True)
class ImportanceScore:
    """``importance``: those of a study sum to 1; ``None``: too few trials have the parameter. ``trials``: number of
    trials with it.
    """

    name: str
    importance: float | None
    trials: int


@dataclass(frozen=True, slots=True)
class Importance:
    """Parameters by importance, the most important first. ``reason``: why it is unknown; then ``parameters`` is
    empty.
    """

    trials: int
    parameters: Sequence[ImportanceScore] = ()
    reason: str = ""


def importance(space: Space, goals: Sequence[Goal], results: Sequence[ObservedTrial], metric: int | None) -> Importance:
    """Importance for one metric, by its position; ``None``: for the only metric, or for the trade-off of several.

    PED-ANOVA: how much the best tenth of the trials differs from all trials along each parameter.
    """
    count = len(results)
    if count < _MIN_RESULTS:
        return Importance(count, reason=f"Not known: {count} trials have a result, and {_MIN_RESULTS} are needed.")
    places = range(len(goals)) if metric is None else [metric]
    if all(len({trial.values[place] for trial in results}) == 1 for place in places):
        return Importance(count, reason=f"Not known: all {count} results are the same.")
    sample = _evenly(results)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for experimental classes, and few trials in a branch
        study = optuna.create_study(
            directions=["minimize" if goals[place] is Goal.MINIMIZE else "maximize" for place in places]
        )
        distributions = distributions_of(space)
        for result in sample:
            trial = frozen(space, distributions, result.parameters, [result.values[place] for place in places], {})
            study._storage.create_new_trial(study._study_id, template_trial=trial)  # noqa: SLF001 (as for proposals)
        quantile = min(0.5, max(_QUANTILE, _MIN_BEST / len(sample)))
        scores = PedAnovaImportanceEvaluator(target_quantile=quantile).evaluate(study)
    return _weighed(space, len(results), sample, scores)


def _weighed(space: Space, count: int, sample: Sequence[ObservedTrial], scores: Mapping[str, float]) -> Importance:
    trials = {name: sum(name in trial.parameters for trial in sample) for name in space.parameters}
    # A parameter with few trials says as little as few trials do.
    reliable = {
        name: max(0.0, value) for name, value in scores.items() if trials[name] >= _MIN_RESULTS and math.isfinite(value)
    }
    total = sum(reliable.values())
    if total <= 0:
        return Importance(count, reason="Not known: the best trials lie like all others along every parameter.")
    weights = [
        ImportanceScore(name, reliable.get(name, 0.0) / total if trials[name] >= _MIN_RESULTS else None, trials[name])
        for name in space.parameters
    ]
    return Importance(
        count, sorted(weights, key=lambda weight: (weight.importance is None, -(weight.importance or 0), weight.name))
    )


def _evenly(results: Sequence[ObservedTrial]) -> Sequence[ObservedTrial]:
    if len(results) <= _RESULTS_LIMIT:
        return results
    return [results[round(place * (len(results) - 1) / (_RESULTS_LIMIT - 1))] for place in range(_RESULTS_LIMIT)]
