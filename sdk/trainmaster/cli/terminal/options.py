"""Arguments and options shared by several commands."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from trainmaster.cli.terminal import session
from trainmaster.cli.terminal.completion import complete_job, complete_node, complete_project
from trainmaster.cli.terminal.values import pairs


def _remember_json(value: bool) -> bool:
    session.current().as_json = session.current().as_json or value
    return value


def _remember_context(value: str | None) -> str | None:
    if value is not None:
        session.current().context = value
    return value


Json = Annotated[
    bool,
    typer.Option(
        "--json", callback=_remember_json, is_eager=True, help="JSON on stdout; errors as problem JSON on stderr."
    ),
]
Job = Annotated[str, typer.Argument(metavar="JOB", help="ID or name of the job.", autocompletion=complete_job)]
Node = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.", autocompletion=complete_node)]
Project = Annotated[
    str | None,
    typer.Option("--project", "-p", help="Project; default: your context's.", autocompletion=complete_project),
]
Reason = Annotated[str, typer.Option("--reason", "-m", help="Reason, recorded in the history.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

# --- jobs, deployments and batch predictions ------------------------------------------------------------------------

RESOURCES_PANEL: Final = "Resources of each replica"
DATA_PANEL: Final = "Code, data and environment"
POLICY_PANEL: Final = "Policy"

Cpu = Annotated[str | None, typer.Option("--cpu", help="CPUs, like 2 or 500m.", rich_help_panel=RESOURCES_PANEL)]
Memory = Annotated[str | None, typer.Option("--memory", help="Memory, like 4Gi.", rich_help_panel=RESOURCES_PANEL)]
Gpus = Annotated[
    float,
    typer.Option(
        "--gpus",
        "-g",
        min=0,
        metavar="N",
        help="GPUs, like 2, or 0.5 for half of one.",
        rich_help_panel=RESOURCES_PANEL,
    ),
]
GpuType = Annotated[
    str | None,
    typer.Option("--gpu-type", help="Accepted GPU models, like H100 or A100,H100.", rich_help_panel=RESOURCES_PANEL),
]
Shm = Annotated[str | None, typer.Option("--shm", help="Size of /dev/shm, like 2Gi.", rich_help_panel=RESOURCES_PANEL)]
Image = Annotated[str | None, typer.Option("--image", help="Container image.", rich_help_panel=DATA_PANEL)]
Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        "-e",
        metavar="KEY=VALUE",
        help="Environment variable; a bare KEY is copied from here. Repeatable.",
        rich_help_panel=DATA_PANEL,
    ),
]
Secrets = Annotated[
    list[str] | None,
    typer.Option("--secret", metavar="NAME", help="Secret of the project. Repeatable.", rich_help_panel=DATA_PANEL),
]
Priority = Annotated[
    str | None,
    typer.Option(
        "--priority", help="low, normal, high, urgent, or 0 to 100; default: normal (50).", rich_help_panel=POLICY_PANEL
    ),
]
Preemptible = Annotated[
    bool,
    typer.Option(
        "--preemptible/--no-preemptible",
        help="Whether the scheduler may preempt replicas.",
        rich_help_panel=POLICY_PANEL,
    ),
]
NodeSelector = Annotated[
    list[str] | None,
    typer.Option(
        "--node-selector",
        metavar="KEY=VALUE",
        help="Only nodes with this label. Repeatable.",
        rich_help_panel=POLICY_PANEL,
    ),
]
MaxRunTime = Annotated[
    str | None,
    typer.Option("--max-run-time", help="Maximum training time, like 2h30m.", rich_help_panel=POLICY_PANEL),
]
Labels = Annotated[
    list[str] | None,
    typer.Option("--label", "-l", metavar="KEY=VALUE", help="Label. Repeatable.", rich_help_panel=POLICY_PANEL),
]
WaitForNodes = Annotated[
    bool,
    typer.Option("--wait-for-nodes", help="Create it even if no present node could ever run one of its trials."),
]
Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="name@version or name@alias of the registry, or volume/path of its files."),
]
FrameworkName = Annotated[
    str, typer.Option("--framework", help="torch, sklearn, tensorflow or xgboost; default: by the file names.")
]
TrustCode = Annotated[
    bool,
    typer.Option(
        "--trust-code", help="Allow code in the model's files to run on loading (pickle, joblib, torch.export)."
    ),
]


def resources_of(
    cpu: str | None, memory: str | None, gpus: float, gpu_type: str | None = None, shm: str | None = None
) -> dict[str, Any]:
    """The given resources, as in a job spec."""
    models = [model.strip() for model in (gpu_type or "").split(",") if model.strip()]
    given = {"cpu": cpu, "memory": memory, "gpus": gpus or None, "gpu_type": models or None, "shm": shm}
    return {name: value for name, value in given.items() if value is not None}


def environment_of(env: list[str] | None) -> dict[str, str]:
    return pairs(env or [], "--env", from_environment=True)


def labels_of(labels: list[str] | None) -> dict[str, str]:
    return pairs(labels or [], "--label")


def node_selector_of(node_selector: list[str] | None) -> dict[str, str]:
    return pairs(node_selector or [], "--node-selector")


def priority_of(text: str | None) -> int | None:
    """The number of ``--priority``, which is a name or a number."""
    if text is None:
        return None
    from trainmaster.spec.errors import FieldError
    from trainmaster.spec.priorities import read_priority

    try:
        return read_priority(text)
    except FieldError as wrong:
        raise typer.BadParameter(str(wrong), param_hint="--priority") from wrong
