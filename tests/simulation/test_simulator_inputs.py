"""What the simulator reads and says."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler.simulator.__main__ import main
from scheduler.simulator.engine import Simulation
from scheduler.simulator.errors import ScenarioError
from scheduler.simulator.metrics import Spread, summarise
from scheduler.simulator.reading.scenario import parse

NODES = [{"name": "gpu-{}", "count": 2, "gpus": {"H100": 8}}]


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"jobs": []}, "nodes: missing"),
        ({"nodes": NODES, "jbs": []}, "'jbs' is not known"),
        ({"nodes": [{"nmae": "x"}]}, "nodes[0]: 'nmae' is not known"),
        ({"nodes": NODES, "jobs": [{"gpus": 1, "duration": "soon"}]}, "jobs[0].duration"),
        ({"nodes": NODES, "jobs": [{"gpu": 1}]}, "jobs[0]"),
        ({"nodes": NODES, "expect": [{"started": "nobody"}]}, "expect[0]: there is no job 'nobody'"),
        ({"nodes": NODES, "expect": [{"strated": "x"}]}, "expect[0]: has none of the words"),
        ({"nodes": NODES, "jobs": [{"name": "a"}, {"name": "a"}]}, "'a' stands twice"),
        ({"nodes": NODES, "trace": {"file": "away.csv"}}, "cannot be read"),
    ],
)
def test_a_wrong_scenario_is_refused_with_the_place(data: dict, sentence: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse(data)
    assert sentence in str(caught.value)


def test_a_trace_becomes_gangs_of_whole_nodes(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("submit_time,num_gpu,duration\n5000,1,60000\n6000,16,120000\n")
    columns = {"at": "submit_time", "gpus": "num_gpu"}
    scenario = parse({"nodes": NODES, "trace": {"file": "jobs.csv", "unit": "ms", "columns": columns}}, folder=tmp_path)
    small, large = scenario.arrivals
    assert (small.at_s, small.duration_s, small.gang.size) == (0.0, 60.0, 1)
    assert (large.at_s, large.gang.size, large.gang.roles[0].request.gpu_count) == (1.0, 2, 8)
    outcome = Simulation(scenario).run()
    assert outcome.jobs["job-000001"].started_s == 60.0


def test_plans_are_made_at_most_once_per_tick() -> None:
    jobs = [{"name": "j", "count": 10, "every": "1s", "gpus": 1, "duration": "5s"}]
    outcome = Simulation(parse({"nodes": NODES, "jobs": jobs, "tick": "60s"})).run()
    assert {job.started_s for job in outcome.jobs.values()} == {0.0, 60.0}


def test_the_figures_of_a_run_that_can_be_worked_out_by_hand() -> None:
    jobs = [
        {"name": "a", "gpus": 8, "workers": 2, "duration": "10s"},
        {"name": "b", "gpus": 8, "at": "2s", "duration": "10s"},
    ]
    figures = summarise(Simulation(parse({"nodes": NODES, "jobs": jobs})).run())
    assert figures.makespan_s == 20.0
    assert figures.waiting.largest == 8.0
    assert figures.completion.mean == 14.0
    assert figures.gpu_utilisation == pytest.approx((160 + 80) / (16 * 20))
    assert figures.waiting_job_seconds == {"no_room": 8.0}


def test_a_spread_takes_the_nearest_rank() -> None:
    spread = Spread.of([float(value) for value in range(1, 101)])
    assert (spread.p50, spread.p99, spread.largest, spread.mean) == (50.0, 99.0, 100.0, 50.5)


def test_the_command_prints_the_seed_first_and_fails_when_an_expectation_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = tmp_path / "one.yaml"
    scenario.write_text(
        "seed: 5\nnodes: [{name: n, gpus: {H100: 1}}]\njobs: [{name: a, gpus: 1, duration: 1m}]\n"
        "expect: [{started: a, at: 1m}]\n"
    )
    assert main([str(scenario)]) == 1
    printed = capsys.readouterr().out
    assert printed.startswith("seed 5\n")
    assert "expected {started: a, at: 1m}, but it started at 0 s" in printed
    assert main([str(scenario), "--json", "--seed", "6"]) == 1
    figures = json.loads(capsys.readouterr().out)
    assert figures["seed"] == 6
    assert figures["finished"] == 1


def test_the_command_says_how_good_expected_starts_were(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = tmp_path / "one.yaml"
    scenario.write_text(
        "nodes: [{name: n, gpus: {H100: 1}}]\nestimates: known\n"
        "jobs: [{name: j, count: 60, every: 45s, gpus: 1, duration: 1m}]\n"
    )
    assert main([str(scenario), "--forecasts", "1m"]) == 0
    assert "expected starts, 100 % fell into their interval; median error" in capsys.readouterr().out
    assert main([str(scenario), "--forecasts", "1m", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["forecasts"]
    assert found["forecasts"] == found["inside"] > 10
    assert main([str(scenario), "--forecasts", "soon"]) == 2
    assert "error: --forecasts: " in capsys.readouterr().err


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "no.yaml")]) == 2
    assert capsys.readouterr().err.startswith("error: ")


def test_the_same_workload_is_compared_under_other_settings_and_with_more_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [
        {"name": f"job-{n}", "queued_at": "2026-05-01T12:00:00Z", "ran_s": 600, "spec": {"gpus": 8}} for n in range(8)
    ]
    (tmp_path / "past.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    command = [str(tmp_path / "past.jsonl"), "--nodes", "2", "--more-nodes", "2", "--try", "order=fifo,is_fair=false"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "2 more nodes" in printed
    assert "order=fifo,is_fair=false" in printed
    assert main([*command, "--json"]) == 0
    as_it_is, more, other = json.loads(capsys.readouterr().out)
    assert (as_it_is["makespan_s"], more["makespan_s"], other["makespan_s"]) == (2400.0, 1200.0, 2400.0)


def test_a_setting_that_makes_no_sense_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text("job_id,num_gpu,submit_time,duration\n1,1,0,5\n")
    assert main([str(tmp_path / "t.csv"), "--format", "tiresias", "--try", "order=best"]) == 2
    assert "policy.order" in capsys.readouterr().err


MURI = "job_id,num_gpu,submit_time,duration\n1,1,5000,60000\n2,4,6000,60000\n3,1,7000,60000\n"


def _pollux(folder: Path) -> list[str]:
    profile = folder / "profiles" / "bert"
    profile.mkdir(parents=True)
    (profile / "validation-16.csv").write_text(
        "progress,iteration,metric,grad_sqr,grad_var\n100,100,0.5,1,0\n200,200,0.6,1,0\n"
    )
    (profile / "placements.csv").write_text("placement,local_bsz,step_time,sync_time\n1,16,1,0\n")
    (profile / "scalability.csv").write_text("num_nodes,num_replicas,local_bsz,step_time,sync_time\n2,8,8,2,0\n")
    (folder / "w.csv").write_text("name,time,application,num_replicas,batch_size\none,10,bert,1,16\n")
    return ["w.csv", "--format", "pollux", "--profiles", str(folder / "profiles")]


def _pollux_elastic(folder: Path) -> list[str]:
    return [word.replace("pollux", "pollux-elastic") if word == "pollux" else word for word in _pollux(folder)]


def _gavel(folder: Path) -> list[str]:
    (folder / "table.json").write_text(json.dumps({"v100": {"('LM (batch size 10)', 1)": {"null": 10.0}}}))
    fields = ["LM (batch size 10)", "python3", "lm", "--steps", "1", "5968", "1", "static", "1", "-1", "100", "7"]
    (folder / "t.trace").write_text("\t".join(fields) + "\n")
    return ["t.trace", "--profiles", str(folder / "table.json")]


def _philly(folder: Path) -> list[str]:
    text = "timestamp,duration,num_gpus,cluster\n2017-10-09 07:01:55,66,1,b\n"
    (folder / "p.csv.gz").write_bytes(gzip.compress(text.encode()))
    return ["p.csv.gz", "--format", "philly"]


def _history(folder: Path) -> list[str]:
    (folder / "h.jsonl").write_text('{"name": "a", "queued_at": "2026-05-01T12:00:00Z", "ran_s": 5}\n')
    return ["h.jsonl"]


def _muri(folder: Path) -> list[str]:
    (folder / "m.csv").write_text(MURI)
    return ["m.csv", "--format", "muri", "--limit", "1"]


@pytest.mark.parametrize("listed", [_pollux, _pollux_elastic, _gavel, _philly, _history, _muri])
def test_the_command_runs_job_lists_of_every_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], listed: Callable[[Path], list[str]]
) -> None:
    name, *more = listed(tmp_path)
    assert main([str(tmp_path / name), *more, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["jobs"], figures["finished"], figures["waiting"]["max_s"]) == (1, 1, 0.0)
    assert figures["name"] == name.partition(".")[0]


@pytest.mark.parametrize(
    ("name", "text", "options", "words"),
    [
        ("w.csv", "", ["--format", "pollux"], "--profiles: pollux needs the folder"),
        ("t.trace", "", [], "--profiles: gavel needs its table"),
        ("p.csv.gz", "", [], "--format: say which p.csv.gz has"),
        ("m.csv", MURI, ["--format", "muri", "--nodes", "0"], "--nodes: is at least 1, not 0"),
        ("m.csv", MURI, ["--format", "muri", "--limit", "0"], "--limit: is at least 1, not 0"),
        ("m.csv", MURI + "3,1,8000,60000\n", ["--format", "muri"], "m.csv: the job 'job-3' stands 2 times"),
        (
            "m.csv",
            MURI.replace("1,1,", "1,inf,"),
            ["--format", "muri"],
            "m.csv, line 2: num_gpu: 'inf' is not a finite",
        ),
        ("m.csv", MURI.partition("\n")[0] + "\n", ["--format", "muri"], "m.csv: lists no job"),
    ],
)
def test_what_a_job_list_lacks_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, options: list[str], words: str
) -> None:
    (tmp_path / name).write_text(text)
    assert main([str(tmp_path / name), *options]) == 2
    assert capsys.readouterr().err.startswith(f"error: {words}")
