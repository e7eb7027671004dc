"""Files that torch itself wrote, read without torch and without unpickling."""

from __future__ import annotations

import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from core.inspection.model import Unreadable

torch = pytest.importorskip("torch")


class Bomb:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (self.path,))


def training_state() -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2).to(torch.bfloat16))
    optimizer = torch.optim.Adam(model[0].parameters(), lr=0.5)
    model[0](torch.ones(1, 4)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 7, "name": "x"}


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_training_state_with_its_optimizer_distinguished_from_the_weights(
    look: Any, tmp_path: Path, is_zip: bool
) -> None:
    state = training_state()
    torch.save(state, tmp_path / "a.pt", _use_new_zipfile_serialization=is_zip)
    contents = look("a.pt")
    assert contents.format == "torch"
    weights = [tensor for tensor in contents.tensors if not tensor.is_optimizer]
    assert {tensor.name: (tensor.shape, tensor.dtype) for tensor in weights} == {
        "model.0.weight": ((3, 4), "float32"),
        "model.0.bias": ((3,), "float32"),
        "model.1.weight": ((2, 3), "bfloat16"),
        "model.1.bias": ((2,), "bfloat16"),
    }
    assert "optimizer.state.0.exp_avg" in look.shapes()
    assert look.values("model.0.weight") == state["model"]["0.weight"].flatten().tolist()
    assert look.values("model.1.weight") == state["model"]["1.weight"].float().flatten().tolist()
    assert (
        look.values("optimizer.state.0.exp_avg_sq") == state["optimizer"]["state"][0]["exp_avg_sq"].flatten().tolist()
    )
    assert contents.values["epoch"] == 7
    assert contents.values["optimizer.param_groups.0.lr"] == 0.5


@pytest.mark.parametrize(
    "dtype", ["float64", "float16", "int64", "int8", "uint8", "bool", "complex64", "float8_e4m3fn", "float8_e5m2"]
)
def test_every_dtype_has_the_values_that_torch_has(look: Any, tmp_path: Path, dtype: str) -> None:
    kind = getattr(torch, dtype)
    tensor = (
        torch.tensor([0.0, 1.0, -2.0, 96.0]).to(kind) if "int8" not in dtype else torch.tensor([0, 1, 3, 96]).to(kind)
    )
    torch.save({"t": tensor}, tmp_path / "a.pt")
    look("a.pt")
    assert look.tensor("t").dtype == dtype
    plain = torch.view_as_real(tensor) if tensor.is_complex() else tensor.double()
    assert look.values("t") == plain.flatten().tolist()


def test_all_codes_of_eight_bit_floats(look: Any, tmp_path: Path) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    kinds = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    torch.save({kind: codes.view(getattr(torch, kind)) for kind in kinds}, tmp_path / "a.pt")
    look("a.pt")
    for kind in kinds:
        wanted = codes.view(getattr(torch, kind)).float().tolist()
        assert [repr(value) for value in look.values(kind)] == [repr(value) for value in wanted]


def test_views_come_in_their_own_order_and_repeated_elements_count_as_often(look: Any, tmp_path: Path) -> None:
    base = torch.arange(24, dtype=torch.float32)
    torch.save(
        {
            "turned": base.view(4, 6).t(),
            "part": base[5:11],
            "columns": base.view(4, 6)[:, 1:3],
            "repeated": torch.tensor([[1.0], [2.0]]).expand(2, 5),
            "nothing": torch.empty(0, 3),
            "one": torch.tensor(3.0),
        },
        tmp_path / "a.pt",
    )
    look("a.pt")
    assert look.values("turned") == base.view(4, 6).t().flatten().tolist()
    assert look.values("part") == base[5:11].tolist()
    assert look.values("columns") == base.view(4, 6)[:, 1:3].flatten().tolist()
    assert look.values("nothing") == []
    assert look.values("one") == [3.0]
    figures = look.statistics("repeated")
    assert (figures["count"], figures["mean"]) == (10, 1.5)
    assert figures["norm"] == pytest.approx(5.0)


def test_a_whole_module_shows_its_tensors_and_runs_nothing(look: Any, tmp_path: Path) -> None:
    torch.save(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)), tmp_path / "whole.pt")
    contents = look("whole.pt")
    assert look.shapes()["0.weight"] == (2, 2)
    assert look.shapes()["1.running_mean"] == (2,)
    assert "weights_only=False" in contents.notes[0]


@pytest.mark.parametrize("is_zip", [True, False])
def test_a_pickle_bomb_is_never_run(look: Any, tmp_path: Path, is_zip: bool) -> None:
    trace = tmp_path / "was-run"
    torch.save({"w": torch.ones(2), "bomb": Bomb(str(trace))}, tmp_path / "a.pt", _use_new_zipfile_serialization=is_zip)
    look("a.pt")
    assert look.shapes() == {"w": (2,)}
    assert look.values("w") == [1.0, 1.0]
    assert not trace.exists()


def test_a_plain_pickle_is_refused_and_not_run(look: Any, tmp_path: Path) -> None:
    trace = tmp_path / "was-run"
    (tmp_path / "a.pt").write_bytes(pickle.dumps(Bomb(str(trace))))
    with pytest.raises(Unreadable, match="is a pickle, but none of torch"):
        look("a.pt")
    assert not trace.exists()


def test_a_file_that_is_cut_short_at_any_place_gives_a_sentence_or_notes(look: Any, tmp_path: Path) -> None:
    for is_zip in (True, False):
        torch.save({"a": torch.ones(8), "b": torch.zeros(8)}, tmp_path / "a.pt", _use_new_zipfile_serialization=is_zip)
        data = (tmp_path / "a.pt").read_bytes()
        for length in range(0, len(data), 97):
            (tmp_path / "a.pt").write_bytes(data[:length])
            with suppress(Unreadable):
                look("a.pt")
                for tensor in look.contents.tensors:
                    assert isinstance(look.statistics(tensor.name)["note"], str)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_sharded_states_of_several_writers(look: Any, tmp_path: Path) -> None:
    from torch.distributed import checkpoint as dcp

    state = {"model": {"w": torch.arange(12.0).view(3, 4), "h": torch.ones(5, dtype=torch.bfloat16)}, "step": 3}
    dcp.save(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    contents = look("dcp")
    assert contents.format == "dcp"
    assert look.shapes() == {"model.w": (3, 4), "model.h": (5,)}
    assert look.values("model.w") == list(range(12))
    assert look.values("model.h") == [1.0] * 5
    assert "step" in contents.values


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_sharded_state_without_one_of_its_files_says_which(look: Any, tmp_path: Path) -> None:
    from torch.distributed import checkpoint as dcp

    dcp.save({"w": torch.ones(4)}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    for file in (tmp_path / "dcp").glob("*.distcp"):
        file.unlink()
    look("dcp")
    assert "does not exist" in str(look.statistics("w")["note"])
