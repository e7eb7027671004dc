"""Parses a TrainJob manifest and maps it to our job spec; and the training runtimes of every project.

The runtimes determine how Kubeflow's client builds a command from a function.

https://github.com/kubeflow/trainer/blob/master/pkg/apis/trainer/v1alpha1/trainjob_types.go
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from api.protocols.kit.errors import mistakes_of
from core.domain.contracts.tf_config import past_placeholders
from core.domain.errors import InvalidRequest, NotFound
from core.settings import Settings

GROUP: Final = "trainer.kubeflow.org"
VERSION: Final = f"{GROUP}/v1alpha1"
RUNTIME_KIND: Final = "ClusterTrainingRuntime"
NODE: Final = "node"
# Shown if jobs have no image; the client requires one.
_NO_IMAGE: Final = {"process": "plain-processes"}
RUNTIME_LABEL: Final = f"{GROUP}/runtime"
PROCESSES: Final = "PET_NPROC_PER_NODE"  # torchrun's variable, from which the client reads the number of processes
_GPU: Final = "nvidia.com/gpu"
_MIG: Final = "nvidia.com/mig-"
_SCRIPT: Final = "TRAINJOB_SCRIPT"
_CPU: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(m?)")


@dataclass(frozen=True, slots=True)
class Runtime:
    """``policy``: the rest of ``mlPolicy``; with ``torch`` the client calls torchrun, else python."""

    name: str
    framework: str
    policy: dict[str, Any]

    @property
    def is_torch(self) -> bool:
        return "torch" in self.policy


RUNTIMES: Final = {
    runtime.name: runtime
    for runtime in (
        Runtime("torch-distributed", "torch", {"torch": {"numProcPerNode": "auto"}}),
        Runtime("python-distributed", "python", {}),
    )
}


def find_runtime(name: str) -> Runtime:
    """Raises ``NotFound``."""
    if name not in RUNTIMES:
        raise NotFound(f'clustertrainingruntimes.{GROUP} "{name[:100]}" not found; there are {", ".join(RUNTIMES)}.')
    return RUNTIMES[name]


def image_of(settings: Settings) -> str:
    """The image shown for jobs without one of their own."""
    return settings.default_image or _NO_IMAGE.get(settings.executor, "none")


def runtime_view(runtime: Runtime, settings: Settings) -> dict[str, Any]:
    container = {"name": NODE, "image": image_of(settings)}
    job = {
        "metadata": {"labels": {f"{GROUP}/trainjob-ancestor-step": "trainer"}},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    return {
        "apiVersion": VERSION,
        "kind": RUNTIME_KIND,
        "metadata": {"name": runtime.name, "labels": {f"{GROUP}/framework": runtime.framework}},
        "spec": {
            "mlPolicy": {"numNodes": 1, **runtime.policy},
            "template": {"spec": {"replicatedJobs": [{"name": NODE, "template": job}]}},
        },
    }


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel)


class _Metadata(_Part):
    name: str
    namespace: str = ""
    labels: dict[str, str] = Field(default_factory=dict)


class _RuntimeRef(_Part):
    name: str
    kind: str = RUNTIME_KIND
    api_group: str = GROUP


class _Variable(_Part):
    name: str
    value: str = ""


class _Resources(_Part):
    requests: dict[str, str | int | float] = Field(default_factory=dict)
    limits: dict[str, str | int | float] = Field(default_factory=dict)


class _Trainer(_Part):
    image: str = ""
    command: list[str] = Field(default_factory=list)
    args: list[str] = Field(default_factory=list)
    env: list[_Variable] = Field(default_factory=list)
    num_nodes: Annotated[int, Field(ge=1, le=4096)] = 1
    resources_per_node: _Resources = _Resources()
    num_proc_per_node: Annotated[int, Field(ge=1, le=256)] | str = "auto"


class _Spec(_Part):
    runtime_ref: _RuntimeRef
    trainer: _Trainer = _Trainer()
    active_deadline_seconds: Annotated[int, Field(ge=1)] | None = None
    suspend: bool = False


class Manifest(_Part):
    """A TrainJob manifest."""

    api_version: str = Field(pattern=rf"^{re.escape(GROUP)}/v1alpha1$")
    kind: str = Field(pattern="^TrainJob$")
    metadata: _Metadata
    spec: _Spec


def read_manifest(raw: Mapping[str, Any]) -> Manifest:
    """Raises ``InvalidRequest`` with each invalid or unsupported field."""
    fields = {name: value for name, value in raw.items() if name != "status"}
    try:
        return Manifest.model_validate(_without_empty(fields))
    except ValidationError as error:
        raise InvalidRequest(f"TrainJob is invalid: {mistakes_of(error, limit=5)}.") from error


def _without_empty(value: Any) -> Any:
    """Drop empty fields: they mean the same as omitted ones."""
    if not isinstance(value, dict):
        return [_without_empty(item) for item in value] if isinstance(value, list) else value
    return {name: _without_empty(item) for name, item in value.items() if item is not None and item not in ({}, [])}


def job_spec_of(manifest: Manifest, namespace: str) -> dict[str, Any]:
    """Our job spec, not yet validated.

    Raises:
        InvalidRequest, NotFound: an invalid or unsupported request.
    """
    if manifest.metadata.namespace not in ("", namespace):
        raise InvalidRequest(f"metadata.namespace: the request is for namespace {namespace}.")
    if manifest.spec.suspend:
        raise InvalidRequest("spec.suspend: is not served by this platform; create the job when it is to run.")
    ref, trainer = manifest.spec.runtime_ref, manifest.spec.trainer
    if ref.kind != RUNTIME_KIND:
        raise InvalidRequest(f"spec.runtimeRef.kind: this platform has {RUNTIME_KIND}s alone, not {ref.kind[:100]}.")
    runtime = find_runtime(ref.name)
    if not trainer.command and not trainer.image:
        raise InvalidRequest("spec.trainer: a command or an image is needed; the runtimes here have none of their own.")
    resources, cpus = _resources(trainer.resources_per_node)
    env = {variable.name: variable.value for variable in trainer.env}
    command, carried = _command(trainer.command)
    env |= carried
    if (processes := _processes(runtime, trainer.num_proc_per_node, resources.get("gpus", 0), cpus)) > 1:
        env.setdefault(PROCESSES, str(processes))
    role: dict[str, Any] = {
        "replicas": trainer.num_nodes,
        "resources": resources,
        # In Kubeflow a node is one container, which starts its processes itself.
        "processes_per_replica": 1,
        "env": env,
        "args": trainer.args,
    }
    role |= {"command": command} if command else {}
    role |= {"image": trainer.image} if trainer.image else {}
    spec: dict[str, Any] = {
        "name": manifest.metadata.name,
        "project": namespace,
        "roles": {"worker": role},
        "labels": {**manifest.metadata.labels, RUNTIME_LABEL: runtime.name},
        "max_restarts": 0,  # as in Kubeflow without a runtime's policy
    }
    if manifest.spec.active_deadline_seconds is not None:
        spec["max_run_time"] = manifest.spec.active_deadline_seconds
    return spec


def _command(words: list[str]) -> tuple[list[str], dict[str, str]]:
    """The command, and variables for it: an inline script (a function's source) may contain placeholders."""
    if len(words) != 3 or words[1] != "-c":
        return words, {}
    script, env = past_placeholders(words[2], _SCRIPT)
    return [*words[:2], script], env


def _resources(sent: _Resources) -> tuple[dict[str, Any], int]:
    """Our resources, and the CPUs rounded up (0: unset)."""
    where = "spec.trainer.resourcesPerNode"
    if sent.requests and sent.limits and sent.requests != sent.limits:
        raise InvalidRequest(f"{where}: requests and limits must be the same here: what is asked for is the limit.")
    resources: dict[str, Any] = {}
    for name, amount in (sent.limits or sent.requests).items():
        if name in ("cpu", "memory"):
            resources[name] = amount
        elif name == _GPU or name.startswith(_MIG):
            if not re.fullmatch(r"[0-9]{1,3}", str(amount)) or "gpus" in resources:
                raise InvalidRequest(f"{where}: {name}: a whole number of one kind of GPU, not {str(amount)[:50]}.")
            resources["gpus"] = int(amount)
            resources |= {"gpu_type": name.removeprefix(_MIG)} if name != _GPU else {}
        else:
            raise InvalidRequest(
                f"{where}: {name[:100]} is not served by this platform; cpu, memory, {_GPU} and {_MIG}… are."
            )
    cpu = _CPU.fullmatch(str(resources.get("cpu", "")))
    return resources, math.ceil(float(cpu[1]) / (1000 if cpu[2] else 1)) if cpu else 0


def _processes(runtime: Runtime, requested: int | str, gpus: int, cpus: int) -> int:
    """Processes that torchrun starts per node; "auto" as in Kubeflow: the number of GPUs, else of requested CPUs."""
    if not runtime.is_torch:
        if requested != "auto":
            raise InvalidRequest(f"spec.trainer.numProcPerNode: {runtime.name} starts one process on each node.")
        return 1
    if isinstance(requested, int):
        return requested
    counts = {"auto": gpus or cpus, "gpu": gpus, "cpu": cpus}
    if requested not in counts:
        raise InvalidRequest("spec.trainer.numProcPerNode: write a number, auto, cpu or gpu.")
    return max(1, counts[requested])
