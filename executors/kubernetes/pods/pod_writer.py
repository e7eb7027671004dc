from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from executors.kubernetes.api_server.client import Cluster
from executors.kubernetes.cache import PodCache
from executors.kubernetes.namespaces import Namespaces
from executors.kubernetes.options import Options


@dataclass(eq=False)
class Acting:
    """A part of the driver that changes Pods, judges by what the cache knows of them, and waits for what comes of it."""

    _cluster: Cluster
    _options: Options
    _namespaces: Namespaces
    _pods: PodCache
    _clock: Callable[[], datetime]
    # Never set: a wait that needs no clock.
    _rest: threading.Event = field(default_factory=threading.Event, init=False)
