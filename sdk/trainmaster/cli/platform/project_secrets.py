"""``secrets set|list|delete``: write-only values for jobs."""

from __future__ import annotations

import re
import sys
from typing import Annotated

import typer

from trainmaster.cli.terminal import options, output, session

app = typer.Typer(help="A project's secrets, by name.", no_args_is_help=True)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the environment variable.")]


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="secrets", rich_help_panel="Platform")


@app.command("set")
def set_secret(name: Name, project: options.Project = None, json: options.Json = False) -> None:
    """Store a secret. Its value is read from stdin or a prompt, since arguments are visible to other local users."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,255}", name):
        raise typer.BadParameter(
            f"{name!r} is not a variable name: letters, digits and '_', not starting with a digit, at most 256",
            param_hint="NAME",
        )
    if sys.stdin.isatty():
        value = str(typer.prompt(f"Value of {name}", hide_input=True, err=True))
    else:
        value = sys.stdin.read()
        value = value.removesuffix("\n").removesuffix("\r")  # from `echo`; further newlines belong to the value
    if not value:
        raise typer.BadParameter(f"the value of {name} is empty", param_hint="NAME")
    where = session.project_or_default(project)
    with session.client() as client:
        view = client.set_secret(where, name, value)
    output.print_result(
        view,
        f"{view.name} set in {where}; jobs name it under `secrets` or with `run --secret {view.name}`",
        as_json=json,
    )


@app.command("list")
def list_secrets(project: options.Project = None, json: options.Json = False) -> None:
    """List the secrets' names."""
    where = session.project_or_default(project)
    with session.client() as client:
        found = list(client.list_secrets(where))
    if json:
        output.print_json(found)
        return
    output.print_table(
        ("NAME", "CHANGED"),
        [(secret.name, output.local_time(secret.updated_at)) for secret in found],
        empty=f"No secrets in {where}.",
    )


@app.command("delete")
def delete_secret(name: Name, project: options.Project = None, json: options.Json = False) -> None:
    """Delete a secret; running jobs are not affected."""
    where = session.project_or_default(project)
    with session.client() as client:
        client.delete_secret(where, name)
    output.print_result({"deleted": name}, f"{name} deleted from {where}", as_json=json)
