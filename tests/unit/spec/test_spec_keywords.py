"""``JobSpec(…)`` in a program: the shorthands, and what type checkers are told."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from trainmaster import JobSpec
from trainmaster.spec import parse_spec
from trainmaster.spec.enums import Contract
from trainmaster.spec.model import Resources, RoleSpec, SpecKeywords
from trainmaster.spec.shorthand import Shorthands


def test_the_keywords_are_the_fields_and_the_shorthands() -> None:
    assert SpecKeywords.__annotations__.keys() == {*JobSpec.model_fields, *Shorthands.model_fields}


@pytest.mark.parametrize(
    "written",
    [
        {"command": "python train.py"},
        {"command": ["python", "train.py"], "workers": 2, "gpus": 1, "memory": "16Gi"},
        {"command": "a", "workers": 2, "ps": 1, "chief": True, "gpus": 2, "gpu_type": "A100", "cpu": 0.5},
        {"command": "a", "roles": {"worker": {"replicas": 3}, "ps": 1}, "cpu": 2},
        {"command": "a", "workers": 2, "ps": 1, "contract": "mxnet"},
        {"command": "a", "workers": None, "gpus": None},
    ],
)
def test_shorthands_mean_what_they_mean_in_a_file(written: dict[str, Any]) -> None:
    assert JobSpec(name="digits", **written) == parse_spec({"name": "digits", **written})


def test_models_stand_beside_shorthands() -> None:
    spec = JobSpec(name="digits", command="a", roles={"worker": RoleSpec(replicas=2)}, gpus=1, contract=Contract.UAI)
    assert spec.roles["worker"].resources == Resources(gpus=1)
    assert spec.roles["worker"].process_count == 1
    assert set(spec.model_dump(exclude_unset=True)) == {"name", "command", "roles", "contract"}


def test_a_contradiction_and_a_wrong_value_are_reported() -> None:
    with pytest.raises(ValidationError, match=r"workers says 3, but roles\.worker\.replicas says 2"):
        JobSpec(name="digits", roles={"worker": {"replicas": 2}}, workers=3)
    with pytest.raises(ValidationError, match="workers"):
        JobSpec(name="digits", workers=-1)


def test_a_canonical_spec_is_read_as_it_is() -> None:
    spec = parse_spec({"name": "digits", "command": "a", "workers": 2})
    assert JobSpec.model_validate(spec.model_dump(mode="json")) == spec
