"""Models of frameworks that the platform's own environment does not hold, at an endpoint of a whole platform."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.conftest import ROOT, SCRIPTS

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("frameworks"),
    pytest.mark.timeout(600),
]

SERVER = ROOT / "worker_images" / "serving" / "trainmaster_serving" / "__main__.py"


@pytest.fixture
def serve(platform: Any, python_of: Any, eventually: Any) -> Iterator[Any]:
    """``serve("keras", environment="tf")``: a function that asks the deployed model, as ``Client.predict`` without the
    endpoint.
    """
    made: list[str] = []

    def deploy(kind: str, *, environment: str) -> Any:
        python = python_of(environment)
        folder: Path = platform.home / "output" / "default" / f"serves-{kind}"
        subprocess.run([python, str(SCRIPTS / "save_models.py"), kind, str(folder)], check=True, timeout=300)
        name = f"serves-{kind}"
        platform.client.create_endpoint(name)
        made.append(name)
        platform.client.deploy_model(
            name, f"output/default/{name}", command=[python, str(SERVER), "--host", "127.0.0.1"],
            env={"TF_CPP_MIN_LOG_LEVEL": "2", "OMP_NUM_THREADS": "1"}, ready_timeout_s=300,
        )  # fmt: skip

        def state() -> str:
            (one,) = platform.client.get_endpoint(name).deployments
            assert one.state != "failed", one.note
            return str(one.state)

        eventually(lambda: state() == "ready", within_s=400, what=f"{kind} is served")
        return lambda instances, **more: platform.client.predict(name, instances, **more)

    yield deploy
    for name in made:
        platform.client.delete_endpoint(name)


def test_a_saved_model_answers_by_its_signature(serve: Any) -> None:
    ask = serve("tensorflow", environment="tf")
    rows = [{"rows": [1, 2], "factor": 10}, {"rows": [0.5, 0.5], "factor": 2}]
    assert ask(rows) == [{"total": 30, "rows": [1, 2]}, {"total": 2, "rows": [0.5, 0.5]}]
    refused = _refused(ask, [[1, 2]])
    assert "several inputs (" in refused
    assert "this model takes" in _refused(ask, [{"rows": [1, 2]}])
    assert "differ in shape" in _refused(ask, [{"rows": [1, 2], "factor": 1}, {"rows": [1], "factor": 1}])


def test_a_keras_model_that_was_exported_answers(serve: Any) -> None:
    ask = serve("keras", environment="tf")
    assert ask([[1, 2], [3, 0.5]]) == [[3], [3.5]]
    assert "rejects" in _refused(ask, [[1, 2, 3]])


def test_a_booster_of_xgboost_answers(serve: Any) -> None:
    ask = serve("xgboost", environment="xgboost")
    low, high = ask([[-1, 1], [1, -1]])
    assert low < 0.1
    assert high > 0.9
    assert ask([{"y": -1, "x": 1}]) == pytest.approx([high])
    assert "they have no y" in _refused(ask, [{"x": 1}])
    margins = ask([[-1, 1], [1, -1]], parameters={"output_margin": True})
    assert margins[0] < 0 < margins[1]
    assert "rejects" in _refused(ask, [["a", "b"]])


def _refused(ask: Any, instances: list[Any]) -> str:
    from trainmaster.errors import ModelError

    with pytest.raises(ModelError) as refused:
        ask(instances)
    assert refused.value.status == 400
    return str(refused.value.answer)
