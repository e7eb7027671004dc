"""Plots of runs: completion times, GPUs in use, queue length, and fairness, of several runs on common axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scheduler.simulator.errors import ScenarioError
from scheduler.simulator.metrics import rhos, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from scheduler.simulator.outcome import SimulationOutcome

ENDINGS: Final = (".svg", ".png", ".pdf")
_UNITS: Final = (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
_TIMES: Final = {  # ticks of a logarithmic scale
    1.0: "1 s", 10.0: "10 s", 60.0: "1 min", 600.0: "10 min", 3600.0: "1 h", 14_400.0: "4 h",
    86_400.0: "1 day", 345_600.0: "4 days", 1_728_000.0: "20 days", 8_640_000.0: "100 days",
}  # fmt: skip
# Distinguishable with all kinds of colour vision: Okabe and Ito, "Color Universal Design" (2008), without yellow,
# which is invisible on white.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_STYLES: Final = ("-", "--", "-.", ":")  # for print without colours
_WIDE: Final = 30.0  # largest / smallest value from which a scale is logarithmic
_STYLE: Final[Any] = {
    "svg.fonttype": "none",  # text stays text: searchable and readable aloud
    "svg.hashsalt": "trainmaster",  # the same run gives the same file
    "text.parse_math": False,  # names of users may have dollar signs
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.8,
}


@dataclass(frozen=True, slots=True)
class Curves:
    """The plotted data of one run. ``completions`` (seconds) and ``rhos`` (finish-time fairness): of finished jobs,
    ascending; ``allocation`` (fraction of the GPUs) and ``queue`` (waiting jobs): means from each time to the next.
    """

    name: str
    jobs: int
    end_s: float
    completions: tuple[float, ...]
    rhos: tuple[float, ...]
    allocation: tuple[tuple[float, float], ...]
    queue: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, name: str, outcome: SimulationOutcome) -> Curves:
        jobs = list(outcome.jobs.values())
        figures = summarise(outcome)
        ended = sorted(job.ended_s - job.arrival.at_s for job in jobs if job.ended_s is not None)
        fairness = tuple(sorted(rhos(jobs, outcome.usage.gpus)))
        return cls(name, len(jobs), outcome.end_s, tuple(ended), fairness, figures.allocation, figures.queue)


def check(path: Path) -> None:
    """Check before a long run that the picture can be written.

    Raises:
        ScenarioError: it says what to do.
    """
    if path.suffix not in ENDINGS:
        raise ScenarioError(f"--plot: {path.name!r} does not end in {', '.join(ENDINGS)}")
    if not path.parent.is_dir():
        raise ScenarioError(f"--plot: there is no folder {path.parent}")
    try:
        import matplotlib as mpl  # noqa: F401 (whether it is there)
    except ImportError:
        raise ScenarioError("--plot: needs matplotlib; install it with pip install 'matplotlib>=3.10'") from None


def plot(title: str, runs: Sequence[Curves], path: Path) -> None:
    """Raises :class:`ScenarioError` where the file cannot be written."""
    check(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(_STYLE):
        figure = Figure(figsize=(11, 7.5), layout="constrained")
        figure.suptitle(title)
        (done, use), (queue, fair) = figure.subplots(2, 2)
        _done(done, runs)
        _over_time(use, runs, lambda run: [(at, 100 * part) for at, part in run.allocation])
        use.set(title="GPUs in use", ylabel="GPUs in use (% of all)", ylim=(0, 105))
        _over_time(queue, runs, lambda run: run.queue)
        queue.set(title="Queue", ylabel="jobs that wait")
        queue.set_ylim(0, max(1.0, queue.get_ylim()[1]))
        _fair(fair, runs)
        if len(runs) > 1:
            lines = done.get_legend_handles_labels()
            figure.legend(*lines, loc="outside lower center", ncols=min(3, len(runs)), frameon=False)
        # No date, so that the same run gives the same file.
        metadata = {".svg": {"Date": None, "Title": title}, ".pdf": {"CreationDate": None, "Title": title}}
        try:
            figure.savefig(path, dpi=150, metadata=metadata.get(path.suffix, {"Title": title}))
        except OSError as error:
            raise ScenarioError(f"--plot: {path} cannot be written: {error.strerror or error}") from error


def _done(axes: Axes, runs: Sequence[Curves]) -> None:
    """As a fraction of all jobs, so that jobs that never end are visible as missing."""
    values = [value for run in runs for value in run.completions]
    is_wide = _is_wide(values)
    unit, unit_s = ("", 1.0) if is_wide else _unit(max(values, default=0.0))
    for number, run in enumerate(runs):
        _distribution(axes, [value / unit_s for value in run.completions], run.jobs, _line_style(number, run.name))
    if is_wide:
        ends = [at_s for at_s in _TIMES if min(value for value in values if value > 0) <= at_s <= max(values)]
        axes.set_xscale("log")
        axes.set_xticks(list(ends), [_TIMES[at_s] for at_s in ends])
        axes.set_xticks([], minor=True)
    else:
        axes.set_xlim(left=0)
    axes.set(
        title="Time from arrival to end (JCT)",
        xlabel=f"time from arrival to end{f' ({unit})' if unit else ''}",
        ylabel="jobs done by then (% of all)",
        ylim=(0, 105),
    )


def _fair(axes: Axes, runs: Sequence[Curves]) -> None:
    axes.axvline(1, color="#555555", linewidth=1)
    for number, run in enumerate(runs):
        _distribution(axes, run.rhos, run.jobs, _line_style(number, run.name))
    if _is_wide([1.0, *(rho for run in runs for rho in run.rhos)]):
        from matplotlib.ticker import FuncFormatter, NullFormatter

        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(0, max(2.0, axes.get_xlim()[1]))
    axes.set(
        title="Finish-time fairness",
        xlabel="ρ = time taken ÷ time with an equal share (above 1: later)",
        ylabel="jobs with at most this ρ (% of all)",
        ylim=(0, 105),
    )


def _over_time(axes: Axes, runs: Sequence[Curves], points: Callable[[Curves], Sequence[tuple[float, float]]]) -> None:
    unit, unit_s = _unit(max((run.end_s for run in runs), default=0.0))
    for number, run in enumerate(runs):
        drawn = points(run)
        if drawn:
            edges = [*(at_s / unit_s for at_s, _ in drawn), run.end_s / unit_s]
            values = [value for _, value in drawn]
            axes.step(edges, [*values, values[-1]], where="post", **_line_style(number, run.name))
    axes.set_xlim(left=0)
    axes.set_xlabel(f"time since the first arrival ({unit})")


def _distribution(axes: Axes, values: Sequence[float], jobs: int, line_style: dict[str, Any]) -> None:
    """Cumulative distribution: the fraction of ``jobs`` with at most each of ``values``, which ascend."""
    if values:
        parts = [100 * (number + 1) / jobs for number in range(len(values))]
        axes.step([values[0], *values], [0.0, *parts], where="post", **line_style)


def _is_wide(values: Sequence[float]) -> bool:
    """Whether the scale should be logarithmic."""
    above = [value for value in values if value > 0]
    return bool(above) and max(above) > _WIDE * min(above)


def _line_style(number: int, name: str) -> dict[str, Any]:
    return {"color": _COLOURS[number % len(_COLOURS)], "linestyle": _STYLES[number % len(_STYLES)], "label": name}


def _unit(longest_s: float) -> tuple[str, float]:
    """The largest unit of which there are at least two."""
    return next(((name, unit_s) for name, unit_s in _UNITS if longest_s >= 2 * unit_s), _UNITS[-1])
