"""What a scenario expects, each line checked after the run.

``{started: big, by: 2h}``, ``{started: big, at: 90s, nodes: [gpu-1]}``, ``{waiting: big, at: 10s, code: no_room,
says: largest hole is 6}``, ``{order: [a, b]}`` (a starts before b), ``{beside: [job, ps, worker]}`` (each ps on a node
of a worker), ``{free: gpu-2, gpus: 8, at: 1s}``, ``{nodes_of: big, count: 2}``, ``{racks_of: big, count: 1}``,
``{model_of: big, is: H100}``, ``{max_wait: 1h}``, ``{finished: all}``, ``{utilisation: 0.9}`` (at least).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from trainmaster.spec.quantity import parse_duration_s

from scheduler.simulator.metrics import summarise
from scheduler.simulator.outcome import JobHistory, SimulationOutcome

_Check = Callable[[SimulationOutcome, Mapping[str, Any]], str | None]


def failures(outcome: SimulationOutcome) -> list[str]:
    """Unmet expectations, each with what happened instead."""
    found: list[str] = []
    for expectation in outcome.scenario.expect:
        instead = _CHECKS[expectation.kind](outcome, expectation.line)
        if instead is not None:
            found.append(f"expected {{{expectation}}}, but {instead}")
    return found


def _job(outcome: SimulationOutcome, line: Mapping[str, Any], kind: str) -> JobHistory:
    return outcome.jobs[line[kind]]


def _started(outcome: SimulationOutcome, line: Mapping[str, Any]) -> str | None:
    job = _job(outcome, line, "started")
    if job.started_s is None:
        last = job.reasons[-1][1].sentence if job.reasons else "it never came to the queue"
        return f"it did not start: {last}"
    if "by" in line and job.started_s > parse_duration_s(line["by"]):
        return f"it started only at {job.started_s:g} s"
    if "at" in line and abs(job.started_s - parse_duration_s(line["at"])) > 1e-6:
        return f"it started at {job.started_s:g} s"
    if "after" in line and job.started_s < parse_duration_s(line["after"]):
        return f"it started already at {job.started_s:g} s"
    if "nodes" in line and sorted(set(job.nodes)) != sorted(line["nodes"]):
        return f"it started on {', '.join(sorted(set(job.nodes)))}"
    return None


def _waiting(outcome: SimulationOutcome, line: Mapping[str, Any]) -> str | None:
    job = _job(outcome, line, "waiting")
    at_s = parse_duration_s(line["at"]) if "at" in line else outcome.end_s
    reason = job.reason_at(at_s)
    if reason is None:
        return f"it did not wait then (started at {job.started_s} s)"
    if "code" in line and reason.code != line["code"]:
        return f"the code was {reason.code}: {reason.sentence}"
    phrases = line.get("says", [])
    for words in phrases if isinstance(phrases, list) else [phrases]:
        if words not in reason.sentence:
            return f"the reason was: {reason.sentence}"
    return None


def _order(outcome: SimulationOutcome, line: Mapping[str, Any]) -> str | None:
    starts = [(name, outcome.jobs[name].started_s) for name in line["order"]]
    starts_text = ", ".join(f"{name} at {at} s" for name, at in starts)
    times = [math.inf if at is None else at for _, at in starts]
    return f"they started: {starts_text}" if any(a >= b for a, b in pairwise(times)) else None


def _same_node(outcome: SimulationOutcome, line: Mapping[str, Any]) -> str | None:
    name, role, other = line["beside"]
    seats = _seats(outcome.jobs[name])
    alone = [node for node in seats.get(role, []) if node not in seats.get(other, [])]
    if not seats or alone:
        return f"{role} stood on {seats.get(role)} and {other} on {seats.get(other)}"
    if line.get("spread") and len(set(seats[role])) < min(len(seats[role]), len(set(seats[other]))):
        return f"{role} stood on {seats[role]} and {other} on {seats[other]}"
    return None


def _seats(job: JobHistory) -> dict[str, list[str]]:
    members = [role.role for role in job.arrival.gang.roles for _ in range(role.replicas)]
    seats: dict[str, list[str]] = {}
    for role, node in zip(members, job.nodes, strict=False):
        seats.setdefault(role, []).append(node)
    return seats


def _free(outcome: SimulationOutcome, line: Mapping[str, Any]) -> str | None:
    at_s = parse_duration_s(line["at"])
    used_gpus = 0
    for job in outcome.jobs.values():
        if job.started_s is None or job.started_s > at_s or (job.ended_s is not None and job.ended_s <= at_s):
            continue
        sizes = [r.request.gpu_count for r in job.arrival.gang.roles for _ in range(r.replicas)]
        used_gpus += sum(size for size, node in zip(sizes, job.nodes, strict=True) if node == line["free"])
    node = next(node for node in outcome.scenario.nodes if node.id == line["free"])
    free = node.allocatable.gpu_count - used_gpus
    return None if free == line["gpus"] else f"{free} GPUs were free"


def _nodes_of(outcome: SimulationOutcome, line: Mapping[str, Any]) -> str | None:
    nodes = sorted(set(_job(outcome, line, "nodes_of").nodes))
    return None if len(nodes) == line["count"] else f"it stood on {', '.join(nodes) or 'none'}"


def _racks_of(outcome: SimulationOutcome, line: Mapping[str, Any]) -> str | None:
    job = _job(outcome, line, "racks_of")
    racks = sorted({n.labels.get("topology/rack", "") for n in outcome.scenario.nodes if n.id in job.nodes})
    return None if len(racks) == line["count"] else f"it stood in {', '.join(racks) or 'none'}"


def _model_of(outcome: SimulationOutcome, line: Mapping[str, Any]) -> str | None:
    models = sorted({model for model in _job(outcome, line, "model_of").gpu_models if model})
    return None if models == [line["is"]] else f"it got {', '.join(models) or 'none'}"


def _max_wait(outcome: SimulationOutcome, line: Mapping[str, Any]) -> str | None:
    limit_s = parse_duration_s(line["max_wait"])
    for name, job in outcome.jobs.items():
        waited_s = (outcome.end_s if job.started_s is None else job.started_s) - job.arrival.at_s
        if waited_s > limit_s:
            return f"{name} waited {waited_s:g} s"
    return None


def _finished(outcome: SimulationOutcome, line: Mapping[str, Any]) -> str | None:
    names: Sequence[str] = list(outcome.jobs) if line["finished"] == "all" else [line["finished"]]
    late = [name for name in names if outcome.jobs[name].ended_s is None]
    return f"{', '.join(late[:3])} did not" if late else None


def _utilisation(outcome: SimulationOutcome, line: Mapping[str, Any]) -> str | None:
    reached = summarise(outcome).gpu_utilisation
    return None if reached >= line["utilisation"] else f"it was {reached:.3f}"


_CHECKS: Mapping[str, _Check] = {
    "started": _started,
    "waiting": _waiting,
    "order": _order,
    "beside": _same_node,
    "free": _free,
    "nodes_of": _nodes_of,
    "racks_of": _racks_of,
    "model_of": _model_of,
    "max_wait": _max_wait,
    "finished": _finished,
    "utilisation": _utilisation,
}
