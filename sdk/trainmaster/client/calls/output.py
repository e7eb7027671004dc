"""A job's logs and output files, and code archives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trainmaster.client.calls.build import params, path, typed
from trainmaster.client.steps import Call, HttpRequest, HttpResponse
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import (
    ArchiveView,
    FileEntry,
    LogSource,
    TensorBoardLinkView,
    TensorBoardRequest,
)

# Compressed responses support no ranges, and streams would be delayed by buffering.
PLAIN: Mapping[str, str] = {"Accept-Encoding": "identity"}


def list_log_sources_page(job: str, *, limit: int | None = None, cursor: str | None = None) -> Call[Page[LogSource]]:
    """One page of the log files of all attempts."""
    query = params(limit=limit, cursor=cursor)
    return typed(Page[LogSource], "list_logs", "GET", path("/jobs/{job}/logs", job=job), query=query)


def read_log(
    job: str,
    name: str,
    *,
    attempt: int | None = None,
    offset: int | None = None,
    limit_bytes: int | None = None,
    tail_lines: int | None = None,
) -> Call[str]:
    """The raw text of a log; ``name`` is ``<role>-<index>``. ``attempt``: default: the newest."""
    query = params(attempt=attempt, offset=offset, limit_bytes=limit_bytes, tail_lines=tail_lines)
    request = HttpRequest("GET", path("/jobs/{job}/logs/{name}", job=job, name=name), query)
    return Call("read_log", request, lambda answer: answer.content.decode("utf-8", errors="replace"))


def list_files_page(
    job: str, folder: str = "", *, limit: int | None = None, cursor: str | None = None
) -> Call[Page[FileEntry]]:
    """One page of the entries of ``folder`` in the job's output."""
    query = params(path=folder or None, limit=limit, cursor=cursor)
    return typed(Page[FileEntry], "list_files", "GET", path("/jobs/{job}/files", job=job), query=query)


def read_file_range(job: str, file: str, *, first: int | None = None, last: int | None = None) -> Call[HttpResponse]:
    """Bytes ``first`` to ``last`` (inclusive) of a file in the job's output; all bytes without ``first``."""
    headers = {**PLAIN}
    if first is not None:
        headers["Range"] = f"bytes={first}-{'' if last is None else last}"
    request = HttpRequest("GET", path("/jobs/{job}/files/content", job=job), params(path=file), headers)
    return Call("download_file", request, lambda answer: answer)


def open_tensorboard(jobs: Sequence[str]) -> Call[TensorBoardLinkView]:
    """A URL that shows these jobs in TensorBoard; it grants access without a token, for at most a day."""
    return typed(
        TensorBoardLinkView, "open_tensorboard", "POST", "/tensorboards", body=TensorBoardRequest(jobs=list(jobs))
    )


def start_archive(digest: str, size_bytes: int, *, project: str | None = None) -> Call[ArchiveView]:
    """Start or resume the upload of a code archive; ``received_bytes`` is the offset to continue from.

    Args:
        project: the archive counts against its storage quota; default: one of the caller's projects.
    """
    query = params(digest=digest, size=size_bytes, project=project)
    return typed(ArchiveView, "start_archive", "POST", "/archives", query=query, is_repeatable=True)


def get_archive(digest: str) -> Call[ArchiveView]:
    return typed(ArchiveView, "get_archive", "GET", path("/archives/{digest}", digest=digest))


def append_archive(digest: str, offset: int, chunk: bytes) -> Call[ArchiveView]:
    """Append ``chunk`` at ``offset``; rejected with 409 if the server expects another offset."""
    call = typed(
        ArchiveView, "append_archive", "PUT", path("/archives/{digest}", digest=digest), query=params(offset=offset)
    )
    headers = {"Content-Type": "application/octet-stream"}
    request = HttpRequest("PUT", call.request.path, call.request.params, headers, chunk)
    return Call(call.operation, request, call.decode)
