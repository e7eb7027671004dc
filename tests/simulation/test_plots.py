"""Pictures of simulations: what stands in them, and what is said where none can be made."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from scheduler.simulator.__main__ import main
from scheduler.simulator.engine import Simulation
from scheduler.simulator.plots import Curves, plot
from scheduler.simulator.reading.scenario import parse

NODES = [{"name": "n", "gpus": {"H100": 2}}]
JOBS = [
    {"name": "a", "gpus": 2, "duration": "10s"},
    {"name": "b", "gpus": 1, "at": "2s", "duration": "10s"},
    {"name": "never", "gpus": 4, "duration": "10s"},
]


def _curves(name: str = "run") -> Curves:
    return Curves.of(name, Simulation(parse({"nodes": NODES, "jobs": JOBS, "until": "20s"})).run())


def _words(path: Path) -> str:
    drawing = ET.parse(path)  # noqa: S314
    return " ".join("".join(text.itertext()) for text in drawing.iter("{http://www.w3.org/2000/svg}text"))


def test_the_curves_of_a_run_that_can_be_worked_out_by_hand() -> None:
    curves = _curves()
    assert curves.completions == (10.0, 18.0)
    assert curves.jobs == 3
    assert curves.end_s == 20.0
    assert len(curves.rhos) == 2
    # Two hundred points, so each stands for a tenth of a second. `never` waits all the time, `b` from 2 s to 10 s.
    assert [curves.allocation[10 * at_s][1] for at_s in (1, 5, 15)] == pytest.approx([1.0, 1.0, 0.5])
    assert [curves.queue[10 * at_s][1] for at_s in (1, 5, 15)] == pytest.approx([1.0, 2.0, 1.0])


def test_a_picture_has_all_four_parts_with_units_and_the_names_of_the_runs(tmp_path: Path) -> None:
    plot("what if", [_curves("as it is"), _curves("costs $5 or $6")], tmp_path / "out.svg")
    words = _words(tmp_path / "out.svg")
    for wanted in (
        "what if",
        "time from arrival to end (seconds)",
        "GPUs in use (% of all)",
        "jobs that wait",
        "jobs with at most this",
        "as it is",
        "costs $5 or $6",
    ):
        assert wanted in words


def test_the_same_run_gives_the_same_file(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        plot("same", [_curves()], tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


@pytest.mark.parametrize(
    "curves",
    [
        Curves("no job ended", 3, 5.0, (), (), ((0.0, 0.0),), ((0.0, 3.0),)),
        Curves("no GPUs, no time", 0, 0.0, (), (), (), ()),
        Curves("wide", 3, 9e6, (0.0, 0.5, 9e6), (0.5, 1.0, 900.0), ((0.0, 1.0),), ((0.0, 3.0),)),
    ],
    ids=lambda curves: curves.name,
)
def test_a_run_of_any_kind_can_be_drawn(tmp_path: Path, curves: Curves) -> None:
    for ending in ("svg", "png", "pdf"):
        plot("odd", [curves], tmp_path / f"out.{ending}")
        assert (tmp_path / f"out.{ending}").stat().st_size > 1000


def _scenario(folder: Path) -> str:
    (folder / "one.yaml").write_text(json.dumps({"nodes": NODES, "jobs": JOBS}))
    return str(folder / "one.yaml")


def test_the_command_draws_a_run_and_a_comparison(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.svg"
    assert main([_scenario(tmp_path), "--plot", str(path)]) == 0
    assert "Finish-time fairness" in _words(path)
    assert main([_scenario(tmp_path), "--plot", str(path), "--more-nodes", "2", "--try", "order=fifo"]) == 0
    assert "2 more nodes" in _words(path)
    assert "order=fifo" in _words(path)


@pytest.mark.parametrize(
    ("name", "words"),
    [("out.gif", "'out.gif' does not end in .svg, .png, .pdf"), ("away/out.svg", "there is no folder")],
)
def test_a_picture_that_cannot_be_written_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    assert main([_scenario(tmp_path), "--plot", str(tmp_path / name)]) == 2
    reported = capsys.readouterr()
    assert words in reported.err
    assert not reported.out


def test_without_matplotlib_everything_but_pictures_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main([_scenario(tmp_path)]) == 0
    assert main([_scenario(tmp_path), "--plot", str(tmp_path / "out.svg")]) == 2
    assert "needs matplotlib; install it with pip install" in capsys.readouterr().err
