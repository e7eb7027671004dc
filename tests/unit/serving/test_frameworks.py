"""Real models of torch and scikit-learn, saved as their users save them, read and asked. TensorFlow's and XGBoost's
are in tests/frameworks.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from trainmaster_serving.errors import BadInstances, ModelProblem
from trainmaster_serving.models import load_model, metadata_of

# TorchScript is old, and still what a model is deployed as.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")

FACTORY = """
import torch

def make_model():
    return torch.nn.Linear(2, 1, bias=False)
"""


def _linear() -> Any:
    import torch

    module = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[1.0, 10.0]]))
    return module


def _torchscript(folder: Path) -> None:
    import torch

    torch.jit.script(_linear()).save(folder / "model.pt")


def _traced(folder: Path) -> None:
    import torch

    torch.jit.trace(_linear(), torch.zeros(3, 2)).save(folder / "traced.pth")


def _exported(folder: Path) -> None:
    import torch

    batch = torch.export.Dim("batch", max=1024)
    program = torch.export.export(_linear(), (torch.zeros(3, 2),), dynamic_shapes=({0: batch},))
    torch.export.save(program, folder / "model.pt2")


def _weights(folder: Path) -> None:
    import torch

    torch.save(_linear().state_dict(), folder / "model.pt")
    (folder / "model.py").write_text(FACTORY)


def _checkpoint(folder: Path) -> None:
    """As the platform's training library writes one: the weights are one of several entries."""
    import torch

    torch.save({"model": _linear().state_dict(), "step": 3}, folder / "model.pth")
    (folder / "model.py").write_text(FACTORY)


@pytest.mark.parametrize(
    ("save", "trust_code"),
    [(_torchscript, False), (_traced, False), (_exported, True), (_weights, True), (_checkpoint, True)],
)
def test_a_model_of_torch_answers(tmp_path: Path, save: Any, trust_code: bool) -> None:
    pytest.importorskip("torch")
    save(tmp_path)
    model = load_model(str(tmp_path), trust_code=trust_code)
    assert model.predict([[1.0, 2.0], [3.0, 0.5]], {}) == [[21.0], [8.0]]
    assert model.predict([[1, 2]], {}) == [[21.0]]  # whole numbers, meant as fractions
    with pytest.raises(BadInstances, match="rejects"):
        model.predict([[1.0, 2.0, 3.0]], {})
    if trust_code:
        with pytest.raises(ModelProblem, match="trust_code"):
            load_model(str(tmp_path))


def test_weights_alone_are_of_no_module(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save(_linear().state_dict(), tmp_path / "model.pt")
    with pytest.raises(ModelProblem, match=r"put a model\.py with make_model"):
        load_model(str(tmp_path), trust_code=True)


def test_weights_of_another_module_are_reported(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save(torch.nn.Linear(3, 1).state_dict(), tmp_path / "model.pt")
    (tmp_path / "model.py").write_text(FACTORY)
    with pytest.raises(ModelProblem, match="are not the weights of"):
        load_model(str(tmp_path), trust_code=True)


def test_arguments_by_name_and_several_outputs_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Two(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, left, right, by: int = 1):  # type: ignore[no-untyped-def]
            return {"sum": left + right, "product": left * right * by}

    torch.jit.trace(Two(), (torch.ones(2), torch.ones(2)), strict=False).save(tmp_path / "m.ts")
    model = load_model(str(tmp_path))
    assert model.predict([{"left": 2.0, "right": 3.0}, {"right": 1.0, "left": 1.5}], {}) == [
        {"sum": 5.0, "product": 6.0},
        {"sum": 2.5, "product": 1.5},
    ]
    with pytest.raises(BadInstances, match="the same names"):
        model.predict([{"left": 2.0, "right": 3.0}, {"left": 1.0}], {})


@pytest.mark.parametrize("name", ["model.skops", "model.joblib", "model.pkl"])
def test_a_model_of_scikit_learn_answers(tmp_path: Path, name: str) -> None:
    """A pipeline, as one would deploy it: by rows, by names, and by another of its methods."""
    pytest.importorskip("skops")
    import joblib
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from skops import io

    fitted = make_pipeline(StandardScaler(), LogisticRegression()).fit([[0, 0], [1, 9], [0, 1], [1, 8]], [0, 1, 0, 1])
    (io.dump if name.endswith(".skops") else joblib.dump)(fitted, tmp_path / name)
    model = load_model(str(tmp_path), trust_code=not name.endswith(".skops"))
    assert model.predict([[0, 1], [1, 9]], {}) == [0, 1]
    (chances,) = model.predict([[1, 9]], {"method": "predict_proba"})
    assert sum(chances) == pytest.approx(1)
    assert chances[1] > 0.5
    assert metadata_of(model, {"method": "predict_proba"}) == {"classes": [0, 1]}
    assert metadata_of(model, {}) == {}
    with pytest.raises(BadInstances, match=r"parameters\.method: this model has predict"):
        model.predict([[0, 1]], {"method": "transform"})
    with pytest.raises(BadInstances, match="features"):
        model.predict([[0, 1, 2]], {})


def test_skops_is_read_without_torch() -> None:
    """It took as long as all the rest, and more than half of the memory, of each replica of a model of scikit-learn."""
    pytest.importorskip("skops")
    if importlib.util.find_spec("torch") is None:
        pytest.skip("there is no torch that could be read")
    code = (
        "import sys; from trainmaster_serving.sklearn_model import skops_io; io = skops_io(); "
        "assert io.load and 'torch' not in sys.modules; "
        "import sklearn.externals.array_api_compat.torch; assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
