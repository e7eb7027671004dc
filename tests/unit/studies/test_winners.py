"""What a study says of its best trial."""

from __future__ import annotations

from typing import Any

import pytest
from trainmaster.spec import SpecError
from trainmaster.studies import parse_study

from core.domain.studies.trials import winner_spec

STUDY: dict[str, Any] = {
    "name": "search",
    "template": {"command": "train", "output": "output/default/search"},
    "parameters": {"x": {"type": "float", "min": 0, "max": 1}},
    "metric": "score",
    "goal": "maximize",
    "budget": {"trials": 4},
}


def test_a_name_alone_is_a_winner() -> None:
    spec = parse_study({**STUDY, "winner": "digits"})
    assert spec.winner is not None
    assert (spec.winner.model, spec.winner.path, spec.winner.arguments) == ("digits", None, ())
    assert parse_study(spec.model_dump(mode="json")) == spec


@pytest.mark.parametrize(
    ("changes", "place", "words"),
    [
        ({"winner": "No Model"}, "winner", "letters"),
        ({"winner": {"model": "No Model"}}, "winner.model", "letters"),
        ({"winner": {"model": "m", "aliases": ["latest"]}}, "winner.aliases[0]", "latest"),
        ({"winner": {"modell": "m"}}, "winner.modell", "unknown field"),
        ({"winner": "m", "template": None}, "winner", "no template"),
        (
            {"winner": "m", "metric": None, "goal": None, "metrics": {"a": "maximize", "b": "minimize"}},
            "winner",
            "several",
        ),
    ],
)
def test_what_cannot_be_a_winner_is_reported(changes: dict[str, Any], place: str, words: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_study({**STUDY, **changes})
    assert any(one.path == place and words in one.message for one in refused.value.mistakes), refused.value.mistakes


def test_the_winner_runs_its_point_with_more_arguments_and_an_output_of_its_own() -> None:
    spec = parse_study({**STUDY, "winner": {"model": "m", "arguments": ["--final"]}})
    job = winner_spec(spec, 3, {"x": 0.5})
    assert (job.name, job.args, job.output) == ("search-best", ("--x=0.5", "--final"), "output/default/search/3-best")
    assert job.labels == {"study": "search", "trial": "3", "winner": "true"}
