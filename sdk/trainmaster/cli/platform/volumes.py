"""``volumes``: registered volumes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from trainmaster.cli.terminal import options, output, session

if TYPE_CHECKING:
    from trainmaster.wire.admin import VolumeView

app = typer.Typer(help="Registered volumes.", invoke_without_command=True)
Volume = Annotated[str, typer.Argument(metavar="VOLUME")]


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="volumes", rich_help_panel="Platform")


@app.callback()
def volumes(ctx: typer.Context, json: options.Json = False) -> None:
    """Registered volumes; alone: list them."""
    if ctx.invoked_subcommand is None:
        _list(as_json=json)


@app.command("list")
def list_volumes(json: options.Json = False) -> None:
    """List the volumes."""
    _list(as_json=json)


def _list(*, as_json: bool) -> None:
    with session.client() as client:
        found = list(client.list_volumes())
    if as_json:
        output.print_json(found)
        return
    output.print_table(
        ("NAME", "KIND", "ACCESS", "ROOT"),
        [(volume.name, volume.kind, _access(volume), volume.root) for volume in found],
        empty="No volumes.",
    )


def _access(volume: VolumeView) -> str:
    return "read only" if volume.is_read_only else "read, write"


@app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name, which jobs use as NAME/path.")],
    root: Annotated[str | None, typer.Option("--root", help="Path on the server, such as /srv/data.")] = None,
    kind: Annotated[str, typer.Option("--kind", help="local, nfs, pvc or csi.")] = "local",
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            metavar="KEY=VALUE",
            help="How containers mount it, such as server=…, attributes.bucket=…. Repeatable.",
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only")] = False,
    json: options.Json = False,
) -> None:
    """Register a volume (platform admins)."""
    from trainmaster.cli.terminal.values import pairs
    from trainmaster.client.calls.admin import VolumeKind

    if kind not in ("local", "nfs", "pvc", "csi"):
        raise typer.BadParameter(f"{kind!r} is none of local, nfs, pvc, csi", param_hint="--kind")
    mounting: dict[str, Any] = {}
    for key, value in pairs(config or [], "--config").items():
        first, dot, rest = key.partition(".")
        if dot and first == "attributes":
            mounting.setdefault(first, {})[rest] = value
        else:
            mounting[key] = value
    with session.client() as client:
        view = client.create_volume(
            name, kind=cast("VolumeKind", kind), root=root, config=mounting, is_read_only=read_only
        )
    output.print_result(view, f"{view.name} registered; jobs use it as {view.name}/path", as_json=json)


@app.command()
def remove(volume: Volume, json: options.Json = False) -> None:
    """Remove a volume; its files stay (platform admins)."""
    with session.client() as client:
        client.delete_volume(volume)
    output.print_result({"removed": volume}, f"{volume} removed", as_json=json)
