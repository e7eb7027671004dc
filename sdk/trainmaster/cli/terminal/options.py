"""Arguments and options shared by several commands, the completion of their names, and parsers of their values."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from datetime import datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from trainmaster.cli.terminal import session

if TYPE_CHECKING:
    from trainmaster.client import Client

# --- completion: without a quick answer of the server, it completes nothing, without a message ----------------------

_TIMEOUT_S: Final = 1.0
_NAMES_SHOWN: Final = 100
STATES: Final = (
    "queued",
    "starting",
    "running",
    "paused",
    "cancelling",
    "succeeded",
    "failed",
    "cancelled",
    "expired",
)
_CONTRACTS: Final = ("default", "uai", "mxnet", "serving")


def _completions(incomplete: str, ask: Callable[[Client], Iterable[str]]) -> list[str]:
    try:
        with session.client_of(session.current().server(), timeout_s=_TIMEOUT_S, tries=1) as client:
            return [name for name in dict.fromkeys(ask(client)) if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 (shell completion must never print an error)
        return []


def complete_job(incomplete: str) -> list[str]:
    return _completions(incomplete, lambda client: (job.name for job in client.list_jobs(limit=_NAMES_SHOWN)))


def complete_state(incomplete: str) -> list[str]:
    return [state for state in STATES if state.startswith(incomplete)]


def complete_contract(incomplete: str) -> list[str]:
    return [contract for contract in _CONTRACTS if contract.startswith(incomplete)]


def complete_node(incomplete: str) -> list[str]:
    return _completions(incomplete, lambda client: (node.name for node in client.list_nodes()))


def complete_project(incomplete: str) -> list[str]:
    return _completions(incomplete, lambda client: (project.name for project in client.list_projects()))


def complete_context(incomplete: str) -> list[str]:
    from trainmaster.contexts import LOCAL, load_contexts

    try:
        return [name for name in sorted({*load_contexts().servers, LOCAL}) if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 (as above)
        return []


# --- common ---------------------------------------------------------------------------------------------------------


def _remember_json(value: bool) -> bool:
    session.current().as_json = session.current().as_json or value
    return value


Json = Annotated[
    bool,
    typer.Option(
        "--json", callback=_remember_json, is_eager=True, help="JSON on stdout; errors as problem JSON on stderr."
    ),
]
Job = Annotated[str, typer.Argument(metavar="JOB", help="ID or name of the job.", autocompletion=complete_job)]
Jobs = Annotated[list[str], typer.Argument(metavar="JOB…", help="IDs or names of jobs.", autocompletion=complete_job)]
Node = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node.", autocompletion=complete_node)]
Project = Annotated[
    str | None,
    typer.Option("--project", "-p", help="Project; default: your context's.", autocompletion=complete_project),
]
ProjectName = Annotated[str, typer.Argument(metavar="PROJECT", autocompletion=complete_project)]
Reason = Annotated[str, typer.Option("--reason", "-m", help="Reason, recorded in the history.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
Refresh = Annotated[bool, typer.Option("--watch", "-w", help="Refresh every 2 s until Ctrl-C.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Follow it to its end.")]
Wait = Annotated[bool, typer.Option("--wait", "-w", help="Wait until it is ready, has ended, or has failed.")]
Follow = Annotated[bool, typer.Option("--follow", "-f", help="Follow the job to its end.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Validate it and print what it would be; create nothing.")]
User = Annotated[str | None, typer.Option("--user", "-u", help="Only those of this user.")]
Role = Annotated[str | None, typer.Option("--role", "-r", help="Only this role.")]
Index = Annotated[int | None, typer.Option("--index", "-i", min=0, help="Only this replica of each role.")]
NewestAttempt = Annotated[int | None, typer.Option("--attempt", min=1, help="Only this attempt; default: the newest.")]

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
Code = Annotated[
    Path | None, typer.Option("--code", help="Folder to pack and upload as the code.", rich_help_panel=DATA_PANEL)
]
Image = Annotated[
    str | None, typer.Option("--image", help="Container image; default: the platform's.", rich_help_panel=DATA_PANEL)
]
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
Python = Annotated[
    str | None,
    typer.Option(
        "--python", metavar="PATH", help="Interpreter of the command, on the job's machine.", rich_help_panel=DATA_PANEL
    ),
]
Venv = Annotated[
    Path | None,
    typer.Option("--venv", metavar="DIR", help="Virtual environment of the command.", rich_help_panel=DATA_PANEL),
]
Conda = Annotated[
    str | None,
    typer.Option("--conda", metavar="NAME", help="Conda environment of the command.", rich_help_panel=DATA_PANEL),
]
Requirements = Annotated[
    Path | None,
    typer.Option(
        "--requirements",
        metavar="FILE",
        help="Requirements file; installed once, on this Python or the image's.",
        rich_help_panel=DATA_PANEL,
    ),
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
Replicas = Annotated[
    int | None,
    typer.Option("--replicas", "-n", min=1, help="Number of replicas; default: 1; of a deployment: as before."),
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


# --- parsers --------------------------------------------------------------------------------------------------------


def pairs(
    assignments: Iterable[str], option: str, *, from_environment: bool = False, is_once: bool = False
) -> dict[str, str]:
    """The mapping of ``KEY=VALUE`` arguments.

    Args:
        from_environment: a bare ``KEY`` takes its value from the caller's environment.
        is_once: two different values of a key are an error; otherwise the last value counts.
    """
    mapping: dict[str, str] = {}
    for assignment in assignments:
        key, separator, value = assignment.partition("=")
        if not separator and from_environment and key in os.environ:
            value = os.environ[key]
        elif not separator or not key:
            more = ", and the variable is not set here" if from_environment and key else ""
            raise typer.BadParameter(f"{assignment!r} is not KEY=VALUE{more}", param_hint=option)
        if is_once and mapping.get(key, value) != value:
            raise typer.BadParameter(f"{key} is given twice, as {mapping[key]} and as {value}", param_hint=option)
        mapping[key] = value
    return mapping


def moment(text: str | None, now: datetime, option: str) -> datetime | None:
    """A point in time from an ISO date (local without a zone), a time of day, or a duration before now (``10m``,
    ``-10m``).

    A time of day that is in the future today means yesterday's.
    """
    if text is None:
        return None
    from trainmaster.spec.quantity import parse_duration_s

    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        pass
    try:
        clock = time.fromisoformat(text) if ":" in text else None
    except ValueError:
        clock = None
    if clock is not None:
        at = datetime.combine(now.astimezone(clock.tzinfo).date(), clock).astimezone()
        return at if at <= now else at - timedelta(days=1)
    try:
        return now - timedelta(seconds=parse_duration_s(text.removeprefix("-")))
    except ValueError as error:
        raise typer.BadParameter(
            f"{text!r} is not a time: write 14:20 for today, 2026-11-21T14:20, or 2h for two hours ago",
            param_hint=option,
        ) from error


def seconds_of(text: str, option: str) -> float:
    """The seconds of a duration such as ``90s`` or ``2h``."""
    from trainmaster.spec.quantity import parse_duration_s

    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def resources_of(
    cpu: str | None, memory: str | None, gpus: float, gpu_type: str | None = None, shm: str | None = None
) -> dict[str, Any]:
    """The given resources, as in a job spec."""
    models = [model.strip() for model in (gpu_type or "").split(",") if model.strip()]
    resources = {"cpu": cpu, "memory": memory, "gpus": gpus or None, "gpu_type": models or None, "shm": shm}
    return {name: value for name, value in resources.items() if value is not None}


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
