"""How the API server is reached: kubeconfig or the pod's own service account, read by the ``kubernetes`` package."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import urllib3
from kubernetes.client.configuration import Configuration
from kubernetes.client.rest import RESTClientObject
from kubernetes.config.config_exception import ConfigException
from kubernetes.config.incluster_config import load_incluster_config
from kubernetes.config.kube_config import load_kube_config

from core.domain.errors import ExecutorTryAgain

_HOME_CONFIG: Final = Path("~/.kube/config")
# Pooled connections; more are opened for more concurrent threads.
_POOL_CONNECTIONS: Final = 16


@dataclass(frozen=True, slots=True)
class ApiConnection:
    """The API server's address, its connection pool and our credentials."""

    host: str
    pool: urllib3.PoolManager
    authorization: Callable[[], str | None]


class ClusterUnknown(Exception):
    """The settings name no cluster; the sentence says where it was looked for."""


@dataclass(frozen=True, slots=True)
class Access:
    """Selects the cluster and the credentials.

    Sources, in this order: ``kubeconfig`` (one path, or several with colons between them), the variable KUBECONFIG,
        the service account of the pod that we run in, ``~/.kube/config``. A ``context`` asks for a kubeconfig.
    """

    context: str = ""
    kubeconfig: str = ""

    def connect(self) -> ApiConnection:
        """Read the credentials as they are now.

        Raises:
            ClusterUnknown: there is nothing to read.
            ExecutorTryAgain: there is, but it cannot be read now (it is being renewed, or is broken).
        """
        configuration: Any = Configuration()
        files = self.kubeconfig or os.environ.get("KUBECONFIG", "")
        try:
            if not files and not self.context and os.environ.get("KUBERNETES_SERVICE_HOST"):
                load_incluster_config(client_configuration=configuration)
            else:
                load_kube_config(
                    config_file=files or str(_HOME_CONFIG.expanduser()),
                    context=self.context or None,
                    client_configuration=configuration,
                    persist_config=False,
                )
        except ConfigException as error:
            if not files and not self.context and not _HOME_CONFIG.expanduser().exists():
                raise ClusterUnknown(
                    "No Kubernetes cluster is known: set KUBECONFIG, or run inside the cluster with a service account."
                ) from error
            raise ExecutorTryAgain(f"The access to the Kubernetes cluster cannot be read: {error}") from error
        except (OSError, ValueError) as error:
            raise ExecutorTryAgain(f"The access to the Kubernetes cluster cannot be read: {error}") from error
        setattr(configuration, "socket_options", _socket_options())  # noqa: B010 (declared as nothing but None)
        pool = RESTClientObject(configuration, maxsize=_POOL_CONNECTIONS).pool_manager
        return ApiConnection(str(configuration.host).rstrip("/"), pool, lambda: _authorization(configuration))


def _authorization(configuration: Any) -> str | None:
    """The header's value. The package reads tokens of files and plugins again when they grow old."""
    settings = configuration.auth_settings()
    value = settings.get("BearerToken", {}).get("value")
    return value.strip() if value else None


def _socket_options() -> list[tuple[int, int, int]]:
    """A watch may be silent for minutes: ask the peer's kernel whether it is still there."""
    options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):  # seconds, seconds, probes
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options
