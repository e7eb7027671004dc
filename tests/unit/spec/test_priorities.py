from __future__ import annotations

import pytest
from trainmaster.spec import SpecError, parse_spec
from trainmaster.spec.priorities import CLASSES, priority_name, priority_words


def _spec(priority: object) -> dict[str, object]:
    return {"name": "a", "command": "true", "workers": 1, "priority": priority}


@pytest.mark.parametrize(("name", "number"), CLASSES.items())
def test_a_priority_by_name_is_retained_as_its_number(name: str, number: int) -> None:
    assert parse_spec(_spec(name)).priority == number
    assert priority_name(number) == name
    assert priority_words(number) == f"{name} ({number})"


@pytest.mark.parametrize("written", [0, 60, 100, "60", 60.0])
def test_a_priority_by_number_stays_what_it_is(written: object) -> None:
    assert parse_spec(_spec(written)).priority == int(float(str(written)))


@pytest.mark.parametrize(
    ("written", "reported"),
    [
        ("hihg", "did you mean high?"),
        ("fast", "must be one of low, normal, high, urgent, or a number from 0 to 100"),
        (-1, "must be at least 0, not -1"),
        (101, "must be at most 100, not 101"),
        (1.5, "a whole number from 0 to 100"),
        (True, "a whole number from 0 to 100"),
        ([], "a whole number from 0 to 100"),
    ],
)
def test_a_priority_that_is_none_is_refused_in_words(written: object, reported: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(_spec(written))
    assert [mistake.path for mistake in caught.value.mistakes] == ["priority"]
    assert reported in str(caught.value)
