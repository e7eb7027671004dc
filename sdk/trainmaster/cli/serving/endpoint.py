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

app = typer.Typer(help="Addresses under which models answer requests.", invoke_without_command=True)
Endpoint = Annotated[str, typer.Argument(metavar="ENDPOINT", help="Name of the endpoint.")]
Deployment = Annotated[str, typer.Option("--deployment", "-d", help="Name of the deployed model.")]
Wait = Annotated[bool, typer.Option("--wait", "-w", help="Stay until it serves, or has failed.")]
_WATCH_S: Final = 0.5
_SETTLED: Final = frozenset({"ready", "failed"})


def register(root: typer.Typer) -> None:
    root.add_typer(app, name="endpoint", rich_help_panel="Models")


@app.callback()
def endpoint(ctx: typer.Context, json: options.Json = False) -> None:
    """Addresses under which models answer requests; alone: list them."""
    if ctx.invoked_subcommand is None:
        _list(None, as_json=json)


@app.command()
def create(
    endpoint: Endpoint,
    description: Annotated[str, typer.Option("--description")] = "",
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Create an endpoint; it answers when something is deployed to it."""
    with session.client() as client:
        made = client.create_endpoint(endpoint, project=session.project_or_default(project), description=description)
    to_deploy = f"trainmaster endpoint deploy {made.name} MODEL@ALIAS"
    output.print_result(
        made, f"{made.name} created; deploy a model of the registry with `{to_deploy}`, or a file by VOLUME/PATH", json
    )


@app.command("list")
def list_endpoints(project: options.Project = None, json: options.Json = False) -> None:
    """Endpoints, newest first."""
    _list(project, as_json=json)


@app.command()
def show(endpoint: Endpoint, project: options.Project = None, json: options.Json = False) -> None:
    """One endpoint: its deployed models, their revisions and replicas."""
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
    replicas: Annotated[
        int | None, typer.Option("--replicas", "-n", min=1, help="Unstated: as many as it has, or 1.")
    ] = None,
    traffic: Annotated[
        int | None, typer.Option("--traffic", min=0, max=100, help="Its part of the requests, in per cent.")
    ] = None,
    framework: options.FrameworkName = "auto",
    trust_code: options.TrustCode = False,
    image: options.Image = None,
    command: Annotated[str | None, typer.Option("--command", help="Your own server, by /bin/sh -c.")] = None,
    args: Annotated[
        str | None,
        typer.Option("--args", metavar="WORDS", help='Put behind the command, quoted as in a shell: "--workers 2".'),
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="Where the image's server listens; else 8080.")] = None,
    health_route: Annotated[str, typer.Option("--health-route")] = "/health",
    predict_route: Annotated[str, typer.Option("--predict-route")] = "/predict",
    env: options.Env = None,
    cpu: options.Cpu = None,
    memory: options.Memory = None,
    gpus: options.Gpus = 0,
    gpu_type: options.GpuType = None,
    shm: options.Shm = None,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds for one request's answer.")] = 60.0,
    ready_timeout: Annotated[
        float, typer.Option("--ready-timeout", help="Seconds for a replica to get ready.")
    ] = 600.0,
    drain: Annotated[
        float | None,
        typer.Option("--drain", min=2, help="Seconds between a replica's last new request and its SIGTERM; else 5."),
    ] = None,
    max_surge: Annotated[
        int | None, typer.Option("--max-surge", min=0, help="Replicas above --replicas during an update; else 1.")
    ] = None,
    max_unavailable: Annotated[
        int | None,
        typer.Option(
            "--max-unavailable",
            min=0,
            help="Ready ones below --replicas during an update, where there is no room; else 0.",
        ),
    ] = None,
    priority: options.Priority = None,
    preemptible: options.Preemptible = True,
    node_selector: options.NodeSelector = None,
    secrets: options.Secrets = None,
    reason: options.Reason = "",
    wait: Wait = False,
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Deploy a model or, to a name that is there, its next revision: replica by replica, without losing a request."""
    fields: dict[str, Any] = {
        "framework": framework, "trust_code": trust_code, "image": image, "command": command, "args": _words_of(args),
        "port": port,
        "health_route": health_route, "predict_route": predict_route, "env": options.environment_of(env),
        "resources": options.resources_of(cpu, memory, gpus, gpu_type, shm), "timeout_s": timeout, "ready_timeout_s": ready_timeout,
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
    deployment: Annotated[str | None, typer.Option("--deployment", "-d", help="Ask this deployed model.")] = None,
    parameters: Annotated[str | None, typer.Option("--parameters", help="A JSON object for the model.")] = None,
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Ask for predictions; one line of JSON for each instance."""
    rows = _json_of(instances, "INSTANCES")
    if isinstance(rows, dict) and isinstance(rows.get("instances"), list):
        rows = rows["instances"]
    if not isinstance(rows, list):
        raise WrongUse('INSTANCES must be a JSON list, such as "[[1, 2], [3, 4]]".')
    more = None if parameters is None else _json_of(parameters, "--parameters")
    if more is not None and not isinstance(more, dict):
        raise WrongUse("--parameters must be a JSON object.")
    with session.client() as client:
        found = client.predict_with_metadata(
            endpoint, rows, parameters=more, project=session.project_or_default(project), deployment=deployment
        )
    if json:
        output.print_json(
            {"predictions": found.predictions, **({"metadata": found.metadata} if found.metadata else {})}
        )
        return
    for one in found.predictions:
        output.say(json_module.dumps(one))
    classes = found.metadata.get("classes") if isinstance(found.metadata, dict) else None
    if isinstance(classes, list):
        output.note(f"The figures of each are of the classes {', '.join(map(str, classes))}, in this order.", "dim")


@app.command()
def scale(
    endpoint: Endpoint,
    replicas: Annotated[int, typer.Argument(min=0, metavar="REPLICAS", help="0: nothing of it runs.")],
    deployment: Deployment = "default",
    wait: Annotated[bool, typer.Option("--wait", "-w", help="Stay until so many are ready.")] = False,
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Have more or fewer replicas."""
    named = session.project_or_default(project)
    with session.client() as client:
        made = client.scale_deployment(endpoint, replicas, deployment=deployment, project=named)
        if wait and replicas:
            raise typer.Exit(_follow(client, made.name, deployment, _of(made, deployment).wanted, named, as_json=json))
    output.print_result(made, f"{made.name}: {deployment} is to have {output.count(replicas, 'replica')}", as_json=json)


@app.command()
def rollback(
    endpoint: Endpoint,
    revision: Annotated[
        int | None, typer.Option("--revision", "-r", min=1, help="Unstated: the newest before this one that served.")
    ] = None,
    deployment: Deployment = "default",
    reason: options.Reason = "",
    wait: Wait = False,
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Have an earlier revision serve again; one that does not get ready is given up, as a new one is."""
    named = session.project_or_default(project)
    with session.client() as client:
        made = client.rollback_deployment(
            endpoint, revision=revision, deployment=deployment, project=named, reason=reason
        )
        own = _of(made, deployment)
        if wait:
            raise typer.Exit(_follow(client, made.name, deployment, own.wanted, named, as_json=json))
    back = next(one for one in own.revision_list if one.number == own.wanted)
    more = (
        ""
        if back.stable_at
        else ", which has never served: `--wait` or `trainmaster endpoint show` tells whether it does"
    )
    output.print_result(made, f"{made.name}: {deployment} goes back to revision {own.wanted}{more}", as_json=json)


@app.command()
def history(endpoint: Endpoint, project: options.Project = None, json: options.Json = False) -> None:
    """What was deployed, taken back, scaled and divided, what failed: when, by whom and why; newest first."""
    with session.client() as client:
        found = list(client.list_endpoint_changes(endpoint, project=session.project_or_default(project), limit=200))
    if json:
        output.print_json(found)
        return
    output.print_table(
        ("WHEN", "WHO", "WHAT", "DEPLOYED", "REVISION", "WHY"),
        [
            (output.local_time(one.at), one.actor, one.what, one.deployment, one.revision, one.reason or None)
            for one in found
        ],
        empty="No changes.",
    )


@app.command()
def traffic(
    endpoint: Endpoint,
    parts: Annotated[list[str], typer.Argument(metavar="NAME=PERCENT…", help="Like default=90 next=10; together 100.")],
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """Divide the requests among the deployed models."""
    wanted: dict[str, int] = {}
    for part in parts:
        name, _, number = part.partition("=")
        if not (number.isascii() and number.isdecimal()):
            raise WrongUse(f"{part!r} is no NAME=PERCENT, such as default=90.")
        wanted[name] = int(number)
    with session.client() as client:
        made = client.set_endpoint_traffic(endpoint, wanted, project=session.project_or_default(project))
    output.print_result(
        made, f"{made.name}: {', '.join(f'{one.name} {one.traffic} %' for one in made.deployments)}", as_json=json
    )


@app.command()
def undeploy(
    endpoint: Endpoint,
    deployment: Annotated[str, typer.Argument(metavar="DEPLOYMENT")] = "default",
    project: options.Project = None,
    json: options.Json = False,
) -> None:
    """End a deployed model: its replicas finish what they have."""
    with session.client() as client:
        made = client.undeploy_model(endpoint, deployment, project=session.project_or_default(project))
    output.print_result(made, f"{made.name}: {deployment} is being undeployed", as_json=json)


@app.command()
def delete(
    endpoint: Endpoint, yes: options.Yes = False, project: options.Project = None, json: options.Json = False
) -> None:
    """Undeploy all and forget the endpoint."""
    named = session.project_or_default(project)
    with session.client() as client:
        if not yes and output.is_interactive():
            replicas = sum(one.ready for one in client.get_endpoint(endpoint, project=named).deployments)
            serves = f"; {output.count(replicas, 'replica')} of it {'serves' if replicas == 1 else 'serve'} now"
            typer.confirm(f"Delete endpoint {endpoint}{serves if replicas else ''}?", abort=True, err=True)
        client.delete_endpoint(endpoint, project=named)
    output.print_result({"deleted": endpoint}, f"{endpoint} is being deleted", as_json=json)


def _list(project: str | None, *, as_json: bool) -> None:
    with session.client() as client:
        found = list(client.list_endpoints(project=project))
    if as_json or session.current().as_json:
        output.print_json(found)
        return
    console, now = output.answers(), output.now()
    output.print_table(
        ("NAME", "PROJECT", "STATE", "DEPLOYED", "READY", "CREATED"),
        [
            (
                view.name,
                view.project,
                output.state_text(_state_of(view), console),
                ", ".join(f"{one.name} {one.traffic} %" for one in view.deployments) or None,
                f"{sum(one.ready for one in view.deployments)} of {sum(one.replicas for one in view.deployments)}",
                output.ago(view.created_at, now),
            )
            for view in found
        ],
        empty="No endpoints.",
    )


def _state_of(view: EndpointView) -> str:
    """The worst of its deployed models'."""
    if view.deleting_at is not None:
        return "undeploying"
    states = {one.state for one in view.deployments}
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
            ("Ask", f"POST /api/v1/projects/{detail.project}/endpoints/{detail.name}:predict"),
        ]
    )
    if not detail.deployments:
        output.say("Nothing is deployed to it.")
    for one in detail.deployments:
        output.say()
        output.print_pairs(
            [
                ("Deployed", f"{one.name}: {one.model}"),
                ("State", output.state_text(one.state, console)),
                ("Note", one.note or None),
                ("Traffic", f"{one.traffic} %"),
                ("Replicas", f"{one.ready} of {one.replicas} ready"),
                (
                    "Revision",
                    f"{one.wanted}" + (f" (serving: {one.stable})" if one.stable not in (None, one.wanted) else ""),
                ),
            ]
        )
        live = [replica for replica in one.replica_list if replica.state != "ended"]
        output.print_table(
            ("REPLICA", "REVISION", "STATE", "JOB", "SINCE", "WHY"),
            [
                (
                    number,
                    replica.revision,
                    output.state_text(_seen_state(replica), console),
                    replica.job,
                    output.ago(replica.ready_at or replica.created_at, now),
                    None if replica.state == "ready" else replica.words or None,
                )
                for number, replica in enumerate(live)
            ],
            empty="No replica runs.",
        )
        output.print_table(
            ("REVISION", "MODEL", "SERVED", "BY", "REASON"),
            [
                (
                    revision.number,
                    revision.spec.model_name or revision.spec.model,
                    output.ago(revision.stable_at, now) if revision.stable_at else "never",
                    revision.user,
                    _became(revision, one),
                )
                for revision in one.revision_list[:10]
            ],
            empty="No revisions.",
        )


def _seen_state(replica: ServingReplicaView) -> str:
    """One whose job waits for a place is told apart from one that starts."""
    return "queued" if replica.state == "starting" and replica.job_state == "queued" else replica.state


# What of a revision says how it runs, by the option that states it. Those are never taken over from the revision before.
_STATED: Final = {
    "framework": "--framework", "trust_code": "--trust-code", "image": "--image", "command": "--command", "args": "--args",
    "port": "--port", "health_route": "--health-route", "predict_route": "--predict-route", "env": "--env",
    "secrets": "--secret", "resources": "--cpu, --memory, --gpus, --gpu-type, --shm", "priority": "--priority",
    "preemptible": "--no-preemptible", "node_selector": "--node-selector", "timeout_s": "--timeout",
    "ready_timeout_s": "--ready-timeout", "drain_s": "--drain", "max_surge": "--max-surge",
    "max_unavailable": "--max-unavailable",
}  # fmt: skip


def _tell_differences(own: DeploymentDetail) -> None:
    """What the revision that served last had and the new one has not, by its option: a revision is what its own command says."""
    new = next((one for one in own.revision_list if one.number == own.wanted), None)
    old = next((one for one in own.revision_list if one.number == (own.stable or own.wanted - 1)), None)
    if new is None or old is None:
        return
    from trainmaster.wire.serving import ServingSpec

    plain = ServingSpec(model="")
    lost = []
    for field, option in _STATED.items():
        had, has = getattr(old.spec, field), getattr(new.spec, field)
        if isinstance(had, dict):
            keys = sorted(key for key in had if key not in has)
            # The values of variables may be nobody's business.
            lost += [f"{key} {had[key]}" if field == "resources" else f"{option} {key}" for key in keys]
        elif had != has and has == getattr(plain, field):
            lost.append(f"{option} {had}" if not isinstance(had, (bool, list)) else option)
    if lost:
        output.note(
            f"Of revision {old.number} this one does not have: {', '.join(lost)}. A revision is what its own command states; state it "
            "again to keep it.",
            "yellow",
        )


def _became(revision: RevisionView, of: DeploymentDetail) -> str | None:
    if revision.verdict and revision.verdict == of.note:
        return "given up, as the note says"
    return revision.verdict or revision.reason or None


def _follow(client: Client, endpoint: str, name: str, revision: int, project: str, *, as_json: bool) -> int:
    """Tell what is waited for, until the revision serves or was given up."""
    told = ""
    while True:
        detail = client.get_endpoint(endpoint, project=project)
        own = _of(detail, name)
        is_given_up = own.state == "failed" or own.wanted != revision
        is_idle = own.replicas == 0 and own.state == "ready"  # no revision ever serves with none
        if is_given_up or is_idle or (own.state == "ready" and own.stable == own.wanted):
            break
        if own.note and own.note != told and not as_json:
            told = own.note
            output.note(told, "dim")
        time.sleep(_WATCH_S)  # noqa: TID251 (a person watches)
    if as_json:
        output.print_json(detail)
    elif is_given_up:
        verdict = next((one.verdict for one in own.revision_list if one.number == revision), "")
        output.say(verdict or f"revision {own.wanted} of {name} is to serve now: somebody asked for it meanwhile")
    elif is_idle:
        more = f"trainmaster endpoint scale {detail.name} 1" + (f" --deployment {name}" if name != "default" else "")
        output.say(f"{detail.name}: {name} has 0 replicas, so revision {revision} serves when it is scaled: `{more}`")
    else:
        output.say(f"{detail.name}: revision {revision} of {name} serves with {output.count(own.ready, 'replica')}")
    return ExitCode.FAILED if is_given_up else ExitCode.OK


def _of(detail: EndpointDetail, name: str) -> DeploymentDetail:
    found = next((one for one in detail.deployments if one.name == name), None)
    if found is None:
        raise WrongUse(f"{detail.name} has no deployed model {name!r} any more.")
    return found


def _words_of(text: str | None) -> list[str]:
    try:
        return shlex.split(text or "")
    except ValueError as error:
        raise WrongUse(f"--args {text}: {error}; quote it as in a shell.") from error


def _json_of(text: str, what: str) -> Any:
    try:
        if text == "-":
            text = sys.stdin.read()
        elif text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="utf-8")
        return json_module.loads(text)
    except OSError as error:
        raise WrongUse(f"{what}: {text[1:]} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise WrongUse(f"{what} is no JSON: {error}.") from error
