"""The role and ranks of this process in its job, read from the environment that the platform sets.

Outside the platform everything has a default: a single worker of rank 0 that reads ``./data`` and writes ``./output``.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Tuple

# The fixed paths of every container.
_DATA = "/data/data"
_OUTPUT = "/data/output"

# In rank order; custom roles follow by name. The first replica in this order writes for all.
_ROLE_ORDER = ("chief", "worker", "ps", "evaluator")
_UNRANKED = frozenset({"ps", "evaluator", "scheduler"})


class ContextError(ValueError):
    """An environment variable has an invalid value; the message names it."""


@dataclass(frozen=True)
class Context:
    """This process's role and ranks in its job.

    ``role``/``index`` name the replica; ``rank``/``world_size`` count the processes that train together (chief and
    workers), and ``rank`` is ``None`` for other replicas, such as a ps. ``peers``: role to ``host:port`` of each
    replica in index order, empty for a single replica outside the platform. ``resume_from``: the checkpoint from which
    the platform wants this attempt to start.
    """

    role: str = "worker"
    index: int = 0
    rank: Optional[int] = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    peers: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)
    gpus: Tuple[str, ...] = ()
    job_id: Optional[str] = None
    attempt: int = 1
    data_dir: Path = Path("data")
    output_dir: Path = Path("output")
    resume_from: Optional[Path] = None
    report_file: Optional[Path] = None
    token_file: Optional[Path] = None

    @property
    def is_in_platform(self) -> bool:
        return self.job_id is not None

    @property
    def is_writer(self) -> bool:
        """Whether this process writes checkpoints and results for all processes."""
        return self.rank == 0

    @property
    def checkpoint_dir(self) -> Path:
        return self.output_dir / "checkpoints"


def current(environ: Optional[Mapping[str, str]] = None) -> Context:
    """The context of this process, or of one with the environment ``environ``. Reads only the environment, and whether
    ``/data/data`` and ``/data/output`` exist.

    Raises:
        ContextError: a variable has an invalid value.
    """
    env = os.environ if environ is None else environ
    job_id = env.get("TRAINMASTER_JOB_ID") or None
    cluster, task = _tf_config(env)
    layout_peers, gpus = _layout(env)
    role = env.get("TRAINMASTER_ROLE") or task.get("type") or "worker"
    index = environment_number(env, "TRAINMASTER_INDEX", _task_index(task))
    peers = layout_peers or cluster
    rank, world_size = _rank(env, role, index, peers)
    return Context(
        role=role,
        index=index,
        rank=rank,
        world_size=world_size,
        local_rank=environment_number(env, "LOCAL_RANK", 0),
        local_world_size=environment_number(env, "LOCAL_WORLD_SIZE", 1),
        peers=peers,
        gpus=gpus,
        job_id=job_id,
        attempt=environment_number(env, "TRAINMASTER_ATTEMPT", 1),
        data_dir=_folder(env, "TRAINMASTER_DATA_DIR", _DATA, "data", is_in_platform=job_id is not None),
        output_dir=_folder(env, "TRAINMASTER_OUTPUT_DIR", _OUTPUT, "output", is_in_platform=job_id is not None),
        resume_from=_path(env, "TRAINMASTER_RESUME_FROM"),
        report_file=_path(env, "TRAINMASTER_REPORT_FILE"),
        token_file=_path(env, "TRAINMASTER_TOKEN_FILE"),
    )


def _rank(
    env: Mapping[str, str], role: str, index: int, peers: Mapping[str, Tuple[str, ...]]
) -> Tuple[Optional[int], int]:
    if "RANK" in env:
        return environment_number(env, "RANK", 0), environment_number(env, "WORLD_SIZE", 1)
    # Without torch variables (TF_CONFIG by hand, or another launcher): one process for each replica.
    ranked = sorted({*peers, role} - _UNRANKED, key=_role_order)
    ranked = [name for name in ranked if name in ("chief", "worker")] or ranked
    if role not in ranked:
        return None, 1
    before = sum(len(peers.get(name, ())) for name in ranked[: ranked.index(role)])
    return before + index, max(before + index + 1, sum(len(peers.get(name, ())) for name in ranked))


def _role_order(role: str) -> Tuple[int, str]:
    return (_ROLE_ORDER.index(role) if role in _ROLE_ORDER else len(_ROLE_ORDER), role)


def _tf_config(env: Mapping[str, str]) -> Tuple[Dict[str, Tuple[str, ...]], Dict[str, Any]]:
    value = _json(env, "TF_CONFIG")
    cluster = value.get("cluster", {})
    task = value.get("task", {})
    if not isinstance(cluster, dict) or not isinstance(task, dict):
        raise ContextError("TF_CONFIG: `cluster` and `task` must be JSON objects")
    # A sparse cluster ({"worker": {"1": "host"}}) does not name the other workers: the peers are unknown then.
    return {role: tuple(hosts) for role, hosts in cluster.items() if isinstance(hosts, list)}, task


def _layout(env: Mapping[str, str]) -> Tuple[Dict[str, Tuple[str, ...]], Tuple[str, ...]]:
    value = _json(env, "TRAINMASTER_LAYOUT")
    gpus = value.get("gpus", [])
    roles = value.get("roles", {role: hosts for role, hosts in value.items() if role != "gpus"})
    if not isinstance(roles, dict) or not isinstance(gpus, list):
        raise ContextError("TRAINMASTER_LAYOUT: must map each role to its list of host:port")
    return {role: tuple(hosts) for role, hosts in roles.items() if isinstance(hosts, list)}, tuple(map(str, gpus))


def _json(env: Mapping[str, str], name: str) -> Dict[str, Any]:
    text = env.get(name, "")
    if not text:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ContextError(f"{name}: is not JSON") from error
    if not isinstance(value, dict):
        raise ContextError(f"{name}: must be a JSON object")
    return value


def _task_index(task: Mapping[str, Any]) -> int:
    try:
        return int(task.get("index", 0))
    except (TypeError, ValueError) as error:
        raise ContextError("TF_CONFIG: `task.index` must be a number") from error


def environment_number(env: Mapping[str, str], name: str, default: Optional[int] = None) -> int:
    """The whole number in the variable ``name``; ``default``, if there is one, where the variable is unset or empty.

    Raises:
        ContextError: it is no whole number; names it.
    """
    text = env.get(name, "")
    if not text and default is not None:
        return default
    try:
        return int(text)
    except ValueError as error:
        raise ContextError(f"{name}: {text!r} is not a whole number") from error


def _path(env: Mapping[str, str], name: str) -> Optional[Path]:
    return Path(env[name]) if env.get(name) else None


def _folder(env: Mapping[str, str], name: str, fixed: str, local: str, *, is_in_platform: bool) -> Path:
    if env.get(name):
        return Path(env[name])
    return Path(fixed) if is_in_platform or os.path.isdir(fixed) else Path(local)
