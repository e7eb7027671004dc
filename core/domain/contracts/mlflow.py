"""MLflow's client: tracking URI, credentials and run id.

https://mlflow.org/docs/latest/api_reference/python_api/mlflow.environment_variables.html
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from core.domain.contracts.context import Seat
from core.domain.jobs.mlflow_runs import run_id_of

# Below the API's address; the client appends its own paths.
PATH: Final = "/mlflow"
_URI: Final = "MLFLOW_TRACKING_URI"
# Readable by the replica alone.
SECRETS: Final = frozenset({"MLFLOW_TRACKING_TOKEN"})
_OURS_ALONE: Final = frozenset({"MLFLOW_TRACKING_TOKEN", "MLFLOW_RUN_ID"})


def variables(seat: Seat) -> dict[str, str]:
    """Empty without an API to log to, or without a token for it."""
    context = seat.context
    if context.api_url is None or not context.token:
        return {}
    roles = tuple(name for name, _ in seat.spec.ordered_roles())
    return {
        _URI: context.api_url.rstrip("/") + PATH,
        "MLFLOW_TRACKING_TOKEN": context.token,
        "MLFLOW_RUN_ID": run_id_of(context.attempt_id, roles, seat.replica.role, seat.replica.index),
    }


def for_own_server(ours: Mapping[str, str], theirs: Collection[str]) -> dict[str, str]:
    """``ours`` without the variables of our server, if the user names another one.

    That server must not get our token, and it has no such run: the script would fail at its first log call.
    """
    if _URI not in theirs:
        return dict(ours)
    return {name: value for name, value in ours.items() if name not in _OURS_ALONE}
