"""Scopes of tokens: a verb for everything (``write``), or for one kind of resource (``jobs:write``).

The kind of resource is read off the path of the request, of native routes and of other systems' protocols alike, so
that one function decides for all of them (``api.auth.Caller.may``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class Scope(StrEnum):
    """Verbs. Each includes those before it."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


SCIM: Final = "scim"  # of identity providers: the SCIM routes, and nothing else
_VERBS: Final = (Scope.READ, Scope.WRITE, Scope.ADMIN)
# Every token may read these: clients need them whatever they do.
METADATA: Final = "metadata"
_KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "jobs": (
        "jobs", "studies", "automl", "forecasts", "queue", "events", "archives", "metrics", "holders", "shares",
        "tensorboards", "tensorboard", "optuna", "ray", "kubernetes", "mlflow",
    ),
    "files": ("files", "checkpoints", "volumes", "storage", "upload", "download", "resumable", "batch"),
    "models": ("models", "registered-models", "model-versions"),
    "endpoints": ("endpoints", "batch-predictions", "batchPredictionJobs"),
    METADATA: ("me", "session", "projects", "nodes", "policy", "spec", "vertex-table", "operations"),
}  # fmt: skip
RESOURCES: Final = frozenset(_KINDS.keys() - {METADATA})
_KIND_OF: Final = MappingProxyType({noun: kind for kind, nouns in _KINDS.items() for noun in nouns})

_ROOTS: Final = frozenset(
    {"ray", "kubernetes", "mlflow", "storage", "upload", "download", "resumable", "batch", "tensorboard"}
)


def resource_of(path: str) -> str | None:
    """The kind of resource that a request's path is about; ``None``: neither a kind that tokens can be limited to nor
    metadata.
    """
    parts = path.strip("/").split("/")
    if "locations" in parts[3:4]:  # Vertex AI: <version>/projects/<project>/locations/<location>/<collection>
        noun = parts[5].partition(":")[0] if len(parts) > 5 else ""
        return _KIND_OF.get(noun, "jobs")
    if parts[:2] == ["api", "v1"]:
        parts = parts[2:] or [""]
        is_of_job = parts[0] == "jobs" and parts[2:3] in (["files"], ["checkpoints"])
        if is_of_job or (parts[0] == "projects" and len(parts) > 2):
            parts = parts[2:]
    elif parts[:4] == ["mlflow", "api", "2.0", "mlflow"] and parts[4:5] in (["registered-models"], ["model-versions"]):
        parts = parts[4:]
    elif parts[0] not in _ROOTS:
        return None
    return _KIND_OF.get(parts[0])


def allows(own: Collection[str], verb: Scope, resource: str | None) -> bool:
    """Whether scopes ``own`` include ``verb`` on ``resource``; on everything, if that is ``None``."""
    if resource == METADATA and verb is Scope.READ and any(":" in scope for scope in own):
        return True
    enough = _VERBS[_VERBS.index(verb) :]
    return any(scope in own for each in enough for scope in (each, f"{resource}:{each}"))


def includes(own: Collection[str], scope: str) -> bool:
    """Whether a token with the scopes ``own`` may give ``scope`` to a child."""
    if scope == SCIM:
        return Scope.ADMIN in own
    resource, _, verb = scope.rpartition(":")
    return allows(own, Scope(verb), resource or None)
