"""Suggestions for misspelt field names and values."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

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
