"""The manifest of a checkpoint: its files with sizes and hashes, by which a reader detects damage."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any, Collection, Dict, Mapping, Optional

from trainmaster_train.checkpoint.errors import CheckpointError

MANIFEST_FILE = "manifest.json"

_BLOCK_BYTES = 4 * 2**20


def make(folder: Path, known: Optional[Mapping[str, str]] = None) -> Dict[str, Any]:
    """The manifest of the current files in ``folder``.

    Args:
        known: SHA-256 of files by their path in the folder, computed by their writers; these are not read again.
    """
    digests = known or {}
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            name = path.relative_to(folder).as_posix()
            files[name] = {"size_bytes": path.stat().st_size, "sha256": digests.get(name) or digest(path)}
    return {"version": 1, "files": files}


def check(folder: Path, *, hashes: bool = True, only: Optional[Collection[str]] = None) -> None:
    """Compare the files of a complete checkpoint with its manifest; one without a manifest passes.

    Args:
        hashes: also read the files; otherwise only their sizes are compared.
        only: the files to check, by their path in the folder; ``None``: all.

    Raises:
        CheckpointError: a file is missing, damaged or cannot be read; the message names it.
    """
    for name, expected in _read(folder).items():
        path = folder / name
        if only is not None and name not in only:
            continue
        try:
            size = path.stat().st_size
            if size != expected["size_bytes"]:
                raise CheckpointError(
                    f"{path}: is damaged: {size} bytes instead of {expected['size_bytes']}; choose another checkpoint"
                )
            if hashes and digest(path) != expected["sha256"]:
                raise CheckpointError(
                    f"{path}: is damaged: its content is not what was written; choose another checkpoint"
                )
        except FileNotFoundError as error:
            raise CheckpointError(f"{path}: is missing from the checkpoint; choose another one") from error
        except OSError as error:
            raise _unreadable(path, error) from error


def digest(path: Path) -> str:
    """SHA-256 of a file's content, as hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            block = file.read(_BLOCK_BYTES)
            if not block:
                return digest.hexdigest()
            digest.update(block)


def _read(folder: Path) -> Dict[str, Dict[str, Any]]:
    path = folder / MANIFEST_FILE
    try:
        files = json.loads(path.read_text(encoding="utf-8"))["files"]
        return {name: {"size_bytes": int(of["size_bytes"]), "sha256": str(of["sha256"])} for name, of in files.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{path}: is damaged; choose another checkpoint") from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"{path}: cannot be read ({error.strerror or error}); choose another checkpoint")


class HashedFile:
    """A new file that computes its SHA-256 while it is written, so that it need not be read again.

    ``error``: of the file system. It is stored instead of raised, and later data are dropped: an exception that passes
    through torch's C++ while another thread runs may dead-lock, and otherwise arrives without its cause.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self._digest = hashlib.sha256()
        self.error: Optional[OSError] = None

    def write(self, data: Any) -> int:
        remaining = memoryview(data).cast("B")
        size = len(remaining)
        if self.error is None:
            self._digest.update(remaining)
            try:
                while remaining:
                    remaining = remaining[os.write(self._file, remaining) :]
            except OSError as error:
                self.error = error
        return size

    def flush(self) -> None:
        """Writes are not buffered."""

    def check(self) -> None:
        """Raise the stored error, if any."""
        if self.error is not None:
            raise self.error

    def hexdigest(self) -> str:
        return self._digest.hexdigest()

    def close(self) -> None:
        os.close(self._file)
