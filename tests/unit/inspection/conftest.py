from __future__ import annotations

from pathlib import Path

import pytest

from core.inspection.formats.detection import open_checkpoint
from core.inspection.model import CheckpointContents, Tensor
from core.inspection.statistics import blocks, statistics
from core.storage.tree import Tree


class Look:
    """``look("model.pt")`` opens it, ``values("fc.weight")`` are its elements."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.contents = CheckpointContents("")

    def __call__(self, path: str) -> CheckpointContents:
        self.contents = open_checkpoint(Tree(self.folder), path)
        return self.contents

    def tensor(self, name: str) -> Tensor:
        return next(tensor for tensor in self.contents.tensors if tensor.name == name)

    def values(self, name: str) -> list[float]:
        return [float(value) for block in blocks(self.tensor(name)) for value in block]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {tensor.name: tensor.shape for tensor in self.contents.tensors}

    def statistics(self, name: str) -> dict[str, object]:
        return statistics(self.tensor(name))


@pytest.fixture
def look(tmp_path: Path) -> Look:
    return Look(tmp_path)
