"""Waiting for model versions and downloading their files; outcomes of batch predictions."""

from __future__ import annotations

import hashlib
from functools import partial
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from trainmaster.client.calls import jobs
from trainmaster.client.calls import models as calls
from trainmaster.client.flows.transfer import Progress, copy_content, read_file
from trainmaster.client.steps import Flow, RunBlocking, poll
from trainmaster.errors import Conflict, LocalFileProblem, NotFound, ServerFailure
from trainmaster.wire.base import WireModel
from trainmaster.wire.models import FINAL_VERSION_STATES, VersionDetail, VersionFileView
from trainmaster.wire.serving import BatchOutcome

_ROLE: Final = "worker"
_PIECE: Final = 2**20
_NAMED: Final = 5  # files in a sentence


class _Summary(WireModel):
    """A replica's summary of its shards, including those of earlier runs."""

    predictions: int
    errors: int
    first_error: str = ""


def get_batch_outcome(job: str) -> Flow[BatchOutcome | None]:
    """The numbers of predictions and errors of a batch prediction job, and its output.

    ``None``: a replica's summary is missing: the job has not succeeded, or its image is older than this client.
    """
    detail = yield from jobs.get_job(job)
    count = detail.roles.get(_ROLE, 0)
    outcome = BatchOutcome(predictions=0, errors=0, output=detail.output)
    for index in range(count):
        try:
            content = yield from read_file(detail.id, f"summary-{index}-of-{count}.json")
            summary = _Summary.model_validate_json(content)
        except (NotFound, ValidationError):
            return None
        outcome = outcome.model_copy(
            update={
                "predictions": outcome.predictions + summary.predictions,
                "errors": outcome.errors + summary.errors,
                "first_error": outcome.first_error or summary.first_error,
            }
        )
    return outcome if count else None


def wait_for_version(
    project: str, model: str, version: int | str, *, timeout_s: float | None = None
) -> Flow[VersionDetail]:
    """Wait until the version is ready.

    Raises:
        Conflict: it has failed; the message says why.
        WaitTimedOut: neither within ``timeout_s``.
    """
    detail = yield from poll(
        lambda: calls.get_version(project, model, version),
        lambda detail: detail.state in FINAL_VERSION_STATES,
        lambda detail: f"Version {detail.version} of model {model!r} is still {detail.state}",
        timeout_s=timeout_s,
    )
    if detail.state == "failed":
        raise Conflict(f"Version {detail.version} of model {model!r} failed: {detail.reason}")
    return detail


def download_version(
    project: str,
    model: str,
    version: int | str,
    folder: Path | str,
    *,
    overwrite: bool = False,
    progress: Progress = lambda _done, _total: None,
) -> Flow[list[Path]]:
    """Download all files of the version to ``folder`` and verify their hashes; existing files are not downloaded again.

    Args:
        overwrite: whether to replace files of the same name with other content.

    Raises:
        Conflict: the version is not ready.
        LocalFileProblem: without ``overwrite``, a file of the same name has other content; nothing is downloaded then.
    """
    detail: VersionDetail = yield from calls.get_version(project, model, version)
    if detail.state != "ready":
        raise Conflict(f"Version {detail.version} of model {model!r} is {detail.state}. {detail.reason}".strip())
    files: list[VersionFileView] = []
    cursor: str | None = None
    while True:
        page = yield from calls.list_version_files_page(project, model, detail.version, limit=1000, cursor=cursor)
        files += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
    existing: dict[str, str | None] = {}
    for file in files:
        existing[file.path] = yield RunBlocking(partial(_hash_of, Path(folder) / file.path))
    changed = [file.path for file in files if existing[file.path] not in (None, file.sha256)]
    if changed and not overwrite:
        raise _in_the_way(Path(folder), changed)
    total, done = sum(file.size_bytes for file in files), 0
    copied: list[Path] = []
    for file in files:
        target = Path(folder) / file.path
        if existing[file.path] != file.sha256:
            yield RunBlocking(partial(_make_folder, target.parent))
            read = partial(calls.read_version_file_range, project, model, detail.version, file.path)
            yield from copy_content(read, file.path, target, progress=partial(_add_progress, progress, done, total))
            if (yield RunBlocking(partial(_hash_of, target))) != file.sha256:
                yield RunBlocking(partial(target.unlink, missing_ok=True))
                raise ServerFailure(f"{file.path} does not have its registered hash; download it again.")
        done += file.size_bytes
        progress(done, total)
        copied.append(target)
    return copied


def _in_the_way(folder: Path, names: list[str]) -> LocalFileProblem:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return LocalFileProblem(
        f"{folder.absolute()} has other content in {', '.join(names[:_NAMED])}{more}: name another folder, or "
        "overwrite the files (`--overwrite`; overwrite=True in Python)."
    )


def _add_progress(progress: Progress, before: int, total: int, done: int, _of_file: int) -> None:
    progress(before + done, total)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LocalFileProblem(f"{folder} cannot be created: {error.strerror}.") from error


def _hash_of(path: Path) -> str | None:
    """SHA-256 in hexadecimal digits; ``None`` if the file does not exist."""
    try:
        with path.open("rb") as file:
            digest = hashlib.sha256()
            while piece := file.read(_PIECE):
                digest.update(piece)
            return digest.hexdigest()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise LocalFileProblem(f"{path} cannot be read: {error.strerror}.") from error
