"""Errors of a spec, and suggestions for misspelt names. All mistakes are collected and reported together."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

Path = tuple[str | int, ...]

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")
# Field names used by Kubernetes, Slurm, Vertex AI and others -> the name of the field here.
_FOREIGN: Final = {
    "annotations": "labels",
    "arguments": "args",
    "cmd": "command",
    "container": "image",
    "cpus": "cpu",
    "dataset": "input",
    "data": "input",
    "deadline": "max_run_time",
    "docker_image": "image",
    "entrypoint": "command",
    "environment": "env",
    "gpu": "gpus",
    "inputs": "input",
    "max_retries": "max_restarts",
    "mem": "memory",
    "mountpath": "at",
    "nodes": "workers",
    "nodeselector": "node_selector",
    "outputs": "output",
    "max": "maximize",
    "min": "minimize",
    "processes": "processes_per_replica",
    "nproc_per_node": "processes_per_replica",
    "ram": "memory",
    "replica": "replicas",
    "retries": "max_restarts",
    "script": "command",
    "shm_size": "shm",
    "tags": "labels",
    "target": "at",
    "timeout": "max_run_time",
    "ttl_seconds": "ttl",
    "volumes": "mounts",
    "worker": "workers",
    "master": "chief",
    "parameter_servers": "ps",
}


@dataclass(frozen=True, slots=True)
class SpecMistake:
    """One mistake in a spec.

    ``path`` is as the user wrote it, such as ``roles.worker.resources.cpu``; empty for the document as a whole.
    ``message`` says what is wrong, without the path; ``hint``, if any, how to correct it.
    """

    path: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        text = f"{self.path}: {self.message}" if self.path else self.message
        return f"{text} ({self.hint})" if self.hint else text


class SpecError(ValueError):
    """The spec is invalid. ``mistakes`` holds all of its mistakes; ``str()`` lists them, one per line."""

    def __init__(self, mistakes: Iterable[SpecMistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(str(mistake) for mistake in self.mistakes))


class FieldError(ValueError):
    """A value that its field does not accept; raised in validators. ``message`` continues the field's path."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        self.message, self.hint = message, hint
        super().__init__(f"{message}; {hint}" if hint else message)


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated rule that involves several fields.

    ``depends``: the canonical paths it follows from, besides ``path``.
    """

    path: Path
    message: str
    hint: str | None = None
    depends: tuple[Path, ...] = ()


def join_path(path: Path) -> str:
    """``roles.worker.args[0]``; a key that is not a plain identifier is put in brackets: ``labels["a/b"]``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        elif _PLAIN.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{json.dumps(part if len(part) <= 63 else part[:60] + '…', ensure_ascii=True)}]"
    return text


def suggest(unknown: str, known: Iterable[str]) -> str | None:
    """The name in ``known`` that ``unknown`` probably means, or ``None``."""
    names = sorted(known)
    folded = unknown.strip().lower().replace("-", "_").replace(" ", "_")[:100]
    # Kubernetes uses camelCase: maxRestarts is max_restarts.
    squeezed = folded.replace("_", "")
    for name in names:
        if name.replace("_", "") == squeezed:
            return name
    meant = _FOREIGN.get(folded) or _FOREIGN.get(squeezed)
    if meant in names:
        return meant
    close = get_close_matches(folded, names, n=1, cutoff=0.7)
    return close[0] if close else None
