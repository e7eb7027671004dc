"""Maps a custom job's spec to our job spec, and the fields that errors name back to those of the client's request."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from api.protocols.gcs.buckets import Bucket, find_bucket, open_uri
from api.protocols.kit.json_values import command_with_packages, display_name, own_labels
from api.protocols.kit.vertex_table import Table
from api.protocols.vertex.names import VertexCall
from api.protocols.vertex.training import tracking
from api.protocols.vertex.training.specs import CustomJobSpec, Pool, Program
from api.volumes.access import access_refusal
from core.domain.errors import InvalidRequest, InvalidSpec, TrainmasterError
from core.storage.tree import LeavesVolume

ROLES: Final = ("chief", "worker", "ps", "evaluator")
GCS: Final = "/gcs"
# Restarts of a job that requests them; Vertex AI documents no number.
_RESTARTS: Final = 3
_LOW: Final = 25  # priority of spot and low-cost jobs
_BUCKET: Final = re.compile(r"(?:gs://|/gcs/)([a-z0-9][a-z0-9._-]{0,61}[a-z0-9])(?:/([a-z0-9][a-z0-9-]{0,62}))?")


@dataclass(frozen=True, slots=True)
class JobOrder:
    """A job to submit."""

    spec: CustomJobSpec
    display_name: str
    labels: Mapping[str, str]


def job_spec_of(call: VertexCall, order: JobOrder, table: Table) -> dict[str, Any]:
    """Our job spec, not yet validated. Checks the buckets that it names.

    Raises:
        InvalidRequest, NotFound, Forbidden: an unknown machine type, accelerator or bucket.
    """
    spec = order.spec
    selector = table.node_selector(call.parent.location)
    roles: dict[str, Any] = {}
    for role, pool in zip(ROLES, spec.pools, strict=False):
        if pool is not None:
            roles[role], own_selector = _role(pool, table)
            selector |= own_selector
    job_spec: dict[str, Any] = {
        "name": display_name(order.display_name),
        "project": call.parent.own,
        "roles": roles,
        "env": {
            "CLOUD_ML_REGION": call.parent.location,
            **tracking.environment(call, spec, table),
        },
        "mounts": _mounts(call, spec, table),
        "labels": own_labels(order.labels),
        "max_run_time": spec.timeout_s,
        "max_restarts": _RESTARTS if spec.restarts else 0,
        "node_selector": selector,
    }
    if spec.max_wait_s is not None:
        job_spec["max_wait"] = spec.max_wait_s
    if spec.strategy in ("SPOT", "LOW_COST"):
        job_spec["priority"] = _LOW
    if spec.base_output:
        bucket, names = open_uri(
            call.context, call.caller, spec.base_output, "base_output_directory", writes=True, table=table
        )
        job_spec["output"] = bucket.location(names)
    return job_spec


def _role(pool: Pool, table: Table) -> tuple[dict[str, Any], dict[str, str]]:
    resources, selector = pool.machine.resources(table)
    program = pool.program
    role: dict[str, Any] = {
        "replicas": pool.replicas,
        "resources": resources,
        # In Vertex AI a replica is one process, however many GPUs it has; it may start others itself.
        "processes_per_replica": 1,
        "env": dict(program.env),
        "args": list(program.args),
    }
    if (image := table.image(program.image)) is not None:
        role["image"] = image
    if command := _command(program):
        role["command"] = command
    return role, selector


def _command(program: Program) -> list[str]:
    if not program.module:
        return list(program.command)
    packages = [f"{GCS}/{uri.removeprefix('gs://')}" for uri in program.packages]
    return command_with_packages(packages, "python3", "-m", program.module)


# --- buckets ---------------------------------------------------------------------------------------------------------


def _mounts(call: VertexCall, spec: CustomJobSpec, table: Table) -> list[dict[str, Any]]:
    """Mounts of all buckets that the job names anywhere, at ``/gcs/<bucket>``.

    Unknown buckets are ignored, except for packages: their names may be other text.
    """
    mounts: dict[str, dict[str, Any]] = {}
    needed = {uri.split("/", 3)[2] for pool in spec.pools if pool is not None for uri in pool.program.packages}
    for name, folder in _named(spec):
        try:
            bucket = find_bucket(call.context, call.caller, name, table=table)
            mounts |= {mount["at"]: mount for mount in _mounts_of(call, bucket, folder)}
        except TrainmasterError:
            if name in needed:
                raise
    return list(mounts.values())


def _named(spec: CustomJobSpec) -> Iterator[tuple[str, str]]:
    """(bucket, first folder) of each bucket path in the spec."""
    for pool in spec.pools:
        if pool is None:
            continue
        program = pool.program
        texts = (*program.packages, *program.command, *program.args, *(value for _, value in program.env))
        yield from (match for text in texts for match in _BUCKET.findall(text))
    yield from _BUCKET.findall(spec.base_output)


def _mounts_of(call: VertexCall, bucket: Bucket, folder: str) -> list[dict[str, Any]]:
    """The mounts of a bucket: of the shared volume only the project's own folder, of a bucket of which only some
    folders are granted each of them.
    """
    at = f"{GCS}/{bucket.name}"
    if bucket.is_shared:
        places = {f"{at}/{folder}": folder} if folder == call.parent.own else {}
    elif bucket.within is not None:
        places = {f"{at}/{path}": path for path in sorted(bucket.within)}
    else:
        places = {at: bucket.base}
    return [mount for at, path in places.items() if (mount := _mount(call, bucket, path, at)) is not None]


def _mount(call: VertexCall, bucket: Bucket, path: str, at: str) -> dict[str, Any] | None:
    """Read-only where the caller may only read; otherwise the folder is created if missing."""
    settings, volume = call.context.settings, call.context.volumes.find(bucket.volume, call.context.clock())
    is_writable = volume is not None and access_refusal(settings, call.caller, volume, path, writes=True) is None
    if path:
        if is_writable:
            bucket.top.make_folder(path)
        if bucket.top.is_link(path):
            raise LeavesVolume(f"{path} is a link, and is not followed.")
        if is_writable and settings.folder_owner is not None:
            bucket.top.give_folder(path, settings.folder_owner)
        if not bucket.top.exists(path):
            return None  # of a project, or of a grant, that has no files yet, and which the caller may only read
    return {"volume": bucket.volume, "path": path, "at": at, "read_only": not is_writable}


# --- errors ----------------------------------------------------------------------------------------------------------

# Field of our job spec -> field of the request.
_FIELDS: Final = {
    "max_run_time": "scheduling.timeout",
    "max_wait": "scheduling.max_wait_duration",
    "max_restarts": "scheduling.restart_job_on_worker_restart",
    "output": "base_output_directory",
    "priority": "scheduling.strategy",
}
# Fields of a role's resources; all others come from the machine type.
_MACHINE_FIELDS: Final = {"resources.gpus": "accelerator_count", "resources.gpu_type": "accelerator_type"}
_PROGRAM_FIELDS: Final = ("command", "args", "env")
_ROLE: Final = re.compile(rf"roles\.(?P<role>{'|'.join(ROLES)})(?:\.(?P<rest>.+))?")
_SHOWN: Final = 5  # mistakes in one sentence


@contextmanager
def translated_errors(spec: CustomJobSpec) -> Iterator[None]:
    """Replace errors that name fields of our job spec by ``InvalidRequest`` with the fields of the client's ``spec``.

    All mistakes are in one message: Google's errors have no list.
    """
    try:
        yield
    except (InvalidSpec, InvalidRequest) as error:
        if error.errors:
            mistakes = [
                (
                    mistake["path"] or "",
                    f"{mistake['message']} ({mistake['hint']})" if mistake["hint"] else str(mistake["message"]),
                )
                for mistake in error.errors
            ]
        else:
            own, _, rest = str(error.sentence).partition(": ")
            mistakes = [(own, rest.removesuffix("."))]
        places = [_client_path(path, spec) for path, _ in mistakes]
        if len(mistakes) == 1 and places[0] is None:
            raise
        words = [
            f"{place or path}: {what}" if path else what
            for place, (path, what) in zip(places[:_SHOWN], mistakes[:_SHOWN], strict=True)
        ]
        more = f"; and {len(mistakes) - _SHOWN} more" if len(mistakes) > _SHOWN else ""
        raise InvalidRequest(f"{'; '.join(words)}{more}.", field=places[0] or mistakes[0][0]) from error


def _client_path(path: str, spec: CustomJobSpec) -> str | None:
    """The request's field behind ``path`` of our spec; ``None`` if there is none."""
    if path in _FIELDS:
        return _FIELDS[path]
    if path == "command":  # of a job with one role
        path = f"roles.{ROLES[0]}.command"
    match = _ROLE.fullmatch(path)
    pool = spec.pools[ROLES.index(match["role"])] if match and ROLES.index(match["role"]) < len(spec.pools) else None
    if match is None or pool is None:
        return None
    rest = match["rest"] or ""
    name = re.split(r"[.\[]", rest, maxsplit=1)[0]
    program = "python_package_spec" if pool.program.module else "container_spec"
    if name in _PROGRAM_FIELDS:
        return f"{pool.path}.{program}.{rest}"
    if name == "image":
        return f"{pool.path}.{program}.{'executor_image_uri' if pool.program.module else 'image_uri'}"
    if name == "resources":
        return ".".join(filter(None, (pool.path, "machine_spec", _MACHINE_FIELDS.get(rest))))
    return f"{pool.path}.replica_count" if name == "replicas" else pool.path
