"""Tables, filters and numbers without a platform around them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from api.protocols.kit.errors import NotServed
from api.protocols.kit.json_values import display_name, slug
from api.protocols.kit.vertex_table import Table, environment_entries, table_with
from api.protocols.kit.vertex_table_entries import read_entries
from api.protocols.vertex.filters import job_vocabulary, parse_filter
from api.protocols.vertex.proto import Message, camel, snake
from api.protocols.vertex.training.specs import read_spec
from core.domain.errors import InvalidRequest
from core.settings import BadSettings, Settings

JOB: dict[str, Any] = {
    "display_name": "wide and deep",
    "state": "JOB_STATE_FAILED",
    "labels": {"team": "x", "on": ""},
    "create_time": datetime(2026, 11, 21, 7, tzinfo=UTC),
    "start_time": None,
}
JOBS = job_vocabulary(["JOB_STATE_PENDING", "JOB_STATE_RUNNING", "JOB_STATE_FAILED"])


@pytest.mark.parametrize(
    "text",
    [
        "",
        'display_name="wide and deep"',
        "displayName = 'wide and deep'",
        'display_name:"and"',
        'display_name="wide*"',
        'state="JOB_STATE_FAILED" AND display_name!="x"',
        'state="JOB_STATE_FAILED" display_name!="x"',
        "state=JOB_STATE_RUNNING OR state=JOB_STATE_FAILED",
        'NOT state="JOB_STATE_RUNNING"',
        '-state="JOB_STATE_RUNNING"',
        '(state="JOB_STATE_PENDING" OR state="JOB_STATE_FAILED") AND labels.team=x',
        "labels.team:x",
        "labels.on:*",
        "labels:team",
        'create_time>="2026-11-21T07:00:00Z" AND create_time < "2026-11-21T09:00:00+01:00"',
        'display_name="x" OR display_name="wide and deep" AND state="JOB_STATE_FAILED"',
    ],
)
def test_filters_that_hold(text: str) -> None:
    assert parse_filter(text, JOBS)(JOB.get)


@pytest.mark.parametrize(
    "text",
    [
        'display_name="wide"',
        "labels.team=y",
        "labels.none:*",
        'start_time>"2026-01-01T00:00:00Z"',
        'create_time<"2026-01-01T00:00:00Z"',
        "NOT labels:team",
    ],
)
def test_filters_that_do_not_hold(text: str) -> None:
    assert not parse_filter(text, JOBS)(JOB.get)


@pytest.mark.parametrize(
    "text",
    [
        "display_name",
        "display_name=",
        '="x"',
        "(state=a",
        "state=a)",
        'colour="red"',
        'create_time>"soon"',
        '"',
        "AND",
        "(" * 50,
        "a.b=c",
        'state="NOPE"',
        "state=4",
    ],
)
def test_filters_that_cannot_be_read(text: str) -> None:
    with pytest.raises(InvalidRequest, match="Invalid filter"):
        parse_filter(text, JOBS)


def test_numbers_in_all_their_spellings() -> None:
    reply = Message({"a_b": "12", "cD": 3.0, "e": None, "f": "3600s", "g": {"seconds": "90"}, "h": 2, "i": "B"}, "m")
    assert (reply.whole("aB"), reply.whole("cD"), reply.whole("e")) == (12, 3, 0)
    assert (reply.seconds("f"), reply.seconds("g"), reply.seconds("e")) == (3600.0, 90.0, None)
    names = {0: "A", 2: "B"}
    assert (reply.enum("h", names), reply.enum("i", names), reply.enum("e", names)) == ("B", "B", "A")
    assert (snake("maxWaitDuration"), camel("max_wait_duration")) == ("max_wait_duration", "maxWaitDuration")
    for name in ("f", "g"):
        with pytest.raises(InvalidRequest, match=f"m.{name}"):
            reply.whole(name)
    with pytest.raises(InvalidRequest):
        Message({"x": True}, "m").whole("x")
    with pytest.raises(InvalidRequest):
        Message([], "m")


def test_fields_of_the_real_api_that_say_nothing_pass() -> None:
    container = {"imageUri": "i"}
    pools = [{"containerSpec": container, "replicaCount": 1, "nfsMounts": []}]
    assert read_spec({"workerPoolSpecs": pools, "network": "", "enableWebAccess": False}, "s").pools[0]
    pools[0]["nfsMounts"] = [{"server": "x"}]
    with pytest.raises(NotServed, match="nfs_mounts"):
        read_spec({"workerPoolSpecs": pools}, "s")


def test_machines_have_googles_sizes_unless_an_administrator_says_otherwise() -> None:
    entries, wrong = read_entries(
        {
            "machines": {"n1-standard-8": {"cpu": 2}, "ours-*": {"memory": "1Gi", "node_selector": {"pool": "a"}}},
            "accelerators": {"NVIDIA_TESLA_T4": ["L4", "A10"], "TPU_*": []},
            "images": {"us-docker.pkg.dev/vertex-ai/*pytorch*": "ours:1", "none/*": None},
            "locations": {"europe-*": {"pool": "eu"}},
        }
    )
    assert wrong == []
    table = Table(entries)
    four = table.machine("n1-standard-4", path="p")
    assert (four.cpu, four.memory) == (4, "15360Mi")
    assert table.machine("a2-highgpu-1g", path="p").memory == "85Gi"
    assert table.machine("n1-standard-8", path="p").memory is None
    assert table.machine("ours-big", path="p").node_selector == {"pool": "a"}
    assert table.machine("", path="p").cpu is None
    for name in ("n1-standard-0", "x9-mega-4", "four"):
        with pytest.raises(InvalidRequest, match="is not supported"):
            table.machine(name, path="p")
    assert table.gpu_models("NVIDIA_TESLA_T4", path="p") == ("L4", "A10")
    assert table.gpu_models("TPU_V3", path="p") == ()
    assert table.gpu_models("NVIDIA_H100_80GB", path="p") == ("H100",)
    assert table.image("us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.2-4:latest") == "ours:1"
    assert table.image("none/x") is None
    assert table.image("python:3.11") == "python:3.11"
    assert table.node_selector("europe-west4") == {"pool": "eu"}
    assert table.node_selector("us-central1") == {}


def test_plain_processes_share_their_machine(tmp_path: Any) -> None:
    plain = table_with([], Settings(home=tmp_path, executor="process"))
    assert plain.machine("n1-standard-96", path="p").cpu is None
    assert plain.image("python:3.11") is None
    own = table_with([], Settings(home=tmp_path, executor="process", vertex='{"machines": {"n1-*": {"cpu": 1}}}'))
    assert own.machine("n1-standard-96", path="p").cpu == 1
    docker = table_with([], Settings(home=tmp_path, executor="docker"))
    assert docker.machine("n1-standard-96", path="p").cpu == 96
    for wrong in ("{", "[]", '{"machine": {}}', '{"machines": {"x": {"ram": 1}}}', '{"images": {"a": "b", "a": "c"}}'):
        with pytest.raises(BadSettings, match="TRAINMASTER_VERTEX"):
            environment_entries(Settings(home=tmp_path, vertex=wrong))


@pytest.mark.parametrize(
    ("reply", "name"), [("My Job!", "my-job"), ("---", "custom-job"), ("ü" * 9, "custom-job"), ("a" * 99, "a" * 63)]
)
def test_names(reply: str, name: str) -> None:
    assert slug(reply) == display_name(reply) == name
    assert display_name("ResNet_50.v2") == "ResNet_50.v2"
