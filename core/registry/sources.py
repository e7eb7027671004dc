"""Sources of registered versions, in a job's output or an upload: the files, found and checked before copying."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from core.domain.errors import Conflict, InvalidRequest, NotFound
from core.inspection.discovery import checkpoint_at
from core.storage.registry import PlannedFile, format_of_files, plan_files
from core.storage.tree import Tree, split_path

# Where training scripts save their model: AIP_MODEL_DIR, below the output.
MODEL_FOLDER: Final = "model"
_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class SourceRequest:
    """``path``: in the output, by default its folder ``model``. ``checkpoint``: one of its checkpoints instead."""

    path: str | None = None
    checkpoint: str | None = None

    @property
    def kind(self) -> str:
        return "output" if self.checkpoint is None else "checkpoint"


@dataclass(frozen=True, slots=True)
class UploadedSource:
    """Files not written by a job of ours. ``base``: the folder of the volume that no link may leave, empty: all of it;
    ``path``: of a file or folder below it.
    """

    KIND: ClassVar[str] = "upload"

    volume: str
    base: str
    path: str

    @property
    def location(self) -> str:
        """volume/path."""
        return "/".join(part for part in (self.volume, self.base, self.path) if part)

    def to_json(self) -> dict[str, str]:
        return {"kind": self.KIND, "volume": self.volume, "base": self.base, "path": self.path}

    @classmethod
    def of_json(cls, source: Mapping[str, Any]) -> UploadedSource:
        return cls(source["volume"], source["base"], source["path"])


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """``path``: relative to the output. ``step``: a checkpoint's."""

    path: str
    format: str
    step: int | None
    files: list[PlannedFile]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


def find_source(
    output: Tree, request: SourceRequest, *, reported: Collection[str], trial: int | None, limit_bytes: int
) -> PlannedSource:
    """The files to register. Nothing is read but the end of torch files, to tell their kind.

    Args:
        reported: the checkpoints that the job reported as complete.
        trial: the job's number in its study: then the folder is below one of that name.

    Raises:
        Conflict: the checkpoint is not complete.
        NotFound, InvalidRequest, PayloadTooLarge: as ``plan_files``.
    """
    if request.checkpoint is not None:
        landed = checkpoint_at(output, "/".join(split_path(request.checkpoint, field="checkpoint")))
        if not landed.is_complete and not (landed.is_dir and landed.path in reported):
            raise Conflict(
                f"{landed.path} is not complete: {landed.problem} Choose another checkpoint.", field="checkpoint"
            )
        files = plan_files(output, landed.parts, limit_bytes=limit_bytes)
        return PlannedSource(landed.path, landed.format, landed.step, files)
    path = _default(output, trial) if request.path is None else "/".join(split_path(request.path)) or "."
    try:
        files = plan_files(output, (path,), limit_bytes=limit_bytes)
    except NotFound as error:
        raise NotFound(
            f"{error.sentence.removesuffix('.')} in the job's output{_there(output)}", field="path"
        ) from error
    return PlannedSource(path, format_of_files(output, files), None, files)


def find_below(base: Tree, path: str, *, limit_bytes: int) -> PlannedSource:
    """The same for an upload. Raises like ``plan_files``."""
    files = plan_files(base, (path or ".",), limit_bytes=limit_bytes)
    return PlannedSource(path, format_of_files(base, files), None, files)


def _default(output: Tree, trial: int | None) -> str:
    for path in (MODEL_FOLDER, *([f"{trial}/{MODEL_FOLDER}"] if trial is not None else [])):
        try:
            if output.stat(path).is_dir:
                return path
        except NotFound:
            continue
    names = _names(output)
    if not names:
        raise InvalidRequest(
            f"The job has written nothing to its output: let its script save the model below $AIP_MODEL_DIR, "
            f"its output's folder {MODEL_FOLDER}.",
            field="path",
        )
    raise InvalidRequest(
        f"The job's output has no folder {MODEL_FOLDER}: let its script save the model there ($AIP_MODEL_DIR), or name "
        f"what to register by its path{_among(names)}",
        field="path",
    )


def _there(output: Tree) -> str:
    """The end of a message about something missing: what is there."""
    names = _names(output)
    return _among(names) if names else ": the job has written nothing there."


def _names(output: Tree) -> list[str]:
    try:
        return sorted(name for name in output.names() if not name.startswith("."))
    except NotFound:
        return []


def _among(names: list[str]) -> str:
    return f"; there are {', '.join(names[:_SHOWN])}{' and more' if len(names) > _SHOWN else ''}."
