"""The training runtimes that every project has: how Kubeflow's client makes a command of a function, and what starts
it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from core.domain.errors import NotFound
from core.settings import Settings

GROUP: Final = "trainer.kubeflow.org"
VERSION: Final = f"{GROUP}/v1alpha1"
KIND: Final = "ClusterTrainingRuntime"
NODE: Final = "node"
# What is shown where jobs have no image; the client asks for one.
_NO_IMAGE: Final = {"process": "plain-processes"}


@dataclass(frozen=True, slots=True)
class Runtime:
    """``policy``: what stands in ``mlPolicy`` beside the nodes; by ``torch`` the client calls torchrun, else python."""

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
    """What a job without an image of its own runs in, for who reads it."""
    return settings.default_image or _NO_IMAGE.get(settings.executor, "none")


def view(runtime: Runtime, settings: Settings) -> dict[str, Any]:
    container = {"name": NODE, "image": image_of(settings)}
    job = {
        "metadata": {"labels": {f"{GROUP}/trainjob-ancestor-step": "trainer"}},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    return {
        "apiVersion": VERSION,
        "kind": KIND,
        "metadata": {"name": runtime.name, "labels": {f"{GROUP}/framework": runtime.framework}},
        "spec": {
            "mlPolicy": {"numNodes": 1, **runtime.policy},
            "template": {"spec": {"replicatedJobs": [{"name": NODE, "template": job}]}},
        },
    }
