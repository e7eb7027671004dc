"""With which changes a job would be expected to start sooner: each is run forward as the job itself is."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Final

from core.domain.sharing.gpu_models import accepted_models
from core.domain.sharing.resources import Gang, GangRole
from scheduler.planning.explain import phrases
from scheduler.planning.explain.options import (
    HALF,
    MODELS_OFFERED,
    Alternative,
    AlternativeCode,
    each,
    half_of,
    with_request,
    with_roles,
)
from scheduler.planning.forecast.start_times import StartCode, StartForecast, outlook
from scheduler.planning.model import Plan, QueuedGang, Snapshot

# A start that is nearer by less than this part of the wait is not worth another spec.
_WORTH: Final = 0.9
_MOST: Final = 4


@dataclass(frozen=True, slots=True)
class _Change:
    code: AlternativeCode
    told: str
    roles: tuple[str, ...]
    field: str
    value: float | str | None
    gang: Gang


def sooner(
    snapshot: Snapshot,
    made: Plan,
    job: QueuedGang,
    expected: StartForecast | None,
    told: Collection[tuple[AlternativeCode, tuple[str, ...]]],
    budget: int,
) -> list[Alternative]:
    """Changes with which ``job`` would probably start sooner than ``expected``, the soonest first.

    Args:
        made: the plan of ``snapshot``, in which the job waits.
        told: kinds of change that are known to start it at once.
    """
    changes = [change for change in _changes(job.gang, snapshot) if (change.code, change.roles) not in told]
    if not changes:
        return []
    place = made.order.index(job.job_id) if job.job_id in made.order else len(made.order)
    before = frozenset(made.order[:place])
    ahead = tuple(other for other in snapshot.queued if other.job_id in before)
    each_budget = budget // len(changes)
    if each_budget < len(snapshot.nodes) + len(ahead) + len(snapshot.running):
        return []
    found: list[Alternative] = []
    for change in changes:
        changed = replace(job, gang=change.gang, shape=change.gang.shape())
        course = outlook(
            replace(snapshot, queued=(*ahead, changed)), only=job.job_id, budget=each_budget, is_brief=True
        )
        start = course.of(job.job_id)
        if start is None or start.likely_at is None or not _is_sooner(snapshot, start, expected):
            continue
        when = "now" if start.code is StartCode.NOW else f"at {phrases.about(start.likely_at, snapshot.now)}"
        sentence = f"With {change.told} it would probably start {when}."
        found.append(Alternative(change.code, sentence, change.roles, change.field, change.value, start))
    return sorted(found, key=lambda option: (option.start.likely_at, option.code) if option.start else ())[:_MOST]


def _is_sooner(snapshot: Snapshot, start: StartForecast, expected: StartForecast | None) -> bool:
    if expected is None or expected.likely_at is None or start.likely_at is None:
        return True
    return start.likely_at - snapshot.now < _WORTH * (expected.likely_at - snapshot.now)


def _changes(gang: Gang, snapshot: Snapshot) -> Iterator[_Change]:
    """Changes of one thing each, of every kind one that is worth a thought."""
    many = max(gang.roles, key=lambda role: (role.request.gpu_count, role.replicas))
    if many.replicas > 1:
        count = many.replicas // 2
        half = with_roles(gang, [many], lambda one: replace(one, replicas=count))
        told = f"{count} {phrases.plural(many.role, count)} instead of {many.replicas}"
        yield _Change(AlternativeCode.FEWER_REPLICAS, told, (many.role,), "replicas", count, half)
    yield from _gpus(gang)
    yield from _models(gang, snapshot)
    if gang.topology_required:
        told = f"replicas on more than one {gang.topology}"
        yield _Change(
            AlternativeCode.ANYWHERE, told, (), "topology", None, replace(gang, topology=None, topology_required=False)
        )
    if gang.node_selector:
        labels = phrases.all_of([f"{key}={value}" for key, value in gang.node_selector])
        told = f"nodes that need not carry {labels}"
        yield _Change(AlternativeCode.ANY_NODE, told, (), "node_selector", None, replace(gang, node_selector=()))


def _gpus(gang: Gang) -> Iterator[_Change]:
    most = max((role.request for role in gang.roles), key=lambda request: request.gpu_count)
    roles = [role for role in gang.roles if role.request == most]
    names = tuple(role.role for role in roles)
    if most.gpu_count > 1:
        count = most.gpu_count // 2
        told = f"{phrases.gpus(count, most.gpu_models)} {each(roles)} instead of {most.gpu_count}"
        changed = with_request(gang, roles, gpu_count=count)
        yield _Change(AlternativeCode.FEWER_GPUS, told, names, "gpus", count, changed)
    elif most.gpu_count == 1:
        changed = with_request(gang, roles, gpu_count=0, gpu_milli=HALF)
        yield _Change(AlternativeCode.PART_OF_GPU, half_of(roles), names, "gpus", HALF / 1000, changed)


def _models(gang: Gang, snapshot: Snapshot) -> Iterator[_Change]:
    roles: list[GangRole] = [role for role in gang.roles if role.request.uses_gpu and role.request.gpu_models]
    if not roles:
        return
    wished = roles[0].request.gpu_models
    present = sorted({model for node in snapshot.nodes if node.is_schedulable for model in node.allocatable.gpus})
    others = [model for model in present if model not in accepted_models(wished, present)]
    for model in others[:MODELS_OFFERED]:
        changed = with_request(gang, roles, gpu_models=(model,))
        told = f"GPUs of {model} instead of {phrases.any_of(wished)}"
        yield _Change(AlternativeCode.OTHER_MODEL, told, tuple(role.role for role in roles), "gpu_type", model, changed)
