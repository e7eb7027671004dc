"""Why a gang can never run on the present nodes, and what to ask for instead."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from scheduler.planning import phrases
from scheduler.planning.explain.member_phrases import each_member, members
from scheduler.planning.model import Reason, WaitReasonCode
from scheduler.planning.placement.demand import Demand, MemberGroup, demand_of
from scheduler.planning.placement.feasibility import EmptyCluster
from scheduler.planning.placement.gang import best_domain


def explain_infeasible(demand: Demand, refusal: WaitReasonCode, empty: EmptyCluster) -> Reason:
    """The sentence for a refusal of :meth:`EmptyCluster.refusal`."""
    if refusal is WaitReasonCode.NO_NODES:
        return Reason(refusal, "no node is ready to take work; `trainmaster nodes` tells which are known and why", {})
    if refusal is WaitReasonCode.NO_MATCHING_NODE:
        return _no_match(demand, empty)
    if refusal is WaitReasonCode.NEVER_FITS:
        return _too_demanding(demand, empty)
    return _too_many(demand, empty)


def _no_match(demand: Demand, empty: EmptyCluster) -> Reason:
    selector = demand.gang.node_selector
    label = phrases.all_of([f"{key}={value}" for key, value in selector])
    nodes = empty.cluster.nodes
    if not demand.pool.members:
        labels_present = sorted({f"{key}={n.labels[key]}" for key, _ in selector for n in nodes if key in n.labels})
        noun = "label" if len(selector) == 1 else "labels"
        labels_phrase = (
            f"nodes have {phrases.shortlist(labels_present, 5)}"
            if labels_present
            else "no node has such a label at all"
        )
        return Reason(
            WaitReasonCode.NO_MATCHING_NODE,
            f"no node carries the {noun} {label} of its node_selector; {labels_phrase}. Change the selector, or label "
            "a node",
            {"node_selector": dict(selector), "known": labels_present},
        )
    group = next(g for g in demand.merged if g.request.uses_gpu and not empty.has_model(g, demand.pool))
    models_present = sorted({model for whole, _, _ in empty.node_sizes(demand.pool) for model in whole.gpus})
    models = group.request.gpu_models
    where = f"no node with {label}" if selector else "no node"
    lack = (
        f"{where} has GPUs of {phrases.any_of(group.request.gpu_models)}"
        if group.request.gpu_models
        else f"{where} has a GPU"
    )
    if models_present:
        advice = f"; there are {phrases.all_of(models_present)}. Set gpu_type to one of these"
    else:
        # A request for any GPU has been answered already.
        advice = ("; none has any" if models and not selector else "") + (
            ". Change the selector, or ask for no GPUs" if selector else ". Ask for no GPUs, or add a node"
        )
    shortages, numbers = _other_shortages(group, demand, empty)
    if shortages:  # otherwise a user who changes only the GPUs would wait again
        advice += (
            f". It also needs {phrases.all_of([shortage.wanted for shortage in shortages])}, and no node has more than "
            f"{phrases.any_of([f'{shortage.most} ({shortage.node} has)' for shortage in shortages])}: ask for "
            f"{phrases.all_of([shortage.advice for shortage in shortages])}"
        )
    return Reason(
        WaitReasonCode.NO_MATCHING_NODE,
        f"needs {phrases.gpu_text(group.request)} {each_member(group)}, and {lack}{advice}",
        {"gpu_models": list(group.request.gpu_models), "present": models_present, **numbers},
    )


def _too_demanding(demand: Demand, empty: EmptyCluster) -> Reason:
    """No empty node holds even one member of some group."""
    group = next(g for g in demand.merged if not empty.members(g, demand.pool))
    request = group.request
    kinds = empty.node_sizes(demand.pool)
    nodes = empty.cluster.nodes
    needs = f"on one node {each_member(group)}"
    numbers: dict[str, Any] = {"role": group.roles[0][0], "replicas": group.count}
    shortages: list[_Shortage] = []
    if request.gpu_count:
        most, first = max((max(w.gpus.get(m, 0) for m in group.models), -n) for w, _, n in kinds)
        if most < request.gpu_count:
            request_phrase = phrases.gpus(request.gpu_count, request.gpu_models)
            advice = f"at most {most} {phrases.plural('GPU', most)}"
            shortages.append(_Shortage("gpus", request_phrase, str(most), advice, nodes[-first].id))
            numbers |= {"gpus": request.gpu_count, "largest_gpus": most}
    other_shortages, other_numbers = _other_shortages(group, demand, empty)
    shortages += other_shortages
    numbers |= other_numbers
    if shortages:
        return _never_enough(shortages, needs, numbers)
    return Reason(
        WaitReasonCode.NEVER_FITS,
        f"needs {phrases.request(request)} together {needs}, and no node has all of that; "
        f"{_nearest(group, demand, empty)}. Ask for less of one of them",
        numbers,
    )


@dataclass(frozen=True, slots=True)
class _Shortage:
    """A resource that no node has enough of: the request, the most there is, the advice, and the node with the most."""

    name: str
    wanted: str
    most: str
    advice: str
    node: str


def _other_shortages(group: MemberGroup, demand: Demand, empty: EmptyCluster) -> tuple[list[_Shortage], dict[str, int]]:
    """Resources other than GPUs that exceed every node, with their numbers."""
    request, kinds, nodes = group.request, empty.node_sizes(demand.pool), empty.cluster.nodes
    shortages: list[_Shortage] = []
    numbers: dict[str, int] = {}
    cpu, cpu_node = max((allocatable.cpu_milli, -n) for allocatable, _, n in kinds)
    if cpu < request.cpu_milli:
        request_phrase = phrases.cpu_text(request)
        shortages.append(_Shortage("cpu", request_phrase, phrases.cpus(cpu), "less cpu", nodes[-cpu_node].id))
        numbers |= {"cpu_milli": request.cpu_milli, "largest_cpu_milli": cpu}
    memory, memory_node = max((allocatable.memory_bytes, -n) for allocatable, _, n in kinds)
    if memory < request.memory_bytes:
        request_phrase = phrases.memory_text(request)
        shortages.append(
            _Shortage("memory", request_phrase, phrases.memory(memory), "less memory", nodes[-memory_node].id)
        )
        numbers |= {"memory_bytes": request.memory_bytes, "largest_memory_bytes": memory}
    return shortages, numbers


def _never_enough(shortages: list[_Shortage], needs: str, numbers: dict[str, Any]) -> Reason:
    """All exceeded resources at once: a user who changes only one of them would wait again."""
    request_phrase = phrases.all_of([shortage.wanted for shortage in shortages])
    most = phrases.any_of([f"{shortage.most} ({shortage.node} has)" for shortage in shortages])
    replica_advice = ", and more replicas" if any(shortage.name == "gpus" for shortage in shortages) else ""
    return Reason(
        WaitReasonCode.NEVER_FITS,
        f"needs {request_phrase} {needs}, and no node has more than {most}. "
        f"Ask for {phrases.all_of([shortage.advice for shortage in shortages])} per replica{replica_advice}",
        {**numbers, "short_of": [shortage.name for shortage in shortages], "node": shortages[0].node},
    )


def _nearest(group: MemberGroup, demand: Demand, empty: EmptyCluster) -> str:
    request = group.request

    def share(position: int) -> tuple[float, int]:
        allocatable, _, number = empty.node_sizes(demand.pool)[position]
        gpus = max((allocatable.gpus.get(m, 0) for m in group.models), default=0)
        shares = [
            allocatable.cpu_milli / max(1, request.cpu_milli),
            allocatable.memory_bytes / max(1, request.memory_bytes),
            gpus / request.gpu_count if request.gpu_count else 1.0,
        ]
        return (min(shares), -number)

    allocatable, _, number = empty.node_sizes(demand.pool)[max(range(len(empty.node_sizes(demand.pool))), key=share)]
    amounts = [phrases.cpus(allocatable.cpu_milli), phrases.memory(allocatable.memory_bytes)]
    if request.gpu_count:
        amounts.insert(0, phrases.gpus(max(allocatable.gpus.get(m, 0) for m in group.models), ()))
    return f"{empty.cluster.nodes[number].id} comes nearest with {phrases.all_of(amounts)}"


def _binding(group: MemberGroup, demand: Demand, empty: EmptyCluster) -> tuple[str, ...]:
    return phrases.binding(group.request, lambda request: empty.members(replace(group, request=request), demand.pool))


def _too_many(demand: Demand, empty: EmptyCluster) -> Reason:
    """Members fit, the gang does not."""
    numbers: dict[str, Any] = {"replicas": demand.gang.size}
    for group in demand.merged:
        capacity = empty.members(group, demand.pool)
        if capacity < group.count:
            where = "matching nodes hold" if demand.gang.node_selector else "cluster holds"
            binding = _binding(group, demand, empty)
            return Reason(
                WaitReasonCode.TOO_LARGE,
                f"needs {phrases.request(group.request, binding)} {each_member(group)}, and even empty the "
                f"{where} only "
                f"{capacity} of them. Ask for at most {capacity} {phrases.plural('replica', capacity)}, or for "
                f"{phrases.less(group.request, binding)}",
                numbers | {"role": group.roles[0][0], "most": capacity, "binding": list(binding)},
            )
    gang = demand.gang
    if gang.topology_required and gang.topology is not None:
        group = demand.merged[0]
        name, most = best_domain(demand, empty.capacity, gang.topology)
        return Reason(
            WaitReasonCode.TOO_LARGE,
            f"needs all {gang.size} replicas inside one {gang.topology}, and even empty none is large enough; {name} "
            f"holds {most} of its {members(group)}. Ask for fewer, or set the topology's `required` to false",
            numbers | {"level": gang.topology, "domain": name, "most": most},
        )
    if demand.is_scattered:
        anywhere = demand_of(replace(gang, servers=None, spread_servers=False), empty.cluster)
        if empty.refusal(anywhere) is None:
            rules = [
                *(["`placement: apart`"] if gang.servers == "apart" else []),
                *(["`spread: true`"] if gang.spread_servers else []),
            ]
            return Reason(
                WaitReasonCode.TOO_LARGE,
                f"needs more nodes than there are for the {phrases.all_of(rules)} of its parameter servers; "
                f"without that its {gang.size} replicas fit the empty cluster. Ask for fewer servers, or leave it out",
                numbers | {"placement": gang.servers or "beside", "spread": gang.spread_servers},
            )
    roles = phrases.all_of([f"{members(g)} with {phrases.request(g.request)} each" for g in demand.merged])
    return Reason(
        WaitReasonCode.TOO_LARGE,
        f"needs {roles}, and no arrangement of them was found even on the empty cluster. "
        f"Ask for fewer replicas, or for less each",
        numbers,
    )
