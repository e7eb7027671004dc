"""The example's reading of CIFAR-10's binary files, and the maker of small ones."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

EXAMPLES = Path(__file__).parents[3] / "examples"
RECORD = 3073


def load(script: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"cifar10_{Path(script).stem}", EXAMPLES / script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def train() -> Any:
    return load("cifar10/train.py")


def test_made_files_are_read_back_record_by_record(train: Any, tmp_path: Path) -> None:
    load("data/make_cifar10.py").make_cifar10(tmp_path, 50)
    files = sorted(tmp_path.glob("data_batch_*.bin"))
    assert [file.stat().st_size for file in files] == [10 * RECORD] * 5
    pictures = train.read_all(files)
    assert pictures.images.shape == (50, 3, 32, 32)
    record = files[1].read_bytes()[3 * RECORD : 4 * RECORD]  # the 14th
    assert int(pictures.labels[13]) == record[0]
    assert bytes(pictures.images[13].flatten().tolist()) == record[1:]
    assert int(pictures.images[13, 2, 5, 7]) == record[1 + 2 * 1024 + 5 * 32 + 7]  # blue, row 5, column 7


def test_the_folder_of_the_unpacked_archive_is_found(train: Any, tmp_path: Path) -> None:
    assert train.folder_of(tmp_path) == tmp_path
    (tmp_path / "cifar-10-batches-bin").mkdir()
    assert train.folder_of(tmp_path) == tmp_path / "cifar-10-batches-bin"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no whole number of records"),
        (bytes(RECORD + 1), "take the *binary* version"),
        (bytes([10]) + bytes(RECORD - 1), "files of CIFAR-100"),
        (None, "is missing"),
    ],
)
def test_a_file_that_is_not_cifar_10_gives_a_clear_error(
    train: Any, tmp_path: Path, content: bytes | None, words: str
) -> None:
    file = tmp_path / "data_batch_1.bin"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SystemExit, match=words.replace("*", r"\*")):
        train.read_all([file])


def test_an_input_without_any_of_them_gives_an_error_too(train: Any) -> None:
    with pytest.raises(SystemExit, match="give the job the folder"):
        train.read_all([])
