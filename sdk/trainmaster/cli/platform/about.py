"""``schema`` and ``version``."""

from __future__ import annotations

from typing import Annotated

import typer

from trainmaster.cli.terminal import options, output, session

_PANEL = "Reference"


def register(root: typer.Typer) -> None:
    root.command(rich_help_panel=_PANEL)(schema)
    root.command(rich_help_panel=_PANEL)(version)


def schema(
    server: Annotated[bool, typer.Option("--server", help="The server's schema instead of this client's.")] = False,
    json: options.Json = False,  # noqa: ARG001 (it is JSON in any case)
) -> None:
    """The JSON Schema of the job spec, for editors and checks."""
    if server:
        with session.client() as client:
            output.print_json(client.get_spec_schema())
        return
    from trainmaster.spec import spec_json_schema

    output.print_json(spec_json_schema())


def version(
    server: Annotated[bool, typer.Option("--server", help="Include the server's version and health.")] = False,
    json: options.Json = False,
) -> None:
    """The versions of this client and, with --server, of the server."""
    from trainmaster.version import __version__

    if not server:
        output.print_result({"client": __version__}, __version__, as_json=json)
        return
    with session.client() as client:
        health = client.get_health()
        url = client.url
    if json:
        output.print_json({"client": __version__, "url": url, "server": health.model_dump(mode="json")})
        return
    output.print_pairs(
        [("Client", __version__), ("Server", f"{health.version} at {url}, {health.status}"), *health.parts.items()]
    )
