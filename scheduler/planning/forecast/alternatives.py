"""Alternatives: changes of a waiting job's spec with which it would start now, or sooner."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from core.domain.sharing.gpus import accepted_models
from core.domain.sharing.resources import Gang, GangRole, ResourceRequest
from scheduler.planning import phrases
from scheduler.planning.forecast.start_times import StartCode, StartForecast, forecast_starts
from scheduler.planning.model import Plan, QueuedGang, Snapshot
from scheduler.planning.placement.capacity import Capacity
from scheduler.planning.placement.demand import demand_of
from scheduler.planning.placement.gang import place
from scheduler.planning.placement.partial import PartialPlacement
from scheduler.planning.placement.search import SearchBudget

# Amounts are offered in round numbers, small ones in smaller steps.
_SMALL_CPU, _SMALL_MEMORY = 4000, 4 * 2**30
MODELS_OFFERED: Final = 3  # of models that were not asked for, at most this many are offered
HALF: Final = 500  # thousandths of a GPU


class AlternativeCode(StrEnum):
    """What to ask for instead."""

    FEWER_REPLICAS = "fewer_replicas"
    FEWER_GPUS = "fewer_gpus"
    PART_OF_GPU = "part_of_gpu"
    OTHER_MODEL = "other_model"
    LESS_CPU = "less_cpu"
    LESS_MEMORY = "less_memory"
    ANYWHERE = "anywhere"  # not inside one node, rack or zone
    ANY_NODE = "any_node"  # without labels that nodes must carry


@dataclass(frozen=True, slots=True)
class Alternative:
    """A change with which the job would start now, or at ``start``.

    ``field``: of the roles in ``roles`` (``replicas``, ``gpus``, ``gpu_type``, ``cpu``, ``memory``), or of the spec
    itself where there are none. ``value``: what to write there; ``None``: leave it out.
    """

    code: AlternativeCode
    sentence: str
    roles: tuple[str, ...]
    field: str
    value: float | str | None
    start: StartForecast | None = None


class AlternativeSearch:
    """Changes of one thing each; of every kind the smallest that is enough."""

    def __init__(self, gang: Gang, room: Capacity) -> None:
        self.gang = gang
        self.cluster = room.cluster
        self.room = room
        self.budget = SearchBudget()

    def alternatives(self) -> Iterator[Alternative]:
        yield from self._replicas()
        yield from self._gpus()
        yield from self._models()
        yield from self._amounts()
        yield from self._places()

    def _replicas(self) -> Iterator[Alternative]:
        scalable = [role for role in self.gang.roles if role.replicas > 1]
        for role in sorted(scalable, key=lambda role: (role.request.gpu_count, role.replicas), reverse=True):

            def fewer(count: int, role: GangRole = role) -> Gang:
                return with_roles(self.gang, [role], lambda role: replace(role, replicas=count))

            count, draft = self._largest(role.replicas - 1, fewer)
            if draft is None:
                continue
            most = "" if role.most is None else f" to {role.most}"
            change = f"{count}{most} {phrases.plural(role.role, role.most or count)} instead of {role.replicas}{most}"
            yield self._option(AlternativeCode.FEWER_REPLICAS, change, [role], "replicas", count, draft)
            return

    def _gpus(self) -> Iterator[Alternative]:
        request = max((role.request for role in self.gang.roles), key=lambda request: request.gpu_count)
        if request.gpu_count < 2:
            yield from self._part(request)
            return
        roles = self._asking(request)
        count, draft = self._largest(
            request.gpu_count - 1, lambda count: with_request(self.gang, roles, gpu_count=count)
        )
        if draft is not None:
            change = f"{phrases.gpus(count, request.gpu_models)} {for_each(roles)} instead of {request.gpu_count}"
            yield self._option(AlternativeCode.FEWER_GPUS, change, roles, "gpus", count, draft)

    def _part(self, request: ResourceRequest) -> Iterator[Alternative]:
        if request.gpu_count != 1:
            return
        roles = self._asking(request)
        draft = self._place(with_request(self.gang, roles, gpu_count=0, gpu_milli=HALF))
        if draft is not None:
            yield self._option(AlternativeCode.PART_OF_GPU, f"{half_of(roles)}", roles, "gpus", HALF / 1000, draft)

    def _models(self) -> Iterator[Alternative]:
        roles = [role for role in self.gang.roles if role.request.gpu_count and role.request.gpu_models]
        if not roles:
            return
        requested = roles[0].request.gpu_models
        accepted = set(accepted_models(requested, self.cluster.gpu_models))
        offered = 0
        for model in self.cluster.gpu_models:
            if model in accepted or offered == MODELS_OFFERED:
                continue
            draft = self._place(with_request(self.gang, roles, gpu_models=(model,)))
            if draft is not None:
                offered += 1
                sentence = f"GPUs of {model} instead of {phrases.any_of(requested)}"
                yield self._option(AlternativeCode.OTHER_MODEL, sentence, roles, "gpu_type", model, draft)

    def _amounts(self) -> Iterator[Alternative]:
        request = max((role.request for role in self.gang.roles), key=lambda request: request.cpu_milli)
        roles = self._asking(request)
        cpu_step = 100 if request.cpu_milli <= _SMALL_CPU else 1000
        count, draft = self._largest(
            (request.cpu_milli - 1) // cpu_step,
            lambda count: with_request(self.gang, roles, cpu_milli=count * cpu_step),
        )
        if draft is not None:
            milli = count * cpu_step
            change = f"{phrases.cpus(milli)} {for_each(roles)} instead of {request.cpu_milli / 1000:g}"
            value = f"{milli}m" if milli % 1000 else milli // 1000
            yield self._option(AlternativeCode.LESS_CPU, change, roles, "cpu", value, draft)
        request = max((role.request for role in self.gang.roles), key=lambda request: request.memory_bytes)
        roles = self._asking(request)
        unit, size = ("Mi", 2**20) if request.memory_bytes <= _SMALL_MEMORY else ("Gi", 2**30)
        step = 64 if unit == "Mi" else 1
        count, draft = self._largest(
            (request.memory_bytes - 1) // (step * size),
            lambda count: with_request(self.gang, roles, memory_bytes=count * step * size),
        )
        if draft is not None:
            current = phrases.memory(request.memory_bytes).removesuffix(" of memory")
            change = f"{phrases.memory(count * step * size)} {for_each(roles)} instead of {current}"
            yield self._option(AlternativeCode.LESS_MEMORY, change, roles, "memory", f"{count * step}{unit}", draft)

    def _places(self) -> Iterator[Alternative]:
        for change in _unbound(self.gang):
            draft = self._place(change.gang)
            if draft is not None:
                yield self._option(change.code, change.words, [], change.field, None, draft)

    def _largest(self, limit: int, changed: Callable[[int], Gang]) -> tuple[int, PartialPlacement | None]:
        """The largest amount, from 1 to ``limit``, with which the gang has room, and where."""
        low, draft = 0, None
        high = limit
        while low < high:
            middle = (low + high + 1) // 2
            fits = self._place(changed(middle))
            if fits is None:
                high = middle - 1
            else:
                low, draft = middle, fits
        return low, draft

    def _place(self, gang: Gang) -> PartialPlacement | None:
        demand, headroom = demand_of(gang, self.cluster), self.room.headroom
        return place(demand if headroom is None else headroom.bind(demand), self.room, self.budget)

    def _asking(self, request: ResourceRequest) -> list[GangRole]:
        return [role for role in self.gang.roles if role.request == request]

    def _option(
        self,
        code: AlternativeCode,
        change: str,
        roles: Sequence[GangRole],
        field: str,
        value: float | str | None,
        draft: PartialPlacement,
    ) -> Alternative:
        on = phrases.shortlist([self.cluster.nodes[number].id for number in sorted(draft.left)])
        names = tuple(role.role for role in roles)
        return Alternative(code, f"With {change} it would start now, on {on}.", names, field, value)


def for_each(roles: Sequence[GangRole]) -> str:
    if sum(role.replicas for role in roles) == 1:
        return f"for its {roles[0].role}"
    return f"for each {phrases.any_of([role.role for role in roles])}"


def half_of(roles: Sequence[GangRole]) -> str:
    return f"half a GPU {for_each(roles)} instead of a whole one"


def with_request(gang: Gang, roles: Sequence[GangRole], **changes: object) -> Gang:
    """The gang in which each of ``roles`` asks for something else."""

    def changed(role: GangRole) -> GangRole:
        return replace(role, request=replace(role.request, **changes))  # type: ignore[arg-type]

    return with_roles(gang, roles, changed)


def with_roles(gang: Gang, roles: Sequence[GangRole], changed: Callable[[GangRole], GangRole]) -> Gang:
    names = {role.role for role in roles}
    return replace(gang, roles=tuple(changed(role) if role.role in names else role for role in gang.roles))


# A start that is nearer by less than this part of the wait is not worth another spec.
_WORTH: Final = 0.9
_MOST: Final = 4


@dataclass(frozen=True, slots=True)
class _Change:
    code: AlternativeCode
    words: str
    roles: tuple[str, ...]
    field: str
    value: float | str | None
    gang: Gang


def find_sooner(
    snapshot: Snapshot,
    current_plan: Plan,
    job: QueuedGang,
    expected: StartForecast | None,
    startable: Collection[tuple[AlternativeCode, tuple[str, ...]]],
    budget: int,
) -> list[Alternative]:
    """Changes with which ``job`` would probably start sooner than ``expected``, the soonest first.

    Args:
        current_plan: the plan of ``snapshot``, in which the job waits. startable: kinds of change with which it starts
        at once.
    """
    changes = [change for change in _changes(job.gang, snapshot) if (change.code, change.roles) not in startable]
    if not changes:
        return []
    position = current_plan.order.index(job.job_id) if job.job_id in current_plan.order else len(current_plan.order)
    preceding = frozenset(current_plan.order[:position])
    ahead = tuple(other for other in snapshot.queued if other.job_id in preceding)
    each_budget = budget // len(changes)
    if each_budget < len(snapshot.nodes) + len(ahead) + len(snapshot.running):
        return []
    alternatives: list[Alternative] = []
    for change in changes:
        changed_job = replace(job, gang=change.gang, shape=change.gang.shape())
        forecast = forecast_starts(
            replace(snapshot, queued=(*ahead, changed_job)), only=job.job_id, budget=each_budget, is_brief=True
        )
        start = forecast.forecast_of(job.job_id)
        if start is None or start.likely is None or not _is_sooner(snapshot, start, expected):
            continue
        shown = start.on_grid(snapshot.now)
        when = (
            "now" if start.code is StartCode.NOW else f"at {phrases.about(shown.likely or start.likely, snapshot.now)}"
        )
        sentence = f"With {change.words} it would probably start {when}."
        alternatives.append(Alternative(change.code, sentence, change.roles, change.field, change.value, start))
    return sorted(alternatives, key=lambda option: (option.start.likely, option.code) if option.start else ())[:_MOST]


def _is_sooner(snapshot: Snapshot, start: StartForecast, expected: StartForecast | None) -> bool:
    if expected is None or expected.likely is None or start.likely is None:
        return True
    return start.likely - snapshot.now < _WORTH * (expected.likely - snapshot.now)


def _changes(gang: Gang, snapshot: Snapshot) -> Iterator[_Change]:
    """Changes of one thing each, of every kind one that is worth a thought."""
    largest = max(gang.roles, key=lambda role: (role.request.gpu_count, role.replicas))
    if largest.replicas > 1:
        count = largest.replicas // 2
        half = with_roles(gang, [largest], lambda role: replace(role, replicas=count))
        change = f"{count} {phrases.plural(largest.role, count)} instead of {largest.replicas}"
        yield _Change(AlternativeCode.FEWER_REPLICAS, change, (largest.role,), "replicas", count, half)
    yield from _gpus(gang)
    yield from _models(gang, snapshot)
    yield from _unbound(gang)


def _unbound(gang: Gang) -> Iterator[_Change]:
    """Changes with which it is no longer bound to one topology domain, or to nodes with labels."""
    if gang.topology_required:
        anywhere = replace(gang, topology=None, topology_required=False)
        yield _Change(
            AlternativeCode.ANYWHERE, f"replicas on more than one {gang.topology}", (), "topology", None, anywhere
        )
    if gang.node_selector:
        labels = phrases.all_of([f"{key}={value}" for key, value in gang.node_selector])
        change = f"nodes that need not carry {labels}"
        yield _Change(AlternativeCode.ANY_NODE, change, (), "node_selector", None, replace(gang, node_selector=()))


def _gpus(gang: Gang) -> Iterator[_Change]:
    largest = max((role.request for role in gang.roles), key=lambda request: request.gpu_count)
    roles = [role for role in gang.roles if role.request == largest]
    names = tuple(role.role for role in roles)
    if largest.gpu_count > 1:
        count = largest.gpu_count // 2
        change = f"{phrases.gpus(count, largest.gpu_models)} {for_each(roles)} instead of {largest.gpu_count}"
        changed = with_request(gang, roles, gpu_count=count)
        yield _Change(AlternativeCode.FEWER_GPUS, change, names, "gpus", count, changed)
    elif largest.gpu_count == 1:
        changed = with_request(gang, roles, gpu_count=0, gpu_milli=HALF)
        yield _Change(AlternativeCode.PART_OF_GPU, half_of(roles), names, "gpus", HALF / 1000, changed)


def _models(gang: Gang, snapshot: Snapshot) -> Iterator[_Change]:
    roles: list[GangRole] = [role for role in gang.roles if role.request.uses_gpu and role.request.gpu_models]
    if not roles:
        return
    requested = roles[0].request.gpu_models
    available = sorted({model for node in snapshot.nodes if node.is_schedulable for model in node.allocatable.gpus})
    other_models = [model for model in available if model not in accepted_models(requested, available)]
    for model in other_models[:MODELS_OFFERED]:
        changed = with_request(gang, roles, gpu_models=(model,))
        change = f"GPUs of {model} instead of {phrases.any_of(requested)}"
        yield _Change(
            AlternativeCode.OTHER_MODEL, change, tuple(role.role for role in roles), "gpu_type", model, changed
        )
