from __future__ import annotations

import os
import pickle
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trainmaster_train as tm
from trainmaster_train.checkpoint import sharded, stage_checkpoint

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in list(os.environ):
        if name.startswith("TRAINMASTER_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("TRAINMASTER_OUTPUT_DIR", str(tmp_path))
    return tmp_path


def test_a_model_and_its_optimizer_come_back_as_they_were() -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()

    path = tm.save_checkpoint({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, 7, {"loss": 1.5})
    found = tm.load_checkpoint(path)

    assert (found.step, found.metrics) == (7, {"loss": 1.5})
    assert torch.equal(found.state["model"]["weight"], model.weight)
    torch.optim.Adam(model.parameters()).load_state_dict(found.state["optimizer"])


def test_a_tensor_is_a_metric() -> None:
    path = tm.save_checkpoint({}, 1, {"loss": torch.tensor(0.5)})

    assert tm.load_checkpoint(path).metrics == {"loss": 0.5}


def test_a_lone_file_of_torch_is_read_too(tmp_path: Path) -> None:
    torch.save({"model": torch.ones(2)}, tmp_path / "model.pt")

    found = tm.load_checkpoint(tmp_path / "model.pt")

    assert (found.step, found.metrics) == (0, {})
    assert torch.equal(found.state["model"], torch.ones(2))


def test_code_in_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (os.mkdir, (str(tmp_path / "owned"),))

    (tmp_path / "evil.pt").write_bytes(pickle.dumps({"model": Evil()}))

    with pytest.raises(tm.CheckpointError, match="cannot be read as a torch state"):
        tm.load_checkpoint(tmp_path / "evil.pt")
    assert not (tmp_path / "owned").exists()


def test_a_checkpoint_without_its_mark_is_not_read() -> None:
    path = tm.save_checkpoint({}, 1)
    (path / ".complete").unlink()

    with pytest.raises(tm.CheckpointError, match="never finished"):
        tm.load_checkpoint(path)


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (
            {"model": {"hook": lambda: None}},
            r"state\['model'\]\['hook'\] is a function: it cannot be read back without",
        ),
        ({"model": [1, torch.nn.Linear(1, 1)]}, r"state\['model'\]\[1\] is a Linear: save its state_dict\(\)"),
        ({"lock": threading.Lock()}, r"state\['lock'\] is a lock: it cannot be read back"),
        ({"best": np.float64(0.5)}, r"state\['best'\] is a float64: .* save torch.as_tensor\(\) or tolist\(\) of it"),
        ({Path("a"): 1}, r"the key PosixPath\('a'\) of state is a PosixPath"),
    ],
)
def test_a_state_that_could_not_be_read_back_is_refused_by_its_keys(state: Any, sentence: str, output: Path) -> None:
    tm.save_checkpoint({}, 1)

    with pytest.raises(ValueError, match=sentence):
        tm.save_checkpoint(state, 2)
    with tm.Saver() as saver, pytest.raises(ValueError, match=sentence):
        saver.save(state, 2)

    assert [path.name for path in (output / "checkpoints").iterdir()] == ["step-00000001"]


def test_a_state_that_holds_itself_and_what_torch_reads_are_taken() -> None:
    state: dict[str, Any] = {"sizes": torch.Size([1]), "types": {torch.float32}, "seen": Counter("aab")}
    state["again"] = state

    found = tm.load_checkpoint(tm.save_checkpoint(state, 1)).state

    assert (found["sizes"], found["types"], found["seen"]) == (state["sizes"], state["types"], state["seen"])


@pytest.mark.parametrize(
    ("arguments", "options", "sentence"),
    [
        (({}, "abc"), {}, "step: 'abc' is not a whole number"),
        (({}, 1.5), {}, "step: 1.5 is not a whole number"),
        (({}, -1), {}, "step: -1 is negative"),
        (({}, 10**18), {}, "step: 1000000000000000000 is too large"),
        (({}, 1, 0.5), {}, "metrics: 0.5 is not a dict of names and numbers"),
        (({}, 1, {"loss": torch.ones(2)}), {}, r"metric 'loss': tensor\(\[1., 1.\]\) is not a number"),
        (({}, 1), {"directory": 5}, "directory: 5 is not a path"),
        (({}, 1), {"keep": "3"}, "keep: '3' is not a number of checkpoints"),
    ],
)
def test_an_argument_that_cannot_be_is_named(
    arguments: tuple[Any, ...], options: dict[str, Any], sentence: str, output: Path
) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        tm.save_checkpoint(*arguments, **options)
    with pytest.raises((ValueError, TypeError), match=sentence), tm.Saver(**options) as saver:
        saver.save(*arguments)

    assert tm.latest() is None


def test_whole_numbers_of_any_kind_are_steps() -> None:
    for step in (np.int64(7), torch.tensor(7), 7.0):
        assert tm.load_checkpoint(tm.save_checkpoint({}, step)).step == 7  # type: ignore[arg-type]


def test_replacing_a_checkpoint_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    tm.save_checkpoint({"value": 1}, 5)
    assert capsys.readouterr().err == ""
    path = tm.save_checkpoint({"value": 2}, 5)

    assert f"{path}: a checkpoint of this step existed already" in capsys.readouterr().err
    assert tm.load_checkpoint(path).state == {"value": 2}


def test_a_checkpoint_that_is_not_there_is_no_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(tm.CheckpointError, match=r"gone\.pt: does not exist"):
        tm.load_checkpoint(tmp_path / "gone.pt")


@pytest.mark.parametrize("timeout_s", [0, -1, "60"])
def test_a_time_out_that_cannot_be_is_named(timeout_s: Any) -> None:
    with pytest.raises(ValueError, match=r"timeout_s: .* is not a number of seconds above 0"):
        tm.Saver(timeout_s=timeout_s)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # one process writes alone
def test_a_shard_for_which_there_is_no_room_says_that_the_volume_is_full(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tm.save_sharded({"x": torch.zeros(1)}, 1)

    def on_a_full_disk(*arguments: Any, **options: Any) -> Path:
        staged = stage_checkpoint(*arguments, **options)
        (staged / "__0_0.distcp").symlink_to("/dev/full")
        return staged

    monkeypatch.setattr(sharded, "stage_checkpoint", on_a_full_disk)
    with pytest.raises(
        tm.CheckpointNotWrittenError, match="was not written: the output volume is full: free space there"
    ):
        tm.save_sharded({"x": torch.zeros(1_000_000)}, 2)

    assert [path.name for path in (output / "checkpoints").iterdir()] == ["step-00000001"]
