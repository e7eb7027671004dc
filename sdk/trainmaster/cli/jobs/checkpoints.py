"""``checkpoints`` and ``checkpoint …``: a job's checkpoints and their contents."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from trainmaster.cli.jobs.files import fetch
from trainmaster.cli.terminal import options, output, session

if TYPE_CHECKING:
    from trainmaster.client import Client
    from trainmaster.wire.checkpoints import DifferencePage, LayerDifference, RetentionView, TensorDifference

app = typer.Typer(help="Inspect, compare, keep, delete or download a checkpoint.", no_args_is_help=True)
Checkpoint = Annotated[str, typer.Argument(metavar="PATH", help="Path as listed by `trainmaster checkpoints JOB`.")]


def register(root: typer.Typer) -> None:
    root.command("checkpoints", rich_help_panel="Output")(list_checkpoints)
    root.add_typer(app, name="checkpoint", rich_help_panel="Output")


def list_checkpoints(
    job: options.Job,
    incomplete: Annotated[bool, typer.Option("--incomplete", help="Include incomplete checkpoints.")] = False,
    json: options.Json = False,
) -> None:
    """A job's checkpoints."""
    with session.client() as client:
        checkpoints = list(client.list_checkpoints(job, incomplete=incomplete))
        incomplete_count = (
            0 if checkpoints or incomplete or json else sum(1 for _ in client.list_checkpoints(job, incomplete=True))
        )
    if json:
        output.print_json(checkpoints)
        return
    output.print_table(
        ("STEP", "PATH", "FORMAT", "SIZE", "ATTEMPT", "WRITTEN", "METRICS", "NOTE"),
        [
            (
                None if checkpoint.step is None else str(checkpoint.step),
                checkpoint.path,
                checkpoint.format,
                output.size(checkpoint.size_bytes),
                None if checkpoint.attempt_number is None else str(checkpoint.attempt_number),
                output.local_time(checkpoint.created_at),
                output.values_text(checkpoint.metrics),
                checkpoint.problem
                or ", ".join(
                    word
                    for word, holds in (("pinned", checkpoint.is_pinned), ("in use", checkpoint.is_in_use))
                    if holds
                ),
            )
            for checkpoint in checkpoints
        ],
        empty="No checkpoints yet." if not incomplete_count else _none_complete(job, incomplete_count),
    )


def _none_complete(job: str, incomplete: int) -> str:
    return (
        f"No complete checkpoints; {output.count(incomplete, 'incomplete checkpoint')}, from which the job cannot "
        f"resume: `trainmaster checkpoints {job} --incomplete` shows why."
    )


@app.command()
def show(
    job: options.Job,
    path: Checkpoint,
    stats: Annotated[bool, typer.Option("--stats", help="Read all elements and show their statistics.")] = False,
    search: Annotated[str, typer.Option("--search", help="Only tensors with this text in their names.")] = "",
    json: options.Json = False,
) -> None:
    """Show the tensors of a checkpoint. No code in it is executed."""
    with session.client() as client:
        job = client.get_job(job).id
        about = client.list_tensors_page(job, path, search=search, limit=1)
        tensors = list(client.list_tensors(job, path, search=search))
        figures: dict[str, Any] = {}
        if stats:
            names = [tensor.name for tensor in tensors]
            for begin in range(0, len(names), 100):  # names go into the URL
                for item in client.list_tensor_statistics(job, path, tensors=names[begin : begin + 100]):
                    figures[item.name] = item
    if json:
        document = about.model_copy(update={"items": tensors, "next_cursor": None})
        output.print_json({**output.to_plain(document), "statistics": output.to_plain(list(figures.values()))})
        return
    output.print_pairs(
        [
            ("Format", about.format),
            ("Tensors", str(about.tensor_count)),
            ("Parameters", f"{about.weight_count:,} ({output.size(about.weight_bytes)})"),
            ("Optimizer", output.size(about.optimizer_bytes) if about.optimizer_bytes else None),
            *((name, str(value)) for name, value in list(about.values.items())[:20]),
            *(("Note", note) for note in about.notes),
        ]
    )
    output.say()
    head = ("NAME", "SHAPE", "DTYPE", "KIND")
    figures_head = ("NORM", "MEAN", "MIN", "MAX", "ZEROS", "NAN/INF") if stats else ()
    output.print_table(
        (*head, *figures_head, "NOTE"),
        [
            (
                tensor.name,
                _shape(tensor.shape),
                tensor.dtype,
                tensor.kind,
                *(_figures(figures.get(tensor.name)) if stats else ()),
                tensor.note,
            )
            for tensor in tensors
        ],
        empty="No tensors.",
    )


def _figures(item: Any) -> tuple[str | None, ...]:
    if item is None or item.count is None:
        return (None,) * 6
    bad = (item.nan_count or 0) + (item.infinite_count or 0)
    return (
        _number(item.norm),
        _number(item.mean),
        _number(item.minimum),
        _number(item.maximum),
        None if item.zero_share is None else f"{item.zero_share:.1%}",
        str(bad) if bad else None,
    )


@app.command()
def diff(
    job: options.Job,
    path: Checkpoint,
    other: Annotated[str, typer.Argument(metavar="OTHER", help="The later checkpoint.")],
    other_job: Annotated[str | None, typer.Option("--other-job", help="Its job; default: the same job.")] = None,
    all_tensors: Annotated[bool, typer.Option("--all", help="Include unchanged tensors.")] = False,
    json: options.Json = False,
) -> None:
    """Tensors that were added, removed or changed in shape, and how far the others moved."""
    with session.client() as client:
        job = client.get_job(job).id
        items: list[TensorDifference] = []
        layers: list[LayerDifference] = []
        for page in _pages(client, job, path, other, other_job):
            items += page.items
            layers = page.layers or layers
    if json:
        output.print_json({"tensors": output.to_plain(items), "layers": output.to_plain(layers)})
        return
    same = sum(item.change == "same" for item in items)
    output.print_table(
        ("CHANGE", "NAME", "KIND", "SHAPE", "RELATIVE NORM", "COSINE", "NOTE"),
        [
            (
                item.change,
                item.name,
                item.kind,
                _shapes(item),
                _number(item.relative_norm),
                None if item.cosine is None else f"{item.cosine:.6f}",
                item.note,
            )
            for item in items
            if all_tensors or item.change != "same"
        ],
        empty="No differences.",
    )
    if same and not all_tensors:
        output.note(f"{output.count(same, 'unchanged tensor')}; --all includes them.", "dim")
    moved = [layer for layer in layers if layer.relative_norm]
    if moved:
        output.say()
        output.print_table(
            ("LAYER", "WEIGHTS", "RELATIVE NORM", "COSINE"),
            [
                (
                    layer.layer or "(top)",
                    str(layer.tensor_count),
                    _number(layer.relative_norm),
                    None if layer.cosine is None else f"{layer.cosine:.6f}",
                )
                for layer in moved
            ],
            empty="",
        )


def _pages(client: Client, job: str, path: str, other: str, other_job: str | None) -> Iterator[DifferencePage]:
    cursor: str | None = None
    while True:
        page = client.diff_checkpoints_page(job, path, other, other_job=other_job, limit=1000, cursor=cursor)
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return


@app.command()
def keep(job: options.Job, path: Checkpoint, json: options.Json = False) -> None:
    """Keep a checkpoint until it is released, regardless of the retention policy."""
    with session.client() as client:
        client.keep_checkpoint(job, path)
    output.print_result({"kept": path}, f"{path} is kept until it is released", as_json=json)


@app.command()
def release(job: options.Job, path: Checkpoint, json: options.Json = False) -> None:
    """Release a kept checkpoint; the retention policy applies to it again."""
    with session.client() as client:
        client.release_checkpoint(job, path)
    output.print_result({"released": path}, f"{path} released", as_json=json)


@app.command()
def delete(job: options.Job, path: Checkpoint, yes: options.Yes = False, json: options.Json = False) -> None:
    """Delete a checkpoint's files, after confirmation on a terminal."""
    if not yes and output.is_interactive():
        typer.confirm(f"Delete {path} of {job}?", abort=True, err=True)
    with session.client() as client:
        client.delete_checkpoint(job, path)
    output.print_result({"deleted": path}, f"{path} deleted", as_json=json)


@app.command()
def download(
    job: options.Job,
    path: Checkpoint,
    target: Annotated[Path, typer.Argument(metavar="LOCAL", help="A local folder.")] = Path(),
    json: options.Json = False,
) -> None:
    """Download a checkpoint. An interrupted download resumes where it stopped."""
    with session.client() as client:
        job = client.get_job(job).id
        checkpoint = next(
            (item for item in client.list_checkpoints(job, incomplete=True) if item.path == path.strip("/")), None
        )
        paths = [path.strip("/")]
        if checkpoint is not None and checkpoint.format == "tensorflow" and not checkpoint.is_dir:
            folder, _, prefix = checkpoint.path.rpartition("/")
            siblings = (entry.path for entry in client.list_files(job, folder) if not entry.is_dir)
            paths = [
                name for name in siblings if name.rpartition("/")[2].startswith((f"{prefix}.data-", f"{prefix}.index"))
            ]
        fetched = [entry for name in paths for entry in fetch(client, job, name, target, is_quiet=json)]
    if json:
        output.print_json(fetched)


@app.command()
def retention(
    job: options.Job,
    last: Annotated[int | None, typer.Option("--last", min=1, help="Keep the N newest.")] = None,
    best: Annotated[int | None, typer.Option("--best", min=1, help="Keep the N best by --metric.")] = None,
    metric: Annotated[str | None, typer.Option("--metric", help="Metric for --best.")] = None,
    largest: Annotated[bool, typer.Option("--largest", help="Larger values of the metric are better.")] = False,
    every: Annotated[int | None, typer.Option("--every", min=1, help="Keep those at multiples of N steps.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Keep all.")] = False,
    json: options.Json = False,
) -> None:
    """Set the retention policy of a job's checkpoints; without options: show it."""
    mode: Literal["min", "max"] = "max" if largest else "min"
    with session.client() as client:
        if clear:
            client.clear_retention(job)
        if last is not None or best is not None or every is not None:
            view = client.set_retention(job, last=last, best=best, metric=metric, mode=mode, every=every)
        else:
            view = client.get_retention(job)
    output.print_result(view, _words(view), as_json=json)


def _words(view: RetentionView) -> str:
    rules = [
        f"the {view.last} newest" if view.last else "",
        f"the {view.best} with the {'largest' if view.mode == 'max' else 'smallest'} {view.metric}"
        if view.best
        else "",
        f"every {view.every} steps" if view.every else "",
    ]
    active = [rule for rule in rules if rule]
    return f"Kept: {'; '.join(active)}. Others are deleted." if active else "All checkpoints are kept."


def _shape(shape: list[int] | None) -> str | None:
    return None if shape is None else "×".join(map(str, shape)) or "scalar"


def _shapes(item: TensorDifference) -> str | None:
    before, after = _shape(item.shape_before), _shape(item.shape_after)
    return before if before == after or after is None else after if before is None else f"{before} → {after}"


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.4g}"
