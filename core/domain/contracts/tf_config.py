"""TensorFlow: ``TF_CONFIG``, and the flags of scripts of the ClusterSpec era.

https://www.tensorflow.org/guide/distributed_training#TF_CONFIG
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from core.domain.contracts.context import ReplicaContext, framework_endpoint
from core.domain.jobs.layout import ReplicaAddress

# TensorFlow refuses a cluster with any other task type.
_ROLES: Final = ("chief", "worker", "ps", "evaluator")
# "${job_name}" is a variable of the user's shell, not ours.
PLACEHOLDER: Final = re.compile(r"(?<!\$)\{(ps_hosts|worker_hosts|job_name|task_index)\}")


def variables(replica_context: ReplicaContext) -> dict[str, str]:
    """``TF_CONFIG`` for a TensorFlow role of a job with more than one such replica, else empty."""
    replicas = [r for r in replica_context.layout.replicas if r.role in _ROLES]
    if len(replicas) < 2 or replica_context.replica.role not in _ROLES:
        return {}
    tasks = _tasks(replicas, is_uai=replica_context.is_uai)
    kind, index = next(
        (kind, index)
        for kind, members in tasks.items()
        for index, member in enumerate(members)
        if (member.role, member.index) == (replica_context.replica.role, replica_context.replica.index)
    )
    cluster: dict[str, Any] = {
        name: [framework_endpoint(member) for member in members]
        for name, members in tasks.items()
        if name != "evaluator"
    }
    if replica_context.spec.sparse:
        cluster = _sparse(cluster, kind, index)
    config = {"cluster": cluster, "task": {"type": kind, "index": index}, "environment": "cloud"}
    return {"TF_CONFIG": json.dumps(config, separators=(",", ":"))}


def _tasks(replicas: list[ReplicaAddress], *, is_uai: bool) -> dict[str, list[ReplicaAddress]]:
    """TensorFlow's task types and their members, in the order of the roles.

    UAI calls the chief ``master`` and always has one: without a chief it is worker 0.
    """
    tasks = {role: [r for r in replicas if r.role == role] for role in _ROLES}
    if is_uai:
        if not tasks["chief"]:
            tasks["chief"], tasks["worker"] = tasks["worker"][:1], tasks["worker"][1:]
        tasks = {"master" if role == "chief" else role: members for role, members in tasks.items()}
    return {kind: members for kind, members in tasks.items() if members}


def _sparse(cluster: dict[str, Any], kind: str, index: int) -> dict[str, Any]:
    """The cluster of an elastic ps job: itself and every ps, so that workers may come and go."""
    servers = {"ps": cluster["ps"]} if "ps" in cluster else {}
    if kind in ("ps", "evaluator"):
        return servers
    return {kind: {str(index): cluster[kind][index]}, **servers}


def fill_placeholders(text: str, replica_context: ReplicaContext) -> str:
    """``text`` with ``{ps_hosts} {worker_hosts} {job_name} {task_index}`` filled in; all else stays untouched.

    Scripts of that era know ``ps`` and ``worker`` only: a chief is their worker 0, and the workers follow it.
    """
    if "{" not in text:
        return text
    chiefs, workers, servers = (replica_context.layout.of_role(role) for role in ("chief", "worker", "ps"))
    role = replica_context.replica.role
    # Its index among existing replicas: an elastic gang has gaps.
    index = replica_context.layout.of_role(role).index(replica_context.replica)
    values = {
        "ps_hosts": ",".join(map(framework_endpoint, servers)),
        "worker_hosts": ",".join(map(framework_endpoint, (*chiefs, *workers))),
        "job_name": "worker" if role == "chief" else role,
        "task_index": str(index + (len(chiefs) if role == "worker" else 0)),
    }
    return PLACEHOLDER.sub(lambda match: values[match[1]], text)


def past_placeholders(script: str, variable: str) -> tuple[str, dict[str, str]]:
    """An equivalent shell text without placeholders to expand, and the environment that it needs.

    A Python function may well contain ``f"{job_name}"``. Such a script of a user of another system travels as the
    value of ``variable``; all others stay readable where jobs are shown.
    """
    if not PLACEHOLDER.search(script):
        return script, {}
    return f'eval "${variable}"', {variable: script}
