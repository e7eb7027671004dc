"""``batch-predict``: predictions for whole files, as a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainmaster.cli.jobs.show import exit_text
from trainmaster.cli.terminal import options, output, session
from trainmaster.cli.terminal.exits import ExitCode, refused_as

if TYPE_CHECKING:
    from trainmaster.wire.jobs import JobDetail
    from trainmaster.wire.serving import BatchOutcome


def register(root: typer.Typer) -> None:
    root.command("batch-predict", rich_help_panel="Models")(batch_predict)


def batch_predict(
    model: options.Model,
    input: Annotated[str, typer.Argument(metavar="INPUT", help="volume/path of JSONL or CSV files.")],  # noqa: A002
    name: Annotated[str, typer.Option("--name", help="Name of the job.")] = "batch-predict",
    to: Annotated[
        str | None, typer.Option("--output", "-o", help="volume/path; default: the job's own folder.")
    ] = None,
    replicas: options.Replicas = None,
    format: Annotated[str, typer.Option("--format", help="auto, jsonl or csv.")] = "auto",  # noqa: A002
    csv_rows: Annotated[
        str | None, typer.Option("--csv-rows", help="object (by the header's names; the default) or array.")
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Instances per call of the model.")] = 64,
    shard_size: Annotated[int, typer.Option("--shard-size", min=1, help="Instances per output file.")] = 10_000,
    framework: options.FrameworkName = "auto",
    trust_code: options.TrustCode = False,
    image: options.Image = None,
    env: options.Env = None,
    cpu: options.Cpu = None,
    memory: options.Memory = None,
    gpus: options.Gpus = 0,
    gpu_type: options.GpuType = None,
    shm: options.Shm = None,
    priority: options.Priority = None,
    preemptible: options.Preemptible = True,
    node_selector: options.NodeSelector = None,
    secrets: options.Secrets = None,
    max_run_time: options.MaxRunTime = None,
    labels: options.Labels = None,
    wait: options.Wait = False,
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Submit a job that predicts for all instances of input files, which its replicas share."""
    fields: dict[str, Any] = {
        "name": name, "replicas": replicas, "format": format, "batch_size": batch_size, "shard_size": shard_size,
        "framework": framework, "trust_code": trust_code, "env": options.environment_of(env),
        "resources": options.resources_of(cpu, memory, gpus, gpu_type, shm), "preemptible": preemptible,
        "output": to, "image": image, "csv_rows": csv_rows, "priority": options.priority_of(priority),
        "node_selector": options.node_selector_of(node_selector), "secrets": secrets,
        "max_run_time": max_run_time, "labels": options.labels_of(labels),
    }  # fmt: skip
    with session.client() as client:
        with refused_as("batch prediction"):
            job = client.batch_predict(
                model, input, project=session.project_or_default(project),
                **{field: value for field, value in fields.items() if value not in (None, {}, [])},
            )  # fmt: skip
        if not wait:
            _print_started(job, json)
            return
        ended = client.wait_for_job(job.id)
        outcome = client.get_batch_outcome(ended.id) if ended.state == "succeeded" else None
    if json:
        output.print_json({**output.to_plain(ended), "batch": output.to_plain(outcome)})
    else:
        _ended(ended, outcome)
    if ended.state != "succeeded" or (outcome is not None and outcome.has_only_errors):
        raise typer.Exit(ExitCode.FAILED)


def _print_started(job: JobDetail, as_json: bool) -> None:
    if as_json:
        output.print_json(job)
        return
    output.say(f"{job.name} ({job.id})")
    output.note(f"`trainmaster logs {job.id}` shows its progress; predictions-*.jsonl will be in {job.output}.", "dim")


def _ended(job: JobDetail, outcome: BatchOutcome | None) -> None:
    """Print how the job ended and its output; errors and warnings go to stderr."""
    output.say(f"{job.name} ({job.id}) {job.state}")
    if job.state != "succeeded":
        if why := exit_text(job.exit):
            output.note(why, "red")
        return
    answers = f"{job.output}/predictions-*.jsonl"
    if outcome is None:
        output.say(f"{answers} has the predictions, errors-*.jsonl in the same folder the rejected instances.")
        return
    if not outcome.predictions and not outcome.errors:
        output.note("Warning: the input has no instances, so nothing was written.", "yellow")
        return
    errors = f"{job.output}/errors-*.jsonl"
    output.say(f"{output.count(outcome.predictions, 'prediction')}, {output.count(outcome.errors, 'error')}: {answers}")
    if outcome.has_only_errors:
        message = f"Error: none of the {output.count(outcome.errors, 'instance')} has a prediction; see {errors}."
        output.note(f"{message} The first error: {outcome.first_error}", "red")
    elif outcome.errors:
        has = "has" if outcome.errors == 1 else "have"
        message = f"Warning: {output.count(outcome.errors, 'instance')} {has} no prediction; see {errors}."
        output.note(f"{message} The first error: {outcome.first_error}", "yellow")
