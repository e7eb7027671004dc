"""``endpoint``: deployed models that answer requests."""

from __future__ import annotations

import json as json_module
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from trainmaster.cli.terminal import options, output, session
from trainmaster.cli.terminal.exits import ExitCode, WrongUse, refused_as

if TYPE_CHECKING:
    from trainmaster.client import Client
    from trainmaster.wire.serving import (
        DeploymentDetail,
        EndpointDetail,
        EndpointView,
        RevisionView,
        ServingReplicaView,
    )

app = typer.Typer(help="Endpoints, at which deployed models answer requests.", invoke_without_command=True)
Endpoint = Annotated[str, typer.Argument(metavar="ENDPOINT", help="Name of the endpoint.")]
Deployment = Annotated[str, typer.Option("--deployment", "-d", help="Name of the deployed model.")]
_WATCH_S: Final = 0.5


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="endpoint", rich_help_panel="Models")


@app.callback()
def endpoint(ctx: typer.Context, json: options.Json = False) -> None:
    """Endpoints, at which deployed models answer requests; alone: list them."""
    if ctx.invoked_subcommand is None:
        list_endpoints(json=json)


@app.command()
def create(
    endpoint: Endpoint,
    description: Annotated[str, typer.Option("--description")] = "",
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Create an endpoint, to which models can be deployed."""
    with session.client() as client:
        made = client.create_endpoint(endpoint, project=session.project_or_default(project), description=description)
    to_deploy = f"trainmaster endpoint deploy {made.name} MODEL@ALIAS"
    output.print_result(
        made,
        f"{made.name} created; deploy a model of the registry with `{to_deploy}`, or a file by VOLUME/PATH",
        as_json=json,
    )


@app.command("list")
def list_endpoints(project: options.Project = None, json: options.Json = False) -> None:
    """List endpoints, newest first."""
    with session.client() as client:
        endpoints = list(client.list_endpoints(project=project))
    if json or session.current().as_json:
        output.print_json(endpoints)
        return
    console, now = output.answers(), output.now()
    output.print_table(
        ("NAME", "PROJECT", "STATE", "DEPLOYMENTS", "READY", "CREATED"),
        [
            (
                view.name,
                view.project,
                output.state_text(_state_of(view), console),
                ", ".join(f"{item.name} {item.traffic} %" for item in view.deployments) or None,
                f"{sum(item.ready for item in view.deployments)} of {sum(item.replicas for item in view.deployments)}",
                output.ago(view.created_at, now),
            )
            for view in endpoints
        ],
        empty="No endpoints.",
    )


@app.command()
def show(endpoint: Endpoint, project: options.Project = None, json: options.Json = False) -> None:
    """Show one endpoint: its deployments, their revisions and replicas."""
    with session.client() as client:
        detail = client.get_endpoint(endpoint, project=session.project_or_default(project))
    if json:
        output.print_json(detail)
    else:
        _show(detail)


@app.command()
def deploy(
    endpoint: Endpoint,
    model: options.Model,
    deployment: Deployment = "default",
    replicas: options.Replicas = None,
    traffic: Annotated[int | None, typer.Option("--traffic", min=0, max=100, help="Traffic in per cent.")] = None,
    framework: options.FrameworkName = "auto",
    trust_code: options.TrustCode = False,
    image: options.Image = None,
    command: Annotated[
        str | None, typer.Option("--command", help="Command of your own server, run by /bin/sh -c.")
    ] = None,
    args: Annotated[
        str | None,
        typer.Option("--args", metavar="WORDS", help='Arguments, quoted as in a shell: "--workers 2".'),
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="Port of the image's server; default: 8080.")] = None,
    health_route: Annotated[str, typer.Option("--health-route")] = "/health",
    predict_route: Annotated[str, typer.Option("--predict-route")] = "/predict",
    env: options.Env = None,
    cpu: options.Cpu = None,
    memory: options.Memory = None,
    gpus: options.Gpus = 0,
    gpu_type: options.GpuType = None,
    shm: options.Shm = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Timeout of a request in seconds.")] = 60.0,
    ready_timeout: Annotated[
        float, typer.Option("--ready-timeout", help="Seconds for a replica to become ready.")
    ] = 600.0,
    drain: Annotated[
        float | None,
        typer.Option(
            "--drain", min=2, help="Seconds between a replica's last new request and its SIGTERM; default: 5."
        ),
    ] = None,
    max_surge: Annotated[
        int | None, typer.Option("--max-surge", min=0, help="Replicas above --replicas during an update; default: 1.")
    ] = None,
    max_unavailable: Annotated[
        int | None,
        typer.Option(
            "--max-unavailable",
            min=0,
            help="Ready replicas below --replicas during an update without free capacity; default: 0.",
        ),
    ] = None,
    priority: options.Priority = None,
    preemptible: options.Preemptible = True,
    node_selector: options.NodeSelector = None,
    secrets: options.Secrets = None,
    reason: options.Reason = "",
    wait: options.Wait = False,
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Deploy a model, or a new revision of a deployment: a rolling update without lost requests."""
    fields: dict[str, Any] = {
        "framework": framework, "trust_code": trust_code, "image": image, "command": command, "args": _words_of(args),
        "port": port,
        "health_route": health_route, "predict_route": predict_route, "env": options.environment_of(env),
        "resources": options.resources_of(cpu, memory, gpus, gpu_type, shm), "timeout_s": timeout,
        "ready_timeout_s": ready_timeout,
        "drain_s": drain, "max_surge": max_surge, "max_unavailable": max_unavailable,
        "priority": options.priority_of(priority), "preemptible": preemptible,
        "node_selector": options.node_selector_of(node_selector), "secrets": secrets,
        "replicas": replicas, "traffic": traffic, "reason": reason,
    }  # fmt: skip
    named = session.project_or_default(project)
    with session.client() as client:
        with refused_as("deployment"):
            made = client.deploy_model(
                endpoint, model, deployment=deployment, project=named,
                **{name: value for name, value in fields.items() if value not in (None, {}, [], "")},
            )  # fmt: skip
        own = _of(made, deployment)
        if not json:
            _tell_differences(own)
        if wait:
            raise typer.Exit(_follow(client, made.name, deployment, own.wanted, named, as_json=json))
    output.print_result(made, f"{made.name}: revision {own.wanted} of {deployment} is being deployed", as_json=json)


@app.command()
def predict(
    endpoint: Endpoint,
    instances: Annotated[
        str, typer.Argument(metavar="INSTANCES", help='A JSON list, like "[[1, 2], [3, 4]]"; @FILE; `-` is stdin.')
    ],
    deployment: Annotated[str | None, typer.Option("--deployment", "-d", help="Query this deployment.")] = None,
    parameters: Annotated[str | None, typer.Option("--parameters", help="A JSON object for the model.")] = None,
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Query predictions; prints a line of JSON per instance."""
    rows = _json_of(instances, "INSTANCES")
    if isinstance(rows, dict) and isinstance(rows.get("instances"), list):
        rows = rows["instances"]
    if not isinstance(rows, list):
        raise WrongUse('INSTANCES must be a JSON list, such as "[[1, 2], [3, 4]]".')
    more = None if parameters is None else _json_of(parameters, "--parameters")
    if more is not None and not isinstance(more, dict):
        raise WrongUse("--parameters must be a JSON object.")
    with session.client() as client:
        answer = client.predict_with_metadata(
            endpoint, rows, parameters=more, project=session.project_or_default(project), deployment=deployment
        )
    if json:
        output.print_json(
            {"predictions": answer.predictions, **({"metadata": answer.metadata} if answer.metadata else {})}
        )
        return
    for prediction in answer.predictions:
        output.say(json_module.dumps(prediction))
    classes = answer.metadata.get("classes") if isinstance(answer.metadata, dict) else None
    if isinstance(classes, list):
        output.note(f"Order of the classes: {', '.join(map(str, classes))}.", "dim")


@app.command()
def scale(
    endpoint: Endpoint,
    replicas: Annotated[
        int, typer.Argument(min=0, metavar="REPLICAS", help="Number of replicas; 0 stops the deployment.")
    ],
    deployment: Deployment = "default",
    wait: options.Wait = False,
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Set the number of replicas."""
    named = session.project_or_default(project)
    with session.client() as client:
        made = client.scale_deployment(endpoint, replicas, deployment=deployment, project=named)
        if wait and replicas:
            raise typer.Exit(_follow(client, made.name, deployment, _of(made, deployment).wanted, named, as_json=json))
    output.print_result(
        made, f"{made.name}: {deployment} is being scaled to {output.count(replicas, 'replica')}", as_json=json
    )


@app.command()
def rollback(
    endpoint: Endpoint,
    revision: Annotated[
        int | None, typer.Option("--revision", "-r", min=1, help="Default: the newest earlier revision that was ready.")
    ] = None,
    deployment: Deployment = "default",
    reason: options.Reason = "",
    wait: options.Wait = False,
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Roll back to an earlier revision; if it does not become ready, it fails like a new revision."""
    named = session.project_or_default(project)
    with session.client() as client:
        made = client.rollback_deployment(
            endpoint, revision=revision, deployment=deployment, project=named, reason=reason
        )
        own = _of(made, deployment)
        if wait:
            raise typer.Exit(_follow(client, made.name, deployment, own.wanted, named, as_json=json))
    target = next(revision for revision in own.revision_list if revision.number == own.wanted)
    more = (
        ""
        if target.stable_at
        else ", which was never ready: check with `--wait` or `trainmaster endpoint show` whether it becomes ready"
    )
    output.print_result(
        made, f"{made.name}: {deployment} is being rolled back to revision {own.wanted}{more}", as_json=json
    )


@app.command()
def history(endpoint: Endpoint, project: options.Project = None, json: options.Json = False) -> None:
    """Show the endpoint's history, newest first."""
    with session.client() as client:
        changes = list(client.list_endpoint_changes(endpoint, project=session.project_or_default(project), limit=200))
    if json:
        output.print_json(changes)
        return
    output.print_table(
        ("TIME", "ACTOR", "CHANGE", "DEPLOYMENT", "REVISION", "REASON"),
        [
            (
                output.local_time(change.at),
                change.actor,
                change.what,
                change.deployment,
                change.revision,
                change.reason or None,
            )
            for change in changes
        ],
        empty="No changes.",
    )


@app.command()
def traffic(
    endpoint: Endpoint,
    parts: Annotated[
        list[str],
        typer.Argument(metavar="NAME=PERCENT…", help="Traffic split, like default=90 next=10; the sum is 100."),
    ],
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Set the traffic split of the deployments."""
    shares: dict[str, int] = {}
    for part in parts:
        name, _, number = part.partition("=")
        if not (number.isascii() and number.isdecimal()):
            raise WrongUse(f"{part!r} is not NAME=PERCENT, such as default=90.")
        shares[name] = int(number)
    with session.client() as client:
        made = client.set_endpoint_traffic(endpoint, shares, project=session.project_or_default(project))
    output.print_result(
        made, f"{made.name}: {', '.join(f'{item.name} {item.traffic} %' for item in made.deployments)}", as_json=json
    )


@app.command()
def undeploy(
    endpoint: Endpoint,
    deployment: Annotated[str, typer.Argument(metavar="DEPLOYMENT")] = "default",
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Undeploy a model; its replicas finish their requests first."""
    with session.client() as client:
        made = client.undeploy_model(endpoint, deployment, project=session.project_or_default(project))
    output.print_result(made, f"{made.name}: {deployment} is being undeployed", as_json=json)


@app.command()
def delete(
    endpoint: Endpoint, yes: options.Yes = False, project: options.Project = None, json: options.Json = False
) -> None:
    """Undeploy all models and delete the endpoint."""
    named = session.project_or_default(project)
    with session.client() as client:
        if not yes and output.is_interactive():
            replicas = sum(item.ready for item in client.get_endpoint(endpoint, project=named).deployments)
            serving = f" with {output.count(replicas, 'ready replica')}" if replicas else ""
            typer.confirm(f"Delete endpoint {endpoint}{serving}?", abort=True, err=True)
        client.delete_endpoint(endpoint, project=named)
    output.print_result({"deleted": endpoint}, f"{endpoint} is being deleted", as_json=json)


def _state_of(view: EndpointView) -> str:
    """The worst state of its deployments."""
    if view.deleting_at is not None:
        return "undeploying"
    states = {item.state for item in view.deployments}
    return next(
        (state for state in ("failed", "degraded", "deploying", "undeploying", "ready") if state in states), "empty"
    )


def _show(detail: EndpointDetail) -> None:
    console, now = output.answers(), output.now()
    output.print_pairs(
        [
            ("Endpoint", f"{detail.name} ({detail.id})"),
            ("Project", detail.project),
            ("Description", detail.description or None),
            ("Predict", f"POST /api/v1/projects/{detail.project}/endpoints/{detail.name}:predict"),
        ]
    )
    if not detail.deployments:
        output.say("No deployments.")
    for item in detail.deployments:
        output.say()
        serving = f" (serving: {item.stable})" if item.stable not in (None, item.wanted) else ""
        output.print_pairs(
            [
                ("Deployment", f"{item.name}: {item.model}"),
                ("State", output.state_text(item.state, console)),
                ("Note", item.note or None),
                ("Traffic", f"{item.traffic} %"),
                ("Replicas", f"{item.ready} of {item.replicas} ready"),
                ("Revision", f"{item.wanted}{serving}"),
            ]
        )
        live = [replica for replica in item.replica_list if replica.state != "ended"]
        output.print_table(
            ("REPLICA", "REVISION", "STATE", "JOB", "SINCE", "REASON"),
            [
                (
                    number,
                    replica.revision,
                    output.state_text(_replica_state(replica), console),
                    replica.job,
                    output.ago(replica.ready_at or replica.created_at, now),
                    None if replica.state == "ready" else replica.words or None,
                )
                for number, replica in enumerate(live)
            ],
            empty="No replicas.",
        )
        output.print_table(
            ("REVISION", "MODEL", "READY", "USER", "REASON"),
            [
                (
                    revision.number,
                    revision.spec.model_name or revision.spec.model,
                    output.ago(revision.stable_at, now) if revision.stable_at else "never",
                    revision.user,
                    _outcome(revision, item),
                )
                for revision in item.revision_list[:10]
            ],
            empty="No revisions.",
        )


def _replica_state(replica: ServingReplicaView) -> str:
    """The replica's state; "queued" if its job waits."""
    return "queued" if replica.state == "starting" and replica.job_state == "queued" else replica.state


# Fields of a revision -> their options. A new revision never inherits them from the previous one.
_STATED: Final = {
    "framework": "--framework", "trust_code": "--trust-code", "image": "--image", "command": "--command",
    "args": "--args",
    "port": "--port", "health_route": "--health-route", "predict_route": "--predict-route", "env": "--env",
    "secrets": "--secret", "resources": "--cpu, --memory, --gpus, --gpu-type, --shm", "priority": "--priority",
    "preemptible": "--no-preemptible", "node_selector": "--node-selector", "timeout_s": "--timeout",
    "ready_timeout_s": "--ready-timeout", "drain_s": "--drain", "max_surge": "--max-surge",
    "max_unavailable": "--max-unavailable",
}  # fmt: skip


def _tell_differences(own: DeploymentDetail) -> None:
    """Print a warning for options of the last ready revision that the new one lacks, since it does not inherit them."""
    new = next((item for item in own.revision_list if item.number == own.wanted), None)
    old = next((item for item in own.revision_list if item.number == (own.stable or own.wanted - 1)), None)
    if new is None or old is None:
        return
    from trainmaster.wire.serving import ServingSpec

    plain = ServingSpec(model="")
    lost = []
    for field, option in _STATED.items():
        before, after = getattr(old.spec, field), getattr(new.spec, field)
        if isinstance(before, dict):
            keys = sorted(key for key in before if key not in after)
            # The values of variables may be confidential.
            lost += [f"{key} {before[key]}" if field == "resources" else f"{option} {key}" for key in keys]
        elif before != after and after == getattr(plain, field):
            lost.append(f"{option} {before}" if not isinstance(before, (bool, list)) else option)
    if lost:
        output.note(
            f"Unlike revision {old.number}, the new revision lacks: {', '.join(lost)}. Revisions do not inherit "
            "options; repeat them to keep them.",
            "yellow",
        )


def _outcome(revision: RevisionView, of: DeploymentDetail) -> str | None:
    if revision.verdict and revision.verdict == of.note:
        return "failed, see the note"
    return revision.verdict or revision.reason or None


def _follow(client: Client, endpoint: str, name: str, revision: int, project: str, *, as_json: bool) -> int:
    """Print the deployment's notes until the revision is ready or has failed."""
    last_note = ""
    while True:
        detail = client.get_endpoint(endpoint, project=project)
        own = _of(detail, name)
        is_given_up = own.state == "failed" or own.wanted != revision
        is_idle = own.replicas == 0 and own.state == "ready"  # without replicas no revision becomes ready
        if is_given_up or is_idle or (own.state == "ready" and own.stable == own.wanted):
            break
        if own.note and own.note != last_note and not as_json:
            last_note = own.note
            output.note(last_note, "dim")
        time.sleep(_WATCH_S)  # noqa: TID251 (the command line is a boundary)
    if as_json:
        output.print_json(detail)
    elif is_given_up:
        verdict = next((item.verdict for item in own.revision_list if item.number == revision), "")
        output.say(verdict or f"superseded by revision {own.wanted} of {name}, which was requested in the meantime")
    elif is_idle:
        more = f"trainmaster endpoint scale {detail.name} 1" + (f" --deployment {name}" if name != "default" else "")
        output.say(f"{detail.name}: {name} has 0 replicas; revision {revision} serves once it is scaled: `{more}`")
    else:
        output.say(f"{detail.name}: revision {revision} of {name} serves with {output.count(own.ready, 'replica')}")
    return ExitCode.FAILED if is_given_up else ExitCode.OK


def _of(detail: EndpointDetail, name: str) -> DeploymentDetail:
    match = next((item for item in detail.deployments if item.name == name), None)
    if match is None:
        raise WrongUse(f"{detail.name} no longer has a deployment {name!r}.")
    return match


def _words_of(text: str | None) -> list[str]:
    try:
        return shlex.split(text or "")
    except ValueError as error:
        raise WrongUse(f"--args {text}: {error}; quote it as in a shell.") from error


def _json_of(text: str, label: str) -> Any:
    try:
        if text == "-":
            text = sys.stdin.read()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="utf-8")
        return json_module.loads(text)
    except OSError as error:
        raise WrongUse(f"{label}: {text[1:]} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise WrongUse(f"{label} is not JSON: {error}.") from error
