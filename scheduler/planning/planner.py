"""The gang planner: order the queue, place each gang or none of it, explain the rest."""

from __future__ import annotations

from core.domain.ids import JobId
from core.domain.resources import Gang, Request
from scheduler.planning.model import NodeView, Placement, Plan, QueuedGang, Reason, ReasonCode, Snapshot, Start


class _Free:
    """What is left of a node while a plan is made."""

    def __init__(self, node: NodeView) -> None:
        self.node = node
        self.cpu_milli = node.free.cpu_milli
        self.memory_bytes = node.free.memory_bytes
        self.gpus = dict(node.free.gpus)

    def fit(self, request: Request) -> tuple[bool, str | None]:
        if request.cpu_milli > self.cpu_milli or request.memory_bytes > self.memory_bytes:
            return False, None
        if not request.gpu_count:
            return True, None
        for model in request.gpu_models or sorted(self.gpus):
            if self.gpus.get(model, 0) >= request.gpu_count:
                return True, model
        return False, None

    def take(self, request: Request, model: str | None, sign: int = 1) -> None:
        self.cpu_milli -= sign * request.cpu_milli
        self.memory_bytes -= sign * request.memory_bytes
        if model is not None:
            self.gpus[model] -= sign * request.gpu_count


def _place(gang: Gang, frees: list[_Free]) -> tuple[Placement, ...] | None:
    matching = [f for f in frees if all(f.node.labels.get(k) == v for k, v in gang.node_selector)]
    placed: list[Placement] = []
    taken: list[tuple[_Free, Request, str | None]] = []
    for role in gang.roles:
        for index in range(role.replicas):
            fits = [(f, model) for f in matching for ok, model in [f.fit(role.request)] if ok]
            if not fits:
                for free, request, model in taken:
                    free.take(request, model, -1)
                return None
            free, model = min(fits, key=lambda fit: (sum(fit[0].gpus.values()), fit[0].cpu_milli, fit[0].node.id))
            free.take(role.request, model)
            taken.append((free, role.request, model))
            placed.append(Placement(role.role, index, free.node.id, model))
    return tuple(placed)


def _order(job: QueuedGang) -> tuple[object, ...]:
    return (-job.priority, job.queued_at, job.job_id)


def plan(snapshot: Snapshot) -> Plan:
    """What starts now, in order, and a reason for every job that waits."""
    frees = [_Free(node) for node in sorted(snapshot.nodes, key=lambda n: n.id) if node.is_schedulable]
    starts: list[Start] = []
    waits: dict[JobId, Reason] = {}
    reasons: dict[str, Reason] = {}
    for job in sorted(snapshot.queued, key=_order):
        if job.shape in reasons:
            waits[job.job_id] = reasons[job.shape]
            continue
        placements = _place(job.gang, frees)
        if placements is not None:
            starts.append(Start(job.job_id, placements))
            continue
        if not frees:
            reason = Reason(ReasonCode.NO_NODES, "no node is ready to take work; `trainmaster nodes` lists them")
        else:
            reason = Reason(ReasonCode.NO_ROOM, f"its {job.gang.size} replicas do not fit beside what runs now")
        waits[job.job_id] = reasons[job.shape] = reason
    return Plan(tuple(starts), waits)
