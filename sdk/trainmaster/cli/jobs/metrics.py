"""``metrics`` and ``resources``: a job's metrics and resource usage."""

from __future__ import annotations

from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.terminal import options, output, session
from trainmaster.cli.terminal.output import without_escapes
from trainmaster.sizes import format_size

if TYPE_CHECKING:
    from trainmaster.wire.metrics import ChartSeries, MetricSuggestion, MetricView, ReplicaUse

_PANEL = "Jobs"


def register(root: typer.Typer) -> None:
    root.command("metrics", rich_help_panel=_PANEL)(show_metrics)
    root.command("resources", rich_help_panel=_PANEL)(show_resources)


def show_metrics(
    job: options.Job,
    name: Annotated[
        list[str] | None, typer.Option("--name", "-n", help="Show the points of this metric. Repeatable.")
    ] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="Only this attempt.")] = None,
    role: options.Role = None,
    index: options.Index = None,
    points: Annotated[int, typer.Option("--points", min=1, max=5000, help="Maximum number of points per metric.")] = 20,
    system: Annotated[bool, typer.Option("--system", help="Include the platform's own metrics.")] = False,
    follow: options.Follow = False,
    json: options.Json = False,
) -> None:
    """Show a job's metrics: the newest values, or with --name the points. With --json and -f: one object per line."""
    with session.client() as client:
        if follow:
            for series in client.stream_metrics(job, names=name, attempt=attempt, role=role, index=index):
                if system or name or not series.name.startswith("system/"):
                    _print_new(series, as_json=json)
            return
        if name:
            chart = client.chart_metrics(job, names=name, attempt=attempt, role=role, index=index, buckets=points)
            if json:
                output.print_json(chart)
            else:
                for shown in chart.series:
                    _print_points(shown)
                if not chart.series:
                    output.note("No such metrics; without --name all metrics are listed.", "dim")
            return
        metrics = list(client.list_metrics(job, attempt=attempt, role=role, index=index, system=system))
        if json:
            output.print_json(metrics)
            return
        _print_list(metrics)
        if not metrics:
            _print_suggestions(client.suggest_metric_patterns(job).suggestions)


def show_resources(
    job: options.Job,
    attempt: options.NewestAttempt = None,
    json: options.Json = False,
) -> None:
    """Show the resource usage of a job's replicas: CPU, memory, disk, network and GPUs, averaged over five minutes."""
    with session.client() as client:
        summary = client.summarise_resources(job, attempt=attempt)
    if json:
        output.print_json(summary)
        return
    columns = ["REPLICA", "CPU", "MEMORY", "DISK R/W", "NETWORK IN/OUT", "GPUS"]
    output.print_table(columns, [_use_row(replica) for replica in summary.replicas], empty="No measurements yet.")
    for note in summary.notes:
        output.note(note)
    if any(use.cpu_percent is not None and use.network_received_bytes_s is None for use in summary.replicas):
        output.note("No network figures: a plain process shares the network of its machine.", "dim")


def _use_row(use: ReplicaUse) -> list[str | None]:
    def rates(first: float | None, second: float | None) -> str | None:
        if first is None or second is None:
            return None
        return f"{format_size(first)}/s / {format_size(second)}/s"

    known = [gpu.utilisation_percent for gpu in use.gpus]
    return [
        f"{use.role}-{use.index}",
        None if use.cpu_percent is None else f"{use.cpu_percent:.0f} %",
        None if use.memory_bytes is None else format_size(use.memory_bytes),
        rates(use.disk_read_bytes_s, use.disk_written_bytes_s),
        rates(use.network_received_bytes_s, use.network_sent_bytes_s),
        ", ".join("?" if percent is None else f"{percent:.0f} %" for percent in known) or None,
    ]


def _print_list(metrics: list[MetricView]) -> None:
    rows = [
        [
            without_escapes(metric.name),
            f"{metric.role}-{metric.index}",
            str(metric.attempt),
            _number(metric.last_value) if metric.kind == "scalar" else metric.kind,
            None if metric.last_step is None else str(metric.last_step),
            _number(metric.low),
            _number(metric.high),
            str(metric.count),
        ]
        for metric in metrics
    ]
    columns = ["METRIC", "REPLICA", "ATTEMPT", "NEWEST", "STEP", "LOWEST", "HIGHEST", "POINTS"]
    output.print_table(columns, rows, empty="No metrics yet.")


def _print_suggestions(suggestions: list[MetricSuggestion]) -> None:
    if not suggestions:
        return
    output.note("These lines of its log look like metrics:")
    for suggestion in suggestions:
        output.note(f"  {without_escapes(suggestion.line)}")
    output.note("Add patterns to the spec, and submit the job again:")
    output.note("  metric_patterns:")
    for suggestion in suggestions:
        output.note(f"    - {dumps(without_escapes(suggestion.pattern), ensure_ascii=False)}")


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


def _print_new(series: ChartSeries, *, as_json: bool) -> None:
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
