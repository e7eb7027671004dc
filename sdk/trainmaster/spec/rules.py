"""What no single field of a spec can say: mistakes between fields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from trainmaster.spec.errors import Path
from trainmaster.spec.fields import MAX_ARGUMENT_BYTES, RESERVED_ENV_PREFIX
from trainmaster.spec.model import (
    DMLC_SCHEDULER_ROLE,
    MAX_REPLICAS,
    Contract,
    JobSpec,
    RestartPolicy,
    ServerPlacement,
    TopologyLevel,
)

# Linux takes 2 MiB for arguments and environment together by default (a quarter of the stack limit of 8 MiB), of
# which the platform's own variables need a part.
_MAX_ENVIRONMENT_BYTES: Final = 1_048_576
# They serve the others: they have neither GPUs nor ranks unless their own entry says so, and never decide the end.
SERVING_ROLES: Final = frozenset({"ps", "evaluator", DMLC_SCHEDULER_ROLE})
_ELASTIC_ROLE: Final = "worker"
# Who may stand beside elastic workers: a chief is rank 0 of the same world, an evaluator reads checkpoints.
_BESIDE_ELASTIC: Final = frozenset({"worker", "chief", "evaluator"})


@dataclass(frozen=True, slots=True)
class Breach:
    """One mistake between fields. ``depends``: canonical paths that it was concluded from, besides ``path``."""

    path: Path
    message: str
    hint: str | None = None
    depends: tuple[Path, ...] = ()


def breaches(spec: JobSpec) -> Iterator[Breach]:
    """Every breach of ``spec``, whose fields are right one by one."""
    yield from _gang(spec)
    yield from _commands(spec)
    yield from _environment(spec)
    yield from _resources(spec)
    yield from _servers(spec)
    yield from _places(spec)


def _gang(spec: JobSpec) -> Iterator[Breach]:
    total = sum(role.replicas for role in spec.roles.values())
    if total > MAX_REPLICAS:
        yield Breach(("roles",), f"{total} replicas in total; a gang has at most {MAX_REPLICAS}")
    if not set(spec.roles) - SERVING_ROLES:
        yield Breach(
            ("roles",),
            f"only {', '.join(sorted(spec.roles))}: nobody would decide when the job is done",
            "add a worker or a chief, such as `workers: 1`",
        )
    if "chief" in spec.roles and spec.roles["chief"].replicas > 1:
        yield Breach(("roles", "chief", "replicas"), "there is at most one chief", "make the others workers")
    if spec.contract is Contract.MXNET:
        if "ps" not in spec.roles:
            yield Breach(
                ("contract",),
                "mxnet needs servers, and this job has none",
                "add `ps: 1` or more",
                (("roles", "ps"),),
            )
        scheduler = spec.roles.get(DMLC_SCHEDULER_ROLE)
        if scheduler and scheduler.replicas > 1:
            yield Breach(("roles", DMLC_SCHEDULER_ROLE, "replicas"), "a ps-lite job has one scheduler", "write 1")
    if spec.contract is Contract.UAI:
        yield from _uai(spec)
    yield from _elastic(spec)
    if spec.sparse and "ps" not in spec.roles:
        yield Breach(
            ("sparse",), "is for jobs with parameter servers", "take it away, or add `ps: 1`", (("roles", "ps"),)
        )


def _elastic(spec: JobSpec) -> Iterator[Breach]:
    """Only a gang of equals can lose a member and go on."""
    for name, role in spec.roles.items():
        least = role.min_replicas
        if least is None:
            continue
        where: Path = ("roles", name, "min_replicas")
        itself: tuple[Path, ...] = (where,)
        if least > role.replicas:
            yield Breach(
                where,
                f"{least} is more than the {role.replicas} replicas",
                "write replicas: {min: 2, max: 4}, or less here",
                (("roles", name, "replicas"),),
            )
        if name != _ELASTIC_ROLE:
            yield Breach(where, "only workers can be elastic", "take it away")
            continue
        others = sorted(set(spec.roles) - _BESIDE_ELASTIC)
        if others:
            yield Breach(
                where,
                f"elastic workers train by allreduce, and {', '.join(others)} would not hear of a change",
                "take it away; with a ps, `restart: replica` lets a worker return",
                tuple(("roles", other) for other in others),
            )
        if role.restart is not RestartPolicy.GANG:
            yield Breach(
                ("roles", name, "restart"),
                f"{role.restart.value}, but elastic workers are replaced when one is lost",
                "take it away, or min_replicas",
                itself,
            )
        if spec.contract is not Contract.DEFAULT:
            yield Breach(
                ("contract",), f"{spec.contract.value} has no elastic workers", "take it away, or min_replicas", itself
            )
        if spec.topology is not None and spec.topology.required:
            yield Breach(
                ("topology", "required"),
                "elastic workers take places where they become free",
                "leave it a wish: take `required` away, or min_replicas",
                itself,
            )


def _uai(spec: JobSpec) -> Iterator[Breach]:
    """N nodes of UAI Train are N workers, the master one of them, with one ps beside each, and one process in each."""
    contract: tuple[Path, ...] = (("contract",),)
    ps = spec.roles.get("ps")
    nodes = sum(spec.roles[name].replicas for name in ("chief", "worker") if name in spec.roles)
    if ps is not None and ps.replicas != nodes:
        yield Breach(
            ("roles", "ps", "replicas"),
            f"{ps.replicas}, but contract uai has one ps beside each worker, the chief counted, and here are {nodes}",
            f"write {nodes}, or take the number away",
            (*contract, ("roles", "chief"), ("roles", "worker")),
        )
    if ps is not None and ps.resources.gpus:
        yield Breach(
            ("roles", "ps", "resources", "gpus"), "contract uai has its ps on CPUs alone", "take it away", contract
        )
    for name, role in spec.roles.items():
        if (role.processes_per_replica or 1) > 1:
            yield Breach(
                ("roles", name, "processes_per_replica"),
                f"{role.processes_per_replica}, but contract uai starts one process per replica, whose RANK is its node's",
                "write 1 or take it away, or use `contract: default`",
                contract,
            )


def _commands(spec: JobSpec) -> Iterator[Breach]:
    lacking = [
        name for name, role in spec.roles.items() if not (role.command or spec.command or role.image or spec.image)
    ]
    everywhere: tuple[Path, ...] = (("command",), ("image",))
    if lacking and len(lacking) == len(spec.roles):
        yield Breach(
            ("command",),
            "is missing",
            "write what to run, such as `command: python train.py`, or name an image that has a command",
            (("image",), *((("roles", name, key)) for name in lacking for key in ("command", "image"))),
        )
        return
    for name in lacking:
        yield Breach(
            ("roles", name, "command"),
            "is missing, and the job has none",
            "give the role or the job a command, or an image that has one",
            (*everywhere, ("roles", name, "image")),
        )


def _environment(spec: JobSpec) -> Iterator[Breach]:
    places: list[tuple[Path, dict[str, str]]] = [(("env",), spec.env)]
    places += [(("roles", name, "env"), role.env) for name, role in spec.roles.items()]
    secrets = set(spec.secrets)
    for path, env in places:
        for name, value in env.items():
            if name.startswith(RESERVED_ENV_PREFIX):
                yield Breach(
                    (*path, name), f"names that begin with {RESERVED_ENV_PREFIX} are the platform's own", "rename it"
                )
            if name in secrets:
                yield Breach((*path, name), "is a secret of this job too", "keep one of the two", (("secrets",),))
            if len(f"{name}={value}".encode()) > MAX_ARGUMENT_BYTES:
                yield Breach((*path, name), "is longer than 128 KiB, which Linux does not take", "put it into a file")
        if sum(len(name) + len(value) + 2 for name, value in env.items()) > _MAX_ENVIRONMENT_BYTES:
            yield Breach(path, "is larger than 1 MiB, which Linux does not take", "put it into a file")
    seen: set[str] = set()
    for index, name in enumerate(spec.secrets):
        if name.startswith(RESERVED_ENV_PREFIX):
            yield Breach(
                ("secrets", index), f"names that begin with {RESERVED_ENV_PREFIX} are the platform's own", "rename it"
            )
        if name in seen:
            yield Breach(("secrets", index), f"{name} stands twice", "keep one")
        seen.add(name)


def _resources(spec: JobSpec) -> Iterator[Breach]:
    for name, role in spec.roles.items():
        if role.resources.gpu_type and not role.resources.gpus:
            yield Breach(
                ("roles", name, "resources", "gpu_type"),
                "names a GPU model, but the role has no GPUs",
                "add `gpus: 1` beside it, or take it away",
                (("roles", name, "resources", "gpus"),),
            )
        memory, shm = role.resources.memory_bytes, role.resources.shm_bytes
        if memory is not None and shm is not None and shm > memory:
            yield Breach(
                ("roles", name, "resources", "shm"),
                f"{role.resources.shm} is more than the replica's memory ({role.resources.memory}), of which it is a part",
                "raise memory, or lower shm",
                (("roles", name, "resources", "memory"),),
            )


def _servers(spec: JobSpec) -> Iterator[Breach]:
    """Only ps are told from the others when nodes are chosen."""
    for name, role in spec.roles.items():
        if name == "ps":
            continue
        if role.placement is not ServerPlacement.BESIDE:
            yield Breach(
                ("roles", name, "placement"),
                "is of parameter servers alone",
                "write it under roles.ps, or take it away",
            )
        if role.spread:
            yield Breach(
                ("roles", name, "spread"), "is of parameter servers alone", "write it under roles.ps, or take it away"
            )
    servers = spec.roles.get("ps")
    if servers is None or servers.placement is not ServerPlacement.APART:
        return
    if spec.topology is not None and spec.topology.required and spec.topology.level is TopologyLevel.NODE:
        yield Breach(
            ("roles", "ps", "placement"),
            "apart, but the topology has the whole gang on one node",
            "take one of them away",
            (("topology",),),
        )


def _places(spec: JobSpec) -> Iterator[Breach]:
    for index, mount in enumerate(spec.mounts):
        for earlier_index, earlier in enumerate(spec.mounts[:index]):
            depends: tuple[Path, ...] = (("mounts", earlier_index),)
            if mount.at == earlier.at:
                yield Breach(
                    ("mounts", index, "at"),
                    f"mounts[{earlier_index}] is at {mount.at} too",
                    "choose another folder",
                    depends,
                )
            elif _is_inside(mount.at, earlier.at) or _is_inside(earlier.at, mount.at):
                yield Breach(
                    ("mounts", index, "at"),
                    f"{mount.at} and {earlier.at} of mounts[{earlier_index}] lie in one another",
                    "choose folders beside each other",
                    depends,
                )
    if spec.input is not None and spec.output is not None and spec.input == spec.output:
        yield Breach(("output",), "is the input's folder, which is read-only", "choose another folder", (("input",),))


def _is_inside(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/")
