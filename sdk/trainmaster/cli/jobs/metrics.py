"""``metrics`` and ``resources``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.terminal import options, output, session
from trainmaster.cli.terminal.escapes import without_escapes
from trainmaster.sizes import format_size

if TYPE_CHECKING:
    from trainmaster.wire.metrics import ChartSeries, MetricView, ReplicaUse

_PANEL = "Jobs"


def register(root: typer.Typer) -> None:
    root.command("metrics", rich_help_panel=_PANEL)(show_metrics)
    root.command("resources", rich_help_panel=_PANEL)(show_resources)


def show_metrics(
    job: options.Job,
    name: Annotated[
        list[str] | None, typer.Option("--name", "-n", help="A metric whose points are shown; may be given again.")
    ] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="Only that launch.")] = None,
    role: Annotated[str | None, typer.Option("--role", "-r", help="Only this role.")] = None,
    index: Annotated[int | None, typer.Option("--index", "-i", min=0, help="Only this replica of each role.")] = None,
    points: Annotated[int, typer.Option("--points", min=1, max=5000, help="Points of a metric at most.")] = 20,
    system: Annotated[bool, typer.Option("--system", help="With what the platform measures itself.")] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="New points until the job has ended.")] = False,
    json: options.Json = False,
) -> None:
    """A job's metrics: the newest of each, or with --name the points. With --json and -f: one object per line."""
    with session.client() as client:
        if follow:
            for series in client.stream_metrics(job, names=name, attempt=attempt, role=role, index=index):
                if system or name or not series.name.startswith("system/"):
                    _tell_new(series, as_json=json)
            return
        if name:
            chart = client.chart_metrics(job, names=name, attempt=attempt, role=role, index=index, buckets=points)
            if json:
                output.print_json(chart)
            else:
                for one in chart.series:
                    _print_points(one)
                if not chart.series:
                    output.note("No such metrics; without --name all are listed.", "dim")
            return
        found = list(client.list_metrics(job, attempt=attempt, role=role, index=index, system=system))
        if json:
            output.print_json(found)
        else:
            _print_list(found)


def show_resources(
    job: options.Job,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="That launch; else the newest.")] = None,
    json: options.Json = False,
) -> None:
    """What a job's replicas use: CPU, memory, disk, network and GPUs, as means of the last five minutes."""
    with session.client() as client:
        summary = client.summarise_resources(job, attempt=attempt)
    if json:
        output.print_json(summary)
        return
    columns = ["REPLICA", "CPU", "MEMORY", "DISK R/W", "NETWORK IN/OUT", "GPUS"]
    output.print_table(columns, [_use_row(one) for one in summary.replicas], empty="Nothing was measured yet.")
    for note in summary.notes:
        output.note(note)


def _use_row(use: ReplicaUse) -> list[str | None]:
    def rates(one: float | None, other: float | None) -> str | None:
        if one is None or other is None:
            return None
        return f"{format_size(one)}/s / {format_size(other)}/s"

    known = [gpu.utilisation_percent for gpu in use.gpus]
    return [
        f"{use.role}-{use.index}",
        None if use.cpu_percent is None else f"{use.cpu_percent:.0f} %",
        None if use.memory_bytes is None else format_size(use.memory_bytes),
        rates(use.disk_read_bytes_s, use.disk_written_bytes_s),
        rates(use.network_received_bytes_s, use.network_sent_bytes_s),
        ", ".join("?" if percent is None else f"{percent:.0f} %" for percent in known) or None,
    ]


def _print_list(found: list[MetricView]) -> None:
    rows = [
        [
            without_escapes(one.name),
            f"{one.role}-{one.index}",
            str(one.attempt),
            _number(one.last_value) if one.kind == "scalar" else one.kind,
            None if one.last_step is None else str(one.last_step),
            _number(one.low),
            _number(one.high),
            str(one.count),
        ]
        for one in found
    ]
    columns = ["METRIC", "REPLICA", "ATTEMPT", "NEWEST", "STEP", "LOWEST", "HIGHEST", "POINTS"]
    output.print_table(columns, rows, empty="No metrics yet.")


def _print_points(series: ChartSeries) -> None:
    console = output.answers()
    console.print(
        f"{without_escapes(series.name)}  {series.role}-{series.index}, attempt {series.attempt}", markup=False
    )
    if series.points is not None:
        rows = [
            [str(step), _number(value)] for step, value in zip(series.points.steps, series.points.values, strict=True)
        ]
        output.print_table(["STEP", "VALUE"], rows, empty="No points.")
    elif series.buckets is not None:
        columns = series.buckets
        rows = [
            [f"{first}–{last}" if last != first else str(first), *map(_number, numbers)]
            for first, last, *numbers in zip(
                columns.steps, columns.steps_to, columns.lows, columns.means, columns.highs, columns.lasts, strict=True
            )
        ]
        output.print_table(["STEPS", "LOWEST", "MEAN", "HIGHEST", "LAST"], rows, empty="No points.")


def _tell_new(series: ChartSeries, *, as_json: bool) -> None:
    if as_json:
        output.print_json_line(series)
        return
    points = series.points
    if points is None:
        return
    console = output.answers()
    for step, value in zip(points.steps, points.values, strict=True):
        line = f"{series.role}-{series.index}  {step}  {without_escapes(series.name)} {_number(value)}"
        console.print(line, markup=False, highlight=False)


def _number(value: Any) -> str | None:
    if value is None:
        return None
    return value if isinstance(value, str) else f"{value:.6g}"
