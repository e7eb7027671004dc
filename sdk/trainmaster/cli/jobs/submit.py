"""``submit``: submits a spec file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainmaster.cli.jobs.spec_files import read_spec_argument, spec_yaml
from trainmaster.cli.terminal import options, output, session


def register(root: typer.Typer) -> None:
    root.command("submit", rich_help_panel="Jobs")(submit)


def submit(
    spec_file: Annotated[str, typer.Argument(metavar="SPEC", help="YAML or JSON file; `-` is stdin.")],
    code: Annotated[Path | None, typer.Option("--code", help="A folder to pack and upload as the job's code.")] = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="Overrides the spec's name.")] = None,
    project: options.Project = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Validate and print the canonical spec; submit nothing.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow its output, like `run`.")] = False,
    json: options.Json = False,
) -> None:
    """Submit a job spec and print the job's ID. All mistakes are reported at once."""
    from trainmaster.cli.jobs.submission import stay_or_leave, submit_spec, without_code

    spec = read_spec_argument(spec_file)
    if name is not None:
        spec["name"] = name
    if project is not None:
        spec["project"] = project
    with session.client() as client:
        if dry_run:
            canonical = client.check_spec(without_code(client, spec) if code is not None else spec)
            output.print_result(canonical, spec_yaml(canonical).rstrip(), as_json=json)
            return
        job = submit_spec(client, spec, code)
        exit_code = stay_or_leave(client, job, detach=not follow, as_json=json)
    raise typer.Exit(exit_code)
