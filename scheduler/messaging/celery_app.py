"""The Celery application: carries wake-ups and the beat's messages to the control loop.

Nothing depends on a message: each task reads the database, and a message may be lost, doubled or late. So messages are
acknowledged before the work, have no results, and expire rather than pile up.
"""

from __future__ import annotations

import socket
from typing import Any, Final

from celery import Celery
from kombu.connection import Connection

from core import telemetry
from core.settings import Settings
from core.wakeups import (
    QUEUE_OF_TOPIC,
    TASK_OF_TOPIC,
    TOPIC_ENDPOINT,
    TOPIC_FORECAST,
    TOPIC_MODELS,
    TOPIC_RECONCILE,
    TOPIC_STUDY,
    TOPIC_TICK,
    TOPIC_WEBHOOKS,
)
from scheduler.messaging import memory_broker

TICK: Final = TASK_OF_TOPIC[TOPIC_TICK]
FORECAST: Final = TASK_OF_TOPIC[TOPIC_FORECAST]
RECONCILE: Final = TASK_OF_TOPIC[TOPIC_RECONCILE]
STUDY: Final = TASK_OF_TOPIC[TOPIC_STUDY]
MODELS: Final = TASK_OF_TOPIC[TOPIC_MODELS]
WEBHOOKS: Final = TASK_OF_TOPIC[TOPIC_WEBHOOKS]
ENDPOINT: Final = TASK_OF_TOPIC[TOPIC_ENDPOINT]
RECONCILE_DUE: Final = "trainmaster.reconcile_due"
SYNC_NODES: Final = "trainmaster.sync_nodes"
GC_EXECUTOR: Final = "trainmaster.gc_executor"
COLLECT_GARBAGE: Final = "trainmaster.collect_garbage"
START_FORECASTS: Final = "trainmaster.start_forecasts"
MEASURE_STORAGE: Final = "trainmaster.measure_storage"
CHAIN_AUDIT: Final = "trainmaster.chain_audit"
STUDIES_DUE: Final = "trainmaster.studies_due"
ENDPOINTS_DUE: Final = "trainmaster.endpoints_due"
EXPORT_TRACES: Final = "trainmaster.export_traces"
MAINTENANCE_TASKS: Final = (
    RECONCILE_DUE,
    SYNC_NODES,
    GC_EXECUTOR,
    COLLECT_GARBAGE,
    START_FORECASTS,
    MEASURE_STORAGE,
    CHAIN_AUDIT,
    STUDIES_DUE,
    ENDPOINTS_DUE,
    EXPORT_TRACES,
)
MAINTENANCE_QUEUE: Final = "maintenance"
QUEUES: Final = (QUEUE_OF_TOPIC[TOPIC_TICK], QUEUE_OF_TOPIC[TOPIC_RECONCILE], MAINTENANCE_QUEUE)

_SYNC_NODES_S: Final = 5.0
_START_FORECASTS_S: Final = 10.0
# Also the delay until early stopping judges a trial.
_STUDIES_DUE_S: Final = 2.0
# Also the delay until a serving replica that has started gets requests.
_ENDPOINTS_DUE_S: Final = 1.0
_GC_EXECUTOR_S: Final = 30.0
# The registrar and the webhooks poll by themselves; this starts them in a process that has received no wake-up yet.
_MODELS_S: Final = 10.0
_WEBHOOKS_S: Final = 10.0
# Likewise of the meter.
_MEASURE_STORAGE_S: Final = 30.0
# Also how long an entry of the audit log is not in its hash chain.
_CHAIN_AUDIT_S: Final = 2.0
_COLLECT_GARBAGE_S: Final = 300.0
_EXPORT_TRACES_S: Final = 2.0

# Seconds. A broker that is up answers within milliseconds; longer waiting is in vain.
_CONNECT_S: Final = 2.0
_ANSWER_S: Final = 2.0
_RETRY_FIRST_S: Final = 0.2
_RETRY_LAST_S: Final = 2.0

# What kombu's Redis transport hands to the client. Keep-alive lets the kernel find a peer that vanished silently.
REDIS_OPTIONS: Final[dict[str, Any]] = {
    "socket_timeout": _ANSWER_S,
    "socket_connect_timeout": _CONNECT_S,
    "socket_keepalive": True,
    "socket_keepalive_options": {socket.TCP_KEEPIDLE: 5, socket.TCP_KEEPINTVL: 3, socket.TCP_KEEPCNT: 3},
    # How often, in seconds, a worker that waits for messages checks its connection.
    "health_check_interval": 5,
}


class QuickConnection(Connection):
    """Reconnects every two seconds at most; the library's own back-off grows to half a minute."""

    def _ensure_connection(self, *args: Any, **options: Any) -> Any:
        options |= {
            "interval_start": _RETRY_FIRST_S,
            "interval_step": _RETRY_FIRST_S,
            "interval_max": _RETRY_LAST_S,
        }
        return super()._ensure_connection(*args, **options)  # type: ignore[no-untyped-call]


def make_app(settings: Settings) -> Celery:
    """The application without tasks: enough for beat and for sending."""
    is_embedded = settings.is_embedded_broker
    app = Celery("trainmaster", broker="memory://" if is_embedded else settings.broker_url, set_as_current=False)
    if is_embedded:
        app.conf.broker_transport = memory_broker.TRANSPORT
    app.conf.update(
        timezone="UTC",
        enable_utc=True,
        task_ignore_result=True,
        task_acks_late=False,
        task_default_queue=MAINTENANCE_QUEUE,
        task_routes={name: {"queue": QUEUE_OF_TOPIC[topic]} for topic, name in TASK_OF_TOPIC.items()},
        task_serializer="json",
        accept_content=["json"],
        worker_prefetch_multiplier=4,
        worker_redirect_stdouts=False,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        worker_enable_remote_control=False,
        # A worker that starts without a broker waits for it, like a worker that loses it later.
        broker_connection_retry_on_startup=True,
        # However long the broker is away: a worker that gave up would have to be restarted.
        broker_connection_max_retries=None,
        broker_transport_options={} if is_embedded else REDIS_OPTIONS,
    )
    app.amqp.Connection = QuickConnection
    return app


def schedule(settings: Settings) -> dict[str, float]:
    """The interval of each periodic task, in seconds."""
    return {
        TICK: settings.tick_interval_s,
        RECONCILE_DUE: settings.reconcile_interval_s,
        SYNC_NODES: _SYNC_NODES_S,
        GC_EXECUTOR: _GC_EXECUTOR_S,
        COLLECT_GARBAGE: _COLLECT_GARBAGE_S,
        START_FORECASTS: _START_FORECASTS_S,
        MEASURE_STORAGE: _MEASURE_STORAGE_S,
        CHAIN_AUDIT: _CHAIN_AUDIT_S,
        STUDIES_DUE: _STUDIES_DUE_S,
        MODELS: _MODELS_S,
        WEBHOOKS: _WEBHOOKS_S,
        ENDPOINTS_DUE: _ENDPOINTS_DUE_S,
        **({EXPORT_TRACES: _EXPORT_TRACES_S} if telemetry.is_requested() else {}),
    }


def send(app: Celery, name: str, every_s: float) -> None:
    """Send the message of the periodic task ``name``. It expires unread, since the next one comes."""
    app.send_task(name, expires=max(5.0, 2 * every_s), retry=False, ignore_result=True)
