"""Checkpoints that TensorFlow, Keras, XGBoost and safetensors wrote, read without any of them: see files/README.md."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.inspection.model import Unreadable

FILES = Path(__file__).parent / "files"
KERNEL = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.fixture
def made(look: Any) -> Any:
    look.folder = FILES
    return look


@pytest.mark.parametrize(
    ("path", "form", "kernel"),
    [
        ("ckpt-5", "tensorflow", "optimizer/_trainable_variables/0"),
        ("model.ckpt-7", "tensorflow", "dense/kernel"),
        ("saved", "savedmodel", "kernel"),
        ("tiny.keras", "keras", "layers/dense/vars/0"),
        ("tiny.h5", "keras", "model_weights/dense/tiny/dense/kernel"),
        ("tiny.weights.h5", "keras", "layers/dense/vars/0"),
        ("tiny.safetensors", "safetensors", "dense.kernel"),
    ],
)
def test_the_same_kernel_in_every_format(made: Any, path: str, form: str, kernel: str) -> None:
    assert made(path).format == form
    assert made.tensor(kernel).shape == (3, 2)
    assert not made.tensor(kernel).is_optimizer
    assert made.values(kernel) == KERNEL


@pytest.mark.parametrize(
    ("path", "moment"),
    [
        ("ckpt-5", "optimizer/_variables/2"),
        ("model.ckpt-7", "dense/kernel/Adam_1"),
        ("tiny.keras", "optimizer/vars/2"),
        ("tiny.h5", "optimizer_weights/adam/tiny_dense_kernel_momentum"),
    ],
)
def test_the_optimizers_state_is_distinguished_from_the_weights(made: Any, path: str, moment: str) -> None:
    made(path)
    assert made.tensor(moment).is_optimizer
    assert len(made.values(moment)) == 6


def test_halves_of_tensorflow(made: Any) -> None:
    made("model.ckpt-7")
    assert (made.tensor("half").dtype, made.values("half")) == ("bfloat16", [1.0, 1.0])


def test_pressed_and_big_endian_hdf5(made: Any) -> None:
    made("chunked.h5")
    assert made.values("pressed") == list(range(1000))
    assert made.values("big") == KERNEL
    assert "Nothing was ever written" in str(made.statistics("empty")["note"])


def test_hdf5_that_links_to_other_files_is_refused(made: Any) -> None:
    with pytest.raises(Unreadable, match="damaged, or HDF5 of a kind that is not read here"):
        made("linked.h5")


@pytest.mark.parametrize("path", ["trees.json", "trees.ubj"])
def test_trees_of_xgboost(made: Any, path: str) -> None:
    contents = made(path)
    assert contents.format == "xgboost"
    assert (contents.values["trees"], contents.values["num_feature"]) == (3, "2")
    assert contents.values["feature_names"] == "age, size"
    held = json.loads((FILES / "trees.json").read_text())["learner"]["gradient_booster"]["model"]["trees"]
    wanted = [value for tree in held for value in tree["base_weights"]]
    assert made.values("base_weights") == pytest.approx(wanted)


def test_arrays_of_numpy_pressed_or_not(look: Any, tmp_path: Path) -> None:
    arrays = {"w": np.arange(6.0).reshape(2, 3), "turned": np.asfortranarray(np.arange(4, dtype=">i2").reshape(2, 2))}
    np.savez(tmp_path / "plain.npz", **arrays)
    np.savez_compressed(tmp_path / "pressed.npz", **arrays)
    np.save(tmp_path / "one.npy", arrays["w"])
    for name in ("plain.npz", "pressed.npz"):
        look(name)
        assert look.values("w") == list(range(6))
        assert sorted(look.values("turned")) == [0, 1, 2, 3]
    look("one.npy")
    assert look.values("array") == list(range(6))


def test_arrays_of_objects_are_never_unpickled(look: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", objects=np.array([{"a": 1}], dtype=object), w=np.ones(1))
    look("a.npz")
    assert "never unpickled" in look.statistics("objects")["note"]
    assert look.values("w") == [1.0]


def test_shards_of_safetensors_with_their_index_and_the_optimizer_beside(look: Any, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-10"
    folder.mkdir()
    shutil.copy(FILES / "tiny.safetensors", folder / "model-00001-of-00002.safetensors")
    weights = {"dense.kernel": "model-00001-of-00002.safetensors", "other": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    np.savez(folder / "optimizer.npz", **{"0.m": np.ones(2)})
    contents = look("checkpoint-10")
    assert look.values("dense.kernel") == KERNEL
    assert look.tensor("optimizer.0.m").is_optimizer
    assert "model-00002-of-00002.safetensors" in contents.notes[0]


def test_shards_of_parameter_servers_become_the_models_tensors_again(look: Any, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    folder = tmp_path / "step-5"
    folder.mkdir()
    signature = {
        "tensors": [
            ["a.weight", [2, 3], "torch.float32", 0, False],
            ["table", [3, 2], "torch.float32", 0, True],
            ["b", [5], "torch.float32", 0, False],
        ],
        "optimizer": "Adam",
        "groups": [],
    }
    slab, table = torch.arange(11.0), torch.arange(6.0).view(3, 2)
    for ps in (0, 1):
        part = slab[11 * ps // 2 : 11 * (ps + 1) // 2].clone()
        state = {"exp_avg": part * 10, "step": torch.tensor(7.0)}
        rows = table[ps::2].clone()
        torch.save(
            {
                "ps": ps, "count": 2, "version": 7, "signature": signature,
                "slabs": [(part, state)], "tables": {"table": (rows, {"exp_avg": rows * 10})},
            },
            folder / f"shard-{ps:05d}-of-00002.pt",
        )  # fmt: skip
    contents = look("step-5")
    assert (contents.format, contents.values["version"]) == ("shards", 7)
    assert look.values("a.weight") == [0, 1, 2, 3, 4, 5]
    assert look.values("b") == [6, 7, 8, 9, 10]
    assert look.values("table") == [0, 1, 2, 3, 4, 5]
    assert look.values("optimizer.b.exp_avg") == [60, 70, 80, 90, 100]
    assert look.tensor("optimizer.table.exp_avg").is_optimizer
    (folder / "shard-00001-of-00002.pt").unlink()
    with pytest.raises(Unreadable, match="1 of 2 shards"):
        look("step-5")
