"""Rules of a job spec that involve several fields."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from trainmaster.spec.enums import (
    DMLC_SCHEDULER_ROLE,
    MAX_REPLICAS,
    NON_DECIDER_ROLES,
    Contract,
    Launcher,
    RestartPolicy,
    ServerPlacement,
    TopologyLevel,
)
from trainmaster.spec.errors import Path, Violation
from trainmaster.spec.fields import MAX_ARGUMENT_BYTES, RESERVED_ENV_PREFIX
from trainmaster.spec.model import JobSpec, RoleSpec

# Linux's default limit for arguments and environment together is 2 MiB (a quarter of the stack limit of 8 MiB); the
# platform's own variables need a part of it.
_MAX_ENVIRONMENT_BYTES: Final = 1_048_576
_ELASTIC_ROLE: Final = "worker"
# Roles allowed together with elastic workers: a chief is rank 0 of the same world, an evaluator reads checkpoints.
_ROLES_WITH_ELASTIC: Final = frozenset({"worker", "chief", "evaluator"})


def violations(spec: JobSpec) -> Iterator[Violation]:
    """All violations of ``spec``, whose single fields are valid."""
    yield from _gang(spec)
    yield from _commands(spec)
    yield from _environment(spec)
    yield from _interpreter(spec)
    yield from _resources(spec)
    yield from _servers(spec)
    yield from _places(spec)


def _gang(spec: JobSpec) -> Iterator[Violation]:
    total = sum(role.replicas for role in spec.roles.values())
    if total > MAX_REPLICAS:
        yield Violation(("roles",), f"{total} replicas in total; a gang has at most {MAX_REPLICAS}")
    if not set(spec.roles) - NON_DECIDER_ROLES:
        yield Violation(
            ("roles",),
            f"only {', '.join(sorted(spec.roles))}: no role decides when the job is done",
            "add a worker or a chief, such as `workers: 1`",
        )
    if "chief" in spec.roles and spec.roles["chief"].replicas > 1:
        yield Violation(("roles", "chief", "replicas"), "must be at most 1", "make the others workers")
    if spec.contract is Contract.MXNET:
        if "ps" not in spec.roles:
            yield Violation(
                ("contract",),
                "mxnet needs parameter servers, and this job has none",
                "add `ps: 1` or more",
                (("roles", "ps"),),
            )
        scheduler = spec.roles.get(DMLC_SCHEDULER_ROLE)
        if scheduler and scheduler.replicas > 1:
            yield Violation(("roles", DMLC_SCHEDULER_ROLE, "replicas"), "a ps-lite job has one scheduler", "write 1")
    if spec.contract is Contract.UAI:
        yield from _uai(spec)
    yield from _elastic(spec)
    if spec.sparse and "ps" not in spec.roles:
        yield Violation(
            ("sparse",), "is only for jobs with parameter servers", "remove it, or add `ps: 1`", (("roles", "ps"),)
        )


def _elastic(spec: JobSpec) -> Iterator[Violation]:
    """Only workers, which are interchangeable, can be elastic: the gang continues after losing one."""
    for name, role in spec.roles.items():
        least = role.min_replicas
        if least is None:
            continue
        where: Path = ("roles", name, "min_replicas")
        depends: tuple[Path, ...] = (where,)
        if least > role.replicas:
            yield Violation(
                where,
                f"{least} is more than the {role.replicas} replicas",
                "write replicas: {min: 2, max: 4}, or a smaller number here",
                (("roles", name, "replicas"),),
            )
        if name != _ELASTIC_ROLE:
            yield Violation(where, "only workers can be elastic", "remove it")
            continue
        inelastic = sorted(set(spec.roles) - _ROLES_WITH_ELASTIC)
        if inelastic:
            yield Violation(
                where,
                f"elastic workers train by allreduce, and {', '.join(inelastic)} would not be notified of a change",
                "remove it; with a ps, `restart: replica` lets a worker return",
                tuple(("roles", other) for other in inelastic),
            )
        if role.restart is not RestartPolicy.GANG:
            yield Violation(
                ("roles", name, "restart"),
                f"is {role.restart.value}, but a lost elastic worker is always replaced",
                "remove it, or min_replicas",
                depends,
            )
        if spec.contract is not Contract.DEFAULT:
            yield Violation(
                ("contract",), f"{spec.contract.value} has no elastic workers", "remove it, or min_replicas", depends
            )
        if spec.launcher is Launcher.RAY:
            yield Violation(
                ("launcher",),
                "the nodes of a Ray cluster are not elastic workers",
                "remove it, or min_replicas",
                depends,
            )
        if spec.topology is not None and spec.topology.required:
            yield Violation(
                ("topology", "required"),
                "elastic workers are placed on any nodes that become free",
                "remove `required`, so that it is a preference, or remove min_replicas",
                depends,
            )


def _uai(spec: JobSpec) -> Iterator[Violation]:
    """N nodes of UAI Train are N workers, including the master, each with one ps and one process."""
    contract: tuple[Path, ...] = (("contract",),)
    ps = spec.roles.get("ps")
    nodes = sum(spec.roles[name].replicas for name in ("chief", "worker") if name in spec.roles)
    if ps is not None and ps.replicas != nodes:
        yield Violation(
            ("roles", "ps", "replicas"),
            f"is {ps.replicas}, but contract uai has one ps per worker (including the chief), of which there are "
            f"{nodes}",
            f"write {nodes}, or remove the number",
            (*contract, ("roles", "chief"), ("roles", "worker")),
        )
    if ps is not None and ps.resources.gpus:
        yield Violation(
            ("roles", "ps", "resources", "gpus"), "contract uai runs ps without GPUs", "remove it", contract
        )
    for name, role in spec.roles.items():
        if (role.processes_per_replica or 1) > 1:
            yield Violation(
                ("roles", name, "processes_per_replica"),
                f"is {role.processes_per_replica}, but contract uai starts one process per replica, with the node's "
                f"RANK",
                "write 1 or remove it, or use `contract: default`",
                contract,
            )


def _commands(spec: JobSpec) -> Iterator[Violation]:
    lacking = [
        name for name, role in spec.roles.items() if not (role.command or spec.command or role.image or spec.image)
    ]
    everywhere: tuple[Path, ...] = (("command",), ("image",))
    if lacking and len(lacking) == len(spec.roles):
        yield Violation(
            ("command",),
            "is missing",
            "write what to run, such as `command: python train.py`, or name an image that has a command",
            (("image",), *((("roles", name, key)) for name in lacking for key in ("command", "image"))),
        )
        return
    for name in lacking:
        yield Violation(
            ("roles", name, "command"),
            "is missing, and the job has none",
            "give the role or the job a command, or an image that has one",
            (*everywhere, ("roles", name, "image")),
        )


def _environment(spec: JobSpec) -> Iterator[Violation]:
    environments: list[tuple[Path, dict[str, str]]] = [(("env",), spec.env)]
    environments += [(("roles", name, "env"), role.env) for name, role in spec.roles.items()]
    secrets = set(spec.secrets)
    for path, env in environments:
        for name, value in env.items():
            if name.startswith(RESERVED_ENV_PREFIX):
                yield Violation(
                    (*path, name),
                    f"names beginning with {RESERVED_ENV_PREFIX} are reserved for the platform",
                    "rename it",
                )
            if name in secrets:
                yield Violation((*path, name), "is also a secret of this job", "remove one of the two", (("secrets",),))
            if len(f"{name}={value}".encode()) > MAX_ARGUMENT_BYTES:
                yield Violation((*path, name), "is longer than 128 KiB, the limit of Linux", "put it into a file")
        if sum(len(name) + len(value) + 2 for name, value in env.items()) > _MAX_ENVIRONMENT_BYTES:
            yield Violation(path, "is larger than 1 MiB, more than Linux accepts", "put it into a file")
    names: set[str] = set()
    for index, name in enumerate(spec.secrets):
        if name.startswith(RESERVED_ENV_PREFIX):
            yield Violation(
                ("secrets", index),
                f"names beginning with {RESERVED_ENV_PREFIX} are reserved for the platform",
                "rename it",
            )
        if name in names:
            yield Violation(("secrets", index), f"{name} is listed twice", "remove one")
        names.add(name)


def _interpreter(spec: JobSpec) -> Iterator[Violation]:
    environment = spec.environment
    if environment is None:
        return
    named = [name for name in ("python", "venv", "conda") if getattr(environment, name) is not None]
    if len(named) > 1:
        yield Violation(
            ("environment", named[1]),
            f"and {named[0]} both name a Python",
            "remove one of the two",
            tuple(("environment", name) for name in named),
        )
    if not named and not environment.requirements:
        yield Violation(
            ("environment",), "names no Python and no requirements", "write python, venv, conda or requirements"
        )


def _resources(spec: JobSpec) -> Iterator[Violation]:
    for name, role in spec.roles.items():
        if role.resources.gpu_type and not role.resources.gpus:
            yield Violation(
                ("roles", name, "resources", "gpu_type"),
                "names a GPU model, but the role has no GPUs",
                "add `gpus: 1`, or remove it",
                (("roles", name, "resources", "gpus"),),
            )
        memory, shm = role.resources.memory_bytes, role.resources.shm_bytes
        if memory is not None and shm is not None and shm > memory:
            yield Violation(
                ("roles", name, "resources", "shm"),
                f"{role.resources.shm} is more than the replica's memory ({role.resources.memory}), which includes it",
                "raise memory, or lower shm",
                (("roles", name, "resources", "memory"),),
            )


def _servers(spec: JobSpec) -> Iterator[Violation]:
    """``placement`` and ``spread`` apply only to ps."""
    for name, role in spec.roles.items():
        if name == "ps":
            continue
        if role.placement is not ServerPlacement.BESIDE:
            yield Violation(
                ("roles", name, "placement"),
                "is only for parameter servers",
                "write it under roles.ps, or remove it",
            )
        if role.spread:
            yield Violation(
                ("roles", name, "spread"), "is only for parameter servers", "write it under roles.ps, or remove it"
            )
    servers = spec.roles.get("ps")
    if servers is None or servers.placement is not ServerPlacement.APART:
        return
    if spec.topology is not None and spec.topology.required and spec.topology.level is TopologyLevel.NODE:
        yield Violation(
            ("roles", "ps", "placement"),
            "is apart, but the topology requires the whole gang on one node",
            "remove one of the two",
            (("topology",),),
        )


def _places(spec: JobSpec) -> Iterator[Violation]:
    for index, mount in enumerate(spec.mounts):
        for earlier_index, earlier in enumerate(spec.mounts[:index]):
            depends: tuple[Path, ...] = (("mounts", earlier_index),)
            if mount.at == earlier.at:
                yield Violation(
                    ("mounts", index, "at"),
                    f"mounts[{earlier_index}] is also at {mount.at}",
                    "choose another folder",
                    depends,
                )
            elif _is_inside(mount.at, earlier.at) or _is_inside(earlier.at, mount.at):
                yield Violation(
                    ("mounts", index, "at"),
                    f"{mount.at} and {earlier.at} of mounts[{earlier_index}] are nested",
                    "choose folders that do not contain each other",
                    depends,
                )
    if spec.input is not None and spec.output is not None and spec.input == spec.output:
        yield Violation(
            ("output",), "is the input's folder, which is read-only", "choose another folder", (("input",),)
        )


def _is_inside(path: str, folder: str) -> bool:
    return path.startswith(f"{folder}/")


# Options of launchers that say how large the world is; the number may follow behind a blank or an equals sign. Behind a
# script's name stand its own options.
_OPTIONS: Final = r"(?:(?!\.py\b)[^;&|\n])*?\s"
_MACHINES: Final = re.compile(r"--(?P<option>nnodes|num[_-](?:machines|nodes)|min-nodes)[ =](?P<number>\d+)\b")
_PROCESSES: Final = re.compile(
    rf"\b(?P<launcher>mpirun|mpiexec|horovodrun|perseusrun)\b{_OPTIONS}"
    r"(?P<option>-np?|--np?|--num-proc)[ =](?P<number>\d+)\b"
)
_SHARED: Final = re.compile(
    rf"\baccelerate(?:\s+launch|-launch|\.commands\.launch|\.commands\.accelerate_cli\s+launch)\b{_OPTIONS}"
    r"(?P<option>--num[_-]process(?:es)?)[ =](?P<number>\d+)\b"
)
_PER_MACHINE: Final = tuple(
    re.compile(rf"{launcher}(?P<option>{option})[ =](?P<number>\d+)\b(?!,)")
    for launcher, option in (
        ("", "--nproc[_-]per[_-]node"),
        (rf"\bdeepspeed(?:\.launcher\.runner)?{_OPTIONS}", "--num[_-](?:gpus|accelerators)"),
        (rf"\b(?:(?:fabric|lightning)\s+run|lightning[._]fabric\.cli)\b{_OPTIONS}", "--devices"),
        (rf"\bcomposer(?:\.cli(?:\.launcher)?)?{_OPTIONS}", "-n|--nproc"),
    )
)
# The number of processes is then a range, or MPI may start more than there are slots, or several programs.
_NOT_COMPARED: Final = re.compile(r"\s(?:--(?:min|max)-(?:np|num-proc)\b|--?oversubscribe\b|:\s)")


def gang_warnings(spec: JobSpec) -> Iterator[str]:
    """What in a valid spec's command and the size of its gang contradicts each other, as sentences.

    Launchers in scripts are not seen. Commands of independent replicas (``launcher: none``) contradict nothing.
    """
    if spec.launcher is Launcher.NONE:
        return
    ranked = [name for name in ("chief", "worker") if name in spec.roles]
    roles = [spec.roles[name] for name in ranked]
    commands = {role.command if role.command is not None else spec.command for role in roles}
    for command in commands:
        text = command if isinstance(command, str) else " ".join(command or ())
        yield from _machine_warnings(text, roles)
        yield from _process_warnings(text, roles)
        yield from _shared_warnings(text, roles)
        devices = max((role.resources.device_count for role in roles), default=0)
        for pattern in _PER_MACHINE:
            found = pattern.search(text)
            if found and 0 < devices < int(found["number"]):
                yield (
                    f"the command starts {found['number']} processes on each replica ({found['option']}), and a "
                    f"replica has {devices} GPUs: write {found['option']} {devices}, or raise `gpus`."
                )


def _machine_warnings(text: str, roles: Sequence[RoleSpec]) -> Iterator[str]:
    replicas = sum(role.replicas for role in roles)
    least = sum(role.min_replicas or role.replicas for role in roles)
    found = _MACHINES.search(text)
    number = int(found["number"]) if found else 1
    if found and number > 1 and not least <= number <= replicas:
        yield (
            f"the command is for {number} machines (--{found['option']}), and the job has {replicas} replicas with "
            f"ranks: set `workers: {number}`, or leave the option out."
        )


def _process_warnings(text: str, roles: Sequence[RoleSpec]) -> Iterator[str]:
    """Of launchers that start so many processes as the gang has, or none."""
    found = _PROCESSES.search(text)
    if found is None or _NOT_COMPARED.search(text):
        return
    replicas = sum(role.replicas for role in roles)
    world = sum(role.replicas * role.process_count for role in roles)
    least = sum((role.min_replicas or role.replicas) * role.process_count for role in roles)
    # The image's own program in a world of one process, and MPI's in a single replica, take any number.
    is_own = world == 1 or (replicas == 1 and found["launcher"] in ("mpirun", "mpiexec"))
    if not is_own and not least <= int(found["number"]) <= world:
        counts = {role.process_count for role in roles}
        each = f" of {counts.pop()} processes each" if len(counts) == 1 else f" of {world} processes"
        yield (
            f"the command starts {found['number']} processes in all ({found['option']}), and the job has {replicas} "
            f"replicas{each}: write {found['option']} {world}, or change `workers`, `gpus` or `processes_per_replica`."
        )


def _shared_warnings(text: str, roles: Sequence[RoleSpec]) -> Iterator[str]:
    found = _SHARED.search(text)
    if found is None:
        return
    number, option = int(found["number"]), found["option"]
    replicas = sum(role.replicas for role in roles)
    devices = [role.resources.device_count for role in roles]
    total = sum(role.replicas * role.resources.device_count for role in roles)
    if number == max((*devices, 1)):  # of each replica
        return
    if number % max(1, replicas):
        yield (
            f"the command starts {number} processes in all ({option}), which {replicas} replicas cannot share equally: "
            f"write a multiple of {replicas}, or change `workers`."
        )
    elif 0 < total < number:
        yield (
            f"the command starts {number} processes in all ({option}), and the job has {total} GPUs: write {option} "
            f"{total}, or change `workers` or `gpus`."
        )
