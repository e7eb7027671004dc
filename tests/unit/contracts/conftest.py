from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trainmaster.spec import JobSpec, parse_spec

from core.domain.contracts import AttemptContext, RenderedReplica, render
from core.domain.ids import AttemptId, JobId
from core.domain.jobs.layout import PS_PORT, Layout, Ports, ReplicaAddress

_HERE = Path(__file__).parent


@pytest.fixture(params=sorted(path.stem for path in (_HERE / "golden").glob("*.json")))
def golden_case(request) -> dict[str, Any]:
    return json.loads((_HERE / "golden" / f"{request.param}.json").read_text())


@pytest.fixture
def render_case() -> Callable[[dict[str, Any]], dict[str, Any]]:
    described = importlib.util.spec_from_file_location("regenerate", _HERE / "regenerate.py")
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    return module.render_case


class Gang:
    """A job whose replicas have names of their own; ``gang("worker", 1)`` renders one of them."""

    def __init__(self, written: dict[str, Any], **context: Any) -> None:
        self.spec: JobSpec = parse_spec({"name": "digits", "command": "python train.py", **written})
        self.layout = self._layout()
        self.context = AttemptContext(
            **{
                "job_id": JobId("job-1"),
                "job_name": "digits",
                "attempt_id": AttemptId("att-1"),
                "attempt_number": 1,
                "project": "default",
                **context,
            }
        )

    def __call__(self, role: str, index: int = 0, **secrets: str) -> RenderedReplica:
        return render(self.spec, self.layout, self.layout.find(role, index), self.context, secrets=secrets)

    def env(self, role: str, index: int = 0, process: int = 0) -> dict[str, str]:
        """The environment that a process sees."""
        rendered = self(role, index)
        return {**rendered.env, **rendered.process_env[process]}

    def _layout(self) -> Layout:
        return Layout(
            tuple(
                ReplicaAddress(
                    role=name,
                    index=index,
                    host=f"{name}-{index}",
                    ports=Ports(framework=PS_PORT) if name == "ps" else Ports(),
                    node="node-1",
                    gpus=tuple(map(str, range(role.resources.device_count))),
                    processes=role.process_count,
                )
                for name, role in self.spec.ordered_roles()
                for index in range(role.replicas)
            )
        )


@pytest.fixture
def gang() -> type[Gang]:
    return Gang
