"""The files of ``/trainmaster/order``: ``order.json`` for the runtime, ``order.sh`` for images without Python,
``token``.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from core.domain.errors import ExecutorRefused
from executors.base import ENVIRONMENTS, ReplicaOrder
from executors.containers.paths import MOUNT_INODES, OWN, STOP_REQUEST, WORK
from executors.order_file import order_fields, world_fields

_DEVICES: Final = "CUDA_VISIBLE_DEVICES"
_LOGS: Final = f"{WORK}/output/.trainmaster/logs"


def render_order(
    order: ReplicaOrder,
    *,
    image_command: tuple[str, ...] | None,
    code_path: str | None = None,
    termination_path: str | None = None,
    enforced: Collection[str] = ("cpu", "memory"),
    log_limit_bytes: int = 0,
    is_watched: bool = False,
) -> dict[str, bytes]:
    """File name to content. All of it is secret: the environment holds the user's secrets, ``token`` the attempt's.

    Args:
        image_command: what the image itself would run (:func:`command_of_image`), for an order without a command;
            ``None`` where the driver does not know it. It runs in the image's own working directory, everything else
            runs in ``/data``.
        code_path: where the driver has put the code archive *in the container*; ``None``: fetched from the API.
        termination_path: a file that gets the exit record too, cut to 4096 bytes, such as ``/dev/termination-log``.
        enforced: limits that the engine enforces, of ``cpu``, ``memory`` and ``pids``. The runtime watches over
            memory and pids where they are missing, and logs that a CPU limit is not enforced.
        log_limit_bytes: room that the replica's log takes at most; 0: no limit.
        is_watched: the engine follows paths when it starts the container, after they were looked at, and its machine is
            this one: `start` compares the inodes of what it mounted with those that were seen, before anything runs.

    Raises:
        ExecutorRefused: there is no command to run, or the archive can neither be found nor fetched.
    """
    command = order.command or image_command
    if not command:
        raise ExecutorRefused(
            f"Role {order.key.role} has no command and its image's own is not known here; set `command`.",
            field=f"roles.{order.key.role}.command",
        )
    if order.code_digest is not None and code_path is None and (order.api_url is None or order.token is None):
        raise ExecutorRefused("The code archive cannot be fetched, because replicas get no API address.")
    fields = order_fields(
        order, view="as_is", command=command, env=_own_devices(order.env, order), log_limit_bytes=log_limit_bytes
    )
    # The image's own entrypoint has its arguments in it.
    fields["args"] = list(order.args) if order.command else []
    fields["process_env"] = [_own_devices(extra, order) for extra in order.process_env]
    fields["code_path"] = code_path
    # The job need not know the host's paths.
    fields["mounts"] = [{**mount, "source": mount["target"]} for mount in fields["mounts"]]
    fields["cwd"] = WORK if order.command else None
    fields["termination_path"] = termination_path
    fields["enforced"] = sorted(enforced)
    fields["request_path"] = STOP_REQUEST
    if needs_installer(order):
        is_shared = any(mount.target == ENVIRONMENTS for mount in order.mounts)
        fields["environment"]["store"] = ENVIRONMENTS if is_shared else f"{OWN}/environments"
    fields["use_cgroups"] = False
    files = {"order.json": json.dumps(fields).encode(), "order.sh": _script(fields).encode()}
    if order.token is not None:
        files["token"] = order.token.encode()
    inodes = [f"{mount.inode} {mount.target}\n" for mount in order.mounts if mount.inode is not None]
    if is_watched and inodes:
        files[MOUNT_INODES] = "".join(inodes).encode()
    return files


def needs_installer(order: ReplicaOrder) -> bool:
    """Whether the container also gets what the runtime image has at ``paths.INSTALLER``, to install requirements."""
    return bool(order.environment.get("requirements"))


def render_world(order: ReplicaOrder) -> bytes:
    """The world update for a running replica, as JSON. It holds no secret."""
    fields = world_fields(order)
    fields["env"] = _own_devices(fields["env"], order)
    fields["process_env"] = [_own_devices(extra, order) for extra in fields["process_env"]]
    return json.dumps(fields).encode()


def command_of_image(
    entrypoint: Sequence[str] | None, cmd: Sequence[str] | None, args: Sequence[str]
) -> tuple[str, ...]:
    """The command of an image: ``args`` replace its CMD, as in Docker. Empty: the image has none."""
    return (*(entrypoint or ()), *(args or cmd or ()))


def _own_devices(env: Mapping[str, str], order: ReplicaOrder) -> dict[str, str]:
    """The devices as the container counts them: from 0. What the user set stays."""
    if env.get(_DEVICES) != ",".join(order.gpus) or not order.gpus:
        return dict(env)
    return {**env, _DEVICES: ",".join(str(number) for number in range(len(order.gpus)))}


def _script(fields: Mapping[str, Any]) -> str:
    """The same for ``start``, which reads it with busybox's shell. Times in whole seconds, at least what was asked."""
    key = fields["key"]
    name = f"{key['role']}-{key['index']}"
    values = {
        "TM_NAME": name,
        "TM_MARK": f"{key['attempt_id']}/{name}.{key['generation']}",
        "TM_LOG": f"{_LOGS}/{key['job_id']}/{fields['attempt_number']}/{name}.log",
        "TM_PROCESSES": str(max(1, len(fields["process_env"]))),
        "TM_CWD": fields["cwd"] or "",
        "TM_TERMINATION": fields["termination_path"] or "",
        "TM_CODE_PATH": fields["code_path"] or "",
        "TM_CODE_DIGEST": fields["code_digest"] or "",
        "TM_API_URL": fields["api_url"] or "",
        "TM_PEERS": " ".join(fields["peer_hosts"]),
        "TM_PEERS_GRACE": _seconds(fields["peers_grace_s"]),
        "TM_STOP_GRACE": _seconds(fields["stop_grace_s"]),
        "TM_DEADLINE": "" if fields["deadline_s"] is None else _seconds(fields["deadline_s"]),
        "TM_MEMORY": str(fields["memory_limit_bytes"] or ""),
        "TM_LOG_LIMIT": str(fields["log_limit_bytes"]),
        "TM_ENVIRONMENT": "named" if fields["environment"] else "",
        "TM_WORLD": "" if fields["world"] is None else str(fields["world"]),
        "TM_WHO": json.dumps({part: key[part] for part in ("role", "index", "generation")})[1:-1],
    }
    lines = [f"{variable}={shlex.quote(value)}" for variable, value in values.items()]
    lines += _function("tm_env", _exports(fields["env"]))
    for number, extra in enumerate(fields["process_env"] or [{}]):
        lines += _function(f"tm_env_{number}", _exports(extra))
    lines += _function("tm_files", _writes(fields["files"]))
    lines += _function("tm_command", [_run(fields["command"], fields["args"])])
    return "\n".join(lines) + "\n"


def _run(command: Sequence[str] | str, args: Sequence[str]) -> str:
    # As trainmaster_runtime.process.spawn.argv_of does it; `start` sets TM_SHELL, to our own where the image has none.
    if isinstance(command, str):
        words = [command + ' "$@"', "sh", *args] if args else [command]
        return f'tm_run "$TM_SHELL" -c {shlex.join(words)}'
    return f"tm_run {shlex.join([*command, *args])}"


def _exports(env: Mapping[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in env.items()]


def _writes(files: Mapping[str, str]) -> list[str]:
    return [f"tm_write {shlex.quote(path)} {shlex.quote(content)}" for path, content in files.items()]


def _function(name: str, lines: Sequence[str]) -> list[str]:
    return [f"{name}() {{", *(lines or [":"]), "}"]


def _seconds(seconds: float) -> str:
    return str(math.ceil(seconds))
