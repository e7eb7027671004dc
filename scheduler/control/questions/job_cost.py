"""What a job will cost per hour: where the planner places it, or at most on any node that it may get."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from core.domain.sharing.costs import Allocation, PriceList
from core.domain.sharing.gpus import accepts
from core.domain.sharing.resources import Gang, ResourceRequest
from scheduler.planning.model import NodeSnapshot, Placement, QueuedGang, Snapshot

_HOUR = timedelta(hours=1)


def cost_to_json(
    prices: PriceList, snapshot: Snapshot, job: QueuedGang, placements: Sequence[Placement]
) -> dict[str, Any] | None:
    """``None``: there are no prices, or no node for it. ``is_exact``: as ``placements`` has it, not the highest that
    may be. ``run_s``: the expected run time, which ``source`` tells; ``limit_s``: its maximum.
    """
    if not prices:
        return None
    if placements:
        requests = {role.role: role.request for role in job.gang.roles}
        costs = [_per_hour(prices, requests[p.role], p.node, p.gpu_model, snapshot.now) for p in placements]
    else:
        costs = []
        for role in job.gang.roles:
            places = _candidates(snapshot.nodes, job.gang, role.request)
            each = [_per_hour(prices, role.request, node, model, snapshot.now) for node, model in places]
            if not each:
                return None
            costs.append(role.replicas * max(each))
    estimate = job.estimate
    return {
        "micros_per_hour": sum(costs),
        "is_exact": bool(placements),
        "run_s": None if estimate is None else estimate.likely_s,
        "source": "" if estimate is None else estimate.source,
        "limit_s": job.max_run_time_s,
    }


def _candidates(
    nodes: Sequence[NodeSnapshot], gang: Gang, request: ResourceRequest
) -> Iterator[tuple[str, str | None]]:
    """Nodes with the labels that the gang asks for, and their models of GPUs that ``request`` accepts."""
    for node in nodes:
        if all(node.labels.get(key) == value for key, value in gang.node_selector):
            if not request.uses_gpu:
                yield node.id, None
                continue
            for model in node.allocatable.gpus:
                if not request.gpu_models or any(accepts(wish, model) for wish in request.gpu_models):
                    yield node.id, model


def _per_hour(prices: PriceList, request: ResourceRequest, node: str, model: str | None, now: datetime) -> int:
    milli = 1000 * request.gpu_count + request.gpu_milli
    return prices.micros_per_hour(
        Allocation(now, now + _HOUR, node, model, milli, request.cpu_milli, request.memory_bytes)
    )
