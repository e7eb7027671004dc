"""From what users write to the canonical form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainmaster.spec import Contract, JobSpec, RestartPolicy, SpecError, parse_spec, parse_spec_text

BASE = {"name": "digits", "command": "python train.py"}


def roles_of(**written):
    return parse_spec({**BASE, **written}).roles


def test_no_roles_at_all_is_one_worker():
    assert list(roles_of()) == ["worker"]
    assert roles_of()["worker"].replicas == 1
    assert roles_of(roles={}) == roles_of(roles=None) == roles_of()


@pytest.mark.parametrize("name", ["My.Job_1", "resnet50_v2.1", "A", "9", "a..b", "x" * 63])
def test_names_may_have_capitals_dots_and_underscores(name):
    assert parse_spec({**BASE, "name": name}).name == name


def test_counts_become_roles():
    roles = roles_of(workers=3, ps=2, chief=True, evaluator=True)
    assert {name: role.replicas for name, role in roles.items()} == {"chief": 1, "worker": 3, "ps": 2, "evaluator": 1}


def test_zero_and_false_are_no_role():
    assert list(roles_of(workers=0, chief=True, ps=0, evaluators=False)) == ["chief"]


def test_evaluators_may_be_written_in_both_ways():
    assert roles_of(workers=1, evaluators=2)["evaluator"].replicas == 2
    assert roles_of(workers=1, evaluators=2, evaluator=2) == roles_of(workers=1, evaluator=2)


def test_a_role_written_as_a_number_is_its_replicas():
    assert roles_of(roles={"worker": 2, "ps": 1})["worker"].replicas == 2


def test_a_role_written_as_nothing_is_one_replica():
    assert parse_spec_text("name: a\ncommand: x\nroles:\n  worker:\n").roles["worker"].replicas == 1


def test_a_count_completes_a_role_that_states_no_replicas():
    roles = roles_of(workers=4, roles={"worker": {"command": "python w.py"}})
    assert (roles["worker"].replicas, roles["worker"].command) == (4, "python w.py")


def test_a_count_that_repeats_the_roles_own_is_no_mistake():
    assert roles_of(workers=2, roles={"worker": 2})["worker"].replicas == 2


def test_gpus_go_to_those_who_train_and_memory_to_all():
    roles = roles_of(chief=True, workers=1, ps=1, evaluator=1, gpus=2, gpu_type="A100", cpu=4, memory="8Gi", shm="1Gi")
    assert {name: role.resources.gpus for name, role in roles.items()} == {
        "chief": 2,
        "worker": 2,
        "ps": 0,
        "evaluator": 0,
    }
    assert {role.resources.memory for role in roles.values()} == {"8Gi"}
    assert {role.resources.cpu for role in roles.values()} == {"4"}
    assert roles["worker"].resources.gpu_type == ("A100",)
    assert roles["ps"].resources.gpu_type == ()


def test_a_roles_own_amounts_win_over_the_defaults():
    roles = roles_of(
        gpus=1, cpu=1, roles={"worker": {"resources": {"gpus": 0, "cpu": 2}}, "ps": {"resources": {"gpus": 1}}}
    )
    assert (roles["worker"].resources.gpus, roles["worker"].resources.cpu) == (0, "2")
    assert roles["ps"].resources.gpus == 1


def test_a_part_of_a_gpu_is_one_device_and_one_process():
    worker = roles_of(workers=2, gpus=0.5)["worker"]
    assert worker.resources.gpus == 0.5
    assert (worker.resources.device_count, worker.resources.gpu_milli, worker.process_count) == (1, 500, 1)


@given(milli=st.integers(1, 999))
def test_every_number_of_thousandths_of_a_gpu_is_retained(milli):
    spec = parse_spec({**BASE, "gpus": milli / 1000})
    assert spec.roles["worker"].resources.gpu_milli == milli
    assert parse_spec(spec.model_dump(mode="json")) == spec


def test_whole_gpus_stay_whole_numbers():
    resources = roles_of(workers=1, gpus=2.0)["worker"].resources
    assert repr(resources.gpus) == "2"
    assert (resources.device_count, resources.gpu_milli) == (2, 0)


def test_own_roles_get_gpus_and_processes():
    roles = roles_of(roles={"trainer": 2, "ps": 1}, gpus=2, processes_per_replica=4)
    assert (roles["trainer"].resources.gpus, roles["trainer"].processes_per_replica) == (2, 4)
    assert roles["ps"].processes_per_replica is None


def test_quantities_and_durations_have_one_canonical_notation():
    spec = parse_spec({**BASE, "cpu": 0.5, "memory": "1024Mi", "max_run_time": "1h30m", "grace": {"stop": 5}})
    resources = spec.roles["worker"].resources
    assert (resources.cpu, resources.memory, resources.cpu_milli, resources.memory_bytes) == ("500m", "1Gi", 500, 2**30)
    assert (spec.max_run_time, spec.grace.stop, spec.grace.exit) == (5400.0, 5.0, 30.0)


def test_environment_and_arguments_keep_the_text_that_was_written():
    spec = parse_spec_text(
        "name: a\ncommand: [python, 1.10]\nargs: [--lr, 1e-3, 010, 0x1F, yes, true, 12:30, 2024-01-01]\n"
        "env: {VERSION: 1.10, DEBUG: on, BIG: 123456789012345678901234567890, T: 12:30:15, NO: no}\n"
    )
    assert spec.command == ("python", "1.10")
    assert spec.args == ("--lr", "1e-3", "010", "0x1F", "yes", "true", "12:30", "2024-01-01")
    assert spec.env == {
        "VERSION": "1.10",
        "DEBUG": "on",
        "BIG": "123456789012345678901234567890",
        "T": "12:30:15",
        "NO": "no",
    }


def test_yes_and_on_serve_where_a_switch_is_requested():
    spec = parse_spec_text("name: a\ncommand: x\nmounts: [{volume: v, at: /mnt/v, read_only: no}]\nsparse: off\n")
    assert (spec.mounts[0].read_only, spec.sparse) == (False, False)


def test_fields_left_empty_count_as_not_written():
    spec = parse_spec_text("name: a\ncommand: x\nimage:\nenv:\nlabels:\nroles:\n  worker:\n    env:\n    resources:\n")
    assert spec == parse_spec({"name": "a", "command": "x"})


def test_paths_lose_the_slashes_that_mean_nothing():
    mount = {"volume": "sets", "path": "/a//b/./", "at": "/mnt//x/"}
    spec = parse_spec({**BASE, "input": "sets//digits/", "output": "out", "mounts": [mount]})
    assert (spec.input, spec.output) == ("sets/digits", "out")
    assert (spec.mounts[0].path, spec.mounts[0].at) == ("a/b", "/mnt/x")


def test_placeholders_of_the_cluster_spec_era_stay_untouched():
    spec = parse_spec({**BASE, "command": "t --ps={ps_hosts}", "args": ["{job_name}", "{task_index}"]})
    assert (spec.command, spec.args) == ("t --ps={ps_hosts}", ("{job_name}", "{task_index}"))


def test_mxnet_adds_the_scheduler():
    roles = roles_of(contract="mxnet", workers=2, ps=1, gpus=1)
    assert roles["scheduler"].replicas == 1
    assert roles["scheduler"].resources.gpus == 0


def test_a_scheduler_of_the_users_own_is_retained():
    roles = roles_of(contract="mxnet", roles={"worker": 1, "ps": 1, "scheduler": {"resources": {"cpu": 2}}})
    assert roles["scheduler"].resources.cpu == "2"


def test_uai_runs_one_process_for_each_node():
    spec = parse_spec({**BASE, "contract": "uai", "workers": 2, "gpus": 8})
    assert spec.contract is Contract.UAI
    assert spec.roles["worker"].process_count == 1


def test_extension_fields_hold_anchors():
    spec = parse_spec_text(
        "x-big: &big {memory: 64Gi, cpu: 8}\nname: a\ncommand: x\n"
        "roles:\n  worker: {resources: {<<: *big, cpu: 4}}\n  ps: {resources: *big}\n"
    )
    assert (spec.roles["worker"].resources.memory, spec.roles["worker"].resources.cpu) == ("64Gi", "4")
    assert spec.roles["ps"].resources.cpu == "8"


def test_json_is_read_too_with_its_surrogate_pairs():
    assert parse_spec_text('{"name": "a", "command": "echo \\ud83d\\ude00"}').command == "echo 😀"


def test_the_users_mapping_is_left_as_it_was():
    written = {**BASE, "roles": {"worker": {"resources": {}}}, "gpus": 1}
    before = repr(written)
    parse_spec(written)
    assert repr(written) == before


def test_a_spec_of_a_newer_server_is_read_without_its_new_fields():
    data = parse_spec(BASE).model_dump(mode="json")
    data["a_field_of_tomorrow"] = data["roles"]["worker"]["another"] = 1
    assert JobSpec.model_validate(data) == parse_spec(BASE)


_names = st.from_regex(r"[a-z]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
_env = st.dictionaries(
    st.from_regex(r"[A-Z][A-Z0-9_]{0,8}", fullmatch=True),
    st.one_of(
        st.integers(-(10**6), 10**6),
        st.booleans(),
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8),
    ),
    max_size=3,
)
_resources = st.fixed_dictionaries(
    {},
    optional={
        "cpu": st.one_of(st.integers(1, 64), st.sampled_from(["500m", "0.25", "1e1", 1.5])),
        "memory": st.one_of(st.sampled_from(["512Mi", "4Gi", "1.5Gi", "5000000", "1e9", 2**21 + 1])),
        "gpus": st.integers(0, 8),
        "shm": st.sampled_from(["1Mi", "2Mi"]),
    },
)
_role = st.one_of(
    st.integers(1, 5),
    st.none(),
    st.fixed_dictionaries(
        {},
        optional={
            "replicas": st.integers(1, 5),
            "env": _env,
            "resources": _resources,
            "processes_per_replica": st.integers(1, 8),
            "restart": st.sampled_from(list(RestartPolicy)).map(str),
            "args": st.lists(
                st.one_of(st.integers(), st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5))
            ),
        },
    ),
)


def _as_uai_allows(spec):
    """One process per replica, and as many ps as workers: unstated."""
    if spec.get("contract") != "uai":
        return spec
    roles = {
        name: {key: value for key, value in role.items() if key != "processes_per_replica"}
        if isinstance(role, dict)
        else role
        for name, role in spec.get("roles", {}).items()
    }
    return {key: value for key, value in spec.items() if key != "ps"} | ({"roles": roles} if roles else {})


_specs = st.fixed_dictionaries(
    {"name": _names, "command": st.one_of(st.just("python t.py"), st.just(["python", "t.py"]))},
    optional={
        "roles": st.dictionaries(st.sampled_from(["worker", "own", "b-2"]), _role, min_size=1),
        "ps": st.integers(0, 3),
        "evaluator": st.booleans(),
        "chief": st.booleans(),
        "gpus": st.integers(0, 8),
        "cpu": st.sampled_from([1, "250m"]),
        "env": _env,
        "max_run_time": st.one_of(st.integers(0, 10**6), st.sampled_from(["90s", "1d2h", 0.5, "1.25s"])),
        "contract": st.sampled_from(["default", "uai"]),
        "labels": st.dictionaries(_names, _names, max_size=2),
        "priority": st.integers(0, 100),
        "input": st.sampled_from(["v/a//b/", "v"]),
    },
).map(lambda spec: _as_uai_allows(spec if "roles" in spec or spec.get("chief") else {**spec, "workers": 2}))


@given(_specs)
def test_the_canonical_form_parses_to_itself(written):
    spec = parse_spec(written)
    assert parse_spec(spec.model_dump(mode="json")) == spec
    assert parse_spec(spec.model_dump(mode="json", exclude_defaults=True)) == spec
    assert parse_spec(spec.model_dump()) == spec
    assert JobSpec.model_validate_json(spec.model_dump_json()) == spec


@pytest.mark.parametrize("key", ["workers", "ps", "chief", "evaluator", "evaluators", "gpus", "cpu", "memory"])
def test_the_canonical_form_has_no_shorthand(key):
    assert key not in parse_spec({**BASE, "workers": 1, "gpus": 1}).model_dump()


def test_uai_has_as_many_ps_as_workers_where_their_number_is_not_stated():
    spec = parse_spec(
        {"name": "x", "command": "t.py", "contract": "uai", "roles": {"chief": 1, "worker": 2, "ps": None}}
    )
    assert spec.roles["ps"].replicas == 3
    assert "ps" not in parse_spec({"name": "x", "command": "t.py", "contract": "uai", "workers": 2}).roles


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ({"workers": 3, "ps": 2}, "ps"),
        ({"chief": True, "workers": 1, "ps": 1}, "ps"),
        ({"roles": {"worker": 1, "ps": {"resources": {"gpus": 1}}}}, "roles.ps.resources.gpus"),
        ({"workers": 2, "processes_per_replica": 2}, "processes_per_replica"),
        ({"roles": {"worker": {"processes_per_replica": 2}}}, "roles.worker.processes_per_replica"),
    ],
)
def test_uai_refuses_what_its_programs_cannot_run_as(written, path):
    with pytest.raises(SpecError) as caught:
        parse_spec({"name": "x", "command": "t.py", "contract": "uai", **written})
    assert [mistake.path for mistake in caught.value.mistakes] == [path]
    assert "contract uai" in str(caught.value)
