"""Every mistake is told, at once, where the user made it, in a sentence that says what would be right."""

from __future__ import annotations

import pytest
from trainmaster.spec import SpecError, SpecMistake, parse_spec, parse_spec_text

BASE = {"name": "digits", "command": "python train.py"}


def mistakes_of(written, *, on=BASE) -> dict[str, SpecMistake]:
    with pytest.raises(SpecError) as caught:
        parse_spec({**on, **written})
    reported = {mistake.path: mistake for mistake in caught.value.mistakes}
    assert len(reported) == len(caught.value.mistakes), str(caught.value)
    return reported


def the_mistake(written) -> SpecMistake:
    reported = mistakes_of(written)
    assert len(reported) == 1, reported
    return next(iter(reported.values()))


def test_all_of_them_are_reported_at_once_in_the_order_of_the_document():
    with pytest.raises(SpecError) as caught:
        parse_spec_text(
            """
name: My Job
comand: python x.py
workers: two
roles:
  worker: {replica: 3, resources: {cpu: 0x, memory: 4GB}, restart: gnag}
  ps: [1]
env: {1A: x, TRAINMASTER_X: 1, LIST: [1]}
mounts:
  - {volume: v, at: /data}
  - {at: /mnt/a}
secrets: [OK, OK]
"""
        )
    assert [mistake.path for mistake in caught.value.mistakes] == [
        "name",
        "comand",
        "workers",
        "roles.worker.replica",
        "roles.worker.resources.cpu",
        "roles.worker.resources.memory",
        "roles.worker.restart",
        "roles.ps",
        'env["1A"]',
        "env.LIST",
        "env.TRAINMASTER_X",
        "mounts[0].at",
        "mounts[1].volume",
        "secrets[1]",
    ]
    assert len(str(caught.value).splitlines()) == len(caught.value.mistakes)


def test_the_text_of_the_error_names_path_mistake_and_remedy():
    mistake = the_mistake({"max_restart": 3})
    assert str(mistake) == "max_restart: unknown field (did you mean max_restarts?)"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("max_restart", "max_restarts"),
        ("maxRestarts", "max_restarts"),
        ("nodeSelector", "node_selector"),
        ("worker", "workers"),
        ("GPUs", "gpus"),
        ("enviroment", "environment"),
        ("timeout", "max_run_time"),
        ("volumes", "mounts"),
    ],
)
def test_an_unknown_field_names_the_one_that_was_meant(written, meant):
    assert the_mistake({written: 1}).hint == f"did you mean {meant}?"


def test_a_misspelt_field_is_not_also_called_missing():
    assert list(mistakes_of({"comand": "x", "nam": "a"}, on={})) == ["comand", "nam"]


@pytest.mark.parametrize(
    ("written", "path", "hint"),
    [
        ({"replicas": 2}, "replicas", "roles.worker.replicas"),
        ({"roles": {"worker": {"gpus": 1}}}, "roles.worker.gpus", "resources: {gpus"),
        ({"roles": {"worker": {"priority": 1}}}, "roles.worker.priority", "top of the spec"),
    ],
)
def test_a_field_in_the_wrong_place_is_informed_where_it_belongs(written, path, hint):
    mistake = the_mistake(written)
    assert mistake.path == path
    assert hint in mistake.hint


@pytest.mark.parametrize(
    ("written", "path", "words"),
    [
        ({"name": None}, "name", "is missing"),
        ({"name": 12}, "name", "must be text, not a number"),
        ({"name": "Ümlaut"}, "name", "is not a name"),
        ({"name": "a" * 64}, "name", "is not a name"),
        ({"name": "a\n"}, "name", "is not a name"),
        *(
            ({"name": name}, "name", "is not a name")
            for name in ("..", ".a", "a.", "_a", "a/b", "a b", "a\u0430", "-a")
        ),
        ({"workers": "2"}, "workers", "must be a whole number, not text"),
        ({"workers": True}, "workers", "must be a whole number, not true or false"),
        ({"workers": 1.5}, "workers", "must be a whole number, not '1.5'"),
        ({"workers": -1}, "workers", "must be at least 0, not -1"),
        ({"workers": 5000}, "workers", "must be at most 4096, not 5000"),
        ({"chief": 2}, "chief", "must be at most 1, not 2"),
        ({"gpus": 65}, "gpus", "must be at most 64"),
        ({"gpus": "all"}, "gpus", "must be a whole number, or a fraction of a GPU such as 0.5, not text"),
        ({"gpus": "0.5"}, "gpus", "must be a number, not text"),
        ({"gpus": -0.5}, "gpus", "must be at least 0, not -0.5"),
        ({"gpus": 1.5}, "gpus", "1.5 is neither a whole number nor a fraction of one GPU"),
        ({"gpus": 0.3333}, "gpus", "0.3333 is not a multiple of 0.001 GPU"),
        ({"gpus": 1e-4}, "gpus", "is not a multiple of 0.001 GPU"),
        ({"gpus": True}, "gpus", "not true or false"),
        ({"roles": {"worker": {"placement": "apart"}}}, "roles.worker.placement", "is only for parameter servers"),
        ({"roles": {"worker": {"spread": True}}}, "roles.worker.spread", "is only for parameter servers"),
        (
            {"roles": {"worker": 1, "ps": {"placement": "aside"}}},
            "roles.ps.placement",
            "must be one of beside, apart",
        ),
        (
            {
                "roles": {"worker": 1, "ps": {"placement": "apart"}},
                "topology": {"level": "node", "required": True},
            },
            "roles.ps.placement",
            "is apart, but the topology requires the whole gang on one node",
        ),
        ({"preemptible": "perhaps"}, "preemptible", "must be true or false"),
        ({"cpu": "two"}, "cpu", "is not a quantity"),
        ({"cpu": 0}, "cpu", "must be more than 0"),
        ({"cpu": True}, "cpu", "must be a quantity"),
        ({"cpu": [1]}, "cpu", "must be a quantity"),
        ({"cpu": -1}, "cpu", "is negative"),
        ({"cpu": 10**400}, "cpu", "is too large a number"),
        ({"cpu": "1e999"}, "cpu", "is larger than any machine"),
        ({"memory": "0x10"}, "memory", "is not a quantity"),
        ({"memory": 512}, "memory", "is less than 1Mi"),
        ({"memory": "400m"}, "memory", "is less than 1Mi"),
        ({"memory": "16GB"}, "memory", "has an unknown unit"),
        ({"memory": float("inf")}, "memory", "is inf, not a number"),
        ({"max_run_time": "tomorrow"}, "max_run_time", "is not a duration"),
        ({"max_run_time": "-1s"}, "max_run_time", "is negative"),
        ({"max_run_time": "²"}, "max_run_time", "is not a duration"),
        ({"max_run_time": "99999d"}, "max_run_time", "is not between 0 and ten years"),
        ({"max_run_time": False}, "max_run_time", "must be a duration"),
        ({"priority": 101}, "priority", "must be at most 100, not 101"),
        ({"command": ""}, "command", "is empty"),
        ({"command": []}, "command", "is empty"),
        ({"command": 3}, "command", "must be text or a list of words, not a number"),
        ({"command": ["python", {"a": 1}]}, "command", "word 2 must be text, not a mapping"),
        ({"args": "--epochs 3"}, "args", "must be a list, not text"),
        ({"args": [None]}, "args", "word 1 is empty"),
        ({"args": ["x" * 140_000]}, "args", "word 1 is longer than 128 KiB"),
        ({"env": ["A=1"]}, "env", "must be a mapping, not a list"),
        ({"env": {"A": None}}, "env.A", "is empty"),
        ({"env": {"A": "x" * 131_070}}, "env.A", "is longer than 128 KiB"),
        ({"env": {"A B": "x"}}, 'env["A B"]', "is not a variable name"),
        ({"env": {"A": "a\0b"}}, "env.A", "contains a NUL character"),
        ({"env": {"A": "\ud800"}}, "env.A", "contains half a character"),
        ({"env": {"TRAINMASTER_TOKEN": "x"}}, "env.TRAINMASTER_TOKEN", "reserved for the platform"),
        ({"secrets": ["TRAINMASTER_X"]}, "secrets[0]", "reserved for the platform"),
        ({"secrets": ["A", "A"]}, "secrets[1]", "A is listed twice"),
        ({"secrets": "A"}, "secrets", "must be a list, not text"),
        ({"secrets": ["A"], "env": {"A": "1"}}, "env.A", "is also a secret of this job"),
        ({"roles": ["worker"]}, "roles", "must be a mapping of roles, not a list"),
        ({"roles": {"Worker": 1}}, "roles.Worker", "is not a role name"),
        ({"roles": {"worker": "2"}}, "roles.worker", "must be a number of replicas or a mapping, not text"),
        ({"roles": {"worker": 0}}, "roles.worker", "must be at least 1, not 0"),
        ({"roles": {"worker": {"restart": "always"}}}, "roles.worker.restart", "must be one of gang, replica"),
        ({"contract": "vertex"}, "contract", "must be one of default, uai, mxnet"),
        ({"contract": "mxnet"}, "contract", "mxnet needs parameter servers"),
        ({"sparse": True}, "sparse", "is only for jobs with parameter servers"),
        ({"sparse": "maybe"}, "sparse", "must be true or false"),
        ({"gpu_type": "A100"}, "gpu_type", "names a GPU model, but no role has GPUs"),
        ({"gpus": 1, "gpu_type": [1]}, "gpu_type", "must be a GPU model"),
        ({"memory": "1Gi", "shm": "2Gi"}, "shm", "is more than the replica's memory"),
        ({"code": "main.zip"}, "code", "is not the digest"),
        ({"image": "a b"}, "image", "is not an image name"),
        ({"labels": {"a/b/c": "x"}}, 'labels["a/b/c"]', "is not a label key"),
        ({"labels": {"a": "x y"}}, "labels.a", "is not a label value"),
        ({"labels": {"a": "x\n"}}, "labels.a", "is not a label value"),
        ({"input": "s3://bucket/x"}, "input", "is a URI"),
        ({"input": "/abs"}, "input", "does not begin with a volume name"),
        ({"output": "v/../x"}, "output", "must not leave the volume"),
        ({"input": "v/a", "output": "v/a/"}, "output", "is the input's folder"),
        ({"topology": "rack"}, "topology", "must be a mapping"),
        ({"environment": {}}, "environment", "names no Python and no requirements"),
        ({"environment": {"python": "bin/python"}}, "environment.python", "is not an absolute path"),
        ({"environment": {"venv": "/a/../b"}}, "environment.venv", "is not an absolute path"),
        ({"environment": {"python": "/a", "venv": "/b"}}, "environment.venv", "and python both name a Python"),
        ({"environment": {"conda": "a b"}}, "environment.conda", "is no name of a conda environment"),
        ({"environment": {"requirements": 3}}, "environment.requirements", "must be the text of a requirements file"),
        ({"environment": {"requirements": "r.txt"}}, "environment.requirements", "is a file's name"),
        ({"environment": {"requirements": "a\n-r b.txt"}}, "environment.requirements", "names another file"),
        ({"environment": {"requirements": ["-e ."]}}, "environment.requirements", "folder or file of one machine"),
        ({"environment": {"requirements": ["./a.whl"]}}, "environment.requirements", "folder or file of one machine"),
        ({"environment": {"requirements": ["--user"]}}, "environment.requirements", "is no option of requirements"),
        ({"environment": {"requirements": ["not one"]}}, "environment.requirements", "'not one' is no requirement"),
        ({"topology": {"level": "row"}}, "topology.level", "must be one of node, rack, zone"),
        ({"topology": {}}, "topology.level", "is missing"),
        ({"grace": {"stop": "soon"}}, "grace.stop", "is not a duration"),
    ],
)
def test_each_mistake_has_its_own_sentence(written, path, words):
    mistake = the_mistake(written)
    assert mistake.path == path
    assert words in mistake.message


@pytest.mark.parametrize(
    ("at", "words"),
    [
        ("/", "would hide the image's /"),
        ("/data", "would hide the image's /data"),
        ("/data/", "would hide the image's /data"),
        ("/usr", "would hide the image's /usr"),
        ("/data/data", "is reserved for the platform"),
        ("/data/output/x", "is reserved for the platform"),
        ("/proc/1", "is reserved for the platform"),
        ("mnt", "is not an absolute path"),
        ("/mnt/../etc", "is not an absolute path"),
    ],
)
def test_a_mount_may_not_cover_what_is_not_its_own(at, words):
    mistake = the_mistake({"mounts": [{"volume": "v", "at": at}]})
    assert mistake.path == "mounts[0].at"
    assert words in mistake.message


def test_mounts_lie_beside_each_other():
    mounts = [{"volume": "v", "at": at} for at in ("/mnt/a", "/mnt/a/", "/mnt/a/b", "/mnt/ab")]
    reported = mistakes_of({"mounts": mounts[:2]})
    assert reported["mounts[1].at"].message == "mounts[0] is also at /mnt/a"
    reported = mistakes_of({"mounts": [mounts[2], mounts[0], mounts[3]]})
    assert list(reported) == ["mounts[1].at"]
    assert "are nested" in reported["mounts[1].at"].message


def test_a_wrong_mount_does_not_move_the_numbers_of_the_others():
    mounts = [
        {"volume": "v"},
        {"volume": "v", "at": "/mnt/a"},
        {"volume": "V", "at": "/mnt/b"},
        {"volume": "v", "at": "/mnt/a"},
    ]
    assert set(mistakes_of({"mounts": mounts})) == {"mounts[0].at", "mounts[2].volume", "mounts[3].at"}


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ({"workers": 2, "roles": {"worker": {"replicas": 3}}}, "workers"),
        ({"workers": 2, "roles": {"worker": 3}}, "workers"),
        ({"ps": 0, "roles": {"worker": 1, "ps": 1}}, "ps"),
        ({"chief": False, "roles": {"chief": {}}}, "chief"),
        ({"workers": 1, "evaluator": 1, "evaluators": 2}, "evaluators"),
    ],
)
def test_a_shorthand_that_contradicts_the_roles_is_informed_where_it_was_written(written, path):
    mistake = the_mistake(written)
    assert mistake.path == path
    assert mistake.message.startswith("says ")
    assert mistake.hint == "remove one of them"


def test_two_chiefs_are_one_too_many():
    assert the_mistake({"roles": {"chief": 2}}).path == "roles.chief"
    assert the_mistake({"roles": {"chief": {"replicas": 2}}}).path == "roles.chief.replicas"


def test_somebody_must_decide_when_the_job_is_done():
    assert the_mistake({"ps": 1, "evaluator": 1}).path == "workers"
    assert the_mistake({"roles": {"ps": 1}}).path == "roles"


def test_a_gang_has_an_upper_bound():
    assert "5000 replicas in total" in the_mistake({"workers": 4000, "ps": 1000}).message


def test_a_missing_command_is_reported_once_for_the_job_or_for_each_role_that_lacks_it():
    assert list(mistakes_of({"workers": 2, "ps": 1}, on={"name": "a"})) == ["command"]
    roles = {"worker": {"command": "x"}, "ps": 1, "own": {"image": "i"}}
    assert list(mistakes_of({"roles": roles}, on={"name": "a"})) == ["roles.ps.command"]


def test_a_uai_job_needs_a_command_too():
    assert list(mistakes_of({"contract": "uai"}, on={"name": "a"})) == ["command"]


def test_nothing_is_concluded_from_what_is_wrong_already():
    assert list(mistakes_of({"command": 3, "workers": 1})) == ["command"]
    assert list(mistakes_of({"workers": "x", "ps": 1})) == ["workers"]
    assert list(mistakes_of({"roles": {"worker": "x", "ps": 1}})) == ["roles.worker"]
    assert list(mistakes_of({"roles": {"worker": {"resources": {"gpus": "x", "gpu_type": "A100"}}}})) == [
        "roles.worker.resources.gpus"
    ]
    assert list(mistakes_of({"gpus": "x", "gpu_type": "A100"})) == ["gpus"]
    assert list(mistakes_of({"contract": "mxnet", "ps": "x"})) == ["ps"]


def test_a_hundred_mistakes_are_enough():
    with pytest.raises(SpecError) as caught:
        parse_spec({**BASE, "env": {f"A{i}": None for i in range(1000)}})
    assert len(caught.value.mistakes) == 100


@pytest.mark.parametrize("raw", [None, 3, "name: a", [], [1], object()])
def test_what_is_no_mapping_is_no_spec(raw):
    with pytest.raises(SpecError) as caught:
        parse_spec(raw)
    assert len(caught.value.mistakes) == 1


def test_python_values_that_no_spec_can_hold_are_named():
    reported = mistakes_of({"env": {"A": b"x", "B": {1, 2}, "C": float("nan")}, 3: 4})
    assert "is a Python bytes" in reported["env.A"].message
    assert "is a Python set" in reported["env.B"].message
    assert reported["env.C"].message == "is nan, not a number"
    assert "not text" in reported['["?"]'].message


def test_a_mapping_that_holds_itself_is_reported():
    loop = {}
    loop["again"] = loop
    assert "nested deeper than 32 levels" in str(mistakes_of({"env": {"A": loop}}).values())


def test_a_huge_mapping_is_refused_as_a_whole():
    reported = mistakes_of({"args": ["x"] * 200_000})
    assert "larger than 100000 values" in reported[""].message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("secrets", [f"A{i}" for i in range(300)]),
        ("mounts", [{"volume": "v", "at": f"/mnt/{i}"} for i in range(300)]),
        ("labels", {f"a{i}": "x" for i in range(300)}),
        ("roles", {f"r{i}": 1 for i in range(300)}),
    ],
)
def test_what_is_compared_with_each_other_has_an_upper_bound(field, value):
    assert the_mistake({field: value}).message == "has more than 256 entries"


def test_thousands_of_unknown_fields_are_answered_by_the_first_hundred():
    """Looking for what each was meant to be took eight minutes for a document of half a megabyte."""
    with pytest.raises(SpecError) as caught:
        parse_spec({**BASE, **{f"zz{i}": i for i in range(20_000)}})
    assert len(caught.value.mistakes) == 100


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("loss", "not a pattern"),
        ("{a}{b}!", "{a}{b} without text in between"),
        ("step {step} {loss}{x} y", "{loss}{x} without text in between"),
        ("x" * 2000 + "{a}", "not a pattern"),
    ],
)
def test_a_pattern_must_tell_where_its_numbers_stand(pattern, words):
    mistake = the_mistake({"metric_patterns": ["loss {loss}", pattern]})
    assert mistake.path == "metric_patterns"
    assert words in mistake.message


def test_the_nodes_of_a_ray_cluster_are_not_elastic() -> None:
    mistake = the_mistake({"workers": {"min": 2, "max": 4}, "launcher": "ray"})
    assert (mistake.path, mistake.message) == ("launcher", "the nodes of a Ray cluster are not elastic workers")
