"""The training runtimes of every project: they determine how Kubeflow's client builds a command from a function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from core.domain.errors import NotFound
from core.settings import Settings

GROUP: Final = "trainer.kubeflow.org"
VERSION: Final = f"{GROUP}/v1alpha1"
KIND: Final = "ClusterTrainingRuntime"
NODE: Final = "node"
# Shown if jobs have no image; the client requires one.
_NO_IMAGE: Final = {"process": "plain-processes"}


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
