from __future__ import annotations

from pathlib import Path

import pytest
from trainmaster.spec import JobSpec, RestartPolicy, parse_spec_text

EXAMPLES = Path(__file__).parents[3] / "examples"


def spec_of(example: str) -> JobSpec:
    return parse_spec_text((EXAMPLES / example / "job.yaml").read_text())


@pytest.mark.parametrize("example", sorted(path.parent.name for path in EXAMPLES.glob("*/job.yaml")))
def test_an_example_is_a_job_that_a_small_laptop_can_run(example: str) -> None:
    spec = spec_of(example)

    assert isinstance(spec.command, tuple)
    assert (EXAMPLES / example / spec.command[1]).is_file()
    assert (EXAMPLES / example / "README.md").is_file()
    for role in spec.roles.values():
        assert role.resources.cpu is None
        assert role.resources.memory is None
        assert role.resources.gpus == 0


def test_the_examples_have_the_gangs_that_their_readmes_promise() -> None:
    allreduce, ps = spec_of("allreduce"), spec_of("parameter_server")

    assert {name: role.replicas for name, role in allreduce.roles.items()} == {"worker": 2}
    assert {name: role.replicas for name, role in ps.roles.items()} == {"worker": 2, "ps": 1}
    assert ps.roles["worker"].restart is RestartPolicy.REPLICA
    assert allreduce.input == ps.input == "data/digits"
