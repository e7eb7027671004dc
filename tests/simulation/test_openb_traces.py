"""Alibaba's openb lists: what becomes of a pod and a node, what is said of a wrong one, and a run of both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scheduler.simulator.__main__ import main
from scheduler.simulator.errors import ScenarioError
from scheduler.simulator.traces import openb

NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,96000,393216,1,T4\nn2,32000,1024,0,\n"
HEAD = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
PODS = (
    HEAD + "whole,8000,1024,1,1000,,LS,Running,100,200,100\n"
    "half,1000,1024,1,500,T4,BE,Succeeded,100,160,110\n"
    "other-half,1000,1024,1,500,T4|V100M16,BE,Succeeded,101,161,101\n"
    "pair,1000,1024,2,1000,,LS,Running,120,220,120\n"
    "without,1000,1024,0,0,,LS,Failed,90,95,\n"
)


def _lists(folder: Path, *, pods: str = PODS, nodes: str = NODES) -> tuple[Path, Path]:
    (folder / "pods.csv").write_text(pods)
    (folder / "nodes.csv").write_text(nodes)
    return folder / "pods.csv", folder / "nodes.csv"


def test_a_pod_runs_as_long_as_it_did_there_and_may_ask_for_a_part_of_one_device_of_some_models(tmp_path: Path) -> None:
    pods, _ = _lists(tmp_path)
    without, whole, half, other_half, pair = openb.read(pods)
    assert [(one.at_s, one.duration_s) for one in (without, whole, half)] == [(0.0, 5.0), (10.0, 100.0), (10.0, 50.0)]
    asks = [one.gang.roles[0].request for one in (without, whole, half, pair)]
    assert [(ask.gpu_count, ask.gpu_milli) for ask in asks] == [(0, 0), (1, 0), (0, 500), (2, 0)]
    assert other_half.gang.roles[0].request.gpu_models == ("T4", "V100M16")
    assert (asks[1].cpu_milli, asks[1].memory_bytes) == (8000, 2**30)


def test_a_pod_without_deletion_time_never_ends(tmp_path: Path) -> None:
    pods, _ = _lists(tmp_path, pods=HEAD + "stays,1000,1024,1,1000,,LS,Running,7,,9\n")
    assert openb.read(pods)[0].duration_s == float("inf")


def test_lists_without_models_or_times_are_read_too(tmp_path: Path) -> None:
    pods, _ = _lists(tmp_path, pods="name,cpu_milli,memory_mib,num_gpu,gpu_milli\na,1,1,1,500\nb,1,1,2,1000\n")
    part, pair = openb.read(pods)
    assert [(one.at_s, one.duration_s) for one in (part, pair)] == [(0.0, float("inf"))] * 2
    assert part.gang.roles[0].request.gpu_models == ()
    head = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,scheduled_time,deletion_time\n"
    pods, _ = _lists(tmp_path, pods=head + "a,1,1,1,500,20,50\nb,1,1,1,500,10,15\n")
    assert [(one.name, one.at_s, one.duration_s) for one in openb.read(pods)] == [("b", 0.0, 5.0), ("a", 10.0, 30.0)]


def test_nodes_have_one_model_or_no_gpus(tmp_path: Path) -> None:
    _, nodes = _lists(tmp_path)
    two, one, none = openb.read_nodes(nodes)
    assert (two.allocatable.gpus, one.allocatable.gpus, none.allocatable.gpus) == ({"P100": 2}, {"T4": 1}, {})
    assert (two.allocatable.cpu_milli, two.allocatable.memory_bytes) == (64_000, 256 * 2**30)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a,1,1,1,1500,,,,0,1,0", "pods.csv, line 2: gpu_milli: '1500' is not 1 to 1000"),
        ("a,1,1,1,0,,,,0,1,0", "pods.csv, line 2: gpu_milli: '0' is not 1 to 1000"),
        ("a,1,1,2,500,,,,0,1,0", "pods.csv, line 2: gpu_milli: '500' of each of 2 GPUs; parts are of one GPU"),
        ("a,1,1,0.5,500,,,,0,1,0", "pods.csv, line 2: num_gpu: '0.5' is not a whole number"),
        ("a,x,1,1,1000,,,,0,1,0", "pods.csv, line 2: cpu_milli: 'x' is not a number"),
        ("a,1,1,1,1000,,,,0,inf,0", "pods.csv, line 2: deletion_time: 'inf' is not a finite number"),
        ("a,1,1,1,1000,,,,0,4,5", "pods.csv, line 2: deletion_time: '4' is before scheduled_time '5'"),
        ("a,1,1,1", "pods.csv, line 2: gpu_milli: is missing"),
    ],
)
def test_a_wrong_pod_is_named_with_line_and_column(tmp_path: Path, line: str, words: str) -> None:
    pods, _ = _lists(tmp_path, pods=HEAD + line + "\n")
    with pytest.raises(ScenarioError) as caught:
        openb.read(pods)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("n0,1,1,1,\n", "nodes.csv, line 2: model: is missing for 1 GPUs"),
        ("n0,1,1,0,\nn0,1,1,0,\n", "nodes.csv, line 3: sn: 'n0' stands twice"),
        ("n0,1,-1,0,\n", "nodes.csv, line 2: memory_mib: '-1' is less than 0"),
        ("", "nodes.csv: lists no node"),
    ],
)
def test_a_wrong_node_is_named_with_line_and_column(tmp_path: Path, lines: str, words: str) -> None:
    _, nodes = _lists(tmp_path, nodes="sn,cpu_milli,memory_mib,gpu,model\n" + lines)
    with pytest.raises(ScenarioError) as caught:
        openb.read_nodes(nodes)
    assert words in str(caught.value)


def test_the_command_runs_pods_on_the_listed_nodes_and_two_halves_share_a_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pods, nodes = _lists(tmp_path)
    assert main([str(pods), "--format", "openb", "--node-list", str(nodes), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["jobs"], figures["finished"]) == (5, 5)
    # The pair needs both P100s, so it waits until the whole one has ended, whichever node that took.
    assert figures["waiting"]["max_s"] in {0.0, 80.0}
    busy_s = 100 + 0.5 * 50 + 0.5 * 60 + 2 * 100
    assert figures["gpu_utilisation"] == pytest.approx(busy_s / (3 * figures["makespan_s"]))


def test_openb_without_a_node_list_names_what_it_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pods, _ = _lists(tmp_path)
    assert main([str(pods), "--format", "openb"]) == 2
    assert capsys.readouterr().err.startswith("error: --node-list: openb needs its list of nodes")
