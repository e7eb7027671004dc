"""``run``: submits the present folder as a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trainmaster.cli.terminal import options, session
from trainmaster.cli.terminal.completion import complete_contract

if TYPE_CHECKING:
    from trainmaster.client import RunOptions

_GANG = "Gang"
_DATA = options.DATA_PANEL
_POLICY = options.POLICY_PANEL


def register(root: typer.Typer) -> None:
    root.command(
        "run",
        rich_help_panel="Jobs",
        context_settings={"allow_interspersed_args": False},
    )(run)


def run(
    command: Annotated[list[str], typer.Argument(metavar="-- COMMAND…", help="Command of every replica.")],
    workers: Annotated[
        str | None,
        typer.Option(
            "--workers",
            "-w",
            metavar="N|MIN:MAX",
            help="Number of workers; default: 1. 2:4 is elastic: two to four, by free capacity.",
            rich_help_panel=_GANG,
        ),
    ] = None,
    ps: Annotated[int, typer.Option("--ps", min=0, help="Parameter servers.", rich_help_panel=_GANG)] = 0,
    chief: Annotated[
        bool, typer.Option("--chief", help="Add a chief, whose exit decides the job's result.", rich_help_panel=_GANG)
    ] = False,
    evaluator: Annotated[bool, typer.Option("--evaluator", help="Add an evaluator.", rich_help_panel=_GANG)] = False,
    processes: Annotated[
        int | None,
        typer.Option("--processes", min=1, help="Processes per replica; default: one per GPU.", rich_help_panel=_GANG),
    ] = None,
    gpus: options.Gpus = 0,
    gpu_type: options.GpuType = None,
    cpu: options.Cpu = None,
    memory: options.Memory = None,
    code: Annotated[Path, typer.Option("--code", help="The folder to pack.", rich_help_panel=_DATA)] = Path(),
    no_code: Annotated[bool, typer.Option("--no-code", help="Submit without code.", rich_help_panel=_DATA)] = False,
    image: options.Image = None,
    input_: Annotated[
        str | None,
        typer.Option("--input", help="Input as volume/path, read-only at /data/data.", rich_help_panel=_DATA),
    ] = None,
    output_: Annotated[
        str | None, typer.Option("--output", help="Output as volume/path, at /data/output.", rich_help_panel=_DATA)
    ] = None,
    env: options.Env = None,
    secrets: options.Secrets = None,
    contract: Annotated[
        str | None,
        typer.Option(
            "--contract",
            help="default, uai, mxnet or serving.",
            rich_help_panel=_DATA,
            autocompletion=complete_contract,
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", "-n", help="Job name; default: the folder's name.", rich_help_panel=_POLICY)
    ] = None,
    project: options.Project = None,
    labels: options.Labels = None,
    priority: options.Priority = None,
    max_restarts: Annotated[int | None, typer.Option("--max-restarts", min=0, rich_help_panel=_POLICY)] = None,
    max_run_time: options.MaxRunTime = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Print the job's ID and return.")] = False,
    json: options.Json = False,
) -> None:
    """Run a command as a distributed job with the code of this folder, and show its output.

    [bold]trainmaster run --workers 2 -- python train.py --epochs 3[/bold]

    Ctrl-C asks whether to detach or to cancel. Exits with 0 if the job succeeded, its exit code (or 1) if it failed,
    130 if it was cancelled or detached.
    """
    from trainmaster.cli.jobs.submission import stay_or_leave, submit_spec
    from trainmaster.client.compose import spec_of_run

    given: dict[str, object] = {
        "name": name,
        "project": project,
        "workers": _workers(workers),
        "ps": ps or None,
        "chief": 1 if chief else None,
        "evaluator": 1 if evaluator else None,
        "processes_per_replica": processes,
        "gpus": gpus or None,
        "gpu_type": gpu_type,
        "cpu": cpu,
        "memory": memory,
        "image": image,
        "input": input_,
        "output": output_,
        "env": options.environment_of(env) or None,
        "secrets": secrets or None,
        "contract": contract,
        "labels": options.labels_of(labels) or None,
        "priority": options.priority_of(priority),
        "max_restarts": max_restarts,
        "max_run_time": max_run_time,
    }
    chosen: RunOptions = {key: value for key, value in given.items() if value is not None}  # type: ignore[assignment]
    spec = spec_of_run(command, chosen, folder=code)
    with session.client() as client:
        job = submit_spec(client, spec, None if no_code else code)
        exit_code = stay_or_leave(client, job, detach=detach, as_json=json)
    raise typer.Exit(exit_code)


def _workers(text: str | None) -> int | dict[str, int] | None:
    """``3``, or ``2:4`` as a range."""
    if text is None:
        return None
    least, colon, most = text.partition(":")
    if not least.isdecimal() or (colon and not most.isdecimal()):
        raise typer.BadParameter(
            f"{text!r} is not a number of workers; write it like 3, or 2:4", param_hint="--workers"
        )
    return {"min": int(least), "max": int(most)} if colon else int(least)
