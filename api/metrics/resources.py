"""Resource usage of replicas from the samples of their runtimes, with notes on idle GPUs and on stragglers."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.orm import Session
from trainmaster.wire.metrics import GpuUse, ReplicaUse, ResourceSummary

from api.app.unit_of_work import AppContext
from api.auth import JobAccess
from core.db.repositories.metrics.reads import SeriesFilter, StoredSeries, find_series, values_since
from core.db.tables import MetricStream
from core.domain.metrics import IDLE_GPU_PERCENT, SERIES_OF_JOB, SYSTEM

# A replica whose utilisation differs by more from the median of its role slows the role down, or idles.
FAR_PERCENT: Final = 30.0
_GPU: Final = re.compile(
    r"^system/gpu\.([0-9]{1,3})/(utilisation_percent|memory_bytes|power_w|temperature_c|ecc_uncorrected|xid)$"
)
# Counts and codes: their newest value counts, not their mean.
_NEWEST: Final = frozenset({"ecc_uncorrected", "xid"})
_OWN: Final = frozenset(
    {
        "cpu_percent",
        "memory_bytes",
        "disk_read_bytes_s",
        "disk_written_bytes_s",
        "network_received_bytes_s",
        "network_sent_bytes_s",
    }
)
_MIN_IDLE_SAMPLES: Final = 6  # fewer samples cover too short a time to call a GPU idle


def summarise(context: AppContext, access: JobAccess, *, attempt: int | None, window_s: float) -> ResourceSummary:
    """Means over the last ``window_s`` seconds before each replica's newest sample."""
    with context.read() as work:
        job = access.load(work.session)
        number = attempt or _newest_attempt(work.session, job.id)
        only = SeriesFilter(attempt=number, kind="scalar", prefix=SYSTEM)
        found = find_series(work.session, [job.id], only, limit=SERIES_OF_JOB)
        by_replica: defaultdict[tuple[str, int], list[StoredSeries]] = defaultdict(list)
        for series in found:
            by_replica[series.role, series.index].append(series)
        since = {item.id: begin for own in by_replica.values() for begin in [_begin(own, window_s)] for item in own}
        values = values_since(work.session, [item for item in found if _is_shown(item.name)], since)
        replicas = [_use(series, values) for series in by_replica.values()]
    return ResourceSummary(window_s=window_s, replicas=replicas, notes=notes_of(replicas))


def notes_of(replicas: Sequence[ReplicaUse]) -> list[str]:
    """Sentences about problems that a user should check; empty when there are none."""
    notes = []
    for replica in replicas:
        idle = [gpu.index for gpu in replica.gpus if gpu.is_idle]
        if idle:
            devices = (
                "its GPU idles"
                if len(replica.gpus) == 1
                else f"GPU {', '.join(map(str, idle))} of {len(replica.gpus)} idles"
            )
            notes.append(
                f"{replica.role}-{replica.index}: {devices} (below {IDLE_GPU_PERCENT:g} %); "
                "request fewer GPUs, or check whether the input pipeline is too slow."
            )
        notes += [f"{replica.role}-{replica.index}: {fault}" for gpu in replica.gpus for fault in _faults(gpu)]
    by_role: defaultdict[str, dict[int, float]] = defaultdict(dict)
    for replica in replicas:
        load = _load(replica)
        if load is not None:
            by_role[replica.role][replica.index] = load
    for role, loads in by_role.items():
        notes += _straggler_notes(role, loads)
    return notes


def _faults(gpu: GpuUse) -> list[str]:
    found = []
    if gpu.xid:
        found.append(
            f"GPU {gpu.index} reported Xid {gpu.xid:.0f}, an error of its driver or hardware; an admin should check it."
        )
    if gpu.ecc_uncorrected:
        found.append(
            f"GPU {gpu.index} has {gpu.ecc_uncorrected:.0f} uncorrected memory errors; "
            "results may be wrong: an admin should check the node."
        )
    return found


def _straggler_notes(role: str, loads: Mapping[int, float]) -> list[str]:
    if len(loads) < 2:
        return []
    middle = median(loads.values())
    return [
        f"{role}-{index} works at {load:.0f} % where the median of its role is {middle:.0f} %: "
        f"{'it waits for the others, or has less to do' if load < middle else 'the others wait for it'}."
        for index, load in sorted(loads.items())
        if abs(load - middle) > FAR_PERCENT
    ]


def _load(replica: ReplicaUse) -> float | None:
    """How busy it is: its GPUs' mean utilisation, or its CPU use where it has none."""
    known = [gpu.utilisation_percent for gpu in replica.gpus if gpu.utilisation_percent is not None]
    return sum(known) / len(known) if known else replica.cpu_percent


def _newest_attempt(session: Session, job_id: str) -> int:
    query = select(func.max(MetricStream.attempt)).where(MetricStream.owner_id == job_id)
    return session.execute(query).scalar_one() or 0


def _begin(series: Sequence[StoredSeries], window_s: float) -> int:
    """When the window before a replica's newest sample begins, in milliseconds since 1970."""
    return _newest(series) - int(window_s * 1000)


def _newest(series: Sequence[StoredSeries]) -> int:
    return max((item.last_time or 0) for item in series)


def _is_shown(name: str) -> bool:
    return name.removeprefix(SYSTEM) in _OWN or _GPU.match(name) is not None


def _use(series: Sequence[StoredSeries], values: Mapping[int, Sequence[float]]) -> ReplicaUse:
    first = series[0]
    own: dict[str, float | None] = {}
    gpus: defaultdict[int, dict[str, float | None]] = defaultdict(dict)
    idle: set[int] = set()
    peak = None
    for item in series:
        name = item.name.removeprefix(SYSTEM)
        match = _GPU.match(item.name)
        if not _is_shown(item.name):
            continue
        known = values[item.id]
        mean, count = (sum(known) / len(known) if known else None), len(known)
        if match is None:
            own[name] = mean
            if name == "memory_bytes":
                peak = item.high
            continue
        number = int(match[1])
        gpus[number][match[2]] = item.last_value if match[2] in _NEWEST else mean
        if (
            match[2] == "utilisation_percent"
            and mean is not None
            and mean < IDLE_GPU_PERCENT
            and count >= _MIN_IDLE_SAMPLES
        ):
            idle.add(number)
    return ReplicaUse(
        attempt=first.attempt,
        role=first.role,
        index=first.index,
        at_s=_newest(series) / 1000,
        memory_peak_bytes=peak,
        gpus=[GpuUse(index=number, is_idle=number in idle, **usage) for number, usage in sorted(gpus.items())],
        **own,
    )
