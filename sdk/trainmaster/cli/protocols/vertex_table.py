"""``vertex-table``: the mapping table for Vertex AI's machine types, accelerators, images and names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.terminal import options, output, session
from trainmaster.cli.terminal.exits import WrongUse

if TYPE_CHECKING:
    from trainmaster.wire.admin import VertexEntryView, VertexTableView

app = typer.Typer(help="Mapping table for Vertex AI's machine types and other names.", invoke_without_command=True)


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="vertex-table", rich_help_panel="Platform")


@app.callback()
def vertex_table(ctx: typer.Context, json: options.Json = False) -> None:
    """The mapping table; alone: show it as YAML, to edit and store with `vertex-table set`."""
    if ctx.invoked_subcommand is None:
        with session.client() as client:
            view = client.get_vertex_table()
        if json:
            output.print_json(view)
            return
        output.say(_text(view))
        output.note_change("Stored", view.updated_at, view.updated_by)
        output.warn(view.warnings)


@app.command("set")
def set_table(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="YAML or JSON as shown by `vertex-table`; `-` for stdin.")
    ],
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace the stored table even if it was changed since."),
    ] = False,
    json: options.Json = False,
) -> None:
    """Store a table (platform admins); it applies from the next request on."""
    table = _read(file)
    generation = table.pop("generation", None)
    if not overwrite and (isinstance(generation, bool) or not isinstance(generation, int) or generation < 0):
        raise WrongUse(
            "The file has no generation, so another user's change could be lost: start from `trainmaster vertex-table "
            "> "
            "FILE`, or use --overwrite."
        )
    with session.client() as client:
        before = client.get_vertex_table()
        view = client.set_vertex_table(table, generation=before.generation if overwrite else generation)
    if json or session.current().as_json:
        output.print_json(view)
        return
    output.print_changes(dict(_stored(before)), dict(_stored(view)))
    output.warn(view.warnings)
    output.note(f"Generation {view.generation}; it applies from the next request on.", "dim")


@app.command("try")
def try_machine(
    machine_type: Annotated[str, typer.Argument(help="Such as n1-standard-4.")],
    accelerator: Annotated[str | None, typer.Option(help="Such as NVIDIA_TESLA_T4.")] = None,
    count: Annotated[int | None, typer.Option(help="Number of accelerators.", min=1)] = None,
    location: Annotated[str | None, typer.Option(help="A Google Cloud region.")] = None,
    json: options.Json = False,
) -> None:
    """Show the resources that a replica on such a machine would request. Submits nothing."""
    if count is not None and accelerator is None:
        raise WrongUse("--count goes with --accelerator, such as --accelerator NVIDIA_TESLA_T4.")
    with session.client() as client:
        machine = client.try_vertex_machine(machine_type, accelerator=accelerator, count=count, location=location)
    if json or session.current().as_json:
        output.print_json(machine)
        return
    requested = dict(machine.resources)
    models = requested.pop("gpu_type", None)
    if models is not None:
        requested["gpus"] = f"{requested['gpus']} ({' or '.join(models) or 'any model'})"
    pairs: list[tuple[str, Any]] = [(name, str(value)) for name, value in requested.items()]
    if not pairs:
        pairs = [("requests", "nothing: it shares its node")]
    pairs += [("nodes", ", ".join(f"{key}={value}" for key, value in machine.node_selector.items()) or "any")]
    pairs += [("entries", ", ".join(_entry_text(entry) for entry in machine.entries) or "built in")]
    output.print_pairs(pairs)
    output.warn(machine.warnings)


def _entry_text(entry: VertexEntryView) -> str:
    return f"{entry.section}.{entry.name} ({_where(entry)})"


def _where(entry: VertexEntryView) -> str:
    return {"stored": "stored", "environment": "TRAINMASTER_VERTEX", "platform": "built in"}[entry.source]


def _text(view: VertexTableView) -> str:
    """The stored table as YAML, with the other effective entries as comments."""
    lines = [
        "# For `trainmaster vertex-table set FILE`. The generation detects concurrent changes.",
        f"generation: {view.generation}",
    ]
    if not view.table:
        lines += ["# Nothing is stored. An example:", *_EXAMPLE]
    for section, entries in view.table.items():
        if isinstance(entries, dict):
            lines += [f"{section}:", *(f"  {_flow(name)}: {_flow(value)}" for name, value in entries.items())]
        else:
            lines += [f"{section}: {_flow(entries)}"]
    below = [entry for entry in view.entries if entry.source != "stored"]
    section = ""
    if below:
        lines += ["", "# Applies where no entry above matches:"]
    for entry in below:
        if entry.name and entry.section != section:
            lines += [f"# {entry.section}:"]
        section = entry.section
        key = f"  {_flow(entry.name)}" if entry.name else entry.section
        lines += [f"# {key}: {_flow(entry.value)}  # {_where(entry)}"]
    return "\n".join(lines)


def _flow(value: Any) -> str:
    """As YAML on one line."""
    import yaml

    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=True, width=1_000_000)
    return text.removesuffix("...\n").strip()


_EXAMPLE = (
    "# machines:",
    "#   n1-standard-*: {cpu: 4, memory: 16Gi}",
    "# accelerators:",
    "#   NVIDIA_TESLA_T4: [L4, A10]",
)


def _stored(view: VertexTableView) -> Iterator[tuple[str, str]]:
    import json

    for section, entries in view.table.items():
        if isinstance(entries, dict):
            yield from ((f"{section}.{name}", json.dumps(value, ensure_ascii=False)) for name, value in entries.items())
        else:
            yield section, json.dumps(entries)


def _read(file: str) -> dict[str, Any]:
    from trainmaster.spec.document import read_document
    from trainmaster.spec.errors import SpecError

    name = "stdin" if file == "-" else file
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
        document = read_document(text) if text.strip() else None
    except OSError as error:
        raise WrongUse(f"{file} cannot be read: {error.strerror or error}.") from error
    except (UnicodeDecodeError, SpecError) as error:
        raise WrongUse(f"{name} cannot be read: {error}.") from error
    if not isinstance(document, dict):
        raise WrongUse(f"{name} is not a table; `trainmaster vertex-table` shows the format.")
    return document
