"""Plots the result of ``simulate``: waiting and completion times, and the queue and usage over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from trainmaster.cli.terminal.exits import WrongUse

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from trainmaster.wire.forecasts import SimulationView

_ENDINGS: Final = (".svg", ".png", ".pdf")
_NAMES: Final = ("as now", "what if")
# Distinguishable with any colour vision (Okabe and Ito), and in black and white by their dashes.
_LINE_STYLES: Final = (("#0072B2", "-"), ("#D55E00", "--"))
_UNITS: Final = (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
_TIMES: Final = {
    "waiting time,\nmean": "wait_mean_s",
    "waiting time,\np99": "wait_p99_s",
    "completion time,\nmean": "jct_mean_s",
    "completion time,\nmedian": "jct_p50_s",
    "completion time,\np99": "jct_p99_s",
}
_STYLE: Final[Any] = {
    "svg.fonttype": "none",  # text stays text, for search and screen readers
    "svg.hashsalt": "trainmaster",  # reproducible files
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def check(path: Path) -> None:
    """Check before a long wait that a plot can be written to ``path``.

    Raises:
        WrongUse: the message says what to do.
    """
    if path.suffix not in _ENDINGS:
        raise WrongUse(f"--plot: {path.name!r} does not end in {', '.join(_ENDINGS)}.")
    if not path.parent.is_dir():
        raise WrongUse(f"--plot: there is no folder {path.parent}.")
    try:
        import matplotlib as mpl  # noqa: F401 (whether it is installed)
    except ImportError:
        raise WrongUse("--plot needs matplotlib; install it with `pip install 'trainmaster[plots]'`.") from None


def draw(simulation: SimulationView, path: Path) -> None:
    """Write the plot. Raises :class:`WrongUse` if the file cannot be written."""
    check(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    sides = (simulation.before, simulation.after)
    shares = [
        (noun, [getattr(side, name) for side in sides])
        for noun, name in (("GPUs", "gpus_over_time"), ("CPUs", "cpus_over_time"))
    ]
    shares = [(noun, runs) for noun, runs in shares if any(part for run in runs for _, part in run)]
    waiting = [side.waiting_over_time for side in sides]
    ends_s = [point[0] for runs in (*(runs for _, runs in shares), waiting) for run in runs for point in run]
    unit, unit_s = _unit(max(ends_s, default=0.0))
    with rc_context(_STYLE):
        figure = Figure(figsize=(11, 2.6 * (len(shares) + 2)), layout="constrained")
        figure.suptitle(
            f"{simulation.jobs} jobs from {simulation.since:%Y-%m-%d %H:%M} to {simulation.until:%Y-%m-%d %H:%M} UTC"
        )
        times, queue, *share_axes = figure.subplots(len(shares) + 2, 1)
        _times(times, [[getattr(side, name) for name in _TIMES.values()] for side in sides])
        _over_time(queue, waiting, unit_s)
        queue.set(title="Queue", ylabel="waiting jobs", xlabel=f"time since the first submission ({unit})")
        for axes, (noun, runs) in zip(share_axes, shares, strict=True):
            _over_time(axes, [[[at_s, 100 * part] for at_s, part in run] for run in runs], unit_s)
            axes.set(title=f"{noun} in use", ylabel="% of all", ylim=(0, 105))
            axes.set_xlabel(f"time since the first submission ({unit})")
        figure.legend(*times.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
        metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix)
        try:
            figure.savefig(path, dpi=150, metadata=metadata)
        except OSError as error:
            raise WrongUse(f"--plot: {path} cannot be written: {error.strerror or error}.") from error


def _times(axes: Axes, sides: Sequence[Sequence[float | None]]) -> None:
    """Grouped bars; an unknown value (no job started or finished) has no bar."""
    unit, unit_s = _unit(max((value for side in sides for value in side if value is not None), default=0.0))
    for number, (side, name, (colour, _)) in enumerate(zip(sides, _NAMES, _LINE_STYLES, strict=True)):
        places = [at + 0.4 * number - 0.2 for at in range(len(side))]
        axes.bar(places, [0.0 if value is None else value / unit_s for value in side], 0.38, color=colour, label=name)
    axes.set_xticks(range(len(_TIMES)), list(_TIMES))
    axes.set(title="Times", ylabel=unit)


def _over_time(axes: Axes, runs: Sequence[Sequence[Sequence[float]]], unit_s: float) -> None:
    """Step functions: each value holds until the next."""
    for run, (colour, dashes) in zip(runs, _LINE_STYLES, strict=True):
        if run:
            axes.step(
                [at_s / unit_s for at_s, _ in run], [value for _, value in run],
                where="post", color=colour, linestyle=dashes, linewidth=1.8,
            )  # fmt: skip
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)


def _unit(longest_s: float) -> tuple[str, float]:
    """The largest unit in which the value is at least 2."""
    return next(((name, unit_s) for name, unit_s in _UNITS if longest_s >= 2 * unit_s), _UNITS[-1])
