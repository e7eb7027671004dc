"""Shell completion of names. Without a quick answer of the server, completes nothing, without a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from trainmaster.client import Client

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
CONTRACTS: Final = ("default", "uai", "mxnet", "serving")


def _names(incomplete: str, ask: Callable[[Client], Iterable[str]]) -> list[str]:
    from trainmaster.cli.terminal import session

    try:
        with session.client_of(session.current().server(), timeout_s=_TIMEOUT_S, tries=1) as client:
            return [name for name in dict.fromkeys(ask(client)) if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 (shell completion must never print an error)
        return []


def complete_job(incomplete: str) -> list[str]:
    return _names(incomplete, lambda client: (job.name for job in client.list_jobs(limit=_NAMES_SHOWN)))


def complete_state(incomplete: str) -> list[str]:
    return [state for state in STATES if state.startswith(incomplete)]


def complete_contract(incomplete: str) -> list[str]:
    return [contract for contract in CONTRACTS if contract.startswith(incomplete)]


def complete_node(incomplete: str) -> list[str]:
    return _names(incomplete, lambda client: (node.name for node in client.list_nodes()))


def complete_project(incomplete: str) -> list[str]:
    return _names(incomplete, lambda client: (project.name for project in client.list_projects()))


def complete_context(incomplete: str) -> list[str]:
    from trainmaster.contexts import LOCAL, load_contexts

    try:
        return [name for name in sorted({*load_contexts().servers, LOCAL}) if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 (as above)
        return []
