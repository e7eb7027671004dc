from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from trainmaster.spec import SpecError, parse_spec, parse_spec_text, spec_json_schema
from trainmaster.spec.publish import with_fields

from core.domain.sharing.resources import UNSTATED_CPU_MILLI, UNSTATED_MEMORY_BYTES

_PUBLISHED = Path(__file__).parents[3] / "sdk" / "trainmaster" / "spec" / "job-spec.schema.json"
_REFERENCE = Path(__file__).parents[3] / "docs" / "job-spec.md"


@pytest.fixture(scope="module")
def schema():
    return spec_json_schema()


@pytest.fixture(scope="module")
def validator(schema):
    return Draft202012Validator(schema)


def test_it_is_a_schema_with_an_identity(schema):
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"].startswith("urn:trainmaster:")


def test_the_published_file_is_this_schema(schema):
    """After a change: ``python -m trainmaster.spec.publish``."""
    assert json.loads(_PUBLISHED.read_text()) == schema


def test_every_field_is_described(schema):
    owners = {"": schema, **schema["$defs"]}
    for name, owner in owners.items():
        for field, described in owner.get("properties", {}).items():
            assert described.get("description"), f"{name}.{field}"


def test_its_examples_are_specs(schema, validator):
    for example in schema["examples"]:
        validator.validate(example)
        parse_spec(example)


def test_the_canonical_form_is_valid_too(schema, validator):
    for example in schema["examples"]:
        validator.validate(parse_spec(example).model_dump(mode="json"))


def test_every_example_of_a_field_is_taken_by_it(schema, validator):
    base = {"name": "a", "command": "x", "gpus": 1}
    for field, described in schema["properties"].items():
        for example in described.get("examples", []):
            written = {**base, field: example}
            validator.validate(written)
            parse_spec(written)


@pytest.mark.parametrize(
    "written",
    [
        {"workers": 2, "ps": 1, "chief": True, "evaluators": 2, "gpus": 1, "cpu": "500m", "memory": "1Gi"},
        {"roles": {"worker": 2, "ps": None, "own": {"resources": {"gpu_type": ["A", "B"], "gpus": 1}}}},
        {"env": {"A": 1, "B": True, "C": "x"}, "args": [1, 0.5, "x"], "grace": {"stop": "1m"}},
        {"image": None, "env": None, "labels": {"a": 1}, "x-note": {"any": ["thing"]}},
    ],
)
def test_what_it_takes_is_taken_by_the_parser(validator, written):
    spec = {"name": "a", "command": "x", **written}
    validator.validate(spec)
    parse_spec(spec)


@pytest.mark.parametrize(
    "written",
    [
        {"name": None},
        {"name": "A/B"},
        {"name": "../a"},
        {"name": ".a"},
        {"comand": "x"},
        {"workers": "two"},
        {"workers": -1},
        {"roles": {"Worker": 1}},
        {"roles": {"worker": {"gpus": 1}}},
        {"roles": {"worker": 0}},
        {"env": {"1A": "x"}},
        {"env": {"A": []}},
        {"contract": "vertex"},
        {"mounts": [{"volume": "v"}]},
        {"priority": 101},
        {"topology": {"level": "row"}},
        {"code": "x"},
    ],
)
def test_what_it_refuses_is_refused_by_the_parser(validator, written):
    spec = {"name": "a", "command": "x", **written}
    assert not validator.is_valid(spec)
    with pytest.raises(SpecError):
        parse_spec(spec)


def test_the_reference_says_what_the_schema_says():
    """After a change: ``python -m trainmaster.spec.publish docs/job-spec.md``."""
    text = _REFERENCE.read_text()
    assert with_fields(text) == text
    assert text.count("<!-- fields:") == text.count("<!-- end -->") == 9


def test_the_specs_in_the_reference_are_right():
    blocks = re.findall(r"```yaml\n(.*?)```", _REFERENCE.read_text(), re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        parse_spec_text(block)


def test_the_reference_tells_what_an_unstated_resource_reserves() -> None:
    text = _REFERENCE.read_text()
    assert f"no `cpu` reserves {UNSTATED_CPU_MILLI / 1000:g} CPU" in text
    assert f"no `memory` {UNSTATED_MEMORY_BYTES // 2**20}Mi" in text
