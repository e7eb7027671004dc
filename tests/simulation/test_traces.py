"""Job lists as others publish them: what becomes of a line, and what is said of a wrong one."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.simulator.errors import ScenarioError
from scheduler.simulator.traces import flat, gavel, own, pollux, pollux_elastic
from scheduler.simulator.work_rate import WorkRate

MURI = "job_id,num_gpu,submit_time,duration,model_name\n7,1,5000,60000,bert\n8,16,6000,120000,gpt2\n"


def test_a_muri_trace_is_in_milliseconds_and_large_jobs_take_whole_nodes(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(MURI)
    small, large = flat.read(tmp_path / "t.csv", flat.MURI, node_gpus=8)
    assert (small.name, small.at_s, small.duration_s, small.gang.gpu_count) == ("job-7", 0.0, 60.0, 1)
    assert (large.at_s, large.gang.size, large.gang.roles[0].request.gpu_count) == (1.0, 2, 8)


def test_a_tiresias_trace_is_in_seconds(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(MURI)
    _, large = flat.read(tmp_path / "t.csv", flat.TIRESIAS, node_gpus=4)
    assert (large.at_s, large.duration_s, large.gang.size) == (1000.0, 120_000.0, 4)


def test_a_philly_log_has_moments_and_virtual_clusters_and_may_be_in_any_order(tmp_path: Path) -> None:
    text = "timestamp,duration,num_gpus,cluster\n2017-10-09 07:01:55,66,1,b\n2017-10-09 07:01:05,10,2,a\n"
    (tmp_path / "p.csv").write_text(text)
    first, second = flat.read(tmp_path / "p.csv", flat.PHILLY, node_gpus=8)
    assert (first.project, first.at_s, second.project, second.at_s) == ("a", 0.0, "b", 50.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("job_id,num_gpu,submit_time\n1,1,0\n", "t.csv, line 1: the column 'duration' is missing; there are job_id"),
        ("job_id,num_gpu,submit_time,duration\n1,1,0,5\n2,one,0,5\n", "t.csv, line 3: num_gpu: 'one' is not a number"),
        ("job_id,num_gpu,submit_time,duration\n1,1,0,-5\n", "t.csv, line 2: duration: '-5' is less than 0"),
        ("job_id,num_gpu,submit_time,duration\n1,1\n", "t.csv, line 2: submit_time: is missing"),
    ],
)
def test_a_wrong_line_is_named_with_its_column(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ScenarioError) as caught:
        flat.read(tmp_path / "t.csv", flat.MURI, node_gpus=8)
    assert words in str(caught.value)


def test_a_file_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot be read"):
        flat.read(tmp_path / "no.csv", flat.MURI, node_gpus=8)


def _profile(folder: Path) -> Path:
    """Two epochs of progress 100 each, no gain from noise; a step takes 1 s on one node and 2 s on two."""
    ncf = folder / "bert"
    ncf.mkdir(parents=True)
    epochs = "progress,iteration,metric,grad_sqr,grad_var\n100,100,0.5,1,0\n200,200,0.6,1,0\n"
    (ncf / "validation-16.csv").write_text(epochs)
    (ncf / "validation-64.csv").write_text(epochs)
    (ncf / "placements.csv").write_text(
        "placement,local_bsz,step_time,sync_time\n1,8,1,0\n1,16,1,0\n4,8,1,0\n4,16,1,0\n44,8,2,0\n44,16,2,0\n"
    )
    (ncf / "scalability.csv").write_text("num_nodes,num_replicas,local_bsz,step_time,sync_time\n2,8,8,2,0\n")
    return folder


def test_a_pollux_job_takes_its_epochs_by_the_steps_of_its_placement_and_thirty_seconds_to_start(
    tmp_path: Path,
) -> None:
    profiles = _profile(tmp_path / "profiles")
    (tmp_path / "w.csv").write_text(
        "name,time,application,num_replicas,batch_size\none,10,bert,1,16\nfour,10,bert,4,64\neight,20,bert,8,64\n"
    )
    one, four, eight = pollux.read(tmp_path / "w.csv", profiles)
    assert (one.duration_s, one.gang.size, one.at_s) == (230.0, 1, 0.0)
    assert (four.duration_s, four.gang.size) == (230.0, 4)
    assert (eight.duration_s, eight.at_s) == (430.0, 10.0)


def test_an_elastic_pollux_job_takes_the_best_batch_size_of_each_size_and_placement(tmp_path: Path) -> None:
    profiles = _profile(tmp_path / "profiles")
    (tmp_path / "w.csv").write_text("name,time,application,num_replicas,batch_size\none,10,bert,1,16\n")
    (job,) = pollux_elastic.read(tmp_path / "w.csv", profiles, gpus=8)
    assert (job.gang.roles[0].replicas, job.gang.roles[0].most) == (1, 8)
    # A step makes one unit of progress, whatever the batch size, and takes 2 s on two nodes and 1 s on one.
    assert job.duration_s == 430.0
    assert job.profile is not None
    assert job.profile.rate(8, 2).seconds(0, job.duration_s) == pytest.approx(430)
    assert job.profile.rate(4, 1).seconds(0, job.duration_s) == pytest.approx(230)
    assert job.profile.rate(4, 1).after(0, 30 + 100) == pytest.approx(30 + 200)


def test_noisy_gradients_make_larger_batches_and_with_them_more_gpus_worth_it(tmp_path: Path) -> None:
    profiles = _profile(tmp_path / "profiles")
    noisy = "progress,iteration,metric,grad_sqr,grad_var\n100,100,0.5,1,0\n200,200,0.6,0,1\n"
    for size in (16, 64):
        (profiles / "bert" / f"validation-{size}.csv").write_text(noisy)
    (tmp_path / "w.csv").write_text("name,time,application,num_replicas,batch_size\none,10,bert,1,16\n")
    (job,) = pollux_elastic.read(tmp_path / "w.csv", profiles, gpus=4)
    # Without noise a step is a step; with noise alone a batch of 64 on four GPUs counts as four of 16.
    assert job.duration_s == pytest.approx(30 + 100 + 25)
    assert job.profile is not None
    # One GPU accumulates four steps of 16 for the same progress.
    assert job.profile.rate(1, 1).seconds(0, job.duration_s) == pytest.approx(30 + 100 + 100, rel=0.05)


@given(
    st.lists(st.tuples(st.floats(0.1, 50), st.floats(0.01, 10)), min_size=1, max_size=6),
    st.floats(0, 300),
    st.floats(0, 300),
)
def test_work_done_and_seconds_are_inverse_in_each_phase(
    phases: list[tuple[float, float]], done: float, seconds: float
) -> None:
    ends = list(accumulate(width for width, _ in phases))
    rate = WorkRate(ends, [speed for _, speed in phases])
    after = rate.after(done, seconds)
    assert after >= done - 1e-9
    assert rate.seconds(done, after) == pytest.approx(seconds, abs=1e-6)


def test_a_pollux_job_without_profile_is_named(tmp_path: Path) -> None:
    (tmp_path / "w.csv").write_text("name,time,application,num_replicas,batch_size\none,10,gpt,1,16\n")
    with pytest.raises(ScenarioError, match=r"w\.csv, line 2: application: there is no profile of 'gpt'"):
        pollux.read(tmp_path / "w.csv", tmp_path)


def _throughputs(tmp_path: Path) -> gavel.Throughputs:
    # An epoch of LM has 59,675 samples: at 10 per step and 10 steps per second 596.75 s, and so on.
    table = {"v100": {f"('LM (batch size {size})', 1)": {"null": 10.0} for size in (10, 20, 40, 80)}}
    (tmp_path / "table.json").write_text(json.dumps(table))
    return gavel.Throughputs.read(tmp_path / "table.json")


def _gavel_line(mode: str, steps: int, kind: str = "LM (batch size 10)") -> str:
    return "\t".join([kind, "python3", "lm", "--steps", "1", str(steps), "1", mode, "1", "-1", "100", "7"])


def test_a_gavel_job_with_one_batch_size_takes_whole_epochs(tmp_path: Path) -> None:
    (tmp_path / "t.trace").write_text(_gavel_line("static", 2 * 5968) + "\n")
    (job,) = gavel.read(tmp_path / "t.trace", _throughputs(tmp_path))
    assert job.at_s == 7.0
    assert job.duration_s == pytest.approx(2 * 596.75)


def test_a_batch_size_that_grows_with_the_noise_makes_later_epochs_shorter() -> None:
    sizes = gavel.batch_sizes("LM", 10, 1, "gns", 50 * 5968)
    assert (sizes[10], sizes[11], sizes[21], sizes[41]) == (10, 20, 40, 80)


def test_accordion_keeps_the_small_batch_in_critical_phases_and_in_the_first_three_tenths() -> None:
    sizes = gavel.batch_sizes("LM", 10, 1, "accordion", 100 * 5968)
    assert sizes[:31] == [10] * 31
    assert set(sizes[31:]) == {80}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a\tb", "t.trace, line 1: has 2 fields between tabs instead of 12"),
        (_gavel_line("static", 5, kind="GPT"), "t.trace, line 1: type: 'GPT' is not one of"),
        (_gavel_line("dynamic", 5), "t.trace, line 1: mode: 'dynamic' is not known"),
    ],
)
def test_a_wrong_gavel_line_is_named(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "t.trace").write_text(line + "\n")
    with pytest.raises(ScenarioError) as caught:
        gavel.read(tmp_path / "t.trace", _throughputs(tmp_path))
    assert words in str(caught.value)


def test_the_platforms_own_history_is_json_lines_with_the_spec_of_each_job(tmp_path: Path) -> None:
    second = {
        "id": "b",
        "name": "sweep-2",
        "queued_at": "2026-05-01T12:00:30Z",
        "ran_s": 60,
        "spec": {"gpus": 2, "workers": 2},
    }
    first = {
        "id": "a",
        "name": "sweep-1",
        "queued_at": "2026-05-01T12:00:00Z",
        "ran_s": 5,
        "project": "vision",
        "user": "ann",
    }
    (tmp_path / "h.jsonl").write_text(json.dumps(second) + "\n\n" + json.dumps(first) + "\n")
    one, two = own.read(tmp_path / "h.jsonl")
    assert (one.name, one.title, one.project, one.user, one.at_s) == ("a", "sweep-1", "vision", "ann", 0.0)
    assert (two.at_s, two.duration_s, two.gang.gpu_count, two.gang.size) == (30.0, 60.0, 4, 2)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "h.jsonl, line 1: is not JSON"),
        ('{"name": "a", "ran_s": 1}', "h.jsonl, line 1: 'queued_at' is missing"),
        ('{"name": "a", "ran_s": "1", "queued_at": "2026-05-01"}', "line 1: ran_s: '1' is not a number"),
        ('{"name": "a", "ran_s": 1, "queued_at": "soon"}', "line 1: queued_at: 'soon' is not a time"),
        ('{"name": "a", "ran_s": 1, "queued_at": "2026-05-01", "gpus": 1}', "line 1: 'gpus' is not known"),
        ('{"name": "a", "ran_s": 1, "queued_at": "2026-05-01", "spec": {"gpu": 1}}', "line 1: spec: "),
    ],
)
def test_a_wrong_line_of_history_is_named(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "h.jsonl").write_text(line + "\n")
    with pytest.raises(ScenarioError) as caught:
        own.read(tmp_path / "h.jsonl")
    assert words in str(caught.value)
