"""The Celery application: carries bells and the clock's rings to the control loop.

Nothing depends on a message: each task reads the truth and may be lost, doubled or late. So messages are acknowledged
before they are worked on, keep no results, and expire rather than pile up.
"""

from __future__ import annotations

from typing import Any, Final

from celery import Celery

from core.bell import TOPIC_RECONCILE, TOPIC_TICK
from core.bell.celery import QUEUE_OF_TOPIC, TASK_OF_TOPIC
from core.settings import Settings

TICK: Final = TASK_OF_TOPIC[TOPIC_TICK]
RECONCILE: Final = TASK_OF_TOPIC[TOPIC_RECONCILE]
RECONCILE_DUE: Final = "trainmaster.reconcile_due"
SYNC_NODES: Final = "trainmaster.sync_nodes"
SWEEP: Final = "trainmaster.sweep"
HOUSEKEEP: Final = "trainmaster.housekeep"
CARE_QUEUE: Final = "care"
QUEUES: Final = (QUEUE_OF_TOPIC[TOPIC_TICK], QUEUE_OF_TOPIC[TOPIC_RECONCILE], CARE_QUEUE)

_SYNC_NODES_S: Final = 5.0
_SWEEP_S: Final = 30.0
_HOUSEKEEP_S: Final = 300.0


def make_app(settings: Settings) -> Celery:
    """The application without tasks: enough for beat and for sending."""
    is_embedded = settings.is_embedded_broker
    app = Celery("trainmaster", broker="memory://" if is_embedded else settings.broker_url, set_as_current=False)
    app.conf.update(
        timezone="UTC",
        enable_utc=True,
        task_ignore_result=True,
        task_acks_late=False,
        task_default_queue=CARE_QUEUE,
        task_routes={name: {"queue": QUEUE_OF_TOPIC[topic]} for topic, name in TASK_OF_TOPIC.items()},
        task_serializer="json",
        accept_content=["json"],
        worker_prefetch_multiplier=4,
        worker_redirect_stdouts=False,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        worker_enable_remote_control=False,
        # A worker that finds no broker at its start waits for it like one that loses it later.
        broker_connection_retry_on_startup=True,
        # The memory transport asks its queues this often; 10 ms cost about a hundredth of a core.
        broker_transport_options={"polling_interval": 0.01} if is_embedded else {"socket_keepalive": True},
        beat_scheduler="celery.beat:Scheduler",
        beat_max_loop_interval=1,
        beat_schedule=_schedule(settings),
    )
    return app


def _schedule(settings: Settings) -> dict[str, dict[str, Any]]:
    every = {
        TICK: settings.tick_interval_s,
        RECONCILE_DUE: settings.reconcile_interval_s,
        SYNC_NODES: _SYNC_NODES_S,
        SWEEP: _SWEEP_S,
        HOUSEKEEP: _HOUSEKEEP_S,
    }
    return {
        name: {"task": name, "schedule": seconds, "options": {"expires": max(5.0, 2 * seconds)}}
        for name, seconds in every.items()
    }
