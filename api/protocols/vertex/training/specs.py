"""A custom job's spec, read from either of its two spellings.

https://cloud.google.com/vertex-ai/docs/reference/rest/v1/CustomJobSpec
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from api.protocols.kit.errors import NotServed
from api.protocols.kit.vertex_table import Table
from api.protocols.vertex.proto import Message, camel
from core.domain.errors import InvalidRequest

ACCELERATORS: Final = {
    0: "ACCELERATOR_TYPE_UNSPECIFIED",
    1: "NVIDIA_TESLA_K80",
    2: "NVIDIA_TESLA_P100",
    3: "NVIDIA_TESLA_V100",
    4: "NVIDIA_TESLA_P4",
    5: "NVIDIA_TESLA_T4",
    6: "TPU_V2",
    7: "TPU_V3",
    8: "NVIDIA_TESLA_A100",
    9: "NVIDIA_A100_80GB",
    10: "TPU_V4_POD",
    11: "NVIDIA_L4",
    12: "TPU_V5_LITEPOD",
    13: "NVIDIA_H100_80GB",
    14: "NVIDIA_H100_MEGA_80GB",
    15: "NVIDIA_H200_141GB",
    16: "NVIDIA_B200",
    17: "NVIDIA_GB200",
    18: "NVIDIA_RTX_PRO_6000",
}
# https://cloud.google.com/vertex-ai/docs/reference/rest/v1/DiskSpec; a replica here uses its node's disk.
_DISKS: Final = frozenset({"", "pd-ssd", "pd-standard", "pd-balanced", "hyperdisk-balanced"})
_DISK_GB: Final = (100, 64_000)
_STRATEGIES: Final = {
    0: "STRATEGY_UNSPECIFIED",
    1: "ON_DEMAND",
    2: "LOW_COST",
    3: "STANDARD",
    4: "SPOT",
    6: "FLEX_START",
}
DEFAULT_TIMEOUT_S: Final = 7 * 24 * 3600.0
_POOLS: Final = 4
_REPLICAS: Final = 4096

# Fields of the real API that are not supported -> the feature's name in errors.
_NO_JOB: Final = {
    "network": "VPC networks are",
    "reservedIpRanges": "reserved IP ranges are",
    "pscInterfaceConfig": "Private Service Connect is",
    "serviceAccount": "service accounts are",
    "persistentResourceId": "persistent resources are",
    "protectedArtifactLocationId": "protected artifacts are",
    "models": "benchmarking of models is",
    "enableDashboardAccess": "access to dashboards of training containers is",
}
_NO_POOL: Final = {
    "nfsMounts": "NFS mounts are (register a volume, and use it as a bucket)",
    "lustreMounts": "Lustre mounts are",
}
_NO_MACHINE: Final = {
    "tpuTopology": "TPUs are",
    "reservationAffinity": "Compute Engine's reservations are",
    "gpuPartitionSize": "gpu_partition_size is",
    "multihostGpuNodeCount": "multihost_gpu_node_count is",
}


@dataclass(frozen=True, slots=True)
class Program:
    """A replica's program: an image with its command, or (``module``) a Python module from packages in buckets."""

    image: str
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    module: str = ""
    packages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """``path``: its field path in the request."""

    path: str
    machine_type: str = ""
    accelerator: str = ""
    accelerator_count: int = 0

    def resources(self, table: Table) -> tuple[dict[str, Any], dict[str, str]]:
        """Of one replica, and the machine's node selector. Raises ``InvalidRequest``."""
        paths = f"{self.path}.machine_type", f"{self.path}.accelerator_type"
        return table.resources(self.machine_type, self.accelerator, self.accelerator_count, paths=paths)


@dataclass(frozen=True, slots=True)
class Pool:
    """A worker pool. ``path``: its field path in the request."""

    path: str
    program: Program
    replicas: int
    machine: MachineSpec


@dataclass(frozen=True, slots=True)
class CustomJobSpec:
    """``pools``: in order chief, workers, ps, evaluators; ``None``: an empty pool."""

    pools: tuple[Pool | None, ...]
    timeout_s: float = DEFAULT_TIMEOUT_S
    max_wait_s: float | None = None
    restarts: bool = False
    strategy: str = "STRATEGY_UNSPECIFIED"
    base_output: str = ""
    # Full names of records; see :mod:`api.protocols.vertex.training.tracking`.
    experiment: str = ""
    experiment_run: str = ""
    tensorboard: str = ""


def read_spec(raw: Any, path: str) -> CustomJobSpec:
    """Raises ``InvalidRequest``, or ``NotServed`` for unsupported features of the real API."""
    message = Message(raw, path)
    served = {
        "workerPoolSpecs",
        "scheduling",
        "baseOutputDirectory",
        "enableWebAccess",
        "labels",
        "experiment",
        "experimentRun",
        "tensorboard",
    }
    tracked = {name: message.text(name, 1_000) for name in ("experiment", "experimentRun", "tensorboard")}
    # Vertex AI needs a service account to write to these; here the job's token suffices.
    message.refuse_unknown_fields({*served, "serviceAccount"} if any(tracked.values()) else served, absent=_NO_JOB)
    message.flag("enableWebAccess")  # adds `webAccessUris` to the resource; every job has its page
    message.flag("enableDashboardAccess")
    pools = tuple(_pool(Message(item, at)) for at, item in message.items("workerPoolSpecs"))
    while pools and pools[-1] is None:
        pools = pools[:-1]
    first = pools[0] if pools else None
    where = message.at("workerPoolSpecs")
    if first is None:
        raise InvalidRequest(f"{where}: the first pool is the primary replica, and is missing.", field=where)
    if first.replicas != 1:
        raise InvalidRequest(f"{first.path}.replica_count: must be 1 for the first worker pool, not {first.replicas}.")
    if len(pools) > _POOLS:
        raise InvalidRequest(f"{where}: at most {_POOLS} pools, not {len(pools)}.", field=where)
    base = message.part("baseOutputDirectory", {"outputUriPrefix"}).text("outputUriPrefix")
    spec = _scheduled(message, pools, base)
    return replace(
        spec,
        experiment=tracked["experiment"],
        experiment_run=tracked["experimentRun"],
        tensorboard=tracked["tensorboard"],
    )


def _scheduled(job: Message, pools: tuple[Pool | None, ...], base: str) -> CustomJobSpec:
    message = job.part(
        "scheduling", {"timeout", "restartJobOnWorkerRestart", "disableRetries", "strategy", "maxWaitDuration"}
    )
    strategy = message.enum("strategy", _STRATEGIES)
    if strategy == "FLEX_START":
        raise NotServed(
            f"{message.at('strategy')}: FLEX_START is not served by this platform; leave it out, and say by "
            "max_wait_duration how long the job may wait."
        )
    return CustomJobSpec(
        pools,
        timeout_s=message.seconds("timeout") or DEFAULT_TIMEOUT_S,
        max_wait_s=message.seconds("maxWaitDuration"),
        restarts=message.flag("restartJobOnWorkerRestart") and not message.flag("disableRetries"),
        strategy=strategy,
        base_output=base,
    )


def _pool(message: Message) -> Pool | None:
    message.refuse_unknown_fields(
        {"machineSpec", "replicaCount", "diskSpec", "containerSpec", "pythonPackageSpec"}, absent=_NO_POOL
    )
    replicas = message.whole("replicaCount")
    _check_disk(message.part("diskSpec", {"bootDiskType", "bootDiskSizeGb"}))
    container, package = message.message("containerSpec"), message.message("pythonPackageSpec")
    if container is None and package is None and not replicas:
        return None
    if (container is None) == (package is None):
        raise InvalidRequest(f"{message.path}: exactly one of container_spec and python_package_spec is needed.")
    if not 0 <= replicas <= _REPLICAS:
        raise message.fault("replicaCount", f"is from 1 to {_REPLICAS}, not {replicas}.")
    program = _container(container) if container is not None else _package(package)
    return Pool(message.path, program, replicas or 1, read_machine(message))


def read_machine(parent: Message) -> MachineSpec:
    """``machineSpec`` of a pool or a deployed model. Raises ``InvalidRequest``, ``NotServed``."""
    message = parent.part("machineSpec", {"machineType", "acceleratorType", "acceleratorCount"}, _NO_MACHINE)
    kind, count = message.enum("acceleratorType", ACCELERATORS), message.whole("acceleratorCount")
    if (kind != ACCELERATORS[0]) != (count > 0) or count < 0:
        raise InvalidRequest(
            f"{message.path}: accelerator_type and accelerator_count go together, each needs the other.",
            field=message.path,
        )
    return MachineSpec(message.path, message.text("machineType", 200), kind if count else "", count)


def _check_disk(message: Message) -> None:
    """Validated as in Vertex AI, otherwise ignored. Raises ``InvalidRequest``."""
    kind, size = message.text("bootDiskType", 100), message.whole("bootDiskSizeGb")
    if kind not in _DISKS:
        raise message.fault("bootDiskType", f"is one of {', '.join(sorted(_DISKS - {''}))}, not '{kind}'.")
    if size and not _DISK_GB[0] <= size <= _DISK_GB[1]:
        raise message.fault("bootDiskSizeGb", f"is from {_DISK_GB[0]} to {_DISK_GB[1]}, not {size}.")


def _container(message: Message) -> Program:
    message.refuse_unknown_fields({"imageUri", "command", "args", "env"})
    if not message.text("imageUri").strip():
        raise message.missing("imageUri")
    return Program(message.text("imageUri").strip(), message.texts("command"), _args(message), read_env(message))


def _package(message: Message | None) -> Program:
    assert message is not None  # noqa: S101 (one of the two is there)
    message.refuse_unknown_fields({"executorImageUri", "packageUris", "pythonModule", "args", "env"})
    for name in ("executorImageUri", "pythonModule", "packageUris"):
        if not message.has(name):
            raise message.missing(name)
    packages = message.texts("packageUris")
    if wrong := next((uri for uri in packages if not uri.startswith("gs://")), None):
        raise message.fault("packageUris", f"'{wrong[:200]}' is no Cloud Storage URI.")
    return Program(
        message.text("executorImageUri").strip(),
        args=_args(message),
        env=read_env(message),
        module=message.text("pythonModule", 500),
        packages=packages,
    )


def _args(message: Message) -> tuple[str, ...]:
    """Arguments, also numbers: ``CustomTrainingJob.run(args=["--epochs", 3])`` sends them as floats."""
    return Message({"args": numbers_as_text(message.raw("args"))}, message.path).texts("args")


def numbers_as_text(args: Any) -> Any:
    """``args`` with numbers as text; whole numbers have no decimal point."""
    if not isinstance(args, list):
        return args
    return [
        str(_plain(item)) if isinstance(item, int | float) and not isinstance(item, bool) else item for item in args
    ]


def _plain(value: float) -> int | float:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def read_env(message: Message) -> tuple[tuple[str, str], ...]:
    """Names and values of ``env``."""
    variables = []
    for path, item in message.items("env"):
        variable = Message(item, path)
        variable.refuse_unknown_fields({"name", "value"})
        variables.append((variable.text("name", 256), variable.text("value")))
    return tuple(variables)


def in_camel_case(value: Any) -> Any:
    """A snake_case spec in the resource's camelCase; whole floats become integers."""
    if isinstance(value, dict):
        return {
            camel(key): in_camel_case(numbers_as_text(item) if key == "args" else item) for key, item in value.items()
        }
    if isinstance(value, list):
        return [in_camel_case(item) for item in value]
    return _plain(value) if isinstance(value, float) else value
