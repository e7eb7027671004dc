"""The order: what to run, as the executor wrote it (JSON, version 1)."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERSION = 1


class OrderMount:
    """``owner``: user and group that get the folder if it is still root's."""

    __slots__ = ("owner", "read_only", "source", "target")

    def __init__(self, source: str, target: str, read_only: bool, owner: tuple[int, int] | None = None) -> None:
        self.source = source
        self.target = target.rstrip("/")
        self.read_only = read_only
        self.owner = owner


class RuntimeOrder:
    """Fields as in ``executors.base.ReplicaOrder``; durations in seconds.

    ``view``: ``private`` builds the job's own root, ``mapped`` maps paths by environment and arguments, ``as_is`` is
    for containers, where an engine has made the mounts.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        if data.get("version") != VERSION:
            raise ValueError("order version %r, this runtime reads %d" % (data.get("version"), VERSION))
        key = data["key"]
        self.job_id: str = key["job_id"]
        self.attempt_id: str = key["attempt_id"]
        self.role: str = key["role"]
        self.index: int = key["index"]
        self.generation: int = key["generation"]
        self.attempt_number: int = data["attempt_number"]
        self.command: list[str] | str = data["command"]
        self.args: list[str] = data["args"]
        self.env: dict[str, str] = data["env"]
        # The Python of the command: `python`, `venv` or `conda`, and `requirements` with the folder `store`, and where
        # they are known the path of `uv` and `settings`, the package index's variables. Empty: the one on the path.
        self.environment: dict[str, Any] = data.get("environment") or {}
        self.secret_names: list[str] = data.get("secret_names") or []
        self.process_env: list[dict[str, str]] = data["process_env"] or [{}]
        self.files: dict[str, str] = data.get("files") or {}
        # The folder of trainmaster_train alone; None: where containers have it.
        self.library: str | None = data.get("library")
        self.code_path: str | None = data.get("code_path")
        self.code_digest: str | None = data.get("code_digest")
        self.mounts = [
            OrderMount(m["source"], m["target"], m["read_only"], tuple(m["owner"]) if m.get("owner") else None)
            for m in data["mounts"]
        ]
        # The commands' user, and the groups that it has besides its own; None: they run as the runtime's user.
        self.uid: int | None = data.get("uid")
        self.groups: list[int] = data.get("groups") or []
        self.cpu_limit_milli: int | None = data.get("cpu_limit_milli")
        self.memory_limit_bytes: int | None = data.get("memory_limit_bytes")
        self.shm_bytes: int | None = data.get("shm_bytes")
        self.pids_limit: int = data["pids_limit"]
        self.stop_grace_s: float = data["stop_grace_s"]
        self.exit_grace_s: float = data["exit_grace_s"]
        self.peers_grace_s: float = data["peers_grace_s"]
        self.peer_hosts: list[str] = data["peer_hosts"]
        self.deadline_s: float | None = data.get("deadline_s")
        self.api_url: str | None = data.get("api_url")
        # Where the platform says, in {"url": …}, to where it has moved since; None: `api.json` of the state folder.
        self.api_file: str | None = data.get("api_file")
        self.log_limit_bytes: int | None = data.get("log_limit_bytes") or None
        self.view: str = data.get("view", "private")
        self.use_cgroups: bool = data.get("use_cgroups", True)
        # A container's: where the command runs (None: where the image says), a file for a short copy of the exit
        # record, limits that the engine keeps, and a file that asks to stop as soon as something stands in it.
        self.cwd: str | None = data.get("cwd", "/data")
        self.termination_path: str | None = data.get("termination_path")
        self.enforced: list[str] = data.get("enforced", [])
        self.request_path: str | None = data.get("request_path")
        # Elastic gangs: the world of `env`, 0 for a joining replica; None: not elastic.
        self.world: int | None = data.get("world")
        self.joins_warm: bool = data.get("joins_warm", False)
        self.boot_id: str = data.get("boot_id", "")
        self.tombstone: str | None = data.get("tombstone")
        # Paths that the job needs as they are on the host (the Python that runs it): a view must not hide them.
        self.needed_paths: list[str] = data.get("needed_paths", [])
        # Folders of the host that the job must not see: the platform's own. A private view covers them.
        self.hidden: list[str] = data.get("hidden", [])

    @property
    def mark(self) -> str:
        """Names this start of this replica, and nothing else on the machine."""
        return "%s/%s-%d.%d" % (self.attempt_id, self.role, self.index, self.generation)

    @property
    def log_name(self) -> str:
        """Below the folder of logs. Jobs that share an output keep apart by the id."""
        return "%s/%d/%s-%d.log" % (self.job_id, self.attempt_number, self.role, self.index)

    def source_of(self, target: str) -> str | None:
        return next((m.source for m in self.mounts if m.target == target), None)


class UserProgram:
    """A program to execute: ``argv`` with ``env``, in the folder ``cwd`` as the view shows it.

    ``oom_score_adj``: ``None`` leaves it as it is.
    """

    __slots__ = ("argv", "cwd", "env", "oom_score_adj")

    def __init__(self, argv: list[str], env: dict[str, str], cwd: str, oom_score_adj: str | None) -> None:
        self.argv = argv
        self.env = env
        self.cwd = cwd
        self.oom_score_adj = oom_score_adj


def load(path: str) -> RuntimeOrder:
    with open(path, "rb") as stream:
        return RuntimeOrder(json.loads(stream.read()))
