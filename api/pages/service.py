"""The pages' content."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from trainmaster.wire.jobs import JobView

from api.auth import Caller
from api.health import service as health
from api.jobs.listing import JobQuery, list_page
from api.login.service import identity
from api.version import VERSION
from api.work import Platform
from core.db.tables import Node, Replica
from core.domain.states import ReplicaState

_PAGES: Final = Environment(
    loader=PackageLoader("api.pages", "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
)
# Icon and word and colour: no meaning by colour alone.
_ICONS: Final = {
    "queued": "◷",
    "starting": "◔",
    "running": "▶",
    "paused": "⏸",
    "cancelling": "◌",
    "succeeded": "✓",
    "failed": "✗",
    "cancelled": "⊘",
    "expired": "⌛",
}
_JOBS: Final = 25
_COMMAND: Final = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class NodeLine:
    name: str
    condition: str
    is_well: bool
    cpu: str
    memory: str
    gpus: str
    replicas: int


def _with_code(text: str) -> Markup:
    """A sentence with its `commands` set as such. What it quotes is escaped."""
    return Markup(_COMMAND.sub(r"<code>\1</code>", str(escape(text))))  # noqa: S704 (escaped before)


_PAGES.filters["with_code"] = _with_code


def render_login(told: str) -> str:
    """The login page. ``told``: why the last try did not work."""
    return _PAGES.get_template("login.html").render(told=told, version=VERSION)


def render_home(platform: Platform, caller: Caller) -> str:
    """Who you are, how the platform is, its nodes, the newest jobs and why they wait."""
    state = health.look(platform, VERSION)
    with platform.read() as work:
        jobs = list_page(work, caller, JobQuery(limit=_JOBS)).items
        nodes = _nodes(work.session)
        now = work.now
    return _PAGES.get_template("home.html").render(
        me=identity(caller),
        health=state,
        nodes=nodes,
        jobs=[_job_line(job, now) for job in jobs],
        now=f"{now:%Y-%m-%d %H:%M:%S} UTC",
    )


def _job_line(job: JobView, now: datetime) -> dict[str, Any]:
    why = ""
    if job.wait_reason is not None:
        why = job.wait_reason.sentence
    elif job.exit is not None:
        why = job.exit.sentence
    elif job.progress.get("step") is not None:
        steps = job.progress.get("steps")
        why = f"step {job.progress['step']}" + (f" of {steps}" if steps is not None else "")
    roles = " + ".join(_counted(count, role) for role, count in job.roles.items())
    return {
        "job": job,
        "icon": _ICONS.get(job.state, "•"),
        "gang": roles + (f", {_counted(job.gpu_count, 'GPU')}" if job.gpu_count else ""),
        "why": why,
        "age": _ago(now, job.created_at),
        "submitted": f"{job.created_at:%Y-%m-%d %H:%M:%S} UTC",
    }


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 or noun.endswith("s") else f"{count} {noun}s"


def _ago(now: datetime, then: datetime) -> str:
    seconds = max(0, int((now - then).total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def _nodes(session: Session) -> list[NodeLine]:
    live = [state.value for state in ReplicaState if not state.is_terminal]
    counts = select(Replica.node, func.count()).where(Replica.state.in_(live)).group_by(Replica.node)
    held = {row[0]: row[1] for row in session.execute(counts)}
    nodes = session.execute(select(Node).order_by(Node.name)).scalars().all()
    return [_node_line(node, held.get(node.name, 0)) for node in nodes]


def _node_line(node: Node, replicas: int) -> NodeLine:
    condition = "ready" if node.is_ready else node.condition or "not ready"
    if node.is_cordoned:
        condition += f", cordoned: {node.cordon_reason}" if node.cordon_reason else ", cordoned"
    gpus: dict[str, int] = node.allocatable.get("gpus", {})
    return NodeLine(
        name=node.name,
        condition=condition,
        is_well=node.is_ready and not node.is_cordoned,
        cpu=f"{node.allocatable.get('cpu_milli', 0) / 1000:g}",
        memory=f"{node.allocatable.get('memory_bytes', 0) / 2**30:.1f} GiB",
        gpus=", ".join(f"{count} × {model}" for model, count in gpus.items()) or "none",
        replicas=replicas,
    )
