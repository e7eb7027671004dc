"""What the control plane refuses by a model's files is what the platform's server would refuse, in the same words."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from trainmaster_serving.errors import ModelProblem
from trainmaster_serving.models import load_model

from core.domain.serving.files import refusal


def _write(folder: Path, name: str, is_archive: bool, entry: str) -> None:
    if is_archive:
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr(entry, "")
    else:
        (folder / name).touch()


WEIGHTS = "model/data.pkl"
CASES = [
    (["model.joblib"], "", "auto", False, "trust_code"),
    (["a.pkl", "model.pickle"], "", "auto", False, "trust_code"),
    (["odd.bin"], "odd.bin", "sklearn", False, "trust_code"),
    (["model.pt2"], "", "auto", False, "trust_code"),
    (["model.pt", "model.py"], "", "auto", False, "trust_code"),
    (["model.pt"], "", "auto", False, "model"),
    (["model.pt"], "", "auto", True, "model"),
    (["weights"], "weights", "torch", True, "model"),
    (["readme.txt"], "", "auto", True, "model"),
    (["model.pt"], "", "sklearn", True, "model"),
    (["saved_model.pb"], "", "torch", True, "model"),
    ([], "", "auto", True, "model"),
    (["a.pt", "b.pt"], "", "auto", True, "model"),
    (["weights"], "weights", "auto", True, "framework"),
]


@pytest.mark.parametrize(("files", "file", "framework", "trusts_code", "field"), CASES)
def test_the_same_is_refused_in_the_same_words(
    tmp_path: Path, files: list[str], file: str, framework: str, trusts_code: bool, field: str
) -> None:
    if framework == "sklearn" or any(name.endswith((".joblib", ".pkl")) for name in files):
        pytest.importorskip("sklearn")
    if framework == "torch" or any(".pt" in name for name in files):
        pytest.importorskip("torch")
    for name in files:
        _write(tmp_path, name, name.endswith((".pt", "weights")), WEIGHTS)
    found = refusal(
        str(tmp_path), files, file=file, framework=framework, trusts_code=trusts_code, is_torchscript=lambda _: False
    )
    with pytest.raises(ModelProblem) as raised:
        load_model(str(tmp_path), file, framework, trusts_code)
    assert found is not None
    assert (found.sentence, found.field) == (str(raised.value), field)


@pytest.mark.parametrize(
    ("files", "file", "framework", "trusts_code", "has_code"),
    [
        (["model.skops"], "", "auto", False, False),
        (["model.joblib"], "", "auto", True, False),
        (["model.pt2"], "", "auto", True, False),
        (["model.pt"], "", "auto", False, True),
        (["model.pt"], "", "auto", False, None),  # it cannot be seen
        (["model.pt", "model.py"], "", "auto", True, False),
        (["model.pt", "optimizer.pt"], "", "auto", False, True),
        (["saved_model.pb", "keras.pkl"], "", "auto", False, False),
        (["saved_model.pb"], "saved_model.pb", "auto", False, False),
        (["m.ubj", "readme.txt"], "", "auto", False, False),
        (["own.h5"], "own.h5", "tensorflow", False, False),
    ],
)
def test_what_may_be_read_is_not_refused(
    files: list[str], file: str, framework: str, trusts_code: bool, has_code: bool | None
) -> None:
    assert refusal(
        "m", files, file=file, framework=framework, trusts_code=trusts_code, is_torchscript=lambda _: has_code
    ) is None  # fmt: skip
