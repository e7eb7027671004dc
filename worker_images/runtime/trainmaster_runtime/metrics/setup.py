"""Which sources a replica has, by its order."""

from __future__ import annotations

import json
import os

from trainmaster_runtime import clock
from trainmaster_runtime.metrics.collector import Collector
from trainmaster_runtime.metrics.eventfiles import EventFileReader, FileClaims
from trainmaster_runtime.metrics.hypertune import HypertuneFile
from trainmaster_runtime.metrics.patterns import LinePatterns
from trainmaster_runtime.metrics.sampler import Sampler, groups_of
from trainmaster_runtime.metrics.source_counts import SourceCounts
from trainmaster_runtime.prepare import OUTPUT

# What the job's spec says under `metric_patterns`, as JSON.
PATTERNS_VARIABLE = "TRAINMASTER_METRIC_PATTERNS"
# Set for a study's trial, which reports the counts of each metric source where its metric is missing.
TRIAL_VARIABLE = "TRAINMASTER_TRIAL"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from trainmaster_runtime.order import RuntimeOrder
    from trainmaster_runtime.prepare import PreparedReplica


def make_collector(
    order: RuntimeOrder, prepared: PreparedReplica, say: Callable[[str], None], began: float
) -> Collector:
    """The collector of a replica whose processes started at ``began``, in seconds since 1970.

    Call it in a thread that may wait for disks and drivers.
    """
    output = OUTPUT if order.view == "as_is" else order.source_of(OUTPUT)
    work = os.path.dirname(prepared.job_folder)
    folder = (output or work) + "/.trainmaster/metrics/" + order.job_id
    owner = "%d/%s-%d" % (order.attempt_number, order.role, order.index)
    groups = groups_of(order.view, prepared.groups.by_controller)
    visible = order.env.get("CUDA_VISIBLE_DEVICES", None if order.view == "as_is" else "")
    return Collector(
        sampler=Sampler(groups, visible),
        events=EventFileReader(output, work, FileClaims(folder, owner), say, now=clock.monotonic(), began=began),
        hypertune=HypertuneFile(prepared.job_folder + "/hypertune/output.metric"),
        patterns=LinePatterns(read_patterns(order.env.get(PATTERNS_VARIABLE, ""))),
        sources=SourceCounts() if order.env.get(TRIAL_VARIABLE) else None,
    )


def read_patterns(text: str) -> list[str]:
    """The job's own patterns; none of a text that is not ours."""
    try:
        patterns = json.loads(text) if text else []
    except ValueError:
        return []
    return [pattern for pattern in patterns if isinstance(pattern, str)] if isinstance(patterns, list) else []
