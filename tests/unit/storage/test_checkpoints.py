from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import pytest

from core.storage.checkpoints import newest_complete, step_in


def put(path: Path, data: bytes = b"weights", at: float = 1000.0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (at, at))


def test_no_output_and_no_checkpoints_give_none(tmp_path: Path) -> None:
    assert newest_complete(tmp_path / "missing") is None
    assert newest_complete(tmp_path) is None


def test_the_largest_step_is_the_newest_whatever_was_written_last(tmp_path: Path) -> None:
    put(tmp_path / "checkpoints/step-90.pt", at=3000)
    put(tmp_path / "checkpoints/step-100.pt", at=2000)
    put(tmp_path / "checkpoints/last.ckpt", at=4000)
    found = newest_complete(tmp_path)
    assert found is not None
    assert (found.path, found.step, found.size_bytes) == ("checkpoints/step-100.pt", 100, 7)
    assert found.modified_at == datetime.fromtimestamp(2000, UTC)


def test_without_steps_the_last_written_is_the_newest(tmp_path: Path) -> None:
    put(tmp_path / "checkpoints/best.pt", at=2000)
    put(tmp_path / "checkpoints/last.pt", at=3000)
    found = newest_complete(tmp_path)
    assert found is not None
    assert found.path == "checkpoints/last.pt"


def test_since_a_moment_only_what_was_complete_later_counts(tmp_path: Path) -> None:
    put(tmp_path / "checkpoints/step-300.pt", at=2000)
    put(tmp_path / "checkpoints/step-100.pt", at=3000)
    found = newest_complete(tmp_path, since=datetime.fromtimestamp(2000, UTC))
    assert found is not None
    assert found.path == "checkpoints/step-100.pt"


def test_a_folder_counts_only_with_its_marker_and_its_files_do_not_count_alone(tmp_path: Path) -> None:
    put(tmp_path / "checkpoints/step-5/model.pt")
    put(tmp_path / "checkpoints/step-4/model.pt", b"12345678")
    put(tmp_path / "checkpoints/step-4/.complete", b"")
    found = newest_complete(tmp_path)
    assert found is not None
    assert (found.path, found.step, found.size_bytes, found.is_dir) == ("checkpoints/step-4", 4, 8, True)


@pytest.mark.parametrize("name", ["step-9.pt.tmp", "step-9.part", "step-9.txt", "step-9"])
def test_what_is_being_written_or_is_no_checkpoint_is_passed_over(tmp_path: Path, name: str) -> None:
    put(tmp_path / "checkpoints" / name)
    assert newest_complete(tmp_path) is None


def test_an_empty_file_is_not_complete(tmp_path: Path) -> None:
    put(tmp_path / "checkpoints/step-1.pt", b"")
    assert newest_complete(tmp_path) is None


def test_links_are_passed_over(tmp_path: Path) -> None:
    put(tmp_path / "elsewhere.pt")
    put(tmp_path / "checkpoints/step-1.pt")
    (tmp_path / "checkpoints/step-2.pt").symlink_to(tmp_path / "elsewhere.pt")
    (tmp_path / "checkpoints/step-3").symlink_to(tmp_path)
    found = newest_complete(tmp_path)
    assert found is not None
    assert found.path == "checkpoints/step-1.pt"


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step-100", 100),
        ("epoch=3-step=200.ckpt", 200),
        ("epoch_7.pt", 7),
        ("model-00012.h5", 12),
        ("resnet50-step10.pt", 10),
        ("last.ckpt", None),
        ("checkpoint-1500", 1500),
        ("9" * 30, None),
    ],
)
def test_the_step_is_read_from_the_name(name: str, step: int | None) -> None:
    assert step_in(name) == step
