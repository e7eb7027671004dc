"""``run`` and ``submit``: submit the present folder, or a spec file, as a job, and follow it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from trainmaster.cli.jobs.spec_files import read_spec_argument, spec_yaml
from trainmaster.cli.terminal import options, output, session

if TYPE_CHECKING:
    from trainmaster.client import Client, Job, RunOptions
    from trainmaster.packing import FolderEntry

_GANG = "Gang"
_DATA = options.DATA_PANEL
_POLICY = options.POLICY_PANEL
# Above this, packing takes seconds, and most of the folder is hardly code.
_LARGE_BYTES: Final = 100 * 2**20


def register(root: typer.Typer) -> None:
    root.command(
        "run",
        rich_help_panel="Jobs",
        context_settings={"allow_interspersed_args": False},
    )(run)
    root.command("submit", rich_help_panel="Jobs")(submit)


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
    code: options.Code = Path(),
    no_code: Annotated[bool, typer.Option("--no-code", help="Submit without code.", rich_help_panel=_DATA)] = False,
    image: options.Image = None,
    python: options.Python = None,
    venv: options.Venv = None,
    conda: options.Conda = None,
    requirements: options.Requirements = None,
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
            autocompletion=options.complete_contract,
        ),
    ] = None,
    launcher: Annotated[
        str | None,
        typer.Option(
            "--launcher",
            help="torchrun, accelerate, deepspeed, composer, mpirun, horovodrun or ray before the command; none: "
            "independent replicas. Default: the launcher in the command.",
            rich_help_panel=_GANG,
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
    from trainmaster.client.compose import environment_of, spec_of_run

    fields: dict[str, object] = {
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
        "environment": environment_of(python=python, venv=venv, conda=conda, requirements=requirements) or None,
        "input": input_,
        "output": output_,
        "env": options.environment_of(env) or None,
        "secrets": secrets or None,
        "contract": contract,
        "launcher": launcher,
        "labels": options.labels_of(labels) or None,
        "priority": options.priority_of(priority),
        "max_restarts": max_restarts,
        "max_run_time": max_run_time,
    }
    chosen: RunOptions = {key: value for key, value in fields.items() if value is not None}  # type: ignore[assignment]
    spec = spec_of_run(command, chosen, folder=code or Path())
    with session.client() as client:
        job = _submit_spec(client, spec, None if no_code else code)
        exit_code = _stay_or_leave(client, job, detach=detach, as_json=json)
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


def submit(
    spec_file: Annotated[str, typer.Argument(metavar="SPEC", help="YAML or JSON file; `-` is stdin.")],
    code: options.Code = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="Overrides the spec's name.")] = None,
    project: options.Project = None,
    python: options.Python = None,
    venv: options.Venv = None,
    conda: options.Conda = None,
    requirements: options.Requirements = None,
    dry_run: options.DryRun = False,
    follow: options.Follow = False,
    json: options.Json = False,
) -> None:
    """Submit a job spec and print the job's ID. All mistakes are reported at once."""
    from trainmaster.client.compose import environment_of

    spec = read_spec_argument(spec_file)
    if name is not None:
        spec["name"] = name
    if project is not None:
        spec["project"] = project
    if environment := environment_of(python=python, venv=venv, conda=conda, requirements=requirements):
        spec["environment"] = environment
    with session.client() as client:
        if dry_run:
            canonical = client.check_spec(_without_code(client, spec) if code is not None else spec)
            output.print_result(canonical, spec_yaml(canonical).rstrip(), as_json=json)
            return
        job = _submit_spec(client, spec, code)
        exit_code = _stay_or_leave(client, job, detach=not follow, as_json=json)
    raise typer.Exit(exit_code)


def _submit_spec(client: Client, spec: Mapping[str, Any], code: Path | None) -> Job:
    """Submit a job, after the server has validated the spec and ``code`` was packed and uploaded.

    What in the command and the gang's size contradicts each other is printed before.
    """
    _print_warnings(spec)
    if code is None:
        job = client.submit(spec)
        output.warn(job.view.warnings)
        return job
    from trainmaster.packing import pack_folder
    from trainmaster.sizes import format_size

    client.check_spec(_without_code(client, spec))
    with output.progress_bar("Packing") as progress:
        packed = pack_folder(code, progress=progress, listed=_tell_if_large)
    with packed:
        for name in packed.skipped:
            output.note(f"{name} is skipped: it is neither a file nor a folder.", "dim")
        with output.progress_bar("Uploading") as progress:
            job = client.submit(spec, code=packed, progress=progress)
        files = output.count(packed.file_count, "file")
        output.warn(job.view.warnings)
        output.note(f"Code: {files} from {code}, {format_size(packed.size_bytes)} packed.", "dim")
    return job


def _print_warnings(spec: Mapping[str, Any]) -> None:
    from trainmaster.spec import SpecError, parse_spec
    from trainmaster.spec.rules import gang_warnings

    try:
        parsed = parse_spec(dict(spec))
    except SpecError:  # the server says what is wrong with it
        return
    for warning in gang_warnings(parsed):
        output.note(f"Warning: {warning}", "yellow")


def _tell_if_large(files: Sequence[FolderEntry]) -> None:
    from trainmaster.packing import IGNORE_FILE, largest_of
    from trainmaster.sizes import format_size

    content = sum(entry.size for entry in files)
    if content > _LARGE_BYTES:
        output.note(
            f"Packing {format_size(content)}; the largest files: {largest_of(files)}. List files that the training "
            f"does not need in {IGNORE_FILE}, and put data on a volume.",
            "dim",
        )


def _without_code(client: Client, spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec for validation by the server before the code is uploaded."""
    project = {} if client.project == "default" else {"project": client.project}
    return {**project, **{key: value for key, value in spec.items() if key != "code"}}


def _stay_or_leave(client: Client, job: Job, *, detach: bool, as_json: bool) -> int:
    """The exit code: at once if detached, otherwise at the job's end."""
    from trainmaster.cli.jobs.follow import JobFollower, exit_code_of_job, note_if_never

    if as_json:
        if not detach:
            job.wait()
        output.print_json(job.view)
        if detach:
            return 0
        return exit_code_of_job(job.view)
    if detach:
        output.say(job.id)
        output.note(f"Submitted {job.name}; watch it with `trainmaster logs -f {job.id}`.", "dim")
        sys.stdout.flush()
        note_if_never(client, job.id)
        return 0

    output.note(f"Submitted {job.name} ({job.id}).", "dim")
    return JobFollower(client, job).run()
