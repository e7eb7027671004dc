"""The dependencies of the control loop: one value, made at the edge."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from core.db.engine import SessionFactory
from core.ids import new_id
from core.job_users import JobUsers
from core.wakeups import Wakeup
from executors.base import ChangesWorlds, Executor


@dataclass(frozen=True, slots=True)
class ControlContext:
    """One control plane process.

    ``holder`` is its name in leases; each process has its own. ``clock`` gives aware UTC. ``secret_key`` signs attempt
    tokens and opens secrets. ``node_grace``: how long a node may be gone before its replicas count as lost.
    ``create_at_once``: replicas of one gang that are created in parallel. ``default_volume``: the volume with the
    projects' own folders. ``region``: the region that jobs are told. ``output_owner``: (uid, gid) of output folders,
    where jobs run as another user than the control plane; ``job_users``: where each project has its own.
    ``make_id``: makes the ids of all rows that the control loop
    adds. ``make_pool``: makes the thread pools of parallel passes and creations, with the arguments of
    ``ThreadPoolExecutor``. ``can_change_worlds``: whether the executor can; determined once, as every reconcile pass
    needs it.
    """

    sessions: SessionFactory
    executor: Executor
    wakeup: Wakeup
    clock: Callable[[], datetime]
    holder: str
    secret_key: bytes = field(repr=False)
    api_url: str | None = None
    archive_dir: Path | None = None
    lease_ttl: timedelta = timedelta(seconds=15)
    node_grace: timedelta = timedelta(seconds=60)
    create_at_once: int = 1
    default_volume: str = "output"
    region: str = "local"
    output_owner: tuple[int, int] | None = None
    job_users: JobUsers | None = None
    make_id: Callable[[str], str] = new_id
    make_pool: Callable[..., futures.Executor] = futures.ThreadPoolExecutor
    can_change_worlds: bool = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "can_change_worlds", isinstance(self.executor, ChangesWorlds))
