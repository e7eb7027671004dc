"""Google's own SDK for Vertex AI serves models here: uploaded, deployed, asked, with real scikit-learn models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.frameworks.test_vertex import NAMES, reach, run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("frameworks"),
    pytest.mark.timeout(900),  # it waits for models to be ready, and the machine may do much else
]


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """Two models that tell which one answered, as Google's pre-built container wants them."""
    joblib = pytest.importorskip("joblib")
    linear = pytest.importorskip("sklearn.linear_model")
    for name, factor in (("one", 1.0), ("ten", 10.0)):
        (tmp_path / name).mkdir()
        model = linear.LinearRegression(fit_intercept=False).fit([[1, 0], [0, 1]], [factor, factor])
        joblib.dump(model, tmp_path / name / "model.joblib")
    return tmp_path


# Each version once and each transport once: what either says is the same over both, and a model takes its time to get
# ready.
@pytest.mark.parametrize(("version", "transport"), [("vertex", "rest"), ("vertex1", "grpc")])
def test_the_unmodified_sdk_serves_models_here(
    platform: Any, python_of: Any, bridge_to: Any, models: Path, version: str, transport: str
) -> None:
    endpoint, env = reach(transport, platform.url, bridge_to)
    # Over REST its client tells a condition that does not hold from a bad request by its words alone.
    names = {**NAMES[transport], "condition": "BadRequest" if transport == "rest" else "FailedPrecondition"}
    reader = platform.client.create_token(f"asks-{version}", scopes=["read"]).token
    arguments = (endpoint, platform.token, reader, str(models), platform.url)
    seen = run(python_of(version), "vertex_serves.py", *arguments, env=env, task=None, within_s=840)
    assert seen["model"] == ["Sums", "1", ["default"], {"team": "x"}, "gs://"]
    assert (seen["second"][1:], seen["same"]) == (["2", ["ten"]], True)
    assert seen["changed"] == ["Sums of two", "Adds.", {"team": "y"}, ""]
    assert seen["other"] == ["Sums of two", "Ten times as much.", {"team": "y", "factor": "ten"}]
    assert seen["operations"] == [["upload-2", True], ["upload-1", True]]
    assert (seen["waited"], seen["unknown"][0]) == ([True, None], "NotFound")
    assert (seen["unready"][0], "nothing is deployed" in seen["unready"][1]) == ("ServiceUnavailable", True)
    assert seen["first"][0] == pytest.approx([3.0, 7.5])
    assert (seen["first"][1:], seen["named"]) == (["first", "1"], True)
    assert seen["split"] == {"first": 0, "second": 100}
    assert (seen["then"][0], seen["then"][1:]) == (pytest.approx([30.0]), ["second", "2"])
    assert seen["left"] == ["second"]
    assert (seen["wrong"][0], "the model rejects them" in seen["wrong"][1]) == (names[400], True)
    assert (seen["raw"][0]["predictions"], seen["raw"][1]) == (pytest.approx([20.0]), "second")
    assert seen["listed"] == ["sums of mine"]
    assert "never became ready" in seen["broken"][1]
    assert seen["still"] == ["second"]
    assert (seen["scaling"][0], "scaling by load" in seen["scaling"][1]) == (names[501], True)
    assert (seen["explained"][0], "explain" in seen["explained"][1]) == (names[501], True)
    assert (seen["held"][0], "deployed" in seen["held"][1]) == (names["condition"], True)
    assert (seen["reader"], seen["no_rights"][0]) == (pytest.approx([20.0]), names[403])
    state, lines, errors = seen["batch"]
    assert (state, [line["instance"] for line in lines]) == ("JOB_STATE_SUCCEEDED", [[1, 2], [3, 4.5]])
    assert [line["prediction"] for line in lines] == pytest.approx([30.0, 75.0])
    assert (errors, seen["batches"]) == ([["no", "number"]], ["ask them all"])
    assert (seen["bigquery"][0], "BigQuery" in seen["bigquery"][1]) == (names[501], True)
    assert (seen["gone"][0], seen["models"]) == ("NotFound", [])
