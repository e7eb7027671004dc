"""Scenarios: nodes, jobs and expectations, read from YAML, and job lists in CSV. ``docs/planner.md`` shows one.

A job is written as in a job spec (``workers: 2``, ``gpus: 8``, ``node_selector`` …), plus ``at``, ``duration`` and,
for many equal jobs, ``count`` with ``every`` or ``mean_interval`` (exponential, from the scenario's seed).

A job list is a platform's own history or a published trace:
``{file: jobs.csv, columns: {at: submit_time, duration: duration, gpus: num_gpu}, unit: ms}``. Known columns: ``name``,
``at``, ``duration``, ``gpus`` (of the whole job), ``replicas``, ``gpu_type``, ``cpu`` and ``memory`` (of a replica),
``priority``, ``max_run_time``, ``project``, ``user``. A job with more GPUs than the largest node becomes replicas
of whole nodes.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random  # noqa: TID251 (seeded by the scenario; the seed is printed)
from typing import Any, Final

import yaml
from trainmaster.spec.quantity import parse_bytes, parse_cpu_milli, parse_duration_s

from core.domain.ids import NodeId
from core.domain.sharing.policy import Policy
from core.domain.sharing.resources import Amounts, Gang, GangRole, ResourceRequest
from scheduler.planning import NodeSnapshot
from scheduler.planning.model import Account, Booking
from scheduler.simulator.errors import ScenarioError, check_keys
from scheduler.simulator.estimates import LEARNT_AFTER_S, Knowledge
from scheduler.simulator.reading.arrival import Arrival, from_zero, gang_from
from scheduler.simulator.reading.settings import read_accounts, read_bookings, read_policy

DEFAULT_START: Final = datetime(2026, 1, 1, tzinfo=UTC)
_NODE_KEYS: Final = frozenset({"name", "count", "cpu", "memory", "gpus", "labels", "cordoned"})
_TIMING_KEYS: Final = frozenset({"at", "duration", "count", "every", "mean_interval", "user", "resumable"})
_KEYS: Final = frozenset(
    {
        "name", "about", "start", "seed", "tick", "look", "nodes", "jobs", "trace", "expect", "until", "policy",
        "accounts", "bookings", "restart_cost", "resize_cost", "checkpoint_every", "estimates", "learnt_after",
    }
)  # fmt: skip
# The options that each kind of line takes besides its own value.
_OPTIONS: Final[Mapping[str, set[str]]] = {
    "started": {"by", "at", "after", "nodes"},
    "waiting": {"at", "code", "says"},
    "order": set(),
    "beside": {"spread"},
    "free": {"gpus", "at"},
    "nodes_of": {"count"},
    "racks_of": {"count"},
    "model_of": {"is"},
    "max_wait": set(),
    "finished": set(),
    "utilisation": set(),
}
_OF_A_JOB = frozenset({"started", "waiting", "beside", "nodes_of", "racks_of", "model_of"})
_TIME_UNITS: Final = {"s": 1.0, "ms": 0.001}
_CSV_COLUMNS: Final = (
    "name", "at", "duration", "gpus", "replicas", "gpu_type", "cpu", "memory", "priority", "max_run_time", "project",
    "user",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Expectation:
    """``kind``: the keyword of the line, such as ``started``; ``line``: all of it."""

    kind: str
    line: Mapping[str, Any]

    def __str__(self) -> str:
        return ", ".join(f"{key}: {value}" for key, value in self.line.items())


@dataclass(frozen=True, slots=True)
class Scenario:
    """``tick_s``: minimum planning interval; 0: plan after every arrival and end. ``look_s``: maximum planning
    interval while a job waits, in addition to the moments at which an answer may change.

    ``restart_cost_s``: restart time of a preempted job, while it holds its GPUs; ``resize_cost_s``: of an elastic job
    that grows or shrinks. ``checkpoint_every_s``: it also loses its work since the last multiple; ``None``: it writes
    a checkpoint in its grace period. ``knowledge``: what is known of run times.
    """

    name: str
    nodes: tuple[NodeSnapshot, ...]
    arrivals: tuple[Arrival, ...]
    expect: tuple[Expectation, ...] = ()
    about: str = ""
    seed: int = 0
    tick_s: float = 0.0
    until_s: float = math.inf
    start: datetime = field(default=DEFAULT_START)
    look_s: float = math.inf
    policy: Policy = field(default_factory=Policy)
    accounts: tuple[Account, ...] = ()
    bookings: tuple[Booking, ...] = ()
    restart_cost_s: float = 0.0
    resize_cost_s: float = 0.0
    checkpoint_every_s: float | None = None
    knowledge: Knowledge = Knowledge.UNKNOWN
    learnt_after_s: float = LEARNT_AFTER_S


def load(path: Path, *, seed: int | None = None) -> Scenario:
    """The scenario of a YAML file; ``seed`` overrides its own. Raises :class:`ScenarioError`, which names the place."""
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ScenarioError(f"{path}: cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise ScenarioError(f"{path}: is not YAML: {error}") from error
    if seed is not None and isinstance(data, dict):
        data["seed"] = seed
    return parse(data, folder=path.parent, default_name=path.stem)


def parse(data: Any, *, folder: Path = Path(), default_name: str = "scenario") -> Scenario:
    """``folder``: where a trace's file is looked up."""
    if not isinstance(data, Mapping):
        raise ScenarioError("a scenario is a mapping with nodes and jobs")
    check_keys(data, sorted(_KEYS), "scenario")
    seed = int(data.get("seed", 0))
    random = Random(seed)  # noqa: S311 (a workload, not a secret)
    nodes = read_nodes(data.get("nodes", []))
    arrivals = [arrival for number, job in enumerate(data.get("jobs", [])) for arrival in _jobs(job, number, random)]
    if "trace" in data:
        arrivals += _read_job_list(data["trace"], folder, nodes)
    names = [arrival.name for arrival in arrivals]
    if len(set(names)) < len(names):
        raise ScenarioError(f"jobs: the name {next(n for n in names if names.count(n) > 1)!r} stands twice")
    start = _moment(data.get("start"))
    return Scenario(
        name=str(data.get("name", default_name)),
        about=str(data.get("about", "")).strip(),
        nodes=nodes,
        arrivals=tuple(sorted(arrivals, key=lambda arrival: arrival.at_s)),
        expect=parse_expectations(data.get("expect", []), frozenset(names), frozenset(node.id for node in nodes)),
        seed=seed,
        tick_s=_seconds(data.get("tick", 0), "tick"),
        until_s=_seconds(data["until"], "until") if "until" in data else math.inf,
        start=start,
        look_s=_seconds(data["look"], "look") if "look" in data else math.inf,
        policy=read_policy(data.get("policy", {})),
        accounts=read_accounts(data.get("accounts", {})),
        bookings=read_bookings(data.get("bookings", []), start, frozenset(node.id for node in nodes)),
        restart_cost_s=_seconds(data.get("restart_cost", 0), "restart_cost"),
        resize_cost_s=_seconds(data.get("resize_cost", 0), "resize_cost"),
        checkpoint_every_s=_seconds(data["checkpoint_every"], "checkpoint_every")
        if "checkpoint_every" in data
        else None,
        knowledge=_knowledge(data.get("estimates", "unknown")),
        learnt_after_s=_seconds(data.get("learnt_after", LEARNT_AFTER_S), "learnt_after"),
    )


def read_nodes(listed: Sequence[Mapping[str, Any]]) -> tuple[NodeSnapshot, ...]:
    """Nodes as listed in a scenario; ``count`` makes several, ``{}`` in name and labels becomes the number."""
    nodes: list[NodeSnapshot] = []
    for position, given in enumerate(listed):
        where = f"nodes[{position}]"
        check_keys(given, sorted(_NODE_KEYS), where)
        count = int(given.get("count", 1))
        pattern = str(given.get("name", f"node{position}-{{}}" if count > 1 else f"node{position}"))
        if count > 1 and "{}" not in pattern:
            pattern += "-{}"
        gpus = given.get("gpus", {})
        gpus = {"gpu": gpus} if isinstance(gpus, int) else dict(gpus)
        try:
            whole = Amounts(parse_cpu_milli(given.get("cpu", 64)), parse_bytes(given.get("memory", "512Gi")), gpus)
        except ValueError as error:
            raise ScenarioError(f"{where}: {error}") from error
        for number in range(count):
            shown = f"{number:0{len(str(count - 1))}}"
            labels = {key: str(value).replace("{}", shown) for key, value in given.get("labels", {}).items()}
            cordoned = bool(given.get("cordoned", False))
            nodes.append(
                NodeSnapshot(
                    id=NodeId(pattern.replace("{}", shown)),
                    labels=labels,
                    allocatable=whole,
                    free=whole,
                    is_schedulable=not cordoned,
                    why_not="is cordoned" if cordoned else "",
                )
            )
    if not nodes:
        raise ScenarioError("nodes: missing; list at least one, such as {name: gpu-{}, count: 4, gpus: {H100: 8}}")
    return tuple(nodes)


def _jobs(given: Any, position: int, random: Random) -> Iterable[Arrival]:
    where = f"jobs[{position}]"
    if not isinstance(given, Mapping):
        raise ScenarioError(f"{where}: is a mapping such as {{name: big, at: 0, duration: 1h, workers: 2, gpus: 8}}")
    job = dict(given)
    timing = {key: job.pop(key) for key in _TIMING_KEYS if key in job}
    count = int(timing.get("count", 1))
    name = str(job.pop("name", f"job{position}"))
    gang, spec = gang_from(job, where)
    at_s = _seconds(timing.get("at", 0), f"{where}.at")
    every_s = _seconds(timing.get("every", 0), f"{where}.every")
    mean_s = _seconds(timing["mean_interval"], f"{where}.mean_interval") if "mean_interval" in timing else None
    shape = gang.shape()
    for number in range(count):
        yield Arrival(
            name=f"{name}-{number:0{len(str(count - 1))}}" if count > 1 else name,
            at_s=at_s,
            duration_s=_duration(timing.get("duration", "1h"), f"{where}.duration", random),
            gang=gang,
            shape=shape,
            priority=spec.priority,
            project=spec.project,
            user=str(timing.get("user", "user")),
            max_run_time_s=spec.max_run_time,
            is_preemptible=spec.preemptible,
            is_resumable=bool(timing.get("resumable", True)),
        )
        at_s += every_s if mean_s is None else random.expovariate(1 / mean_s)


def _duration(given: Any, where: str, random: Random) -> float:
    """``1h``, ``never``, or drawn: ``{uniform: [1m, 10m]}``, ``{exponential: 30m}``."""
    if given == "never":
        return math.inf
    if isinstance(given, Mapping) and len(given) == 1:
        if "uniform" in given:
            low, high = (_seconds(bound, where) for bound in given["uniform"])
            return random.uniform(low, high)
        if "exponential" in given:
            return random.expovariate(1 / _seconds(given["exponential"], where))
    return _seconds(given, where)


def _knowledge(given: Any) -> Knowledge:
    try:
        return Knowledge(str(given))
    except ValueError:
        raise ScenarioError(f"estimates: is one of {', '.join(Knowledge)}, not {given!r}") from None


def _seconds(given: Any, where: str) -> float:
    try:
        return parse_duration_s(given)
    except ValueError as error:
        raise ScenarioError(f"{where}: {error}") from error


def _moment(given: Any) -> datetime:
    if given is None:
        return DEFAULT_START
    moment = given if isinstance(given, datetime) else datetime.fromisoformat(str(given))
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def parse_expectations(lines: Any, jobs: frozenset[str], nodes: frozenset[str]) -> tuple[Expectation, ...]:
    """Raises :class:`ScenarioError` for an unknown keyword, job or node."""
    made: list[Expectation] = []
    for position, line in enumerate(lines):
        where = f"expect[{position}]"
        if not isinstance(line, Mapping):
            raise ScenarioError(f"{where}: is a mapping such as {{started: big, by: 2h}}")
        kind = next((key for key in line if key in _OPTIONS), None)
        if kind is None:
            raise ScenarioError(f"{where}: has none of the words {', '.join(sorted(_OPTIONS))}")
        unknown = set(line) - {kind} - _OPTIONS[kind]
        if unknown:
            raise ScenarioError(f"{where}: {kind} does not take {', '.join(sorted(map(str, unknown)))}")
        value = line[kind]
        named = value if isinstance(value, list) else [value]
        if kind in _OF_A_JOB and named[0] not in jobs:
            raise ScenarioError(f"{where}: there is no job {named[0]!r}")
        if kind == "order" and not set(named) <= jobs:
            raise ScenarioError(f"{where}: there is no job {', '.join(sorted(set(named) - jobs))}")
        if kind == "free" and value not in nodes:
            raise ScenarioError(f"{where}: there is no node {value!r}")
        made.append(Expectation(kind, dict(line)))
    return tuple(made)


def _read_job_list(given: Any, folder: Path, nodes: Sequence[NodeSnapshot]) -> list[Arrival]:
    """Arrivals in file order; the earliest at 0. Raises :class:`ScenarioError`."""
    if not isinstance(given, Mapping) or "file" not in given:
        raise ScenarioError("trace: is a mapping with `file`, and with `columns` where the names differ")
    path = folder / str(given["file"])
    columns = {name: name for name in _CSV_COLUMNS} | dict(given.get("columns", {}))
    unit = _TIME_UNITS.get(str(given.get("unit", "s")))
    if unit is None:
        raise ScenarioError("trace.unit: is s or ms")
    most = max((count for node in nodes for count in node.allocatable.gpus.values()), default=0)
    limit = int(given.get("limit", 0))
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise ScenarioError(f"trace.file: {path} cannot be read: {error.strerror}") from error
    arrivals: list[Arrival] = []
    for number, row in enumerate(rows[: limit or None]):
        fields = {name: row.get(columns[name]) or "" for name in _CSV_COLUMNS}
        try:
            arrivals.append(_csv_arrival(fields, number, unit, most))
        except ValueError as error:
            raise ScenarioError(f"{path.name}, line {number + 2}: {error}") from error
    return from_zero(arrivals)


def _csv_arrival(fields: Mapping[str, str], number: int, unit: float, most: int) -> Arrival:
    if not fields["duration"]:
        raise ValueError("the column for `duration` is missing or empty; name it under trace.columns")
    gpus = int(float(fields["gpus"] or 0))
    replicas = int(fields["replicas"] or 1)
    if not fields["replicas"] and most and gpus > most:
        replicas = -(-gpus // most)
    each = -(-gpus // replicas)
    request = ResourceRequest(
        cpu_milli=parse_cpu_milli(fields["cpu"]) if fields["cpu"] else 1000,
        memory_bytes=parse_bytes(fields["memory"]) if fields["memory"] else 2**30,
        gpu_count=each,
        gpu_models=tuple(model for model in fields["gpu_type"].split("|") if model) if each else (),
    )
    gang = Gang((GangRole("worker", replicas, request),))
    return Arrival(
        name=fields["name"] or f"job-{number:06}",
        at_s=float(fields["at"] or 0) * unit,
        duration_s=float(fields["duration"]) * unit,
        gang=gang,
        shape=gang.shape(),
        priority=int(fields["priority"] or 50),
        project=fields["project"] or "default",
        user=fields["user"] or "user",
        max_run_time_s=float(fields["max_run_time"]) * unit if fields["max_run_time"] else None,
    )
