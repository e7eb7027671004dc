from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trainmaster_train as tm
from trainmaster_train import steps
from trainmaster_train.checkpoint import manifest, saver, states
from trainmaster_train.checkpoint.saver import StateSnapshot

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def folder(alone: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    timer = steps.StepTimer()
    monkeypatch.setattr(steps, "timer", lambda: timer)
    return alone / "checkpoints"


class Gate:
    """Holds the writing thread back until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.reached = threading.Event()
        write = saver.write_state

        def held(*arguments: Any, **options: Any) -> Path:
            self.reached.set()
            assert self.opened.wait(60)
            return write(*arguments, **options)

        monkeypatch.setattr(saver, "write_state", held)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.opened.set()


def trained() -> tuple[Any, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer)
    return model, optimizer


def step(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()


def state_of(model: Any, optimizer: Any) -> dict[str, Any]:
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "note": ["x", (1, 2)]}


def test_what_is_written_is_the_state_at_the_save_whatever_comes_after(gate: Gate) -> None:
    model, optimizer = trained()
    weight = model[0].weight.detach().clone()
    with tm.Saver() as saver:
        saver.save(state_of(model, optimizer), 1, {"loss": torch.tensor(0.5)})
        assert gate.reached.wait(60)
        assert tm.latest() is None
        step(model, optimizer)
        gate.opened.set()
    found = tm.resume()

    assert found is not None
    assert (found.step, found.metrics, found.state["note"]) == (1, {"loss": 0.5}, ["x", (1, 2)])
    assert torch.equal(found.state["model"]["0.weight"], weight)
    tm.load_state(model, found.state["model"], source=found)
    tm.load_state(optimizer, found.state["optimizer"], source=found)
    assert torch.equal(model[0].weight, weight)


def test_with_the_optimizer_its_step_waits_until_the_parameters_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = trained()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    copying = threading.Event()
    stepping = threading.Event()
    finish = StateSnapshot.finish

    def slow(snapshot: Any) -> None:
        # BatchNorm's buffers change in every forward, so they were copied at once.
        assert {place for _, _, _, place in snapshot.later} >= {"model.0.weight", "model.1.bias"}
        assert not any("running" in place for _, _, _, place in snapshot.later)
        copying.set()
        assert stepping.wait(60)
        finish(snapshot)

    monkeypatch.setattr(StateSnapshot, "finish", slow)
    with tm.Saver() as saver, steps.timer().step():
        saver.save(state_of(model, optimizer), 1, optimizer=optimizer)
        assert copying.wait(60)
        loss = model(torch.randn(4, 3)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        threading.Timer(0.2, stepping.set).start()
        optimizer.step()
    found = tm.resume()

    assert found is not None
    assert all(torch.equal(found.state["model"][name], value) for name, value in before.items())
    assert not torch.equal(model[0].weight, before["0.weight"])
    assert steps.timer().last is not None
    assert steps.timer().last.parts["checkpoint"] > 0.1


def test_parameters_changed_behind_the_optimizers_back_make_no_checkpoint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, optimizer = trained()
    changed = threading.Event()
    finish = StateSnapshot.finish
    monkeypatch.setattr(StateSnapshot, "finish", lambda snapshot: (changed.wait(60), finish(snapshot))[1])
    saver = tm.Saver()
    saver.save(state_of(model, optimizer), 1, optimizer=optimizer)
    with torch.no_grad():
        model[0].weight.clamp_(-0.01, 0.01)
    changed.set()

    with pytest.raises(tm.CheckpointError, match=r"model\.0\.weight was changed before optimizer\.step\(\)"):
        saver.close()
    assert tm.latest() is None
    assert "model.0.weight was changed" in capsys.readouterr().err


def test_a_second_save_waits_for_the_first_and_reuses_its_memory(folder: Path) -> None:
    model, optimizer = trained()
    with tm.Saver(keep=2) as saver:
        for number in (1, 2, 3):
            saver.save(state_of(model, optimizer), number)
            buffers = {key: value.data_ptr() for key, value in saver._staging._buffers.items()}
        saver.save(state_of(model, optimizer), 4)
        assert {key: value.data_ptr() for key, value in saver._staging._buffers.items()} == buffers

    assert sorted(path.name for path in folder.iterdir()) == ["step-00000003", "step-00000004"]


def test_tied_weights_stay_tied() -> None:
    shared = torch.ones(3)
    with tm.Saver() as saver:
        saver.save({"a": shared, "b": shared, "part": shared[:2], "whole": torch.eye(2).T}, 1)
    found = tm.resume()

    assert found is not None
    assert found.state["a"].data_ptr() == found.state["b"].data_ptr()
    assert torch.equal(found.state["part"], torch.ones(2))
    assert torch.equal(found.state["whole"], torch.eye(2))


class FullDisk:
    """``os.write`` of a disk that takes so many bytes."""

    def __init__(self, room: int) -> None:
        self.room = room

    def __call__(self, file: int, data: Any) -> int:
        taken = min(len(data), self.room)
        if not taken:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= taken
        return taken


def test_a_full_volume_is_named_and_the_older_checkpoint_stays(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = {"w": torch.ones(100_000)}
    older = tm.save_checkpoint(state, 1)
    write = os.write
    monkeypatch.setattr(manifest.os, "write", FullDisk(200_000))
    sentence = (
        f"the checkpoint of step 2 was not written to {folder}: the output volume is full: free space there, "
        "or keep fewer checkpoints; earlier checkpoints are intact"
    )
    with pytest.raises(tm.CheckpointNotWrittenError) as caught:
        tm.save_checkpoint(state, 2)
    assert str(caught.value) == sentence
    assert isinstance(caught.value, OSError)

    saver = tm.Saver()
    saver.save(state, 2)
    with pytest.raises(tm.CheckpointNotWrittenError):
        saver.wait()
    monkeypatch.setattr(manifest.os, "write", write)
    assert f"trainmaster: {sentence}" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == [older.name]
    saver.save(state, 3)
    saver.close()
    assert tm.latest() == folder / "step-00000003"


def test_each_checkpoint_is_reported_when_it_is_complete(gate: Gate, tmp_path: Path) -> None:
    with tm.Saver() as saver:
        saver.save({"w": torch.ones(2)}, 5, {"accuracy": 0.9})
        assert gate.reached.wait(60)
        assert not (tmp_path / "report.jsonl").exists()
        gate.opened.set()

    line = json.loads((tmp_path / "report.jsonl").read_text())
    assert (line["kind"], line["path"], line["metrics"]) == (
        "checkpoint",
        "checkpoints/step-00000005",
        {"accuracy": 0.9},
    )


def test_writing_is_overlapped_and_only_the_copy_is_a_stall() -> None:
    with steps.timer().step(), tm.Saver() as saver:
        saver.save({"w": torch.ones(10)}, 1)
    last = steps.timer().last

    assert last is not None
    assert last.overlapped["checkpoint"] > 0
    assert sum(last.parts.values()) == pytest.approx(last.seconds)


def test_the_best_stay_in_addition_to_the_newest(folder: Path) -> None:
    keep = tm.Keep(last=1, best=2, metric="accuracy", mode="max")
    with tm.Saver(keep=keep) as saver:
        for number, accuracy in enumerate([0.5, 0.9, float("nan"), 0.8, 0.7, 0.6], start=1):
            saver.save({}, number, {"accuracy": accuracy})
        saver.save({}, 7, {"loss": 1.0})

    assert sorted(path.name for path in folder.iterdir()) == ["step-00000002", "step-00000004", "step-00000007"]
    assert tm.best_checkpoint("accuracy", mode="max") == folder / "step-00000002"
    assert tm.best_checkpoint("loss") == folder / "step-00000007"
    assert tm.best_checkpoint("perplexity") is None
    with pytest.raises(ValueError, match="mode: 'lowest'"):
        tm.Keep(mode="lowest")
    with pytest.raises(ValueError, match="best: -1"):
        tm.Keep(best=-1)


def test_a_state_of_another_model_is_refused_by_the_names_of_its_tensors() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
    before = model[0].weight.detach().clone()
    other = {"0.weight": torch.ones(2, 4), "0.bias": torch.ones(2), "1.weight": torch.ones(1, 2), "head.bias": 1}

    with pytest.raises(tm.CheckpointError) as caught:
        tm.load_state(model, other, source="step-7")

    assert str(caught.value) == (
        "step-7: is of another model: missing 1.bias; unexpected head.bias; 0.weight is 2×4 where the model has 2×3"
    )
    assert torch.equal(model[0].weight, before)
    with pytest.raises(tm.CheckpointError, match="holds a list where a state_dict is wanted"):
        tm.load_state(model, [])


def test_the_names_of_a_wrapped_model_are_recognised() -> None:
    model = torch.nn.Linear(2, 1)
    wrapped = {f"module.{name}": value for name, value in model.state_dict().items()}

    with pytest.raises(tm.CheckpointError, match=r"as DistributedDataParallel's do: load it into the wrapped model"):
        tm.load_state(model, wrapped)
    with pytest.raises(tm.CheckpointError, match=r"load it into `model\.module`"):
        tm.load_state(torch.nn.ModuleDict({"module": model}), model.state_dict())


def test_the_state_of_another_optimizer_is_refused_by_its_numbers() -> None:
    one = torch.optim.Adam(torch.nn.Linear(2, 1).parameters())
    two = torch.optim.Adam([{"params": torch.nn.Linear(2, 1).parameters()}, {"params": [torch.ones(1)]}])

    with pytest.raises(
        tm.CheckpointError, match="another optimizer: it is of 3 parameters in 2 groups, this one has 2"
    ):
        tm.load_state(one, two.state_dict())
    with pytest.raises(tm.CheckpointError, match="no param_groups"):
        tm.load_state(one, {})


def test_writing_again_where_the_writer_was_killed_between_two_names(folder: Path) -> None:
    """Killed after the old one of the same step was moved aside, before the new one was in its place."""
    path = states.write_state({"w": torch.ones(1)}, 5)
    path.rename(folder / ".step-00000005.a1.old")

    found = tm.resume()

    assert found is not None
    assert (found.step, found.state) == (5, {"w": torch.ones(1)})
    assert tm.latest() == folder / ".step-00000005.a1.old"
