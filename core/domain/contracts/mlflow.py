"""MLflow's client: tracking URI, credentials and run id.

MLflow's client sends a run id but not its replica. So each replica has a run of its own, which keeps their values
apart: the main one's is the attempt's, the others' are nested.

https://mlflow.org/docs/latest/api_reference/python_api/mlflow.environment_variables.html
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from core.domain.contracts.context import ReplicaContext

# Below the API's address; the client appends its own paths.
PATH: Final = "/mlflow"
_URI: Final = "MLFLOW_TRACKING_URI"
# Readable by the replica alone.
SECRETS: Final = frozenset({"MLFLOW_TRACKING_TOKEN"})
_FOR_PLATFORM_SERVER: Final = frozenset({"MLFLOW_TRACKING_TOKEN", "MLFLOW_RUN_ID"})
# A job without one of these uses the first of its custom roles.
_MAIN: Final = ("chief", "worker")
# They serve the others and have no ranks.
_SERVING: Final = ("ps", "evaluator", "scheduler")


def variables(replica_context: ReplicaContext) -> dict[str, str]:
    """Empty without an API to log to, or without a token for it."""
    context = replica_context.context
    if context.api_url is None or not context.token:
        return {}
    roles = tuple(name for name, _ in replica_context.spec.ordered_roles())
    return {
        _URI: context.api_url.rstrip("/") + PATH,
        "MLFLOW_TRACKING_TOKEN": context.token,
        "MLFLOW_RUN_ID": run_id_of(
            context.attempt_id, roles, replica_context.replica.role, replica_context.replica.index
        ),
    }


def for_own_server(platform_env: Mapping[str, str], user_env: Collection[str]) -> dict[str, str]:
    """``platform_env`` without the variables of our server, if the user names another one.

    That server must not get our token, and it has no such run: the script would fail at its first log call.
    """
    if _URI not in user_env:
        return dict(platform_env)
    return {name: value for name, value in platform_env.items() if name not in _FOR_PLATFORM_SERVER}


def main_role(roles: Sequence[str]) -> str:
    """The role whose replica 0 writes to the attempt's run. ``roles``: all of the gang, in rank order."""
    for role in _MAIN:
        if role in roles:
            return role
    return next((role for role in roles if role not in _SERVING), roles[0])


def run_id_of(attempt_id: str, roles: Sequence[str], role: str, index: int) -> str:
    """The run of a replica: the attempt's id, followed by the replica's name except for the main replica."""
    return attempt_id if (role, index) == (main_role(roles), 0) else f"{attempt_id}-{role}-{index}"


def replica_of_run(run_id: str, attempt_id: str, roles: Sequence[str]) -> str | None:
    """The replica, such as ``worker-1``, that writes to this run; ``None`` if no replica of the attempt does."""
    if run_id == attempt_id:
        return f"{main_role(roles)}-0"
    if not run_id.startswith(f"{attempt_id}-"):
        return None
    name = run_id.removeprefix(f"{attempt_id}-")
    role, _, index = name.rpartition("-")
    is_number = index.isascii() and index.isdecimal() and index == str(int(index))
    return name if role in roles and is_number else None
