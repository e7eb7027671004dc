"""Whatever comes, the answer is a spec or a SpecError whose every mistake is a sentence."""

from __future__ import annotations

import json

import yaml
from hypothesis import example, given
from hypothesis import strategies as st
from trainmaster.spec import JobSpec, SpecError, parse_spec, parse_spec_text
from trainmaster.spec.model import Grace, Mount, Resources, RoleSpec
from trainmaster.spec.shorthand import Shorthands

_WORDS = sorted(
    {name for model in (JobSpec, RoleSpec, Resources, Mount, Grace, Shorthands) for name in model.model_fields}
    | {"worker", "scheduler", "level", "required", "x-a", "<<", "", "a b", "A"}
)
_VALUES = [
    "2",
    "500m",
    "4Gi",
    "90s",
    "uai",
    "mxnet",
    "rack",
    "gang",
    "/mnt/a",
    "v/p",
    "-1",
    "0x10",
    "1e999",
    "yes",
    "~",
]
_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(0, 5),
    st.just(10**4000),
    st.floats(),
    st.text(st.characters(codec=None), max_size=6),
    st.sampled_from(_WORDS + _VALUES),
)
_strange = st.one_of(
    _scalars, st.binary(max_size=3), st.dates(), st.just(object()), st.frozensets(st.integers(), max_size=2)
)
_keys = st.one_of(st.sampled_from(_WORDS), st.text(st.characters(codec=None), max_size=4))
_anything = st.recursive(
    _scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_keys, inner, max_size=5)),
    max_leaves=20,
)
_pythonic = st.recursive(
    _strange,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner),
        st.dictionaries(st.one_of(_keys, st.integers(), st.none(), st.tuples(st.integers())), inner, max_size=4),
    ),
    max_leaves=12,
)
# Mostly right specs with something strange in one place reach the later steps.
_nearly = st.builds(
    lambda field, value, rest: {"name": "a", "command": "x", **rest, field: value},
    st.sampled_from(_WORDS),
    _anything,
    st.fixed_dictionaries(
        {},
        optional={
            "workers": st.integers(0, 3),
            "gpus": st.integers(0, 2),
            "roles": st.dictionaries(_keys, _anything, max_size=3),
        },
    ),
)
_PYDANTIC = (
    "Input should",
    "Value error",
    "Extra inputs",
    "validation error",
    "pydantic",
    "Field required",
    "String should",
)


def check(parse, value):
    try:
        spec, mistakes = parse(value), ()
    except SpecError as error:
        spec, mistakes = None, error.mistakes
    if spec is None:
        assert mistakes
        for mistake in mistakes:
            assert mistake.message
            assert "\n" not in str(mistake)
            assert not any(words in str(mistake) for words in _PYDANTIC)
            assert "is not a value of this field" not in mistake.message
            assert len(str(mistake)) < 1000
    else:
        assert parse_spec(spec.model_dump(mode="json")) == spec
        json.dumps(spec.model_dump(mode="json")).encode()
        assert "\0" not in spec.model_dump_json()


@given(_anything)
def test_any_json_gives_a_spec_or_its_mistakes(value):
    check(parse_spec, value)


@given(_nearly)
@example({"name": "a", "command": "x", "roles": {"": {}}})
@example({"name": "a", "command": "x", "mounts": [None, {}, 3]})
@example({"name": "a", "command": "x", "secrets": [None, "", 3, "A"]})
@example({"name": "a", "command": "x", "grace": {"stop": []}})
def test_a_nearly_right_spec_gives_a_spec_or_its_mistakes(value):
    check(parse_spec, value)


@given(_pythonic)
def test_any_python_value_gives_a_spec_or_its_mistakes(value):
    check(parse_spec, value)


@given(st.text(max_size=200))
def test_any_text_gives_a_spec_or_its_mistakes(text):
    check(parse_spec_text, text)


@given(st.text("{}[]:,&*!|>'\"%@`?-# \n\t<a1~.=", max_size=60))
def test_any_yaml_syntax_gives_a_spec_or_its_mistakes(text):
    check(parse_spec_text, text)


@given(st.binary(max_size=60))
def test_any_bytes_give_a_spec_or_its_mistakes(data):
    check(parse_spec_text, data)


@given(_anything)
def test_dumped_yaml_and_json_give_a_spec_or_its_mistakes(value):
    try:
        dumped = json.dumps(value)
    except ValueError:  # an int too long to print
        return
    check(parse_spec_text, dumped)
    check(parse_spec_text, yaml.safe_dump(json.loads(dumped), allow_unicode=True))
