"""Reads the metadata of ``torch.distributed.checkpoint``, without executing code of its pickle."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Dict, Tuple

METADATA_FILE = ".metadata"


class _Record:
    """A passive stand-in for any object of torch: its arguments and its state."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {"state": state})

    def __setitem__(self, key: Any, value: Any) -> None:
        """Ignore entries of torch's own mappings; they are not needed."""

    def append(self, value: Any) -> None:
        """Ignore items of lists, too."""

    def __hash__(self) -> int:
        return id(self)


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        del module, name
        return _Record


def is_whole(folder: Path) -> bool:
    """Whether the files have all bytes that the metadata lists. The metadata itself is written last."""
    try:
        ends = _ends(folder / METADATA_FILE)
        return all((folder / name).stat().st_size >= end for name, end in ends.items())
    except OSError:
        return False
    except Exception:  # noqa: BLE001 (a damaged pickle may raise anything)
        return False


def _ends(path: Path) -> Dict[str, int]:
    """The end of the stored data in each file."""
    with open(path, "rb") as file:
        metadata = _Reader(file).load()
    ends: Dict[str, int] = {}
    for info in metadata.storage_data.values():
        name, begin, length = _extent(info)
        ends[name] = max(ends.get(name, 0), begin + length)
    return ends


def _extent(info: Any) -> Tuple[str, int, int]:
    return str(info.relative_path), int(info.offset), int(info.length)
