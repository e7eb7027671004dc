"""A replica's state folder: the order file that the driver writes into it, and what is read from it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from core import file_locks
from core.domain.errors import ExecutorRefused
from core.domain.ids import AttemptId, JobId
from executors.base import ENVIRONMENTS, ExitCause, Observation, Phase, ReplicaExit, ReplicaKey, ReplicaOrder
from executors.order_file import order_fields
from executors.process import procfs


def state_name(key: ReplicaKey) -> str:
    """Name of the state folder of one start of a replica."""
    return f"{key.role}-{key.index}.{key.generation}"


def mark_of(key: ReplicaKey) -> str:
    """Value of the variable that every process of this start has in its environment."""
    return f"{key.attempt_id}/{state_name(key)}"


def render_order(
    order: ReplicaOrder,
    *,
    boot_id: str,
    tombstone: str,
    needed_paths: Sequence[str],
    hidden: Sequence[str],
    view: str,
    use_cgroups: bool,
    api_file: str,
    home: str,
    library: Path | None,
    build_settings: Mapping[str, Any],
    log_limit_bytes: int = 0,
) -> dict[str, Any]:
    """The order file. The token that the runtime reports with is a file of its own.

    Args:
        home: the job's, shown at the same place.
        library: a folder with the training library alone.
        build_settings: fields of an environment with requirements.
    """
    fields = order_fields(order, view=view, command=order.command or (), log_limit_bytes=log_limit_bytes)
    owners = {mount.target: mount.owner for mount in order.mounts}
    home_owner = None if order.uid is None else (order.uid, order.uid)
    fields["mounts"] = [
        *(
            {**mount, "owner": owners[mount["target"]]}
            for mount in fields["mounts"]
            if mount["target"] != ENVIRONMENTS  # the machine has its own
        ),
        {"source": home, "target": home, "read_only": False, "owner": home_owner},
    ]
    if fields["environment"].get("requirements"):
        fields["environment"] |= build_settings
    return {
        **fields,
        "uid": order.uid,
        "groups": list(order.groups),
        "api_file": api_file,
        "library": None if library is None else str(library),
        "use_cgroups": use_cgroups,
        "boot_id": boot_id,
        "tombstone": tombstone,
        "needed_paths": list(needed_paths),
        "hidden": list(hidden),
    }


_DONE: Final = (ExitCause.EXITED, ExitCause.HANGING_EXIT)


@dataclass(frozen=True, slots=True)
class RuntimeProcess:
    """The runtime that was started for a replica. ``groups``: folders of the control groups that it may have made."""

    pid: int
    start_ticks: int
    boot_id: str
    groups: tuple[str, ...] = ()

    def is_alive(self) -> bool:
        return self.boot_id == procfs.boot_id() and procfs.start_ticks(self.pid) == self.start_ticks


class ReplicaFolder:
    """One state folder; the runtime's module ``record`` lists its files."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, name: str) -> Mapping[str, Any] | None:
        try:
            data = json.loads((self.path / name).read_bytes())
        except (OSError, ValueError):
            return None
        return data if isinstance(data, dict) else None

    def write(self, name: str, data: Mapping[str, Any]) -> None:
        self.write_text(name, json.dumps(data))

    def write_text(self, name: str, text: str) -> None:
        """Replace ``name`` as a whole, readable by its owner alone. No error when the folder is gone."""
        temporary = self.path / f"{name}.{os.getpid()}.new"
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        except FileNotFoundError:
            return
        with os.fdopen(fd, "w") as stream:
            stream.write(text)
        temporary.replace(self.path / name)

    @property
    def key(self) -> ReplicaKey:
        """The replica's identity, by the folder's own name when there is no order yet."""
        stem, _, generation = self.path.name.rpartition(".")
        role, _, index = stem.rpartition("-")
        order = self.read("order.json")
        job = order["key"]["job_id"] if order else ""
        return ReplicaKey(JobId(job), AttemptId(self.path.parent.name), role, int(index), int(generation))

    def runtime(self) -> RuntimeProcess | None:
        data = self.read("runtime.json")
        if data is None:
            return None
        return RuntimeProcess(data["pid"], data["start_ticks"], data["boot_id"], tuple(data.get("cgroups") or ()))

    def claim_start(self) -> bool:
        """Whether this process starts the order, and not a forked runtime that comes late."""
        try:
            os.close(os.open(self.path / "start_claim", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except OSError:
            return False
        return True

    def try_lock(self) -> bool:
        """Whether no process, creator or runtime, holds the folder's lock now."""
        return not file_locks.is_locked(self.path / "lock")


def read_replica(folder: ReplicaFolder) -> Observation | None:
    """The replica's observation; ``None`` for a claim whose creator died before it started anything."""
    runtime = folder.runtime()
    if runtime is None:
        if folder.try_lock() and folder.runtime() is None:
            return None
        return Observation(folder.key, Phase.PENDING, detail="The runtime is being started.")
    # Life first, the record second: what ends between the two looks is seen as ended, not as lost.
    is_alive = runtime.is_alive()
    ended = folder.read("exit.json")
    status = folder.read("status.json") or {}
    started = _time(status.get("started_at"))
    facts = dict(status.get("facts") or {})
    if ended is not None:
        exit_ = _exit(ended, folder)
        done = exit_.cause in _DONE and exit_.exit_code == 0
        facts.update(ended.get("facts") or {})
        return Observation(folder.key, Phase.SUCCEEDED if done else Phase.FAILED, started, exit_, "", facts)
    if is_alive:
        phase = Phase.RUNNING if status.get("phase") == "running" else Phase.PENDING
        detail = str(status.get("detail") or ("" if phase is Phase.RUNNING else "Preparing."))
        return Observation(folder.key, phase, started, None, detail, {**facts, "runtime_pid": runtime.pid})
    procfs.kill_replica_once(folder.path, mark_of(folder.key), runtime.groups)
    return Observation(folder.key, Phase.LOST, started, None, _loss(folder.key, runtime), facts)


def _loss(key: ReplicaKey, runtime: RuntimeProcess) -> str:
    """Why a runtime left no exit record: a sentence for the user."""
    replica = f"{key.role}-{key.index}"
    if runtime.boot_id != procfs.boot_id():
        return f"The machine of {replica} was restarted."
    return (
        f"The runtime of {replica} is gone and left no exit code: something outside the platform killed it"
        " (kill -9, or the machine ran short of memory), or its container was restarted."
    )


def _exit(data: Mapping[str, Any], folder: ReplicaFolder) -> ReplicaExit:
    at = _time(data.get("at")) or datetime.fromtimestamp((folder.path / "exit.json").stat().st_mtime, UTC)
    try:
        cause = ExitCause(data["cause"])
    except ValueError:
        cause = ExitCause.UNKNOWN
    return ReplicaExit(cause, data.get("exit_code"), data.get("sentence", ""), at, data.get("log_tail", ""))


def _time(text: Any) -> datetime | None:
    return datetime.fromisoformat(text) if isinstance(text, str) else None


def check_order(order: ReplicaOrder, node: str) -> None:
    """Raise :class:`ExecutorRefused` for what plain processes cannot do."""
    if order.image is not None:
        raise ExecutorRefused(
            "This platform runs plain processes (TRAINMASTER_EXECUTOR=process) and cannot run image "
            f"{order.image}; leave out `image`, or use a platform with a container engine.",
            field=f"roles.{order.key.role}.image",
        )
    if not order.command:
        raise ExecutorRefused(
            f"Role {order.key.role} has no command, and without an image there is none to fall back on; set `command`.",
            field=f"roles.{order.key.role}.command",
        )
    for mount in order.mounts:
        if mount.kind != "local":
            raise ExecutorRefused(
                f"{mount.target}: a volume of kind {mount.kind} cannot be mounted for plain processes "
                "(TRAINMASTER_EXECUTOR=process); mount its storage on this machine, and add that folder as a volume of "
                "kind local."
            )
    if order.node != node:
        raise ExecutorRefused(f"Replica {order.key.role}-{order.key.index} was placed on {order.node}, this is {node}.")
