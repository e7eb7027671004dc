"""The file system of a TensorBoard: only the event files below some jobs' outputs.

Users control event files and their folders: a symbolic link may lead to another project's output or to the platform's
key, and TensorBoard would follow it. Hence all its reads go through :class:`Tree`, which does not follow links, and it
gets no other file system. The methods below are TensorBoard's own file system interface.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from core.domain.errors import TrainmasterError
from core.storage.tree import Tree

SCHEME: Final = "job"
# Folders without event files: the platform's own folder, and model files, which may be many.
_IGNORED: Final = frozenset({".trainmaster", "mlflow"})
_NAME_LIMIT: Final = 20_000  # of one folder
_DEPTH_LIMIT: Final = 12
_READ_LIMIT_BYTES: Final = 64 * 2**20  # bytes at once


@dataclass(frozen=True, slots=True)
class Length:
    """The part of stat(2) that TensorBoard uses."""

    length: int


class EventFileSystem:
    """``job://<number>/…``: the event files below output number ``<number>``."""

    def __init__(self, trees: Mapping[str, Tree], errors: Any) -> None:
        """``errors``: TensorBoard's error module, whose exceptions its readers expect."""
        self._trees = trees
        self._errors = errors

    def exists(self, filename: str | bytes) -> bool:
        try:
            tree, path = self._place(filename)
            return tree.exists(path)
        except TrainmasterError:
            return False

    def isdir(self, dirname: str | bytes) -> bool:
        try:
            tree, path = self._place(dirname)
            return tree.stat(path).is_dir
        except TrainmasterError:
            return False

    def listdir(self, dirname: str | bytes) -> list[str]:
        """Folders and event files in order of name, without links to folders, which could form a cycle."""
        tree, path = self._place(dirname)
        if path.count("/") >= _DEPTH_LIMIT:
            return []
        found: list[str] = []
        try:
            with tree.open_folder(path) as fd, os.scandir(fd) as entries:
                for entry in entries:
                    if len(found) >= _NAME_LIMIT:
                        break
                    if entry.name in _IGNORED or not entry.name.isprintable():
                        continue
                    if entry.is_dir(follow_symlinks=False) or "tfevents" in entry.name:
                        found.append(entry.name)
        except TrainmasterError as error:
            self._missing(error)
        return sorted(found)

    def stat(self, filename: str | bytes) -> Length:
        try:
            tree, path = self._place(filename)
            return Length(tree.stat(path).size_bytes)
        except TrainmasterError as error:
            self._missing(error)

    def read(
        self,
        filename: str | bytes,
        binary_mode: bool = False,
        size: int | None = None,
        continue_from: Mapping[str, int] | None = None,
    ) -> tuple[bytes | str, dict[str, int]]:
        start = continue_from["offset"] if continue_from is not None else 0
        try:
            tree, path = self._place(filename)
            fd = tree.open_file(path)
        except TrainmasterError as error:
            self._missing(error)
        try:
            data = os.pread(fd, min(_READ_LIMIT_BYTES, _READ_LIMIT_BYTES if size is None else size), start)
        finally:
            os.close(fd)
        return data if binary_mode else data.decode("utf-8", "replace"), {"offset": start + len(data)}

    def join(self, path: str, *paths: str) -> str:
        return posixpath.join(path, *paths)

    def glob(self, filename: object) -> list[str]:  # noqa: ARG002 (used for checkpoints only)
        return []

    def _place(self, filename: str | bytes) -> tuple[Tree, str]:
        text = filename.decode("utf-8", "surrogateescape") if isinstance(filename, bytes) else filename
        # Paths that went through os.path lose a slash.
        number, _, path = text.removeprefix(f"{SCHEME}:").lstrip("/").partition("/")
        tree = self._trees.get(number)
        if tree is None or not text.startswith(f"{SCHEME}:"):
            raise self._errors.NotFoundError(None, None, "there are event files of jobs alone")
        return tree, path

    def _missing(self, error: TrainmasterError) -> NoReturn:
        raise self._errors.NotFoundError(None, None, error.sentence) from error


class EmptyFileSystem:
    """Replaces the local disk, which paths in event folders may name: it is empty."""

    def __init__(self, errors: Any) -> None:
        self._errors = errors

    def exists(self, filename: object) -> bool:  # noqa: ARG002
        return False

    def isdir(self, dirname: object) -> bool:  # noqa: ARG002
        return False

    def glob(self, filename: object) -> list[str]:  # noqa: ARG002
        return []

    def join(self, path: str, *paths: str) -> str:
        return posixpath.join(path, *paths)

    def __getattr__(self, name: str) -> Any:
        def refuse(*_: object, **__: object) -> NoReturn:
            raise self._errors.NotFoundError(None, None, "there are event files of jobs alone")

        return refuse
