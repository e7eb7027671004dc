"""Reads what ``torch.distributed.checkpoint`` says of its files, without running what a pickle may hold."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Dict, Tuple

METADATA_FILE = ".metadata"


class _Record:
    """Stands for any object of torch: its arguments and its state, and nothing that does anything."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state if isinstance(state, dict) else {"state": state})

    def __setitem__(self, key: Any, value: Any) -> None:
        """Entries of mappings of torch's own; nothing here asks for them."""

    def append(self, value: Any) -> None:
        """The same of lists."""

    def __hash__(self) -> int:
        return id(self)


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        del module, name
        return _Record


def is_whole(folder: Path) -> bool:
    """Whether every byte that the metadata names is in the folder's files. The metadata itself is written last."""
    try:
        ends = _ends(folder / METADATA_FILE)
        return all((folder / name).stat().st_size >= end for name, end in ends.items())
    except OSError:
        return False
    except Exception:  # noqa: BLE001 (a damaged pickle fails in any way)
        return False


def _ends(path: Path) -> Dict[str, int]:
    """The last byte of each file that something is stored in."""
    with open(path, "rb") as file:
        metadata = _Reader(file).load()
    ends: Dict[str, int] = {}
    for info in metadata.storage_data.values():
        name, begin, length = _extent(info)
        ends[name] = max(ends.get(name, 0), begin + length)
    return ends


def _extent(info: Any) -> Tuple[str, int, int]:
    return str(info.relative_path), int(info.offset), int(info.length)
