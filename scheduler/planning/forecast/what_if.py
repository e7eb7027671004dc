"""What-if forecast of one job, submitted or hypothetical, on the present or a changed cluster: start, wait and
alternatives.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from core.domain.ids import NodeId
from core.domain.sharing.resources import Amounts
from core.domain.sharing.wait_phrases import addressed_to
from scheduler.planning import phrases
from scheduler.planning.forecast.alternatives import Alternative, AlternativeCode, AlternativeSearch, find_sooner
from scheduler.planning.forecast.start_times import BUDGET, StartCode, StartForecast, forecast_starts
from scheduler.planning.model import NodeSnapshot, Placement, Preempt, QueuedGang, Reason, Snapshot, WaitReasonCode
from scheduler.planning.planner import plan_with_leftover

__all__ = ["Alternative", "AlternativeCode", "Forecast", "changed_cluster", "forecast"]


@dataclass(frozen=True, slots=True)
class Forecast:
    """Either the job would start at ``placements``, or wait for ``reason``.

    ``position``: its place in the queue, 1 is next; ``None`` if it can never run. ``start``: its expected start.
    ``options`` would start at once, ``later`` sooner than the job as it is, the soonest first. ``victims``: jobs that
    would be preempted for it.
    """

    placements: tuple[Placement, ...] = ()
    reason: Reason | None = None
    position: int | None = 1
    start: StartForecast | None = None
    options: tuple[Alternative, ...] = ()
    later: tuple[Alternative, ...] = ()
    victims: tuple[Preempt, ...] = ()


def forecast(
    snapshot: Snapshot, job: QueuedGang, *, budget: int = BUDGET, left_out: Collection[NodeId] = ()
) -> Forecast:
    """What the next plan would do with ``job``, whether it waits in ``snapshot`` or is hypothetical, and what follows.

    The whole queue is planned once. ``budget``: total cost of the projections (see ``forecast_starts``).
    ``left_out``: nodes removed from the cluster: if no other node is left, nothing can ever start.
    """
    if left_out and not snapshot.nodes:
        return _nowhere(job, sorted(left_out))
    others = tuple(other for other in snapshot.queued if other.job_id != job.job_id)
    queued_with_job = replace(snapshot, queued=(*others, job))
    current_plan, leftover = plan_with_leftover(queued_with_job, job.job_id)
    expected = forecast_starts(queued_with_job, current_plan, only=job.job_id, budget=budget // 2).forecast_of(
        job.job_id
    )
    start = next((start for start in current_plan.starts if start.job_id == job.job_id), None)
    if start is not None:
        return Forecast(start.placements, start=expected)
    reason = current_plan.waits[job.job_id]
    victims = _victims(queued_with_job, current_plan.preempts, job)
    sentence = addressed_to(job.job_id, job.name, reason.sentence, reason.numbers)
    if victims:  # a question stops no job
        sentence = sentence.replace(" is being stopped for it", " would be stopped for it").replace(
            " are being stopped for it", " would be stopped for it"
        )
    options = () if leftover is None else tuple(AlternativeSearch(job.gang, leftover).alternatives())
    startable_now = frozenset((option.code, option.roles) for option in options)
    return Forecast(
        reason=replace(reason, sentence=sentence),
        position=current_plan.positions().get(job.job_id),
        start=expected,
        options=options,
        later=tuple(find_sooner(queued_with_job, current_plan, job, expected, startable_now, budget // 2)),
        victims=victims,
    )


def _nowhere(job: QueuedGang, left_out: Sequence[NodeId]) -> Forecast:
    """The forecast on a cluster without nodes, because all were removed."""
    removed = phrases.shortlist(left_out)
    sentence = f"without {removed} there is no node at all, so no job could ever run"
    reason = Reason(WaitReasonCode.NO_NODES, sentence, {"without": list(left_out), "is_never": True})
    return Forecast(
        reason=reason, position=None, start=StartForecast(job.job_id, None, StartCode.NEVER, "never without a node")
    )


def _victims(snapshot: Snapshot, preempts: Sequence[Preempt], job: QueuedGang) -> tuple[Preempt, ...]:
    """The jobs that would be preempted for ``job``, each by name."""
    names = {gang.job_id: gang.name for gang in snapshot.running}
    return tuple(
        replace(preempt, sentence=f"job {names.get(preempt.job_id, preempt.job_id)} would be {preempt.sentence}")
        for preempt in preempts
        if preempt.for_job == job.job_id
    )


def changed_cluster(
    snapshot: Snapshot, *, more_nodes: int = 0, like: NodeId | None = None, without: Collection[NodeId] = ()
) -> Snapshot:
    """``snapshot`` with ``more_nodes`` more empty nodes of the kind of ``like``, and without the nodes ``without``.

    Raises:
        ValueError: there is no such node; it names the field.
    """
    nodes_by_id = {node.id: node for node in snapshot.nodes}
    for name in without:
        if name not in nodes_by_id:
            raise ValueError(f"without: there is no node {name}")
    nodes = [node for node in snapshot.nodes if node.id not in without]
    if more_nodes:
        model = nodes_by_id.get(like) if like is not None else None
        if model is None:
            raise ValueError(f"like: there is no node {like}; name one whose kind there shall be more of")
        nodes += [_copy_of(model, number, nodes_by_id) for number in range(1, more_nodes + 1)]
    return replace(snapshot, nodes=tuple(nodes))


def _copy_of(model: NodeSnapshot, number: int, existing: Collection[NodeId]) -> NodeSnapshot:
    """An empty node like ``model``, on a rack of its own unless the label is copied."""
    name = f"{model.id}-more-{number}"
    while name in existing:
        name += "-"
    allocatable = model.allocatable
    free = Amounts(allocatable.cpu_milli, allocatable.memory_bytes, allocatable.gpus)
    return NodeSnapshot(NodeId(name), model.labels, allocatable, free)
