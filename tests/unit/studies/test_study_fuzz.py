"""Whatever stands in a study's spec, the answer is a study whose points can be drawn, or mistakes that name their
fields.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from trainmaster.spec import SpecError
from trainmaster.studies import Algorithm, Space, parse_study

from core.domain.studies.trials import trial_spec
from scheduler.tuning import ProposalRequest, chosen_algorithm
from scheduler.tuning.propose import propose

_BASES: list[dict[str, Any]] = [
    {
        "name": "s", "template": {"command": "train", "gpus": 1},
        "parameters": {
            "lr": {"type": "float", "min": 1e-5, "max": 0.1, "scale": "log"},
            "layers": {"type": "integer", "min": 1, "max": 6},
            "opt": {"type": "categorical", "values": ["sgd", "adam"]},
            "momentum": {"type": "float", "min": 0, "max": 0.99, "when": {"opt": "sgd"}},
            "batch": {"type": "discrete", "values": [16, 32]},
        },
        "constraints": ["layers * batch <= 100"], "metric": "accuracy", "goal": "maximize", "stopping": "asha",
        "budget": {"trials": 20, "parallel": 4, "max_time": "2h"},
        "initial": [{"lr": 0.01, "layers": 2, "opt": "adam", "batch": 16}],
    },
    {
        "name": "s", "parameters": {"x": {"type": "float", "min": 0, "max": 1, "steps": 5}}, "algorithm": "grid",
        "metrics": [{"name": "a", "goal": "minimize"}, {"name": "b", "goal": "maximize"}], "measurement": "last",
        "budget": {"trials": 20, "failed_trials": 3}, "lost_after": "1h", "warm_start": ["earlier"],
    },
    {
        "name": "s", "template": {"command": ["t"], "roles": {"worker": {"replicas": 2, "resources": {"gpus": 1}}}},
        "parameters": {"x": {"type": "integer", "min": 1, "max": 64, "scale": "reverse-log"}}, "algorithm": "random",
        "metric": {"name": "a", "goal": "maximize"}, "budget": {"gpu_hours": 4, "parallel": 3}, "seed": 1,
        "fidelity": {"parameter": "epochs", "min": 1, "max": 9}, "winner": {"model": "m", "arguments": ["--final"]},
    },
]  # fmt: skip
_WORDS = [
    "", "a" * 3_000, "łóü\u202e😀", "\x00", "1e999", "NaN", "log", "grid", "float", "x < y", "lr // 0 > 1", "((1))<2",
    "lr ** lr ** 9999 > 1", "lr < 0 and lr > 1", "__import__('os')", "-1s", "for i in 1; do x; done",
]  # fmt: skip
_numbers = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([0, -1, 2**63, 10**400, -(10**30), 1e308, 5e-324, 0.0]),
)
_strange = st.one_of(
    st.none(), st.booleans(), _numbers, st.sampled_from(_WORDS), st.text(max_size=5),
    st.sampled_from([[], {}, [[]], [None], ["a", "a"], [1, True, "1", 1.0], {"min": 1}, {"": 1}]),
    st.just(list(range(2_000))), st.just({str(number): number for number in range(300)}),
    st.integers(1, 200).map(lambda deep: json.loads("[" * deep + "]" * deep)),
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [*([path] if path else []), *(place for key, one in below for place in _places(one, (*path, key)))]


@st.composite
def _mutants(draw: st.DrawFn) -> Any:
    """A spec that is right but for one place."""
    spec = copy.deepcopy(draw(st.sampled_from(_BASES)))
    place = draw(st.sampled_from(_places(spec)))
    inner = spec
    for key in place[:-1]:
        inner = inner[key]
    is_gone = draw(st.booleans()) and draw(st.booleans())
    if is_gone:
        del inner[place[-1]]
    else:
        inner[place[-1]] = draw(_strange)
    return spec


@given(_mutants())
def test_a_spec_with_something_strange_gives_a_study_or_mistakes_with_their_fields(raw: Any) -> None:
    try:
        spec = parse_study(raw)
    except SpecError as error:
        for mistake in error.mistakes:
            assert mistake.path, mistake
            assert len(mistake.path) + len(mistake.message) < 2_500, mistake
            assert not any(words in str(mistake) for words in ("Input should", "Extra inputs", "object at 0x")), mistake
        return
    reported = spec.model_dump(mode="json")
    json.dumps(reported, allow_nan=False).encode()
    assert parse_study(reported) == spec
    space = Space.of(spec)
    algorithm = chosen_algorithm(space, spec.algorithm, spec.goals, spec.budget.trials)
    if algorithm is Algorithm.GP or algorithm is Algorithm.CMA_ES:  # they take their time, and know no other points
        algorithm = Algorithm.RANDOM
    requested = ProposalRequest(
        space=space, algorithm=algorithm, goals=spec.goals, seed=1, index=0, count=2, initial=spec.initial
    )
    for proposal in propose(requested):
        assert space.fault(proposal.parameters) is None
        if spec.template is not None:
            trial_spec(spec, 1, proposal.parameters)
