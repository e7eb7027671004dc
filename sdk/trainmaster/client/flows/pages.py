"""Lists of any length, page by page."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TypeVar

from trainmaster.client.calls import jobs as calls
from trainmaster.client.calls.output import list_files_page
from trainmaster.client.steps import Call, Emit, Flow
from trainmaster.wire.base import Page

T = TypeVar("T")


def all_pages(page_at: Callable[[str | None], Call[Page[T]]], *, limit: int | None = None) -> Flow[None]:
    """Emit the items of all pages, at most ``limit``; the next page is asked for when it is needed."""
    cursor: str | None = None
    left = limit
    while True:
        page = yield from page_at(cursor)
        for item in page.items:
            if left is not None and left <= 0:
                return
            yield Emit(item)
            left = None if left is None else left - 1
        cursor = page.next_cursor
        if cursor is None or (left is not None and left <= 0):
            return


def list_jobs(
    *,
    project: str | None = None,
    state: Iterable[str] = (),
    label: Iterable[str] = (),
    role: str | None = None,
    name: str | None = None,
    user: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    search: str | None = None,
    limit: int | None = None,
) -> Flow[None]:
    """All jobs that fit, newest first.

    Args:
        project: unstated, all that the caller may see.
        state: any of these.
        label: each ``key=value``; all must hold.
        limit: at most so many.
    """
    states, labels = list(state), list(label)
    return all_pages(
        lambda cursor: calls.list_jobs_page(
            project=project,
            state=states,
            label=labels,
            role=role,
            name=name,
            user=user,
            since=since,
            until=until,
            search=search,
            limit=None if limit is None else min(limit, 200),
            cursor=cursor,
        ),
        limit=limit,
    )


def list_attempts(job: str, *, after: int | None = None) -> Flow[None]:
    """The launches of the gang, oldest first, with their replicas. ``after``: only those with larger numbers."""
    return all_pages(lambda cursor: calls.list_attempts_page(job, after=after, cursor=cursor))


def list_job_events(job: str, *, after: int | None = None, limit: int | None = None) -> Flow[None]:
    """The job's history so far, oldest first."""
    return all_pages(lambda cursor: calls.list_job_events_page(job, after=after, cursor=cursor), limit=limit)


def list_events(*, project: str | None = None, limit: int | None = None) -> Flow[None]:
    """The history of all visible jobs."""
    return all_pages(lambda cursor: calls.list_events_page(project=project, cursor=cursor), limit=limit)


def list_files(job: str, folder: str = "") -> Flow[None]:
    """The entries of ``folder`` below the job's output."""
    return all_pages(lambda cursor: list_files_page(job, folder, cursor=cursor))
