"""Checkpoints: listing, inspecting, comparing, retaining and deleting them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Literal, TypeVar

from trainmaster.client.calls.build import params, path, typed, without_content
from trainmaster.client.steps import Call
from trainmaster.wire.base import Page
from trainmaster.wire.checkpoints import (
    DifferencePage,
    RetentionRequest,
    RetentionView,
    TensorPage,
    TensorStatistics,
)
from trainmaster.wire.jobs import CheckpointView

T = TypeVar("T")

# A page of statistics takes the server some seconds, and a large tensor longer.
_PATIENCE_S: Final = 150.0


def list_checkpoints_page(
    job: str, *, incomplete: bool = False, limit: int | None = None, cursor: str | None = None
) -> Call[Page[CheckpointView]]:
    """One page of the job's checkpoints, newest first. ``incomplete``: include incomplete ones."""
    query = params(incomplete=incomplete or None, limit=limit, cursor=cursor)
    return typed(Page[CheckpointView], "list_checkpoints", "GET", path("/jobs/{job}/checkpoints", job=job), query=query)


def list_tensors_page(
    job: str,
    checkpoint: str,
    *,
    search: str = "",
    kind: Literal["weight", "optimizer"] | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[TensorPage]:
    """One page of the tensors of the checkpoint at this path. ``search``: part of the name."""
    query = params(path=checkpoint, search=search or None, kind=kind, limit=limit, cursor=cursor)
    return _with_long_timeout(typed(TensorPage, "list_tensors", "GET", _checkpoints_path(job, "/tensors"), query=query))


def list_tensor_statistics_page(
    job: str,
    checkpoint: str,
    *,
    tensors: Iterable[str] = (),
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[Page[TensorStatistics]]:
    """One page of statistics of these tensors (default: all), as many as the server computes within a moment."""
    query = params(path=checkpoint, tensor=tensors, limit=limit, cursor=cursor)
    return _with_long_timeout(
        typed(
            Page[TensorStatistics], "list_tensor_statistics", "GET", _checkpoints_path(job, "/statistics"), query=query
        )
    )


def diff_checkpoints_page(
    job: str,
    checkpoint: str,
    other: str,
    *,
    other_job: str | None = None,
    limit: int | None = None,
    cursor: str | None = None,
) -> Call[DifferencePage]:
    """One page of the differences from ``checkpoint`` to ``other`` (of ``other_job``, by default the same job)."""
    query = params(path=checkpoint, other=other, other_job=other_job, limit=limit, cursor=cursor)
    return _with_long_timeout(
        typed(DifferencePage, "diff_checkpoints", "GET", _checkpoints_path(job, "/diff"), query=query)
    )


def delete_checkpoint(job: str, checkpoint: str) -> Call[None]:
    """Delete a checkpoint. Rejected if it is pinned or in use."""
    return without_content("delete_checkpoint", "DELETE", _checkpoints_path(job, ""), query=params(path=checkpoint))


def keep_checkpoint(job: str, checkpoint: str) -> Call[None]:
    """Pin a checkpoint: neither retention nor users delete it until it is released."""
    return without_content("keep_checkpoint", "PUT", _checkpoints_path(job, "/kept"), query=params(path=checkpoint))


def release_checkpoint(job: str, checkpoint: str) -> Call[None]:
    return without_content(
        "release_checkpoint", "DELETE", _checkpoints_path(job, "/kept"), query=params(path=checkpoint)
    )


def get_retention(job: str) -> Call[RetentionView]:
    """The retention policy of the job's checkpoints."""
    return typed(RetentionView, "get_retention", "GET", _checkpoints_path(job, "/retention"))


def set_retention(
    job: str,
    *,
    last: int | None = None,
    best: int | None = None,
    metric: str | None = None,
    mode: Literal["min", "max"] = "min",
    every: int | None = None,
) -> Call[RetentionView]:
    """Retain the checkpoints selected by any of these rules; the platform deletes the other complete checkpoints.

    Args:
        last: number of newest checkpoints.
        best: number of best checkpoints by ``metric``; ``mode``: whether a small or a large value is better.
        every: checkpoints whose step is a multiple of this number.
    """
    body = RetentionRequest(last=last, best=best, metric=metric, mode=mode, every=every)
    return typed(RetentionView, "set_retention", "PUT", _checkpoints_path(job, "/retention"), body=body)


def clear_retention(job: str) -> Call[None]:
    """Retain all checkpoints."""
    return without_content("clear_retention", "DELETE", _checkpoints_path(job, "/retention"))


def _checkpoints_path(job: str, below: str) -> str:
    return path("/jobs/{job}/checkpoints", job=job) + below


def _with_long_timeout(call: Call[T]) -> Call[T]:
    return replace(call, request=replace(call.request, read_timeout_s=_PATIENCE_S))
