"""Attempts of jobs and their replicas, and the views of their rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import Path, Query
from pydantic import Field
from trainmaster.wire.base import Page
from trainmaster.wire.jobs import AttemptView, ExitView, ReplicaView

from api.app.unit_of_work import AppContextDep, UnitOfWork
from api.auth import JobAccess, JobViewer
from api.http.paging import PageParams, PageQuery, cut, make_cursor, read_cursor
from api.http.routing import new_router
from core.db.repositories.jobs import (
    attempt_by_number,
    attempts_of_job,
    bare_attempt,
    replica_by_name,
    replicas_of_attempt,
)
from core.db.tables import Attempt, Replica
from core.domain.contracts.context import ranked_roles
from core.domain.errors import NotFound
from core.domain.jobs.progress_rate import progress_view
from core.domain.jobs.states import ReplicaState

router = new_router("attempts", "/jobs/{job}/attempts")

_NUMBER_LIMIT: Final = 2**31 - 1  # the column's
_REPLICA: Final = re.compile(r"(.+)-(0|[1-9][0-9]{0,6})")

Number = Annotated[int, Path(ge=1, le=_NUMBER_LIMIT)]


class AttemptQuery(PageQuery):
    """Filter of a job's attempts."""

    after: Annotated[int, Field(ge=0, le=_NUMBER_LIMIT, description="Only attempts with larger numbers.")] = 0


@router.get("", operation_id="list_attempts", summary="The attempts of a job, oldest first")
def list_attempts(job: JobViewer, context: AppContextDep, query: Annotated[AttemptQuery, Query()]) -> Page[AttemptView]:
    after = query.after if query.cursor is None else _number_in(query.cursor)
    with context.read() as work:
        found = attempts_of_job(work.session, job.load(work.session).id, after=after, limit=query.limit + 1)
        rows, has_more = cut(found, query.limit)
        items = [attempt_view(*row) for row in rows]
    return Page(items=items, next_cursor=make_cursor(items[-1].number) if has_more else None)


@router.get("/{number}", operation_id="get_attempt", summary="One attempt with its replicas")
def get_attempt(job: JobViewer, number: Number, context: AppContextDep) -> AttemptView:
    with context.read() as work:
        row = job.load(work.session)
        found = attempt_by_number(work.session, row.id, number)
        if found is None:
            raise _no_attempt(job, number, row.attempt_count)
        return attempt_view(*found)


@router.get("/{number}/replicas", operation_id="list_replicas", summary="The replicas of one attempt, in rank order")
def list_replicas(job: JobViewer, number: Number, context: AppContextDep, page: PageParams) -> Page[ReplicaView]:
    after = -1 if page.cursor is None else _number_in(page.cursor)
    with context.read() as work:
        attempt = _attempt(work, job, number)
        found = replicas_of_attempt(work.session, attempt.id, after=after, limit=page.limit + 1)
        rows, has_more = cut(found, page.limit)
        items = _replica_views(attempt, rows)
    return Page(items=items, next_cursor=make_cursor(rows[-1].rank) if has_more else None)


@router.get("/{number}/replicas/{name}", operation_id="get_replica", summary="One replica of one attempt")
def get_replica(job: JobViewer, number: Number, name: str, context: AppContextDep) -> ReplicaView:
    """`name` is `<role>-<index>`, such as `worker-0`."""
    with context.read() as work:
        attempt = _attempt(work, job, number)
        parts = _REPLICA.fullmatch(name)
        found = replica_by_name(work.session, attempt.id, parts[1], int(parts[2])) if parts else None
        if found is None:
            raise NotFound(f"Attempt {number} of job {job.ref!r} has no replica {name!r}; `GET …/replicas` lists them.")
        return _replica_views(attempt, [found])[0]


def _attempt(work: UnitOfWork, job: JobAccess, number: int) -> Attempt:
    row = job.load(work.session)
    attempt = bare_attempt(work.session, row.id, number)
    if attempt is None:
        raise _no_attempt(job, number, row.attempt_count)
    return attempt


def _no_attempt(job: JobAccess, number: int, count: int) -> NotFound:
    return NotFound(f"Job {job.ref!r} has no attempt {number}; it has {count}.")


def _number_in(cursor: str) -> int:
    (number,) = read_cursor(cursor, (int,))
    return max(0, min(int(number), _NUMBER_LIMIT))


def attempt_view(attempt: Attempt, replicas: Sequence[Replica]) -> AttemptView:
    return AttemptView(
        id=attempt.id,
        number=attempt.number,
        state=attempt.state,
        executor=attempt.executor,
        world=attempt.world,
        world_reason=attempt.world_reason,
        resume_from=attempt.resume_from,
        end=exit_view(attempt.end),
        is_counted=attempt.counts_as_restart,
        created_at=attempt.created_at,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        replicas=_replica_views(attempt, replicas),
    )


def _replica_views(attempt: Attempt, replicas: Sequence[Replica]) -> list[ReplicaView]:
    """Views of some of the attempt's replicas, with addresses and ranks from the attempt's layout."""
    layout = attempt.layout or ()
    addresses = {(member["role"], member["index"]): f"{member['host']}:{member['ports'][0]}" for member in layout}
    ranked = ranked_roles(member["role"] for member in layout)
    ranks = {name: rank for rank, name in enumerate(name for name in addresses if name[0] in ranked)}
    return [
        _replica_view(replica, addresses.get(name), ranks.get(name))
        for replica in replicas
        for name in [(replica.role, replica.index)]
    ]


def _replica_view(replica: Replica, address: str | None, rank: int | None) -> ReplicaView:
    return ReplicaView(
        role=replica.role,
        index=replica.index,
        rank=rank,
        state=replica.state,
        generation=replica.generation,
        node=replica.node,
        gpus=[str(gpu) for gpu in replica.gpus],
        gpu_part=replica.gpu_milli / 1000 if replica.gpu_milli else None,
        address=address,
        exit=exit_view(replica.exit),
        detail=replica.detail,
        facts=replica.facts,
        started_at=replica.started_at,
        ended_at=replica.ended_at,
        heartbeat_at=replica.heartbeat_at,
        progress=progress_view(replica.progress, is_running=replica.state == ReplicaState.RUNNING),
    )


def exit_view(stored: Mapping[str, Any] | None) -> ExitView | None:
    """How a replica or an attempt ended, as the control loop stored it; ``kind`` and ``sentence`` are always set."""
    if not stored:
        return None
    return ExitView(
        kind=str(stored.get("kind") or stored.get("cause") or "platform"),
        sentence=str(stored.get("sentence", "")),
        exit_code=stored.get("exit_code"),
        role=stored.get("role"),
        index=stored.get("index"),
    )
