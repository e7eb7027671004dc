"""Which sources a replica has, by its order."""

from __future__ import annotations

import json
import os

from trainmaster_runtime import clock
from trainmaster_runtime.metrics.claims import Claims
from trainmaster_runtime.metrics.collector import Collector
from trainmaster_runtime.metrics.eventfiles import EventFiles
from trainmaster_runtime.metrics.hypertune import HypertuneFile
from trainmaster_runtime.metrics.patterns import LinePatterns
from trainmaster_runtime.metrics.sampler import Sampler, groups_of
from trainmaster_runtime.metrics.source_counts import Roads
from trainmaster_runtime.prepare import OUTPUT

# What the job's spec says under `metric_patterns`, as JSON.
PATTERNS_VARIABLE = "TRAINMASTER_METRIC_PATTERNS"
# Set for a study's trial, which says what came on each road where its metric is missing.
TRIAL_VARIABLE = "TRAINMASTER_TRIAL"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmaster_runtime.order import Order
    from trainmaster_runtime.prepare import Ground


def make_collector(order: Order, ground: Ground, say: Callable[[str], None], began: float) -> Collector:
    """The collector of a replica whose processes started at ``began``, in seconds since 1970.

    Call it where waiting for disks and drivers harms nobody.
    """
    output = OUTPUT if order.view == "as_is" else order.source_of(OUTPUT)
    work = os.path.dirname(ground.own)
    folder = (output or work) + "/.trainmaster/metrics/" + order.job_id
    owner = "%d/%s-%d" % (order.attempt_number, order.role, order.index)
    groups = groups_of(order.view, ground.groups.by_controller)
    visible = order.env.get("CUDA_VISIBLE_DEVICES", None if order.view == "as_is" else "")
    return Collector(
        sampler=Sampler(groups, visible),
        events=EventFiles(output, work, Claims(folder, owner), say, now=clock.monotonic(), began=began),
        hypertune=HypertuneFile(ground.own + "/hypertune/output.metric"),
        patterns=LinePatterns(read_patterns(order.env.get(PATTERNS_VARIABLE, ""))),
        roads=Roads() if order.env.get(TRIAL_VARIABLE) else None,
    )


def read_patterns(text: str) -> list[str]:
    """The job's own patterns; none of a text that is not ours."""
    try:
        told = json.loads(text) if text else []
    except ValueError:
        return []
    return [one for one in told if isinstance(one, str)] if isinstance(told, list) else []
