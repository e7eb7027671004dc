"""Settings of jobs on a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field

from executors.kubernetes.nodes import NodeRules
from executors.kubernetes.policy import Peer


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """``uid``/``gid`` 0: whatever the image says. ``host_paths``: folders that local volumes may lie under; empty:
    none. ``log_limit_bytes``: of one replica's log; 0: no limit.

    ``rules``: which resources are GPUs, and what our pods tolerate. ``pod_security``: the level of namespaces that the
    platform makes (:class:`~executors.kubernetes.namespaces.Namespaces`). ``is_isolated``: a network policy for each
    attempt; ``egress``: what its replicas may reach besides each other, DNS and the API.
    """

    instance: str
    namespace: str
    runtime_image: str
    default_image: str = ""
    is_per_project: bool = False
    uid: int = 1000
    gid: int = 1000
    pull_secrets: tuple[str, ...] = ()
    rules: NodeRules = field(default_factory=NodeRules)
    host_paths: tuple[str, ...] = ()
    log_limit_bytes: int = 0
    pod_security: str = "auto"
    is_isolated: bool = True
    egress: tuple[Peer, ...] = ()
