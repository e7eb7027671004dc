"""Changes laid over a job's canonical spec, as a clone or a command line states them."""

from __future__ import annotations

import json

import pytest
from trainmaster.spec import SpecError, parse_spec, read_spec_text, with_changes

WRITTEN = {"name": "a", "command": "x", "workers": 2, "ps": 1, "gpus": 1, "cpu": 2, "env": {"A": "1", "B": "2"}}


def changed(**changes):
    canonical = parse_spec(WRITTEN).model_dump(mode="json")
    return parse_spec(with_changes(canonical, changes))


def test_no_change_is_the_same_spec():
    assert changed() == parse_spec(WRITTEN)


@pytest.mark.parametrize(
    "changes",
    [
        {"workers": 4},
        {"workers": 4, "gpus": 2},
        {"cpu": "500m", "memory": "4Gi"},
        {"processes_per_replica": 2},
        {"priority": 9, "name": "b"},
        {"gpus": 0},
    ],
)
def test_a_shorthand_means_the_same_as_if_it_had_been_written_at_first(changes):
    assert changed(**changes) == parse_spec({**WRITTEN, **changes})


def test_a_role_that_a_change_adds_starts_from_the_defaults():
    roles = changed(chief=True).roles
    assert roles["chief"].resources.cpu is None
    assert roles["worker"].resources.cpu == "2"


def test_a_count_of_none_takes_the_role_away():
    assert set(changed(ps=0).roles) == {"worker"}
    assert set(changed(workers=0, chief=True).roles) == {"chief", "ps"}


def test_a_shorthand_of_null_means_the_same_as_if_it_had_not_been_written():
    without = {key: value for key, value in WRITTEN.items() if key not in ("ps", "cpu")}
    assert changed(ps=None, cpu=None) == parse_spec(without)
    assert set(changed(workers=None, chief=True).roles) == {"chief", "ps"}
    assert changed(ps=None, workers=None) == changed(ps=None, workers=1)  # the last role stays
    elastic = parse_spec({**without, "workers": {"min": 2, "max": 4}}).model_dump(mode="json")
    assert parse_spec(with_changes(elastic, {"workers": None})) == parse_spec({**without, "workers": 1})


def test_mappings_merge_and_null_removes():
    assert changed(env={"A": None, "C": 3}).env == {"B": "2", "C": "3"}
    assert set(changed(roles={"ps": None}).roles) == {"worker"}
    assert changed(roles={"worker": {"replicas": 5}}).roles["worker"].replicas == 5


def test_mistakes_are_informed_where_the_change_was_written():
    with pytest.raises(SpecError) as caught:
        changed(workers="x", gpus=-1)
    assert [mistake.path for mistake in caught.value.mistakes] == ["workers", "gpus"]


def test_neither_argument_is_changed():
    canonical = parse_spec(WRITTEN).model_dump(mode="json")
    before = json.dumps(canonical)
    changes = {"workers": 3, "env": {"A": None}}
    with_changes(canonical, changes)
    assert json.dumps(canonical) == before
    assert changes == {"workers": 3, "env": {"A": None}}


def test_what_was_read_can_be_sent_as_json_and_means_the_same():
    text = (
        "name: a\ncommand: [x, 1.10]\nargs: [1e-3]\nenv: {V: 1.10}\nlabels: {v: 007}\nroles: {worker: {env: {W: 0x1F}}}"
    )
    sent = json.loads(json.dumps(read_spec_text(text)))
    spec = parse_spec(sent)
    assert (spec.command, spec.args, spec.env, spec.labels) == (("x", "1.10"), ("1e-3",), {"V": "1.10"}, {"v": "007"})
    assert spec.roles["worker"].env == {"W": "0x1F"}
