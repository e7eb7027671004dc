from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from executors.kubernetes.api_server.client import KubernetesClient
from executors.kubernetes.cache import PodCache
from executors.kubernetes.namespaces import Namespaces
from executors.kubernetes.options import KubernetesOptions


@dataclass(eq=False)
class PodWriter:
    """Base of the driver's parts that change Pods: they decide by the cached state and wait for the effects
    it.
    """

    _cluster: KubernetesClient
    _options: KubernetesOptions
    _namespaces: Namespaces
    _pods: PodCache
    _clock: Callable[[], datetime]
    # Never set: a wait that needs no clock.
    _sleep: threading.Event = field(default_factory=threading.Event, init=False)
