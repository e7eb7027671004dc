from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest
import trainmaster_train as tm

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


def test_a_state_that_cannot_be_written_leaves_nothing_behind(output: Path) -> None:
    tm.save_checkpoint({}, 1)

    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        tm.save_checkpoint({"step": lambda: None}, 2)

    assert [path.name for path in (output / "checkpoints").iterdir()] == ["step-00000001"]
