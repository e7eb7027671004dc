"""Jobs for the simulated control planes: what they ask for, what their replicas do, and how they must end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from random import Random
from typing import Any

from trainmaster.spec import parse_spec

from core import secrets
from core.db.engine import SessionFactory
from core.db.tables import Job, PolicyRow, Project, Secret, User, Volume
from core.domain.jobs.states import JobState
from core.domain.sharing.resources import gang_of
from executors.base import ExitCause, ReplicaOrder
from executors.fake import Script

FOREVER = Script(run_for=None)
KEY = b"k" * 32
SECRET = "API_KEY"


@dataclass
class Case:
    """``fails`` starts of ``worker-0`` end with ``failure``; then it works. ``ends``: the states that are right."""

    name: str
    spec: dict[str, Any]
    ends: frozenset[JobState]
    seconds: float = 5.0
    fails: int = 0
    failure: Script = field(default_factory=Script)
    forever: frozenset[str] = frozenset()
    must_cancel: bool = False
    output_volume: str = "output"


def draw_case(random: Random, number: int) -> Case:
    """Some job."""
    workers = random.randint(1, 3)
    name = f"job-{number}"
    base: dict[str, Any] = {"name": name, "command": "train", "priority": random.choice([10, 50, 90])}
    roles: dict[str, Any] = {"worker": {"replicas": workers, "resources": {"cpu": random.choice(["1", "2"])}}}
    killed = Script(run_for=timedelta(seconds=1), exit_code=137, cause=ExitCause.SIGNALLED)
    succeeded = frozenset({JobState.SUCCEEDED})
    failed = frozenset({JobState.FAILED})
    seconds = random.uniform(0, 12)
    kind = random.choice(
        ["plain", "plain", "flaky", "ps", "chief", "hopeless", "exhausted", "gpu", "replica", "forever"]
    )
    match kind:
        case "flaky":
            spec = {**base, "roles": roles, "max_restarts": 3}
            return Case(name, spec, succeeded, seconds, fails=random.randint(1, 3), failure=killed)
        case "ps":
            roles |= {"ps": {"replicas": 1}, "evaluator": {"replicas": 1}}
            spec = {**base, "roles": roles, "grace": {"evaluator": 3, "stop": 5}}
            return Case(name, spec, succeeded, seconds, forever=frozenset({"ps", "evaluator"}))
        case "chief":
            spec = {**base, "roles": roles | {"chief": {"replicas": 1}}}
            return Case(name, spec, succeeded, seconds, forever=frozenset({"worker"}))
        case "hopeless":
            missing = Script(run_for=timedelta(), exit_code=127, log_tail="sh: 1: train: not found")
            return Case(name, {**base, "roles": roles}, failed, seconds, fails=999, failure=missing)
        case "exhausted":
            spec = {**base, "roles": roles, "max_restarts": 1}
            return Case(name, spec, failed, seconds, fails=999, failure=killed)
        case "gpu":
            roles["worker"] |= {"replicas": random.randint(1, 2), "resources": {"gpus": random.randint(1, 3)}}
            return Case(name, {**base, "roles": roles}, succeeded, seconds)
        case "replica":
            roles["worker"]["restart"] = "replica"
            spec = {**base, "roles": roles, "max_restarts": 3}
            return Case(name, spec, succeeded, seconds, fails=1, failure=killed)
        case "forever":
            return Case(
                name, {**base, "roles": roles}, frozenset(), seconds, forever=frozenset({"worker"}), must_cancel=True
            )
        case _:
            return Case(name, {**base, "roles": roles}, succeeded, seconds)


def break_machine(case: Case) -> Case:
    """The same; what killed it from outside is an error of the machine now, which the job meets wherever it happens to
    be.
    """
    if case.failure.cause is not ExitCause.SIGNALLED:
        return case
    broken = replace(
        case.failure, cause=ExitCause.EXITED, exit_code=1, log_tail="RuntimeError: CUDA error: uncorrectable ECC error"
    )
    return replace(case, failure=broken)


def vary_case(random: Random, case: Case) -> Case:
    """Often the same; else with a limit of time, a secret, or something missing that is noticed only at its start."""
    match random.choice(["same", "same", "same", "same", "run time", "wait", "secret", "no secret", "no root"]):
        case "run time" if not case.fails:
            spec = case.spec | {"max_run_time": f"{random.randint(1, 10)}s"}
            everywhere = frozenset(spec["roles"])
            return replace(case, spec=spec, ends=frozenset({JobState.EXPIRED}), forever=everywhere, must_cancel=False)
        case "wait":
            spec = case.spec | {"max_wait": f"{random.randint(5, 30)}s"}
            return replace(case, spec=spec, ends=case.ends | {JobState.EXPIRED})
        case "secret":
            return replace(case, spec=case.spec | {"secrets": [SECRET]})
        case "no secret":
            spec = case.spec | {"secrets": [SECRET, "NOBODY_SET_THIS"]}
            return replace(case, spec=spec, ends=frozenset({JobState.FAILED}), must_cancel=False)
        case "no root":
            return replace(case, ends=frozenset({JobState.FAILED}), output_volume="rootless", must_cancel=False)
        case _:
            return case


def make_elastic(random: Random, case: Case, node_gpus: Sequence[int]) -> Case:
    """Often the same; else its workers may be fewer than all of them. ``node_gpus``: of each node; the fewest have
    room.
    """
    roles = case.spec["roles"]
    is_simple = set(roles) <= {"worker", "chief"} and "restart" not in roles["worker"] and case.fails < 4
    if not is_simple or random.random() < 0.5:
        return case
    replicas = roles["worker"]["replicas"] + random.randint(1, 2)
    least = random.randint(1, replicas - 1)
    gpus = roles["worker"]["resources"].get("gpus", 0)
    if gpus:  # a job that asks for more than there is waits for ever, and rightly
        least = min(least, sum(count // gpus for count in node_gpus))
    worker = {**roles["worker"], "replicas": {"min": least, "max": replicas}}
    return replace(case, spec=case.spec | {"roles": {**roles, "worker": worker}})


class Scripts:
    """What created replicas do."""

    def __init__(self, cases: dict[str, Case]) -> None:
        self.cases = cases
        self.starts: dict[str, int] = {}

    def __call__(self, order: ReplicaOrder) -> Script:
        case = self.cases[order.job_name]
        assert case.output_volume == "output", "what has no place for its output was started"
        assert set(case.spec.get("secrets", ())) <= {SECRET}, "what lacks a secret was started"
        assert order.env.get(SECRET) == ("hush" if "secrets" in case.spec else None)
        if order.key.role in case.forever:
            return FOREVER
        if order.key.role == "worker" and order.key.index == 0:
            started = self.starts[order.job_name] = self.starts.get(order.job_name, 0) + 1
            if started <= case.fails:
                return case.failure
        return Script(start_after=timedelta(seconds=0.2), run_for=timedelta(seconds=case.seconds))


def add_platform(sessions: SessionFactory, now: datetime) -> None:
    """A project, a user and the volume of outputs."""
    with sessions() as session, session.begin():
        session.add_all(
            [
                Project(id="project-1", name="default", created_at=now, quota={}),
                User(id="user-1", name="ann", is_admin=False, created_at=now),
                Volume(
                    id="volume-1", name="output", kind="nfs", root=None, config={"path": "/srv/output"}, created_at=now
                ),
                Volume(id="volume-2", name="rootless", kind="nfs", root=None, config={}, created_at=now),
                Secret(
                    project_id="project-1",
                    name=SECRET,
                    ciphertext=secrets.seal(KEY, "project-1", SECRET, "hush"),
                    updated_at=now,
                ),
            ]
        )


def first_comers(random: Random) -> list[Case]:
    """Jobs of the least priority that have most of the nodes when the others come."""
    cases = []
    for number in range(random.randint(1, 3)):
        name = f"first-{number}"
        replicas: Any = random.choice([2, 3, {"min": 1, "max": 4}])
        worker = {"replicas": replicas, "resources": {"cpu": random.choice(["1", "2"])}}
        spec = {"name": name, "command": "train", "priority": 1, "roles": {"worker": worker}, "max_restarts": 1}
        cases.append(Case(name, spec, frozenset({JobState.SUCCEEDED}), random.uniform(8, 25)))
    return cases


def let_others_take_places(sessions: SessionFactory, now: datetime) -> None:
    """Places are taken after a second, with three seconds for a checkpoint."""
    with sessions() as session, session.begin():
        values = {"min_run_time_s": 1.0, "grace_s": 3.0, "restart_cost_s": 0.0}
        session.add(PolicyRow(name="policy", settings=values, generation=1, updated_at=now, updated_by="root"))


def add_job(sessions: SessionFactory, case: Case, now: datetime) -> str:
    """The row that the API writes."""
    spec = parse_spec(case.spec)
    gang = gang_of(spec)
    with sessions() as session, session.begin():
        session.add(
            Job(
                id=f"id-{case.name}",
                project_id="project-1",
                user_id="user-1",
                name=spec.name,
                spec=spec.model_dump(mode="json"),
                gang=gang.to_json(),
                shape=gang.shape(),
                state=JobState.QUEUED.value,
                priority=spec.priority,
                max_run_time_s=spec.max_run_time,
                output_volume=case.output_volume,
                output_path=f"default/{case.name}",
                created_at=now,
                queued_at=now,
                updated_at=now,
            )
        )
    return f"id-{case.name}"
