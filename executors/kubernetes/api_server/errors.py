"""Maps the API server's error answers to our exceptions, in one table by status and reason."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import orjson

from core.domain.errors import ExecutorRefused, ExecutorTryAgain
from executors.kubernetes.pod_usage import milli

# Of the quota's admission: "exceeded quota: q, requested: a=1,b=2, used: a=3,b=4, limited: a=3,b=4".
_QUOTA: Final = re.compile(r"exceeded quota: .*?requested: (?P<requested>.*?), used: .*?, limited: (?P<limited>[^\s]*)")


class ObjectNotFound(Exception):
    """There is no such object, or no namespace to hold it."""


class ObjectExists(Exception):
    """An object of this name is there: mostly our own, from an earlier try; perhaps on its way out."""


class Gone(Exception):
    """The resource version or the continue token is too old: list again."""


class ObjectConflict(ExecutorTryAgain):
    """A precondition does not hold: the object has changed; read it again."""


class ServerBusy(ExecutorTryAgain):
    """The API server is there but took nothing (429): the same call may come again, whatever it is."""


class QuotaFull(ExecutorTryAgain):
    """The namespace's quota is full now; there is room when a pod in it has ended."""


class ApiRefused(ExecutorRefused):
    """The API server says no. ``status`` and ``reason`` are its own, ``message`` its own words."""

    def __init__(self, sentence: str, *, http_status: int, reason: str, message: str) -> None:
        super().__init__(sentence)
        self.http_status = http_status
        self.reason = reason
        self.message = message


def read_status(body: bytes) -> dict[str, Any]:
    """The ``ReplicaStatus`` object of an answer; a plain text (of a proxy, or of a server that starts) becomes its
    message.
    """
    try:
        status = orjson.loads(body)
    except orjson.JSONDecodeError:
        status = None
    if isinstance(status, dict):
        return status
    return {"message": body[:500].decode(errors="replace").strip()}


def error_of(http_status: int, status: Mapping[str, Any], call: str, retry_after_s: float | None) -> Exception:
    """The error that an answer stands for.

    Args:
        call: such as ``POST /api/v1/namespaces/jobs/pods``; only for answers that are a bug of the platform.
        retry_after_s: what the server asks for.
    """
    reason = str(status.get("reason") or "")
    message = str(status.get("message") or f"HTTP status {http_status}").strip()
    match http_status:
        case 404 | 410:
            return ObjectNotFound(message) if http_status == 404 else Gone(message)
        case 409 if reason == "AlreadyExists":
            return ObjectExists(message)
        case 409:
            return ObjectConflict(f"The Kubernetes API server found the object changed: {_sentence(message)}")
        case 401:
            return ExecutorTryAgain(
                "The Kubernetes API server does not accept the platform's credentials: renew its kubeconfig or "
                "service account."
            )
        case 403 if (passing := _not_now(status, message)) is not None:
            return passing
        case 400 | 403 | 413 | 422:
            return ApiRefused(
                f"The Kubernetes cluster refuses it: {_sentence(message)}",
                http_status=http_status,
                reason=reason,
                message=message,
            )
        case 429:
            return ServerBusy(f"The Kubernetes API server is busy: {_sentence(message)}", retry_after_s=retry_after_s)
        case 408 | 504:
            return ExecutorTryAgain(
                f"The Kubernetes API server took too long: {_sentence(message)}", retry_after_s=retry_after_s
            )
        case _ if http_status >= 500:
            return ExecutorTryAgain(
                f"The Kubernetes API server has trouble: {_sentence(message)}", retry_after_s=retry_after_s
            )
        case _:
            return RuntimeError(f"{call} was answered with {http_status} {reason}: {message}")


def _not_now(status: Mapping[str, Any], message: str) -> ExecutorTryAgain | None:
    """Why it is forbidden now and will not be later; ``None``: it stays so."""
    if _is_terminating(status):
        return ExecutorTryAgain(f"The namespace is being deleted: {_sentence(message)}")
    if _is_full_for_now(message):
        return QuotaFull(f"The namespace's quota is full: {_sentence(message)}")
    return None


def _is_terminating(status: Mapping[str, Any]) -> bool:
    causes = (status.get("details") or {}).get("causes") or ()
    return any(cause.get("reason") == "NamespaceTerminating" for cause in causes)


def _is_full_for_now(message: str) -> bool:
    """Whether a quota says no that would say yes if nothing else ran."""
    if "exceeded quota:" not in message:
        return False
    quota = _QUOTA.search(message)
    if quota is None:
        return True
    try:
        requested, limited = _amounts(quota["requested"]), _amounts(quota["limited"])
    except ValueError:
        return True
    return all(amount <= limited.get(name, amount) for name, amount in requested.items())


def _amounts(text: str) -> dict[str, int]:
    pairs = (pair.partition("=") for pair in text.split(","))
    return {name: milli(amount.rstrip(".")) for name, _, amount in pairs}


def _sentence(message: str) -> str:
    return message if message.endswith((".", "!", "?")) else f"{message}."
