"""Complete checkpoints of every format, made here as their writers lay them down, and what a killed writer leaves."""

from __future__ import annotations

import errno
import json
import os
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import trainmaster_train as tm
from trainmaster_train.checkpoint import formats

torch = pytest.importorskip("torch")


@pytest.fixture
def folder(alone: Path) -> Path:
    (alone / "checkpoints").mkdir(parents=True)
    return alone / "checkpoints"


def safetensors(path: Path) -> Path:
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    return path


def torch_file(path: Path) -> Path:
    torch.save({"w": torch.ones(3)}, path)
    return path


def old_torch_file(path: Path) -> Path:
    torch.save({"w": torch.ones(3)}, path, _use_new_zipfile_serialization=False)
    return path


def keras(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("metadata.json", "config.json", "model.weights.h5"):
            archive.writestr(name, "{}")
    return path


def hdf5(version: int) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        begin = {0: 40, 1: 44, 2: 28, 3: 28}[version]
        data = bytearray(200)
        data[:9] = b"\x89HDF\r\n\x1a\n" + bytes([version])
        struct.pack_into("<Q", data, begin, 200)
        path.write_bytes(data)
        return path

    return make


def huggingface(path: Path) -> Path:
    path.mkdir()
    weights = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    for name in weights.values():
        safetensors(path / name)
    torch_file(path / "optimizer.pt")
    (path / "trainer_state.json").write_text(json.dumps({"global_step": 500}))
    return path


def dcp(path: Path) -> Path:
    from torch.distributed import checkpoint

    checkpoint.save({"w": torch.ones(1000), "step": 3}, checkpoint_id=path, no_dist=True)
    return path


def tensorflow(path: Path) -> Path:
    for number in range(2):
        (path.parent / f"{path.name}.data-0000{number}-of-00002").write_bytes(b"weights")
    (path.parent / f"{path.name}.index").write_bytes(bytes(40) + struct.pack("<Q", 0xDB4775248B80FB57))
    (path.parent / "checkpoint").write_text(f'model_checkpoint_path: "{path.name}"\n')
    return path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


WRITERS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "model-7.pt": ("torch", torch_file),
    "model-7.pth": ("torch", torch_file),
    "pytorch_model-7.bin": ("torch", torch_file),
    "epoch=1-step=7.ckpt": ("lightning", torch_file),
    "model-7.safetensors": ("safetensors", safetensors),
    "model-7.keras": ("keras", keras),
    "v0-7.h5": ("keras", hdf5(0)),
    "v1-7.h5": ("keras", hdf5(1)),
    "v2-7.weights.h5": ("keras", hdf5(2)),
    "v3-7.h5": ("keras", hdf5(3)),
    "arrays-7.npz": ("numpy", keras),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_whole_file_is_found_and_one_cut_short_is_not(folder: Path, name: str) -> None:
    kind, write = WRITERS[name]
    path = write(folder / name)
    assert tm.find_checkpoint() == formats.FoundCheckpoint(path, kind, 7, path.stat().st_mtime)

    cut(path)
    assert tm.find_checkpoint() is None
    path.write_bytes(b"")
    assert tm.resume() is None


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_dcp_folder_needs_its_metadata_and_every_byte_that_it_names(folder: Path) -> None:
    path = dcp(folder / "step-7")
    found = tm.find_checkpoint()
    assert found is not None
    assert (found.path, found.format, found.step) == (path, "dcp", 7)
    state = {"w": torch.zeros(1000), "step": 0}
    resumed = tm.resume(into=state)
    assert resumed is not None
    assert resumed.step == 7
    assert torch.equal(state["w"], torch.ones(1000))

    (shard,) = path.glob("*.distcp")
    cut(shard)
    assert tm.find_checkpoint() is None
    (path / ".metadata").write_bytes(b"no pickle")
    assert tm.find_checkpoint() is None


def test_a_huggingface_folder_needs_all_shards_and_the_trainers_state(folder: Path) -> None:
    path = huggingface(folder.parent / "checkpoint-500")  # as the Trainer writes: beside, not below "checkpoints"
    found = tm.find_checkpoint()
    assert found is not None
    assert (found.path, found.format, found.step) == (path, "huggingface", 500)

    for damage in (
        lambda: (path / "trainer_state.json").write_text('{"global_'),
        (path / "trainer_state.json").unlink,
        (path / "model-00002-of-00002.safetensors").unlink,
        lambda: cut(path / "optimizer.pt"),
        lambda: (path / "model.safetensors.index.json").write_text("[]"),
    ):
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
        huggingface(path)
        damage()
        assert tm.find_checkpoint() is None


def test_a_tensorflow_checkpoint_is_its_prefix_and_needs_all_data_and_the_indexs_end(folder: Path) -> None:
    older = tensorflow(folder / "ckpt-5")
    path = tensorflow(folder / "ckpt-7")
    found = tm.find_checkpoint()
    assert found is not None
    assert (found.path, found.format, found.step) == (path, "tensorflow", 7)

    cut(folder / "ckpt-7.index")
    found = tm.find_checkpoint()
    assert found is not None
    assert found.path == older
    (folder / "ckpt-5.data-00001-of-00002").unlink()
    assert tm.find_checkpoint() is None


def test_what_a_writer_calls_unfinished_is_left_alone(folder: Path) -> None:
    torch_file(folder / "model-7.pt.tmp")
    torch_file(folder / ".model-7.pt")

    assert tm.find_checkpoint() is None


def test_the_largest_step_is_the_newest_and_a_name_without_one_comes_last(folder: Path) -> None:
    torch_file(folder / "last.pt")
    torch_file(folder / "model-9.pt")
    os.utime(folder / "model-9.pt", (1, 1))
    newest = torch_file(folder / "model-10.pt")
    os.utime(newest, (1, 1))

    assert [found.path.name for found in formats.find_all(folder)] == ["model-10.pt", "model-9.pt", "last.pt"]
    resumed = tm.resume()
    assert resumed is not None
    assert (resumed.path, resumed.step, resumed.format) == (newest, 10, "torch")
    assert torch.equal(resumed.state["w"], torch.ones(3))


def test_an_old_torch_file_that_was_cut_is_named_and_the_one_before_is_taken(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = old_torch_file(folder / "model-1.pt")
    cut(old_torch_file(folder / "model-2.pt"))

    resumed = tm.resume()

    assert resumed is not None
    assert resumed.path == whole
    assert "model-2.pt: cannot be read" in capsys.readouterr().err


def test_a_file_that_needs_code_is_refused_and_not_passed_over(folder: Path) -> None:
    torch_file(folder / "model-1.pt")
    torch.save({"path": Path("x")}, folder / "model-2.pt")

    with pytest.raises(tm.CheckpointError, match=r"model-2\.pt: cannot be read as a torch state"):
        tm.resume()


def test_a_damaged_file_of_ours_is_named_and_the_one_before_is_taken(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    older = tm.save_checkpoint({"w": torch.ones(3)}, 1)
    damaged = tm.save_checkpoint({"w": torch.ones(3)}, 2) / "state.pt"
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.write_bytes(data)

    resumed = tm.resume()

    assert resumed is not None
    assert (resumed.path, resumed.step) == (older, 1)
    error = capsys.readouterr().err
    assert "step-00000002/state.pt: is damaged: its content is not what was written" in error
    assert "trying the one before it" in error
    with pytest.raises(tm.CheckpointError, match=r"state\.pt: is damaged"):
        tm.load_checkpoint(damaged.parent)


@pytest.mark.parametrize("name", ["state.pt", "manifest.json"])
def test_what_the_file_system_does_not_read_is_named_and_the_one_before_is_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    older = tm.save_checkpoint({"w": torch.ones(3)}, 1)
    damaged = tm.save_checkpoint({"w": torch.ones(3)}, 2)
    find = formats.find_all

    def then_the_disk_fails(directory: Path) -> list[formats.FoundCheckpoint]:
        found = find(directory)
        (damaged / name).unlink()
        (damaged / name).symlink_to(name)  # reading it is an error, and not that it is missing
        return found

    monkeypatch.setattr(formats, "find_all", then_the_disk_fails)

    resumed = tm.resume(folder)

    assert resumed is not None
    assert resumed.path == older
    reason = os.strerror(errno.ELOOP)
    assert f"{damaged / name}: cannot be read ({reason}); choose another checkpoint" in capsys.readouterr().err


def test_when_every_checkpoint_is_damaged_the_training_does_not_start_afresh(folder: Path) -> None:
    path = tm.save_checkpoint({"w": torch.ones(3)}, 2) / "state.pt"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)

    with pytest.raises(tm.CheckpointError, match="is damaged"):
        tm.resume()


@pytest.mark.parametrize("damage", ["shorter", "gone", "manifest"])
def test_a_checkpoint_of_ours_without_all_of_its_files_is_not_complete(folder: Path, damage: str) -> None:
    older = tm.save_checkpoint({}, 1)
    path = tm.save_checkpoint({}, 2)
    if damage == "shorter":
        cut(path / "state.pt")
    elif damage == "gone":
        (path / "state.pt").unlink()
    else:
        (path / "manifest.json").write_text('{"files": {"state')

    found = tm.find_checkpoint()

    assert found is not None
    assert found.path == older


def test_what_the_platform_names_is_taken_and_nothing_newer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = torch_file(folder / "model-5.pt")
    torch_file(folder / "model-9.pt")
    monkeypatch.setenv("TRAINMASTER_RESUME_FROM", str(chosen))

    resumed = tm.resume()

    assert resumed is not None
    assert resumed.path == chosen


def test_an_unfinished_file_that_the_platform_names_is_passed_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    older = torch_file(folder / "model-5.pt")
    cut(torch_file(folder / "model-9.pt"))
    monkeypatch.setenv("TRAINMASTER_RESUME_FROM", str(folder / "model-9.pt"))

    resumed = tm.resume()

    assert resumed is not None
    assert resumed.path == older
    assert "model-9.pt was never finished" in capsys.readouterr().err
    monkeypatch.setenv("TRAINMASTER_RESUME_FROM", str(folder / "model-10.pt"))
    with pytest.raises(tm.CheckpointError, match=r"model-10\.pt does not exist"):
        tm.resume()


def test_resuming_is_reported_to_the_platform(folder: Path, tmp_path: Path) -> None:
    torch_file(folder / "model-5.pt")
    tm.resume()

    line = json.loads((tmp_path / "report.jsonl").read_text())
    assert line == {"kind": "event", "reason": "goes on from model-5.pt at step 5 (torch)"}


def test_nothing_is_resumed_where_nothing_was_written(alone: Path) -> None:
    assert tm.resume() is None
    assert tm.find_checkpoint("/nonexistent") is None
