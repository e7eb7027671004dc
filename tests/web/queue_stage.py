"""A lab of four projects with jobs that run and wait, served by the real API over SQLite, without a scheduler: what the
planner would have written is there already, so that pages and commands show the same at each look.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import uvicorn
from pydantic import SecretStr
from sqlalchemy.orm import Session
from trainmaster.spec import parse_spec

from api.app.factory import create_app
from core.db.engine import make_engine, make_sessions, unit_of_work
from core.db.leases import TICK_DONE
from core.db.tables import (
    Attempt,
    Base,
    BookingRow,
    ForecastRecord,
    Job,
    Lease,
    Membership,
    Node,
    Project,
    Replica,
    StartForecastRow,
    StorageUsage,
    Token,
    Usage,
    User,
    Volume,
)
from core.domain.sharing.resources import gang_of
from core.settings import Settings
from core.tokens import token_digest
from core.wakeups import NoWakeup

TOKEN = "tm_stage"
MEMBER_TOKEN = "tm_ada"
GIB = 2**30
PROJECTS = {
    "vision": (2.0, ("ada", "grace")),
    "speech": (1.0, ("emmy",)),
    "robotics": (1.0, ("alan",)),
    "labs": (0.5, ("kurt",)),
}
NODES = {"h100": 4, "a100": 3}  # nodes of eight each

# name, project, user, GPUs each, workers, model, started minutes ago, max run time in minutes (None: not stated)
RUNNING = [
    ("vit-large-pretrain", "vision", "ada", 8, 1, "h100", 310, 720),
    ("detr-sweep-3", "vision", "grace", 4, 1, "h100", 95, 240),
    ("detr-sweep-4", "vision", "grace", 4, 1, "h100", 92, 240),
    ("conformer-xl", "speech", "emmy", 8, 1, "h100", 45, 300),
    ("wav2vec-finetune", "speech", "emmy", 2, 1, "a100", 20, 60),
    ("policy-distill", "robotics", "alan", 8, 1, "a100", 210, None),
    ("sim2real-7", "robotics", "alan", 4, 1, "a100", 15, 90),
    ("scratch-notebook", "labs", "kurt", 0.5, 1, "a100", 140, 480),
    ("embedding-probe", "labs", "kurt", 4, 1, "h100", 60, 120),
]
# name, project, user, GPUs each, workers, models, priority, expected start in minutes (early, likely, late), reason
NO_ROOM = (
    "needs {need} on one node; the largest hole is {hole}, on {node}; {held} are held by job {by} until about {at}"
)
WAITING = [
    ("asr-eval-nightly", "speech", "emmy", 1, 1, ["h100"], 75, (12, 26, 38), "no_room"),
    ("vit-large-finetune", "vision", "ada", 8, 1, ["h100"], 75, (40, 58, 95), "no_room"),
    ("world-model-xl", "robotics", "alan", 8, 2, ["h100"], 50, (118, 146, 240), "reserved"),
    ("detr-sweep-5", "vision", "grace", 4, 1, ["h100", "a100"], 50, (64, 75, 130), "no_room"),
    ("detr-sweep-6", "vision", "grace", 4, 1, ["h100", "a100"], 50, (66, 88, 151), "no_room"),
    ("conformer-xl-ablation", "speech", "emmy", 8, 1, ["h100"], 50, (150, 205, 330), "no_room"),
    ("kurt-big-idea", "labs", "kurt", 8, 1, ["h100"], 50, None, "quota"),
    ("grasp-transformer", "robotics", "alan", 4, 1, ["a100"], 50, (70, 120, None), "no_room"),
    *[
        (
            f"seg-hpo-{n:02d}",
            "vision",
            "grace",
            2,
            1,
            ["a100"],
            25,
            (160 + 9 * n, 190 + 12 * n, 260 + 15 * n),
            "no_room",
        )
        for n in range(9)
    ],
    ("b200-bringup", "labs", "kurt", 4, 1, ["b200"], 25, None, "no_matching_node"),
    *[(f"tokenizer-{n}", "speech", "emmy", 1, 1, [], 25, None, "just") for n in range(4)],
]


@dataclass(frozen=True, slots=True)
class Stage:
    url: str
    token: str
    sessions: Any
    now: datetime


@contextmanager
def serve_stage(home: Path) -> Iterator[Stage]:
    """The lab at an address of its own."""
    home.mkdir(parents=True, exist_ok=True)
    engine = make_engine(f"sqlite:///{home / 'db.sqlite3'}")
    Base.metadata.create_all(engine)
    sessions = make_sessions(engine)
    now = datetime.now(UTC).replace(microsecond=0)
    with unit_of_work(sessions) as session:
        furnish(session, now, home)
    settings = Settings(home=home, secret_key=SecretStr("k" * 40), executor="fake", test_fake_executor=True)
    app = create_app(settings, sessions=sessions, wakeup=NoWakeup(), clock=lambda: datetime.now(UTC))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # who comes before the server has started waits for it
        port = listener.getsockname()[1]
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        try:
            yield Stage(f"http://127.0.0.1:{port}", TOKEN, sessions, now)
        finally:
            server.should_exit = True
            thread.join(timeout=20)
    engine.dispose()


def furnish(session: Session, now: datetime, home: Path) -> None:
    people = ["root", *(user for _, users in PROJECTS.values() for user in users)]
    for name in people:
        session.add(User(id=f"user-{name}", name=name, is_admin=name == "root", created_at=now))
    session.flush()
    for user, text, scopes in (("root", TOKEN, ["read", "write", "admin"]), ("ada", MEMBER_TOKEN, ["read", "write"])):
        session.add(
            Token(
                id=f"token-{user}",
                user_id=f"user-{user}",
                name="stage",
                digest=token_digest(text),
                scopes=scopes,
                created_at=now,
            )
        )
    output = home / "output"
    output.mkdir(exist_ok=True)
    session.add(Volume(id="volume-output", name="output", kind="local", root=str(output), config={}, created_at=now))
    quotas: dict[str, dict[str, Any]] = {
        "vision": {
            "limit": {"gpus": 32, "storage": "10Ti"},
            "guaranteed": {"gpus": 16, "gpus/h100": 12},
            "user_limit": {"gpus": 20},
        },
        "speech": {"limit": {"gpus": 16, "gpus/h100": 12}, "guaranteed": {"gpus": 8}},
        "robotics": {"guaranteed": {"gpus": 12}},
        "labs": {"limit": {"gpus": 4.5, "jobs": 6}},
    }
    for name, (weight, users) in PROJECTS.items():
        session.add(
            Project(
                id=f"project-{name}",
                name=name,
                weight=weight,
                quota=quotas[name],
                created_at=now,
                max_priority=50 if name == "labs" else None,
            )
        )
        session.flush()
        for user in users:
            session.add(Membership(project_id=f"project-{name}", user_id=f"user-{user}", role="admin"))
    _nodes(session, now)
    free = {f"{model}-{number}": list(range(8)) for model, count in NODES.items() for number in range(count)}
    for job in RUNNING:
        _running(session, now, free, *job)
    for number, waiting in enumerate(WAITING):
        _waiting(session, now, number, *waiting)
    for name, usage in {"vision": 0.52, "speech": 0.18, "robotics": 0.21, "labs": 0.12}.items():
        session.add(Usage(project_id=f"project-{name}", user_id="", value=usage, share=usage, at=now))
        for user in PROJECTS[name][1]:
            part = usage / len(PROJECTS[name][1])
            session.add(Usage(project_id=f"project-{name}", user_id=f"user-{user}", value=part, share=part, at=now))
    parts = {"outputs": 8 * 2**40, "models": 2**39, "archives": 2**32, "uploads": 0, "metrics": 2**30}
    session.add(
        StorageUsage(
            project_id="project-vision", parts=parts, used_bytes=sum(parts.values()), measured_at=now, due_at=now
        )
    )
    session.add(Lease(name=TICK_DONE, holder="", token=1, expires_at=now))
    session.add(
        BookingRow(
            id="reservation-demo",
            name="review-demo",
            project_id="project-robotics",
            nodes=["a100-2"],
            begins_at=now + timedelta(minutes=110),
            ends_at=now + timedelta(minutes=290),
            created_by="user-root",
            created_at=now,
        )
    )


def _nodes(session: Session, now: datetime) -> None:
    for model, count in NODES.items():
        for number in range(count):
            session.add(
                Node(
                    name=f"{model}-{number}",
                    executor="fake",
                    labels={"pool": model},
                    allocatable={"cpu_milli": 96_000, "memory_bytes": 1024 * GIB, "gpus": {model: 8}},
                    gpus=[{"id": str(gpu), "model": model, "memory_bytes": 80 * GIB} for gpu in range(8)],
                    is_ready=True,
                    seen_at=now,
                )
            )


def _job(
    session: Session, now: datetime, name: str, project: str, user: str, spec: dict[str, Any], **fields: Any
) -> Job:
    parsed = parse_spec({"name": name, "project": project, "command": "python train.py", **spec})
    gang = gang_of(parsed)
    job = Job(
        id=f"job-{name}",
        project_id=f"project-{project}",
        user_id=f"user-{user}",
        name=name,
        spec=parsed.model_dump(mode="json"),
        gang=gang.to_json(),
        shape=gang.shape(),
        gpu_milli=gang.gpu_milli,
        priority=parsed.priority,
        max_run_time_s=parsed.max_run_time,
        output_volume="output",
        output_path=f"{project}/job-{name}",
        updated_at=now,
        **fields,
    )
    session.add(job)
    session.flush()
    return job


def _running(
    session: Session,
    now: datetime,
    free: dict[str, list[int]],
    name: str,
    project: str,
    user: str,
    gpus: float,
    workers: int,
    model: str,
    ago: int,
    most: int | None,
) -> None:
    began = now - timedelta(minutes=ago)
    spec = {"gpus": gpus, "workers": workers, "gpu_type": model, "cpu": 8, "memory": "64Gi"}
    if most is not None:
        spec["max_run_time"] = f"{most}m"
    job = _job(
        session,
        now,
        name,
        project,
        user,
        spec,
        state="running",
        attempt_count=1,
        created_at=began - timedelta(minutes=9),
        queued_at=began - timedelta(minutes=9),
        started_at=began,
    )
    attempt_id = f"attempt-{name}"
    session.add(
        Attempt(
            id=attempt_id, job_id=job.id, number=1, state="running", executor="fake", created_at=began, started_at=began
        )
    )
    queued = began - timedelta(minutes=9)
    shown = {"early": began - timedelta(minutes=5), "likely": began - timedelta(minutes=4), "late": began}
    projected = {"early_s": 240.0, "likely_s": 300.0, "late_s": 540.0}
    session.add(
        ForecastRecord(job_id=job.id, attempt=1, step=0, made_at=queued, started_at=began, **projected, **shown)
    )
    session.flush()
    for index in range(workers):
        count = max(1, int(gpus))
        node = next(each for each, left in free.items() if each.startswith(model) and len(left) >= count)
        devices = [str(free[node].pop(0)) for _ in range(count)]
        session.add(
            Replica(
                id=f"replica-{name}-{index}",
                attempt_id=attempt_id,
                job_id=job.id,
                role="worker",
                index=index,
                rank=index,
                state="running",
                node=node,
                gpus=devices,
                gpu_model=model,
                gpu_milli=int(gpus * 1000) if gpus < 1 else 0,
                cpu_milli=8000,
                memory_bytes=64 * GIB,
                started_at=began,
            )
        )


def _waiting(
    session: Session,
    now: datetime,
    number: int,
    name: str,
    project: str,
    user: str,
    gpus: int,
    workers: int,
    models: list[str],
    priority: int,
    start: tuple[int, int, int | None] | None,
    why: str,
) -> None:
    since = now - timedelta(minutes=90 - 3 * number)
    spec = {"gpus": gpus, "workers": workers, "priority": priority, "cpu": 8, "memory": "64Gi"}
    if models:
        spec["gpu_type"] = models
    job = _job(
        session,
        now,
        name,
        project,
        user,
        spec,
        state="queued",
        created_at=since,
        queued_at=since,
        wait_reason=_reason(why, gpus, workers, models, now),
    )
    if start is not None:
        early, likely, late = (None if minutes is None else now + timedelta(minutes=minutes) for minutes in start)
        words = f"probably at about {likely:%H:%M} UTC" if likely else "when an end is known"
        forecast = {"earliest": early, "likely": likely, "latest": late, "sentence": words, "nodes": ["h100-3"]}
    elif why != "just":
        forecast = {"code": "never", "sentence": "never, as things are", "nodes": []}
    else:
        return
    session.add(StartForecastRow(job_id=job.id, position=number + 1, at=now, **forecast))


def _reason(why: str, gpus: int, workers: int, models: list[str], now: datetime) -> dict[str, Any] | None:
    model = (models or ["a100"])[0]
    at = (now + timedelta(minutes=26)).strftime("%H:%M")
    need = f"{workers} × {gpus} × {model}" if workers > 1 else f"{gpus} × {model}"
    match why:
        case "no_room":
            sentence = NO_ROOM.format(
                need=need, hole="4" if model == "h100" else "2", node=f"{model}-3", held=4, by="embedding-probe", at=at
            )
            return {
                "code": "no_room",
                "sentence": sentence,
                "numbers": {"needed_gpus": gpus * workers, "largest_hole_gpus": 2},
            }
        case "reserved":
            sentence = f"needs {need} on two nodes; h100-0 and h100-1 are kept for it from about {at} on"
            return {"code": "reserved", "sentence": sentence, "numbers": {"needed_gpus": gpus * workers}}
        case "quota":
            sentence = "project labs may use 4.5 GPUs at once and has 4.5; this job needs 8, so it can never start"
            return {
                "code": "quota",
                "sentence": sentence,
                "numbers": {"limit_gpus": 4.5, "held_gpus": 4.5, "needed_gpus": 8},
            }
        case "no_matching_node":
            sentence = "no node has the GPU model b200; the nodes have a100, h100"
            return {"code": "no_matching_node", "sentence": sentence, "numbers": {}}
        case _:
            return None
