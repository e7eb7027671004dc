"""``whatif``, ``explain`` and ``simulate``: forecasts, explanations, and simulations with a plot, by the planner."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from trainmaster.cli.jobs.spec_files import read_spec_argument
from trainmaster.cli.jobs.verbs import changes_of
from trainmaster.cli.planner.queue import start_text
from trainmaster.cli.terminal import options, output, session
from trainmaster.cli.terminal.exits import WrongUse

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from trainmaster.client import Client
    from trainmaster.wire.forecasts import (
        ForecastView,
        OptionView,
        PlaceView,
        SimulationReportView,
        SimulationStatusView,
        SimulationView,
    )
    from trainmaster.wire.jobs import JobDetail

_POLL_S: Final = 0.5
_PLOT_ENDINGS: Final = (".svg", ".png", ".pdf")
_SIDES: Final = ("as now", "what if")
# Distinguishable with any colour vision (Okabe and Ito), and in black and white by their dashes.
_LINE_STYLES: Final = (("#0072B2", "-"), ("#D55E00", "--"))
_TIME_UNITS: Final = (("days", 86_400.0), ("hours", 3600.0), ("minutes", 60.0), ("seconds", 1.0))
_PLOT_TIMES: Final = {
    "waiting time,\nmean": "wait_mean_s",
    "waiting time,\np99": "wait_p99_s",
    "completion time,\nmean": "jct_mean_s",
    "completion time,\nmedian": "jct_p50_s",
    "completion time,\np99": "jct_p99_s",
}
_PLOT_STYLE: Final[Any] = {
    "svg.fonttype": "none",  # text stays text, for search and screen readers
    "svg.hashsalt": "trainmaster",  # reproducible files
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def register(root: typer.Typer) -> None:
    root.command("whatif", rich_help_panel="Jobs")(whatif)
    root.command("explain", rich_help_panel="Jobs")(explain)
    root.command("simulate", rich_help_panel="Administration")(simulate)


AddedNodes = Annotated[int, typer.Option("--more-nodes", help="With N more nodes like --like.", min=0)]
Like = Annotated[str | None, typer.Option("--like", metavar="NODE", help="The node that --more-nodes copies.")]
Without = Annotated[list[str] | None, typer.Option("--without", metavar="NODE", help="Without this node. Repeatable.")]


def whatif(
    what: Annotated[
        str, typer.Argument(metavar="SPEC|JOB", help="A YAML or JSON file, `-` for stdin, or a waiting job.")
    ],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="PATH=VALUE",
            help="Hypothetical change: --set workers=16 (VALUE is YAML). Repeatable.",
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Show the forecasts with and without the changes.")
    ] = False,
    more_nodes: AddedNodes = 0,
    like: Like = None,
    without: Without = None,
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Forecast when and where a job would start, why it would wait, and what would start sooner. Submits nothing."""
    if more_nodes and like is None:
        raise typer.BadParameter(
            "is required with --more-nodes: the node to copy, such as --like gpu-07", param_hint="--like"
        )
    patch = changes_of(changes or [])
    if compare and not (patch or more_nodes or without):
        raise WrongUse(
            "--compare needs a change to compare with: --set PATH=VALUE, --more-nodes N --like NODE, or --without NODE."
        )
    with session.client() as client:

        def forecast(changed: dict[str, Any], **cluster: Any) -> ForecastView:
            if not _is_file(what):
                return client.forecast_job(what, changes=changed, **cluster)
            return client.forecast_spec(spec, changes=changed, **cluster)

        spec = _spec(what, project) if _is_file(what) else {}
        answer = forecast(patch, more_nodes=more_nodes, like=like, without=without or [])
        before = forecast({}) if compare else None
    if json:
        output.print_json(answer if before is None else {"before": before, "after": answer})
        return
    if before is None:
        output.print_pairs(_pairs(answer))
        return
    now, then = dict(_pairs(before)), dict(_pairs(answer))
    for key in dict(_pairs(before, with_empty=True)):
        if now.get(key) or then.get(key):
            _print_both(key, now.get(key) or "–", then.get(key) or "–")


def _print_both(key: str, now: str, then: str) -> None:
    """Print two sentences below each other; side by side they would be too wide."""
    rows = [("as it is", now), ("what if", then)] if now != then else [("both", now)]
    output.print_pairs([(f"{key if not row else '':<18} {label:<8}", text) for row, (label, text) in enumerate(rows)])


def _is_file(text: str) -> bool:
    """Whether ``text`` is a spec file. To name a file like a job, write ``./name``."""
    return text == "-" or "/" in text or text.endswith((".yaml", ".yml", ".json")) or Path(text).is_file()


def _spec(argument: str, project: str | None) -> dict[str, Any]:
    spec = read_spec_argument(argument)
    if project is not None:
        spec["project"] = project
    # The code has no influence on the placement, and need not be uploaded for a forecast.
    return {key: value for key, value in spec.items() if key != "code"}


def _pairs(forecast: ForecastView, *, with_empty: bool = False) -> list[tuple[str, str | None]]:
    waits = forecast.wait_reason
    place = f" (position {forecast.queue_position} in the queue)" if forecast.queue_position else ""
    pairs = [
        ("Expected start", starts_text(forecast)),
        ("Waits", f"{waits.sentence.removesuffix('.')}{place}" if waits else None),
        ("Nodes", places_text(forecast.places)),
        ("Preempts", " ".join(victim.sentence for victim in forecast.victims)),
        ("Cost", forecast.cost.sentence if forecast.cost else None),
        ("Would start now", options_text(forecast)),
        ("Would start sooner", sentences(forecast.later)),
    ]
    return [(key, value) for key, value in pairs if value or with_empty]


def starts_text(forecast: ForecastView) -> str:
    """``now``, ``14:20 (13:50–16:05)``, or why there is no forecast."""
    if forecast.would_start:
        return "now"
    if forecast.start is None:
        return ""
    if forecast.start.likely_at is not None:
        return start_text(forecast.start, output.now())
    return forecast.start.sentence.removeprefix("It starts ").removesuffix(".")


def places_text(places: list[PlaceView]) -> str:
    """``worker×2 on a (H100), ps×1 on b``."""
    return ", ".join(
        f"{place.role}×{place.replicas} on {place.node}" + (f" ({place.gpu_model})" if place.gpu_model else "")
        for place in places
    )


def options_text(forecast: ForecastView) -> str:
    """Alternatives that would start now."""
    if forecast.would_start:
        return ""
    return sentences(forecast.options) or "no similar configuration"


def sentences(alternatives: list[OptionView]) -> str:
    return " ".join(alternative.sentence for alternative in alternatives)


def forecast_text(client: Client, detail: JobDetail) -> ForecastView | None:
    """The forecast for a waiting job; ``None`` without a planner."""
    from trainmaster.errors import TrainmasterError

    has_scheduler = detail.wait_reason is None or detail.wait_reason.code != "scheduler_away"
    if detail.state != "queued" or not has_scheduler:
        return None
    try:
        return client.forecast_job(detail.id)
    except TrainmasterError:
        # It has started in the meantime, or no scheduler answers: show the rest without a forecast.
        return None


def explain(
    job: options.Job,
    at: Annotated[
        str | None,
        typer.Option(
            "--at",
            metavar="TIME",
            help="A time such as 14:20 (today), 2026-11-21T14:20 or 10m (ago); default: now.",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Explain why a job waits, or waited at that time, by replaying the scheduling decision."""
    decided_at = options.moment(at, output.now(), "--at")
    with session.client() as client:
        explanation = client.explain_job(job, at=decided_at)
    if json:
        output.print_json(explanation)
        return
    cluster = f"{explanation.waiting} waiting, {explanation.running} running, {output.count(explanation.nodes, 'node')}"
    place = f" (position {explanation.queue_position} in the queue)" if explanation.queue_position else ""
    output.print_pairs(
        [
            ("Decided", f"{output.local_time(explanation.at)}, with {cluster}"),
            ("Verdict", explanation.verdict),
            ("Reason", f"{explanation.sentence.removesuffix('.')}{place}"),
            ("Order", explanation.order),
            ("Nodes", places_text(explanation.places)),
            ("Then", None if explanation.is_same else f"{explanation.then} (another version of the planner)"),
        ]
    )


def simulate(
    policy: Annotated[
        Path | None, typer.Option("--policy", metavar="FILE", help="YAML file with changed settings.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", "-s", metavar="SETTING=VALUE", help="Changed setting. Repeatable.")
    ] = None,
    more_nodes: AddedNodes = 0,
    like: Like = None,
    without: Without = None,
    days: Annotated[
        float, typer.Option("--days", help="Simulate the jobs that ended in the last N days.", min=0.01, max=366)
    ] = 30,
    timeout: Annotated[
        str, typer.Option("--timeout", help="Maximum time to wait, such as 90s or 1h; the simulation continues.")
    ] = "1h",
    simulation: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Wait for this running simulation.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Plot both into this .svg, .png or .pdf.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Simulate a policy, or more nodes, on the platform's own job history (platform admins)."""
    settings = {**(_settings(policy) if policy else {}), **changes_of(changes or [])}
    has_changes = bool(settings or more_nodes or without)
    if not has_changes and simulation is None:
        raise WrongUse(
            "Say what to simulate: --policy FILE, --set order=fifo, --more-nodes 20 --like NODE, or --without NODE."
        )
    if has_changes and simulation is not None:
        raise WrongUse("Either say what to simulate, or name a running simulation with --id.")
    timeout_s = options.seconds_of(timeout, "--timeout")
    if plot is not None:
        check_plot_path(plot)
    with session.client() as client:
        status = (
            client.get_simulation(simulation)
            if simulation is not None
            else client.begin_simulation(
                policy=settings, more_nodes=more_nodes, like=like, without=without or [], days=days
            )
        )
        ended = _wait_for(client, status, timeout_s)
    if json:
        output.print_json(ended)
    else:
        _show(ended)
    if plot is not None:
        draw_plot(ended, plot)


def _show(view: SimulationView) -> None:
    for sentence in view.sentences:
        output.say(sentence)
    output.say(
        f"{output.count(view.jobs, 'job')} from {output.local_time(view.since)} to {output.local_time(view.until)}"
    )
    output.print_table(["", "AS NOW", "WHAT IF"], _rows(view), empty="")
    output.note(
        "Both columns are simulated, starting with an empty cluster: with the present nodes and settings, and with the "
        "changes.",
        "dim",
    )


def _wait_for(client: Client, status: SimulationStatusView, timeout_s: float) -> SimulationView:
    """Wait for the result and show the progress. After Ctrl-C, prints how to return to the simulation."""
    from trainmaster.errors import WaitTimedOut

    back = f"It continues; its result is available for an hour: trainmaster simulate --id {status.id}"
    until_s = time.monotonic() + timeout_s
    try:
        with _spinner() as show:
            while status.result is None:
                if time.monotonic() >= until_s:
                    sentence = status.sentence.removesuffix(".") or "It is not done"
                    raise WaitTimedOut(
                        f"The simulation is not done after {output.duration(timeout_s)}: {sentence}. {back}"
                    )
                time.sleep(_POLL_S)  # noqa: TID251 (the command line is a boundary)
                status = client.get_simulation(status.id)
                show(status.sentence)
    except KeyboardInterrupt:
        sys.stderr.write(f"\n{back}\n")
        raise
    return status.result


@contextmanager
def _spinner() -> Iterator[Callable[[str], None]]:
    """On a terminal, a spinner with the present status."""
    console = output.notes()
    if not console.is_terminal:
        yield lambda _: None
        return
    from rich.markup import escape

    with console.status("Simulating") as status:
        yield lambda sentence: status.update(escape(sentence or "Simulating"))


def _settings(file: Path) -> dict[str, Any]:
    import yaml

    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise WrongUse(f"{file} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise WrongUse(f"{file} cannot be read: {error}.") from error
    except yaml.YAMLError as error:
        raise WrongUse(f"{file} is not YAML: {error}.") from error
    settings = document.get("settings", document) if isinstance(document, dict) else None
    if not isinstance(settings, dict):
        raise WrongUse(f"{file} has no settings; write lines such as `order: fifo`.")
    return settings


def _rows(view: SimulationView) -> list[list[str]]:
    def cell(report: SimulationReportView, name: str) -> str:
        value = getattr(report, name)
        if value is None:
            return "–"
        if name.endswith("_s"):
            return output.duration(value) or "0 s"
        return (
            f"{value:.1%}"
            if name.endswith("_allocation")
            else f"{value:.2f}"
            if isinstance(value, float)
            else str(value)
        )

    names = {
        "Waiting time, mean": "wait_mean_s",
        "Waiting time, p99": "wait_p99_s",
        "Completion time, mean": "jct_mean_s",
        "Completion time, median": "jct_p50_s",
        "Completion time, p99": "jct_p99_s",
        "Makespan": "makespan_s",
        "GPUs in use": "gpu_allocation",
        "CPUs in use": "cpu_allocation",
        "Preemptions": "preemptions",
        "Finished": "finished",
        "Worst finish-time fairness": "worst_fairness",
    }
    if not (view.before.gpu_allocation or view.after.gpu_allocation):
        del names["GPUs in use"]  # no GPUs, or no demand for them
    return [[title, cell(view.before, name), cell(view.after, name)] for title, name in names.items()]


def check_plot_path(path: Path) -> None:
    """Check before a long wait that a plot can be written to ``path``.

    Raises:
        WrongUse: the message says what to do.
    """
    if path.suffix not in _PLOT_ENDINGS:
        raise WrongUse(f"--plot: {path.name!r} does not end in {', '.join(_PLOT_ENDINGS)}.")
    if not path.parent.is_dir():
        raise WrongUse(f"--plot: there is no folder {path.parent}.")
    try:
        import matplotlib as mpl  # noqa: F401 (whether it is installed)
    except ImportError:
        raise WrongUse("--plot needs matplotlib; install it with `pip install 'trainmaster[plots]'`.") from None


def draw_plot(simulation: SimulationView, path: Path) -> None:
    """Write the plot. Raises :class:`WrongUse` if the file cannot be written."""
    check_plot_path(path)
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
    unit, unit_s = _time_unit(max(ends_s, default=0.0))
    with rc_context(_PLOT_STYLE):
        figure = Figure(figsize=(11, 2.6 * (len(shares) + 2)), layout="constrained")
        figure.suptitle(
            f"{simulation.jobs} jobs from {simulation.since:%Y-%m-%d %H:%M} to {simulation.until:%Y-%m-%d %H:%M} UTC"
        )
        times, queue, *share_axes = figure.subplots(len(shares) + 2, 1)
        _plot_times(times, [[getattr(side, name) for name in _PLOT_TIMES.values()] for side in sides])
        _plot_over_time(queue, waiting, unit_s)
        queue.set(title="Queue", ylabel="waiting jobs", xlabel=f"time since the first submission ({unit})")
        for axes, (noun, runs) in zip(share_axes, shares, strict=True):
            _plot_over_time(axes, [[[at_s, 100 * part] for at_s, part in run] for run in runs], unit_s)
            axes.set(title=f"{noun} in use", ylabel="% of all", ylim=(0, 105))
            axes.set_xlabel(f"time since the first submission ({unit})")
        figure.legend(*times.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
        metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix)
        try:
            figure.savefig(path, dpi=150, metadata=metadata)
        except OSError as error:
            raise WrongUse(f"--plot: {path} cannot be written: {error.strerror or error}.") from error


def _plot_times(axes: Axes, sides: Sequence[Sequence[float | None]]) -> None:
    """Grouped bars; an unknown value (no job started or finished) has no bar."""
    unit, unit_s = _time_unit(max((value for side in sides for value in side if value is not None), default=0.0))
    for number, (side, name, (colour, _)) in enumerate(zip(sides, _SIDES, _LINE_STYLES, strict=True)):
        places = [at + 0.4 * number - 0.2 for at in range(len(side))]
        axes.bar(places, [0.0 if value is None else value / unit_s for value in side], 0.38, color=colour, label=name)
    axes.set_xticks(range(len(_PLOT_TIMES)), list(_PLOT_TIMES))
    axes.set(title="Times", ylabel=unit)


def _plot_over_time(axes: Axes, runs: Sequence[Sequence[Sequence[float]]], unit_s: float) -> None:
    """Step functions: each value holds until the next."""
    for run, (colour, dashes) in zip(runs, _LINE_STYLES, strict=True):
        if run:
            axes.step(
                [at_s / unit_s for at_s, _ in run], [value for _, value in run],
                where="post", color=colour, linestyle=dashes, linewidth=1.8,
            )  # fmt: skip
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)


def _time_unit(longest_s: float) -> tuple[str, float]:
    """The largest unit in which the value is at least 2."""
    return next(((name, unit_s) for name, unit_s in _TIME_UNITS if longest_s >= 2 * unit_s), _TIME_UNITS[-1])
